//! The keys of a configuration file: one row says what a key is called, how its value is read and how it is written.

use crate::config::{
    Behind, CACHE_BYTES_MAX, CACHE_BYTES_MIN, Config, ConfigError, Draft, INLINE_BYTES_MAX, IoUring,
    RawSyscalls, Sharing, WINDOW_BYTES_MAX, absolute, file_name,
};
use crate::spared::Spared;
use core::ops::RangeInclusive;
use nvmed_cache::EvictionPolicy;
use nvmed_fs::{Durability, Glob};
use nvmed_units::parse_bytes;

/// A key.
pub(crate) struct Key {
    pub name: &'static str,
    /// Puts a given value into a draft.
    pub read: fn(&mut Draft<'_>, ConfigLine<'_>) -> Result<(), ConfigError>,
    /// The value that a configuration has; none where the line can be left out.
    pub write: fn(&Config) -> Option<String>,
}

/// A line of a file.
#[derive(Clone, Copy)]
pub(crate) struct ConfigLine<'a> {
    pub line: usize,
    pub key: &'a str,
    pub value: &'a str,
}

type Read = fn(&mut Draft<'_>, ConfigLine<'_>) -> Result<(), ConfigError>;

const fn key(name: &'static str, read: Read, write: fn(&Config) -> Option<String>) -> Key {
    Key { name, read, write }
}

/// A row of a key that is a field of the configuration.
macro_rules! field {
    ($name:literal, $field:ident, $read:expr, $write:expr) => {
        key(
            $name,
            |draft, given| {
                let read: fn(&Draft<'_>, ConfigLine<'_>) -> Result<_, ConfigError> = $read;
                draft.config.$field = read(draft, given)?;
                Ok(())
            },
            |config| {
                let write: fn(&_) -> Option<String> = $write;
                if matches!(config.behind, Behind::Host { .. }) { None } else { write(&config.$field) }
            },
        )
    };
}

/// All keys, in the order in which they are written.
pub(crate) const KEYS: [Key; 23] = [
    key(
        "wrap_dir",
        |draft, given| {
            draft.config.wrap_dir = absolute(draft.base, given.value);
            draft.wrap_dir_set = true;
            Ok(())
        },
        // The `/` after the directory: white space at its end would be taken off by the reader, were it last.
        |config| Some(format!("{}/", config.wrap_dir.display())),
    ),
    key(
        "filesystem",
        |draft, given| {
            draft.host = is_host(draft, given)?;
            Ok(())
        },
        |config| {
            Some(if matches!(config.behind, Behind::Host { .. }) { "host" } else { "nvmedfs" }.to_owned())
        },
    ),
    key(
        "storage_engine",
        |draft, given| {
            draft.engine = Some((given.line, given.value.to_owned()));
            Ok(())
        },
        |config| match &config.behind {
            Behind::Host { .. } => None,
            Behind::Nvmedfs => Some(config.device.engine().to_string()),
        },
    ),
    key(
        "storage_dev",
        |draft, given| {
            draft.device = Some((given.line, given.value.to_owned()));
            Ok(())
        },
        |config| match &config.behind {
            Behind::Host { dir } => Some(format!("{}/", dir.display())),
            Behind::Nvmedfs => Some(config.device.location().to_string()),
        },
    ),
    field!(
        "ffs_prealloc",
        prealloc_bytes,
        |draft, given| or_none(draft, given, WINDOW_BYTES_MAX),
        none_if_zero
    ),
    field!(
        "ffs_readahead",
        readahead_bytes,
        |draft, given| or_none(draft, given, WINDOW_BYTES_MAX),
        none_if_zero
    ),
    field!("ffs_inline", inline_bytes, |draft, given| or_none(draft, given, INLINE_BYTES_MAX), none_if_zero),
    field!(
        "ffs_format",
        format,
        |draft, given| match given.value {
            "TRUE" | "true" => Ok(true),
            "FALSE" | "false" => Ok(false),
            value => Err(draft.wrong(given.line, format!("`{}` is TRUE or FALSE, not `{value}`", given.key))),
        },
        |&format| Some(if format { "TRUE" } else { "FALSE" }.to_owned())
    ),
    key(
        "cache_size",
        |draft, given| {
            draft.config.cache_bytes = size(draft, given, CACHE_BYTES_MIN..=CACHE_BYTES_MAX)?;
            if !draft.seen.contains(&"cache_dirty_limit") {
                draft.config.dirty_limit_bytes = draft.config.cache_bytes / 2;
            }
            Ok(())
        },
        |config| match config.behind {
            Behind::Host { .. } => None,
            Behind::Nvmedfs => Some(config.cache_bytes.to_string()),
        },
    ),
    field!(
        "cache_pages",
        cache_huge,
        |draft, given| Ok(choice(draft, given, &["base", "huge"])? == 1),
        |&huge| Some(if huge { "huge" } else { "base" }.to_owned())
    ),
    field!(
        "cache_policy",
        cache_policy,
        |draft, given| Ok(
            EvictionPolicy::ALL[choice(draft, given, &EvictionPolicy::ALL.map(EvictionPolicy::name))?]
        ),
        |policy: &EvictionPolicy| Some(policy.name().to_owned())
    ),
    field!(
        "cache_dirty_limit",
        dirty_limit_bytes,
        |draft, given| size(draft, given, 65536..=CACHE_BYTES_MAX),
        |bytes: &u64| Some(bytes.to_string())
    ),
    field!(
        "durability",
        durability,
        |draft, given| Ok(
            [Durability::Process, Durability::Device][choice(draft, given, &["process", "device"])?]
        ),
        |&durability| Some(if durability == Durability::Device { "device" } else { "process" }.to_owned())
    ),
    field!(
        "writeback_seconds",
        writeback_seconds,
        |draft, given| given.value.parse().map_err(|_| {
            draft.wrong(given.line, format!("`{}` is a number of seconds, not `{}`", given.key, given.value))
        }),
        |seconds: &u32| Some(seconds.to_string())
    ),
    field!("discard", discard, |draft, given| Ok(choice(draft, given, &["off", "on"])? == 1), |&discard| {
        Some(if discard { "on" } else { "off" }.to_owned())
    }),
    field!("urgent", urgent_files, globs, |files: &Vec<Glob>| {
        let patterns: Vec<String> = files.iter().map(ToString::to_string).collect();
        (!files.is_empty()).then(|| patterns.join(" "))
    }),
    field!(
        "urgent_programs",
        urgent_programs,
        |draft, given| Ok(choice(draft, given, &["off", "on"])? == 1),
        |&urgent: &bool| urgent.then(|| "on".to_owned())
    ),
    field!(
        "mount",
        sharing,
        |draft, given| Ok(Some([Sharing::Private, Sharing::Shared][choice(draft, given, &SHARING)?])),
        |sharing: &Option<Sharing>| sharing.map(|sharing| SHARING[sharing as usize].to_owned())
    ),
    field!(
        "raw_syscalls",
        raw_syscalls,
        |draft, given| Ok(RawSyscalls::ALL[choice(draft, given, &RawSyscalls::NAMES)?]),
        |&raw: &RawSyscalls| (raw != RawSyscalls::default()).then(|| raw.name().to_owned())
    ),
    field!(
        "io_uring",
        io_uring,
        |draft, given| Ok(IoUring::ALL[choice(draft, given, &IoUring::NAMES)?]),
        |&ring: &IoUring| (ring != IoUring::default()).then(|| IoUring::NAMES[ring as usize].to_owned())
    ),
    field!(
        "lease_size",
        lease_bytes,
        |draft, given| size(draft, given, CACHE_BYTES_MIN..=CACHE_BYTES_MAX).map(Some),
        |bytes: &Option<u64>| bytes.map(|bytes| bytes.to_string())
    ),
    field!(
        "spare_calls",
        spared,
        |draft, given| Spared::parse(given.value).map_err(|what| draft.wrong(given.line, what)),
        |&spared: &Spared| spared.text()
    ),
    field!("tree", tree, |_, given| Ok(Some(given.value.to_owned())), Option::clone),
];

/// Patterns of `urgent` at most: each open looks at all of them.
const URGENT_FILES_MAX: usize = 64;

/// The values of `mount`, in the order of the variants.
const SHARING: [&str; 2] = ["private", "shared"];

/// Whether the file system is the host's. The paper's library names mean ours.
fn is_host(draft: &Draft<'_>, given: ConfigLine<'_>) -> Result<bool, ConfigError> {
    let value = given.value;
    match file_name(value) {
        "nvmedfs" | "forestfs" | "lib_ffs.so" | "libffs.so" => Ok(false),
        "host" => Ok(true),
        _ => {
            let what = format!("unknown file system `{value}`; known: nvmedfs (alias lib_ffs.so), host");
            Err(draft.wrong(given.line, what))
        }
    }
}

/// A size of at most `most` bytes; `none` is 0.
fn or_none(draft: &Draft<'_>, given: ConfigLine<'_>, most: u64) -> Result<u64, ConfigError> {
    if given.value.eq_ignore_ascii_case("none") { Ok(0) } else { size(draft, given, 0..=most) }
}

fn none_if_zero(bytes: &u64) -> Option<String> {
    Some(if *bytes == 0 { "none".to_owned() } else { bytes.to_string() })
}

fn size(draft: &Draft<'_>, given: ConfigLine<'_>, range: RangeInclusive<u64>) -> Result<u64, ConfigError> {
    let ConfigLine { line, key, value } = given;
    let bytes = parse_bytes(value)
        .map_err(|text| draft.wrong(line, format!("`{key}` is a size such as 128K or 1G, not `{text}`")))?;
    if range.contains(&bytes) {
        return Ok(bytes);
    }
    let (low, high) = range.into_inner();
    Err(draft.wrong(line, format!("`{key}` = {bytes} bytes is not within {low} to {high}")))
}

/// Patterns of paths, with white space between them.
fn globs(draft: &Draft<'_>, given: ConfigLine<'_>) -> Result<Vec<Glob>, ConfigError> {
    let ConfigLine { line, key, value } = given;
    let patterns: Option<Vec<Glob>> = value.split_whitespace().map(Glob::new).collect();
    patterns.filter(|patterns| (1..=URGENT_FILES_MAX).contains(&patterns.len())).ok_or_else(|| {
        draft.wrong(
            line,
            format!("`{key}` is 1 to {URGENT_FILES_MAX} patterns of paths such as `*.db /redo/*`"),
        )
    })
}

/// The index of the value in `of`.
fn choice(draft: &Draft<'_>, given: ConfigLine<'_>, of: &[&str]) -> Result<usize, ConfigError> {
    let ConfigLine { line, key, value } = given;
    let found = of.iter().position(|&one| one == value);
    found.ok_or_else(|| draft.wrong(line, format!("`{key}` is {}, not `{value}`", of.join(" or "))))
}
