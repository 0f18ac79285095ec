//! The grants in force: which users get a session and on which tree, whose use is counted, which partitions are served.

use crate::error::{GrantError, InvalidGrant};
use crate::size::Size;
use crate::table::{PartitionGrant, Table, TreeGrant};
use nvmed_fs::{Credentials, FileSystem, FileType, Follow, FsError, Limits, Node, Object, Usage};
use nvmed_io::Device;
use nvmed_server::{Admitted, Gate, Peer};
use nvmed_stack::{PartitionOptions, ServedPartition};
use nvmed_sys::sync::{Arc, Mutex, MutexGuard};
use nvmed_units::BLOCK_BYTES;
use rustix::io::Errno;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Mode of directories on the way to a tree that a grant makes.
const WAY_MODE: u32 = 0o755;
/// Mode of a tree that a grant makes: its users', and its groups' where it has some.
const TREE_MODE: u32 = 0o700;
const GROUP_TREE_MODE: u32 = 0o770;

/// The ids of a process that wants a session.
#[derive(Clone, Copy, Debug)]
pub struct Asker<'a> {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: &'a [u32],
}

/// New limits for a grant; those that are absent stay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Quota {
    /// A tree's bytes; 0 lifts the limit.
    pub capacity: Option<Size>,
    /// A tree's inodes; 0 lifts the limit.
    pub inodes: Option<u64>,
    /// A partition's bytes a second; 0 lifts the limit.
    pub rate: Option<Size>,
}

struct State {
    table: Table,
    partitions: HashMap<String, ServedPartition>,
}

/// The grants of a served device.
pub struct Keeper {
    path: PathBuf,
    sockets: PathBuf,
    files: FileSystem,
    device: Arc<Device>,
    state: Mutex<State>,
    draining: AtomicBool,
    /// Changes of the table so far.
    changes: AtomicU64,
}

impl TreeGrant {
    fn is_for(&self, who: &Asker<'_>) -> bool {
        let in_group = |group: &u32| *group == who.gid || who.groups.contains(group);
        self.users.contains(&who.uid) || self.groups.iter().any(in_group)
    }

    fn limits(&self) -> Limits {
        let bytes = self.capacity.map(|capacity| capacity.0);
        let inodes = self.inodes.or(bytes.map(|bytes| bytes / BLOCK_BYTES as u64));
        Limits { bytes: bytes.unwrap_or(u64::MAX), inodes: inodes.unwrap_or(u64::MAX) }
    }
}

/// Whether a user owns the server: root does, and the user whose process it is. They reach the device itself.
#[must_use]
pub(crate) fn is_owner(uid: u32) -> bool {
    uid == 0 || uid == rustix::process::geteuid().as_raw()
}

impl Keeper {
    /// Puts the table at `path` in force, on a mounted file system and its device. Partitions get their sockets in the
    /// directory `sockets`.
    ///
    /// # Errors
    /// The table's; a partition that lies on the file system; what cannot be counted or served.
    pub fn open(
        path: &Path,
        sockets: &Path,
        files: &FileSystem,
        device: &Arc<Device>,
    ) -> Result<Self, GrantError> {
        let table = Table::load(path)?;
        let keeper = Self {
            path: path.to_owned(),
            sockets: sockets.to_owned(),
            files: files.clone(),
            device: Arc::clone(device),
            state: Mutex::new(State { table: Table::default(), partitions: HashMap::new() }),
            draining: AtomicBool::new(false),
            changes: AtomicU64::new(0),
        };
        keeper.check(&table)?;
        for tree in &table.trees {
            match keeper.bound(tree) {
                // It is bounded when it is there and somebody comes.
                Ok(_) | Err(FsError::NotFound) => {}
                Err(error) => return Err(tree_error(tree, error)),
            }
        }
        let mut state = keeper.state();
        for part in &table.partitions {
            let served = keeper.serve(part)?;
            state.partitions.insert(part.name.clone(), served);
        }
        state.table = table;
        drop(state);
        Ok(keeper)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    fn check(&self, table: &Table) -> Result<(), GrantError> {
        table.check()?;
        let fs_bytes = self.files.superblock().blocks * BLOCK_BYTES as u64;
        table.check_device(fs_bytes, self.device.geometry().bytes())
    }

    /// The file system as a process sees it that asks for the tree of this name, or, without a name, for the only tree
    /// that it may have.
    ///
    /// # Errors
    /// [`FsError::Access`] for a tree that is not granted to it, or that there is not; [`FsError::Invalid`] without a
    /// name, when it may have several; [`FsError::NotFound`] when the tree's directory is missing; `ESHUTDOWN` while
    /// the server is being drained.
    pub fn admit(&self, who: &Asker<'_>, tree: &[u8]) -> Result<Admitted, FsError> {
        if self.draining.load(Ordering::SeqCst) {
            return Err(FsError::Host(Errno::SHUTDOWN));
        }
        let owner = is_owner(who.uid);
        if owner && tree.is_empty() {
            return Ok(Admitted { files: self.files.clone(), tree: Arc::default(), may_be_urgent: true });
        }
        let grant = {
            let state = self.state();
            let mut fitting = state.table.trees.iter().filter(|grant| owner || grant.is_for(who));
            if tree.is_empty() {
                let only = fitting.next().ok_or(FsError::Access)?;
                if fitting.next().is_some() {
                    return Err(FsError::Invalid);
                }
                only.clone()
            } else {
                fitting.find(|grant| grant.name.as_bytes() == tree).ok_or(FsError::Access)?.clone()
            }
        };
        let root = self.bound(&grant)?;
        let files = self.files.rooted(&root, !grant.write)?;
        let may_be_urgent = owner || grant.urgent;
        Ok(Admitted { files, tree: grant.name.into(), may_be_urgent })
    }

    /// The directory of a tree. No symbolic link leads there: a user who may write above it could turn the link
    /// elsewhere.
    fn directory(&self, grant: &TreeGrant) -> Result<Node, FsError> {
        let mut at = self.files.root();
        for step in grant.steps() {
            at = self.files.lookup(&at, step.as_bytes(), Follow::No, &Credentials::ROOT)?;
        }
        if at.kind() == FileType::Directory { Ok(at) } else { Err(FsError::NotDirectory) }
    }

    /// The directory of a tree, whose use is counted if it is to be.
    fn bound(&self, grant: &TreeGrant) -> Result<Node, FsError> {
        let root = self.directory(grant)?;
        let limits = grant.limits();
        let differs =
            |usage: Usage| usage.limits.inodes != limits.inodes || usage.limits.bytes != blocks(limits.bytes);
        if grant.is_bounded() && self.files.usage(&root).is_none_or(differs) {
            self.files.bound_tree(&root, limits)?;
        }
        Ok(root)
    }

    /// Makes the directory of a tree where it is missing, and gives it to its first user and group.
    fn make(&self, grant: &TreeGrant) -> Result<(), FsError> {
        let root = Credentials::ROOT;
        let mut at = self.files.root();
        let mut made = false;
        for step in grant.steps() {
            made = match self.files.mkdir(&at, step.as_bytes(), WAY_MODE, &root) {
                Ok(()) => true,
                Err(FsError::Exists) => false,
                Err(error) => return Err(error),
            };
            at = self.files.lookup(&at, step.as_bytes(), Follow::No, &root)?;
        }
        if made {
            let (user, group) = (grant.users.first(), grant.groups.first());
            let mode = if group.is_some() { GROUP_TREE_MODE } else { TREE_MODE };
            self.files.chmod(Object::At(&at, b".", Follow::Yes), mode, &root)?;
            self.files.chown(Object::At(&at, b".", Follow::Yes), user.copied(), group.copied(), &root)?;
        }
        Ok(())
    }

    fn serve(&self, grant: &PartitionGrant) -> Result<ServedPartition, GrantError> {
        let options = PartitionOptions {
            name: grant.name.clone(),
            first: grant.first.0,
            bytes: grant.size.0,
            write: grant.write,
            queues: grant.queues,
            bytes_per_s: grant.rate.map(|rate| rate.0),
            socket: self.sockets.join(format!("{}.sock", grant.name)),
            user: Some(grant.user),
            group: grant.group,
        };
        Ok(ServedPartition::open(&self.device, options)?)
    }

    /// Grants a tree, or changes the grant of that name; its directory is made if it is missing.
    ///
    /// # Errors
    /// What is wrong with the grant; nothing has changed then but that the directory may be there.
    pub fn grant_tree(&self, grant: TreeGrant) -> Result<(), GrantError> {
        let mut state = self.state();
        let mut table = state.table.clone();
        table.trees.retain(|known| known.name != grant.name);
        table.trees.push(grant.clone());
        self.check(&table)?;
        self.make(&grant).map_err(|error| tree_error(&grant, error))?;
        let before = state.table.trees.iter().find(|known| known.name == grant.name);
        if let Some(before) = before.filter(|before| before.path != grant.path || !grant.is_bounded()) {
            self.unbound(before);
        }
        self.bound(&grant).map_err(|error| tree_error(&grant, error))?;
        table.store(&self.path)?;
        state.table = table;
        self.changed();
        Ok(())
    }

    /// Grants a partition, or changes the grant of that name: then its user's connection ends.
    ///
    /// # Errors
    /// What is wrong with the grant; nothing has changed then.
    pub fn grant_partition(&self, grant: PartitionGrant) -> Result<(), GrantError> {
        let mut state = self.state();
        let mut table = state.table.clone();
        table.partitions.retain(|known| known.name != grant.name);
        table.partitions.push(grant.clone());
        self.check(&table)?;
        // The old one goes first: its socket has the name.
        drop(state.partitions.remove(&grant.name));
        let served = self.serve(&grant).and_then(|served| table.store(&self.path).map(|()| served));
        match served {
            Ok(served) => {
                state.partitions.insert(grant.name, served);
                state.table = table;
                Ok(())
            }
            Err(error) => {
                let before = state.table.partitions.iter().find(|known| known.name == grant.name).cloned();
                if let Some(served) = before.and_then(|before| self.serve(&before).ok()) {
                    state.partitions.insert(grant.name, served);
                }
                Err(error)
            }
        }
    }

    /// Takes a grant away. A partition's user is disconnected when this returns; the caller has to end the sessions of
    /// a tree.
    ///
    /// # Errors
    /// [`GrantError::Unknown`]; the table's, and nothing has changed then.
    pub fn revoke(&self, name: &str) -> Result<(), GrantError> {
        let mut state = self.state();
        if !state.table.names().any(|known| known == name) {
            return Err(GrantError::Unknown { name: name.to_owned() });
        }
        let mut table = state.table.clone();
        table.trees.retain(|known| known.name != name);
        table.partitions.retain(|known| known.name != name);
        table.store(&self.path)?;
        if let Some(tree) = state.table.trees.iter().find(|known| known.name == name && known.is_bounded()) {
            self.unbound(tree);
        }
        drop(state.partitions.remove(name));
        state.table = table;
        self.changed();
        Ok(())
    }

    /// The caller has changed the grants: answers that were given before may be wrong from now on.
    fn changed(&self) {
        self.changes.fetch_add(1, Ordering::SeqCst);
    }

    /// Ends the counting of what a tree uses.
    fn unbound(&self, grant: &TreeGrant) {
        if grant.is_bounded()
            && let Ok(root) = self.directory(grant)
        {
            // What it holds was counted when it was bounded: there is nothing left that could fail.
            let _ = self.files.bound_tree(&root, Limits::NONE);
        }
    }

    /// Changes limits of a grant; those of trees hold at once for sessions that are there, a partition is served anew.
    ///
    /// # Errors
    /// [`GrantError::Unknown`], [`GrantError::Grant`]; the table's.
    pub fn quota(&self, name: &str, quota: &Quota) -> Result<(), GrantError> {
        let (tree, part) = {
            let state = self.state();
            let tree = state.table.trees.iter().find(|known| known.name == name).cloned();
            (tree, state.table.partitions.iter().find(|known| known.name == name).cloned())
        };
        let set = |size: Size| Some(size).filter(|size| size.0 > 0);
        match (tree, part) {
            (Some(_), _) if quota.rate.is_some() => {
                Err(GrantError::Grant { name: name.to_owned(), error: InvalidGrant::TreeRate })
            }
            (Some(mut tree), _) => {
                tree.capacity = quota.capacity.map_or(tree.capacity, set);
                tree.inodes =
                    quota.inodes.map_or(tree.inodes, |inodes| Some(inodes).filter(|inodes| *inodes > 0));
                self.grant_tree(tree)
            }
            (None, Some(_)) if quota.capacity.is_some() || quota.inodes.is_some() => {
                Err(GrantError::Grant { name: name.to_owned(), error: InvalidGrant::PartitionSize })
            }
            (None, Some(mut part)) => {
                part.rate = quota.rate.map_or(part.rate, set);
                self.grant_partition(part)
            }
            (None, None) => Err(GrantError::Unknown { name: name.to_owned() }),
        }
    }

    /// From now on refuses all new sessions and partitions.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::SeqCst);
        self.changed();
        self.state().partitions.clear();
    }

    /// Whether new sessions and partitions are refused.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::SeqCst)
    }

    /// The grants.
    #[must_use]
    pub fn table(&self) -> Table {
        self.state().table.clone()
    }

    /// What a tree uses, where it is counted.
    #[must_use]
    pub fn usage(&self, grant: &TreeGrant) -> Option<Usage> {
        self.directory(grant).ok().and_then(|root| self.files.usage(&root))
    }

    /// Commands and bytes of a partition's user so far: reads, writes, bytes read, bytes written.
    #[must_use]
    pub fn traffic(&self, name: &str) -> Option<[u64; 4]> {
        let counted = self.state().partitions.get(name)?.counters();
        Some([counted.reads, counted.writes, counted.bytes_read, counted.bytes_written])
    }

    /// The whole file system.
    #[must_use]
    pub fn files(&self) -> &FileSystem {
        &self.files
    }
}

impl Gate for Keeper {
    fn admit(&self, peer: &Peer, tree: &[u8]) -> Result<Admitted, FsError> {
        Self::admit(self, &Asker { uid: peer.uid, gid: peer.gid, groups: &peer.groups }, tree)
    }

    fn changes(&self) -> u64 {
        self.changes.load(Ordering::SeqCst)
    }
}

/// A limit as it is counted: whole blocks.
fn blocks(bytes: u64) -> u64 {
    bytes / BLOCK_BYTES as u64 * BLOCK_BYTES as u64
}

fn tree_error(grant: &TreeGrant, error: FsError) -> GrantError {
    GrantError::Tree { name: grant.name.clone(), path: grant.path.clone(), error }
}
