//! Text from people: device strings, configuration files, profiles of drives. What is read is written, and read again, the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nvmed_stack::{Config, DeviceSpec, DriveProfile};
use std::path::Path;

fuzz_target!(|text: &str| {
    if let Ok(spec) = DeviceSpec::parse(text) {
        assert_eq!(DeviceSpec::parse(&spec.to_string()).ok(), Some(spec), "what is shown is read back");
    }
    if let Ok(config) = Config::parse(text, "any.conf", Path::new("/")) {
        let again = Config::parse(&config.to_text(), "again.conf", Path::new("/"));
        assert_eq!(again.ok(), Some(config), "what is written is read back");
    }
    if let Ok(profile) = DriveProfile::read("any.toml", text) {
        assert!(profile.drive(profile.usual_bytes()).is_ok(), "its usual size is one");
    }
});
