//! Profiles of memory that stands behind a buffer (docs/nvm-buffer.md), as `nvmed device` lists and shows them.

use super::{rate, time};
use crate::inspect::size;
use nvmed_stack::{Pace, SlowMedium};
use serde_json::{Value, json};

/// What the media of `device profiles` are for.
pub(super) const HEAD: &str = "media behind a DRAM buffer, for nvm:FILE?profile=NAME,buffer=SIZE";

/// A medium as JSON.
pub(super) fn facts(name: &str, medium: &SlowMedium) -> Value {
    let mut facts = json!({
        "name": name, "kind": "memory", "what": medium.what(), "source": medium.source(),
        "program_bytes": medium.program_bytes(), "fill_bytes": medium.fill_bytes(),
        "log_percent": medium.log_percent(), "kept": medium.is_kept(),
        "least_buffer_bytes": medium.least_buffer_bytes(),
    });
    match medium.pace() {
        Pace::Drive(drive) => facts["drive"] = drive.name().into(),
        Pace::Fixed(times) => {
            facts["read_ns"] = times.read_ns.into();
            facts["write_ns"] = times.write_ns.into();
            let link = times.link;
            let bytes_per_s = (!link.is_unlimited()).then(|| link.bytes as f64 * 1e9 / link.ns as f64);
            facts["bytes_per_s"] = bytes_per_s.into();
        }
    }
    facts
}

/// A medium as a page.
pub(super) fn page(name: &str, medium: &SlowMedium) -> String {
    let mut page = String::new();
    let mut line = |key: &str, text: &str| page.push_str(&format!("{key:<12} {text}\n"));
    line("profile", &format!("{name}: {}", medium.what()));
    line("source", medium.source());
    line("for", &format!("memory behind a DRAM buffer: nvm:FILE?profile={name},buffer=64M"));
    line(
        "times",
        &match medium.pace() {
            Pace::Drive(drive) => {
                format!("as the drive {} (`nvmed device show {}`)", drive.name(), drive.name())
            }
            Pace::Fixed(times) => format!(
                "read {}, write {}; link {}",
                time(times.read_ns as f64),
                time(times.write_ns as f64),
                rate(times.link)
            ),
        },
    );
    line("programs", &format!("{} at once", size(medium.program_bytes())));
    let log = match medium.log_percent() {
        0 => "no write log: pages are programmed whole as they leave".to_owned(),
        percent => format!("a write log has {percent} % of it"),
    };
    let least = medium.least_buffer_bytes();
    let fills = size(medium.fill_bytes());
    line("buffer", &format!("fills of {fills}; {log}; at least buffer={least}"));
    line(
        "power cut",
        if medium.is_kept() {
            "the buffer survives it, and a fence programs nothing"
        } else {
            "the buffer is lost, so a fence programs what waits in it"
        },
    );
    page
}
