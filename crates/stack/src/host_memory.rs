//! What a virtual drive asks its host's memory for, as options of the device string (docs/spec/hmb.md, "Options").

use crate::spec::SpecError;
use nvmed_flash::{Medium, Profile, TranslationProfile};
use nvmed_nvme::HmbIoSlots;
use nvmed_units::parse_bytes;
use nvmed_vdev::{ControllerConfig, HostMemoryConfig};

/// Bytes of a page of the buffer.
const PAGE_BYTES: u64 = 4096;
/// Descriptors that a drive uses, unless it is said: 64 MiB in the ranges of 4 MiB that Linux gives.
const ENTRIES_MAX: u16 = 16;

/// The options `hmb`, `hmb_min`, `hmb_entries`, `hmb_use` and `hmb_io_slots`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostMemoryKeys {
    /// `hmb=`: bytes that the drive would like; absent, it wants none.
    pub bytes: Option<u64>,
    /// `hmb_min=`: bytes with which it is content.
    pub bytes_min: Option<u64>,
    /// `hmb_entries=`: ranges that it uses, at most.
    pub entries_max: Option<u16>,
    /// `hmb_use=map:M+read:R+write:W`.
    pub shares: Option<HostMemoryShares>,
    /// `hmb_io_slots=`: slots for HMB-I/O that the drive offers; absent, it offers none.
    pub io_slots: Option<u16>,
}

/// What a drive uses its buffer for, in percent of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostMemoryShares {
    /// Pages of the map.
    pub map: u32,
    /// Units that were read.
    pub read: u32,
    /// Units that were written and are not programmed.
    pub write: u32,
}

impl HostMemoryKeys {
    pub(crate) fn set(&mut self, (key, value): (&str, &str)) -> Option<()> {
        match key {
            "hmb" => self.bytes = Some(pages(value)?),
            "hmb_min" => self.bytes_min = Some(pages(value)?),
            "hmb_entries" => self.entries_max = Some(value.parse().ok()?),
            "hmb_io_slots" => self.io_slots = Some(io_slots(value)?),
            "hmb_use" => self.shares = Some(shares(value)?),
            _ => return None,
        }
        Some(())
    }

    pub(crate) fn options(&self) -> Vec<String> {
        let mut options = Vec::new();
        options.extend(self.bytes.map(|bytes| format!("hmb={bytes}")));
        options.extend(self.bytes_min.map(|bytes| format!("hmb_min={bytes}")));
        options.extend(self.entries_max.map(|entries| format!("hmb_entries={entries}")));
        options.extend(self.shares.map(|HostMemoryShares { map, read, write }| {
            let write = if write == 0 { String::new() } else { format!("+write:{write}") };
            format!("hmb_use=map:{map}+read:{read}{write}")
        }));
        options.extend(self.io_slots.map(|slots| format!("hmb_io_slots={slots}")));
        options
    }

    /// Whether the options fit each other.
    ///
    /// # Errors
    /// [`SpecError::HostMemory`] says which do not.
    pub(crate) fn check(&self) -> Result<(), SpecError> {
        let wrong = |what| Err(SpecError::HostMemory { what });
        let Some(bytes) = self.bytes else {
            let is_alone = *self == Self::default();
            return if is_alone {
                Ok(())
            } else {
                wrong("it is missing, and says how much the others are of")
            };
        };
        if self.bytes_min.is_some_and(|least| least > bytes) {
            return wrong("`hmb_min` is more than that; give less");
        }
        if self.shares.is_some_and(|shares| shares.map + shares.read + shares.write > 100) {
            return wrong("`hmb_use` is more than 100 percent together; give less");
        }
        Ok(())
    }

    /// Lets the drive of a controller ask for what the options say.
    ///
    /// # Errors
    /// [`SpecError::HostMemory`]: it is no drive that could use it.
    pub(crate) fn ask(&self, config: &mut ControllerConfig) -> Result<(), SpecError> {
        let wrong = |what| Err(SpecError::HostMemory { what });
        let Some(bytes) = self.bytes else { return Ok(()) };
        let Some(translation) = translation(config.drive.as_ref()) else {
            return wrong(
                "only a drive of NAND uses its host's memory; name such a profile, or leave it out",
            );
        };
        let has_map_in_flash = translation.map_cache.is_some();
        let (map, read) = if has_map_in_flash { (100, 0) } else { (0, 100) };
        let shares = self.shares.unwrap_or(HostMemoryShares { map, read, write: 0 });
        if shares.write > 0 && translation.buffer_bytes == 0 {
            return wrong(
                "the drive has no write buffer, and programs each write before it completes; leave `write` out of \
                 `hmb_use`, or give its profile `buffer_mib`",
            );
        }
        if shares.map > 0 && !has_map_in_flash {
            return wrong(
                "the drive has its whole map in its own memory; leave `map` out of `hmb_use`, or give its profile \
                 `map_cache_bytes`",
            );
        }
        config.host_memory = Some(HostMemoryConfig {
            bytes,
            bytes_min: self.bytes_min.unwrap_or(PAGE_BYTES),
            entries_max: self.entries_max.unwrap_or(ENTRIES_MAX),
            map_percent: shares.map,
            read_percent: shares.read,
            write_percent: shares.write,
        });
        config.hmb_io_slots = self.io_slots.unwrap_or(0);
        Ok(())
    }
}

/// The translation layer of a drive of NAND; `None` of any other.
fn translation(drive: Option<&Profile>) -> Option<&TranslationProfile> {
    let Medium::Array(array) = &drive?.medium else { return None };
    array.translation.as_ref()
}

/// Bytes, of whole pages.
fn pages(text: &str) -> Option<u64> {
    let bytes = parse_bytes(text).ok()?;
    let fits =
        (PAGE_BYTES..=HostMemoryConfig::BYTES_MAX).contains(&bytes) && bytes.is_multiple_of(PAGE_BYTES);
    fits.then_some(bytes)
}

/// Slots, at least one.
fn io_slots(text: &str) -> Option<u16> {
    text.parse().ok().filter(|slots| (1..=HmbIoSlots::SLOTS_MAX).contains(slots))
}

/// Percents, as `map:60+read:30+write:10`; what is not said is 0.
fn shares(text: &str) -> Option<HostMemoryShares> {
    let (mut map, mut read, mut write) = (None, None, None);
    for part in text.split('+') {
        let (name, percent) = part.split_once(':')?;
        let percent = percent.parse().ok().filter(|&percent: &u32| percent <= 100)?;
        let place = match name {
            "map" => &mut map,
            "read" => &mut read,
            "write" => &mut write,
            _ => return None,
        };
        if place.replace(percent).is_some() {
            return None;
        }
    }
    let [map, read, write] = [map, read, write].map(|percent| percent.unwrap_or(0));
    Some(HostMemoryShares { map, read, write })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::DriveProfile;

    fn asked(profile: Option<&str>, options: &str) -> Result<HostMemoryConfig, String> {
        let mut keys = HostMemoryKeys::default();
        options.split(',').for_each(|option| keys.set(option.split_once('=').unwrap()).unwrap());
        let mut config = ControllerConfig::default();
        if let Some(name) = profile {
            DriveProfile::named(name).unwrap().give_drive(1 << 30, &mut config).unwrap();
        }
        keys.ask(&mut config).map_err(|error| error.to_string())?;
        Ok(config.host_memory.unwrap())
    }

    #[test]
    fn a_drive_asks_for_what_it_can_use() {
        let plain = asked(Some("tlc"), "hmb=64M").unwrap();
        let expected = HostMemoryConfig {
            bytes: 64 << 20,
            bytes_min: 4096,
            entries_max: 16,
            map_percent: 0,
            read_percent: 100,
            write_percent: 0,
        };
        assert_eq!(plain, expected);
        let all = asked(Some("tlc"), "hmb=1M,hmb_min=64K,hmb_entries=0,hmb_use=read:25").unwrap();
        assert_eq!((all.bytes_min, all.entries_max, all.read_percent), (65_536, 0, 25));
        let both = asked(Some("tlc"), "hmb=1M,hmb_use=write:60+read:40").unwrap();
        assert_eq!((both.map_percent, both.read_percent, both.write_percent), (0, 40, 60));
        for (profile, options, wanted) in [
            (None, "hmb=1M", "only a drive of NAND"),
            (Some("dram"), "hmb=1M", "only a drive of NAND"),
            (Some("tlc"), "hmb=1M,hmb_use=map:10+read:10", "leave `map` out of `hmb_use`"),
            (Some("dram"), "hmb=1M,hmb_use=write:10", "only a drive of NAND"),
        ] {
            let told = asked(profile, options).unwrap_err();
            assert!(told.contains(wanted), "{profile:?} with {options}: {told}");
        }
    }
}
