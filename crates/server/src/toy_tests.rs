//! A small mounted file system, for the tests of this room.

use nvmed_stack::Mount;

/// Of 64 MiB in memory, and empty.
pub(crate) fn mount() -> Mount {
    let spec = nvmed_stack::DeviceSpec::parse("virtual:?media=dram,size=64M").unwrap();
    let mut config = nvmed_stack::Config::new("/".into(), spec);
    (config.format, config.cache_bytes, config.cache_huge) = (true, 4 << 20, false);
    nvmed_stack::mount(&config, nvmed_stack::Surroundings::default()).unwrap()
}
