//! Whether grants make sense: each by itself, and all beside each other.

use crate::error::{GrantError, InvalidGrant};
use crate::table::{PartitionGrant, Table, TreeGrant};
use core::ops::Range;
use nvmed_stack::PartitionOptions;
use nvmed_units::BLOCK_BYTES;

/// Longest name of a grant: with the directory before it, a socket's path has at most 107 bytes.
pub(crate) const NAME_BYTES_MAX: usize = 48;

fn wrong(name: &str, error: InvalidGrant) -> GrantError {
    GrantError::Grant { name: name.to_owned(), error }
}

/// A name is part of a file's name, and of a configuration file's line.
fn check_name(name: &str) -> Result<(), GrantError> {
    let fine = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    let dots = name.starts_with('.') || name.starts_with('-');
    if name.is_empty() || name.len() > NAME_BYTES_MAX || dots || !name.bytes().all(fine) {
        return Err(wrong(name, InvalidGrant::Name));
    }
    Ok(())
}

impl TreeGrant {
    /// The names of its path.
    pub(crate) fn steps(&self) -> impl Iterator<Item = &str> {
        self.path.split('/').filter(|step| !step.is_empty())
    }

    fn check(&self) -> Result<(), GrantError> {
        check_name(&self.name)?;
        let plain = |step: &str| step != "." && step != ".." && !step.contains('\0');
        if !self.path.starts_with('/') || !self.steps().all(plain) {
            return Err(wrong(&self.name, InvalidGrant::Path { path: self.path.clone() }));
        }
        if self.users.is_empty() && self.groups.is_empty() {
            return Err(wrong(&self.name, InvalidGrant::Nobody));
        }
        if let Some(capacity) = self.capacity.filter(|capacity| capacity.0 < BLOCK_BYTES as u64) {
            return Err(wrong(&self.name, InvalidGrant::Capacity { bytes: capacity.0 }));
        }
        Ok(())
    }

    /// Whether its use is counted.
    pub(crate) fn is_bounded(&self) -> bool {
        self.capacity.is_some() || self.inodes.is_some()
    }
}

impl PartitionGrant {
    /// Its bytes on the device.
    pub(crate) fn range(&self) -> Range<u64> {
        self.first.0..self.first.0.saturating_add(self.size.0)
    }

    fn check(&self) -> Result<(), GrantError> {
        check_name(&self.name)?;
        let whole = [self.first.0, self.size.0].iter().all(|bytes| bytes.is_multiple_of(BLOCK_BYTES as u64));
        if self.size.0 == 0 || !whole || self.first.0.checked_add(self.size.0).is_none() {
            return Err(wrong(&self.name, InvalidGrant::Blocks { first: self.first.0, bytes: self.size.0 }));
        }
        if !(1..=255).contains(&self.queues) {
            return Err(wrong(&self.name, InvalidGrant::Queues { queues: self.queues }));
        }
        if let Some(rate) = self.rate.filter(|rate| rate.0 < PartitionOptions::RATE_MIN) {
            return Err(wrong(&self.name, InvalidGrant::Rate { bytes_per_s: rate.0 }));
        }
        Ok(())
    }
}

/// Whether one path is the other, or leads through it.
fn is_within(lower: &TreeGrant, upper: &TreeGrant) -> bool {
    let mut lower = lower.steps();
    upper.steps().all(|step| lower.next() == Some(step))
}

impl Table {
    /// Whether all of it makes sense.
    ///
    /// # Errors
    /// [`GrantError::Grant`] names the first that does not.
    pub fn check(&self) -> Result<(), GrantError> {
        self.trees.iter().try_for_each(TreeGrant::check)?;
        self.partitions.iter().try_for_each(PartitionGrant::check)?;
        let mut names: Vec<&str> = self.names().collect();
        names.sort_unstable();
        if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(wrong(pair[0], InvalidGrant::NameTaken));
        }
        let bounded: Vec<_> = self.trees.iter().filter(|tree| tree.is_bounded()).collect();
        for (index, one) in bounded.iter().enumerate() {
            let other =
                bounded[index + 1..].iter().find(|other| is_within(one, other) || is_within(other, one));
            if let Some(other) = other {
                return Err(wrong(&one.name, InvalidGrant::CountedTwice { other: other.name.clone() }));
            }
        }
        let mut parts: Vec<_> = self.partitions.iter().collect();
        parts.sort_by_key(|part| part.first);
        match parts.windows(2).find(|pair| pair[1].first.0 < pair[0].range().end) {
            Some(pair) => Err(wrong(&pair[1].name, InvalidGrant::Overlap { other: pair[0].name.clone() })),
            None => Ok(()),
        }
    }

    /// Whether the partitions lie on a device, behind its file system.
    ///
    /// # Errors
    /// [`GrantError::Grant`].
    pub fn check_device(&self, fs_bytes: u64, device_bytes: u64) -> Result<(), GrantError> {
        for part in &self.partitions {
            if part.first.0 < fs_bytes {
                return Err(wrong(&part.name, InvalidGrant::OverFileSystem { fs_bytes }));
            }
            if part.range().end > device_bytes {
                return Err(wrong(&part.name, InvalidGrant::OutOfRange { device_bytes }));
            }
        }
        Ok(())
    }

    /// All names.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        let trees = self.trees.iter().map(|tree| &*tree.name);
        trees.chain(self.partitions.iter().map(|part| &*part.name))
    }
}
