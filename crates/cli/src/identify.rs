//! `nvmed identify`: what a device says it is, in words.

use crate::arguments::Identify;
use crate::drive::{self, buffer_facts, buffer_line};
use crate::failure::{Failure, Status};
use crate::inspect::size;
use crate::location::parse_spec;
use crate::output::Output;
use nvmed_engine::{Engine, EngineError};
use nvmed_nvme::{DriveIdentity, IdentifyController, IdentifyNamespace};
use nvmed_stack::{DeviceSpec, Open};
use serde_json::{Value, json};
use std::sync::Arc;

/// A bit of an identify structure and what it says.
type Ability = (u16, &'static str);

/// Optional NVM commands (ONCS; Base 2.0, figure 275, bytes 521:520).
const COMMANDS: [Ability; 9] = [
    (0, "compare"),
    (1, "write uncorrectable"),
    (2, "discard (dataset management)"),
    (3, "write zeroes"),
    (4, "save and select of features"),
    (5, "reservations"),
    (6, "timestamp"),
    (7, "verify"),
    (8, "copy"),
];
/// Optional administrative commands (OACS; the same figure, bytes 257:256).
const ADMINISTRATION: [Ability; 10] = [
    (0, "security send and receive"),
    (1, "format NVM"),
    (2, "firmware download"),
    (3, "namespace management"),
    (4, "self-test"),
    (5, "directives (streams)"),
    (6, "NVMe-MI"),
    (7, "virtualization management"),
    (8, "doorbell buffers"),
    (9, "get LBA status"),
];
/// Namespace features (NSFEAT; NVM 1.0, figure 97, byte 24).
const NAMESPACE: [Ability; 5] = [
    (0, "thin provisioning"),
    (1, "atomic units of its own"),
    (2, "errors for deallocated blocks"),
    (3, "identifiers that are never used again"),
    (4, "optimal sizes for writes and discards"),
];

/// The names of the bits that are set.
fn abilities(word: u16, table: &[Ability]) -> Vec<&'static str> {
    table.iter().filter(|(bit, _)| word >> bit & 1 == 1).map(|(_, name)| *name).collect()
}

/// What a device says of itself.
struct Identity {
    name: String,
    spec: DeviceSpec,
    engine: Arc<dyn Engine>,
    /// `None` of an engine that has no such pages.
    pages: Option<(IdentifyController, IdentifyNamespace)>,
}

/// Shows what a device says it is.
///
/// # Errors
/// It cannot be opened, or does not answer.
pub fn identify(arguments: &Identify) -> Result<(), Failure> {
    let name = arguments.device.to_string_lossy().into_owned();
    let spec = parse_spec(&name)?;
    let engine = nvmed_stack::open_engine(&spec, Open::Existing { locked_by_run: false })?;
    let pages = engine.identify_controller().and_then(|page| Ok((page, engine.identify_namespace()?)));
    let pages = match pages {
        Ok(pages) => Some(pages),
        Err(EngineError::Unsupported { .. }) => None,
        Err(error) => return Err(Failure::new(Status::Failed, format!("{name}: identify: {error}"))),
    };
    let identity = Identity { name, spec, engine, pages };
    let mut out = Output::new();
    out.text(&if arguments.json { identity.json() } else { identity.page() })?;
    out.finish()
}

impl Identity {
    fn page(&self) -> String {
        let geometry = self.engine.geometry();
        let mut page = format!("device      {}\n", self.name);
        match &self.pages {
            Some((controller, namespace)) => {
                page += &controller_lines(controller, geometry);
                page += &DriveIdentity::of(&controller.vendor)
                    .map(|of| drive::lines(&of, 12))
                    .unwrap_or_default();
                page += &namespace_lines(self.engine.namespace(), namespace);
            }
            None => {
                page += &format!(
                    "controller  none to ask: this engine has no NVMe identify pages\nmodel       {}\n",
                    known(&geometry.model)
                );
                page += &buffer_line(&self.spec, 12);
            }
        }
        page += &format!(
            "capacity    {}: {} LBAs of {} bytes\n",
            size(self.engine.lba_count().saturating_mul(u64::from(geometry.lba_bytes))),
            self.engine.lba_count(),
            geometry.lba_bytes
        );
        page += &format!(
            "limits      {} I/O queues of {} commands, {} a command\ncache       {}\n",
            geometry.queues_max,
            geometry.queue_depth_max,
            size(u64::from(geometry.transfer_bytes_max)),
            if geometry.volatile_write_cache {
                "volatile: writes are durable after a flush, or with FUA"
            } else {
                "none that loses data: a completed write is durable"
            }
        );
        page
    }

    fn json(&self) -> String {
        let geometry = self.engine.geometry();
        let mut facts = json!({
            "device": self.name,
            "model": geometry.model,
            "serial": geometry.serial,
            "firmware": geometry.firmware,
            "lba_bytes": geometry.lba_bytes,
            "lba_count": self.engine.lba_count(),
            "queues": geometry.queues_max,
            "queue_depth": geometry.queue_depth_max,
            "transfer_bytes": geometry.transfer_bytes_max,
            "volatile_write_cache": geometry.volatile_write_cache,
            "identify": self.pages.is_some(),
        });
        if let Some(buffer) = buffer_facts(&self.spec) {
            facts["buffer"] = buffer;
        }
        if let Some((controller, namespace)) = &self.pages {
            facts["controller"] = controller_json(controller);
            facts["namespace"] = namespace_json(self.engine.namespace(), namespace);
            facts["drive"] = DriveIdentity::of(&controller.vendor).as_ref().map(drive::facts).into();
        }
        format!("{facts}\n")
    }
}

/// A text, or that there is none.
fn known(text: &str) -> &str {
    if text.is_empty() { "not known" } else { text }
}

/// Base 2.0, 3.1.3.2: major, minor and tertiary version number.
fn version(controller: &IdentifyController) -> String {
    let version = controller.ver;
    format!("{}.{}.{}", version >> 16, version >> 8 & 0xff, version & 0xff)
}

/// What a device wrote into a field of characters: up to a NUL, without spaces around it, and without what
/// would move a terminal's cursor.
fn characters(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    let printable = |&byte: &u8| if byte.is_ascii_graphic() || byte == b' ' { byte as char } else { '?' };
    bytes[..end].iter().map(printable).collect::<String>().trim().to_owned()
}

fn list(names: &[&str]) -> String {
    if names.is_empty() { "nothing optional".to_owned() } else { names.join(", ") }
}

fn controller_lines(controller: &IdentifyController, geometry: &nvmed_engine::Geometry) -> String {
    let kelvin = |value: u16| if value == 0 { "none".to_owned() } else { celsius(value) };
    let commands = match controller.maxcmd {
        0 => "not said".to_owned(),
        most => most.to_string(),
    };
    let name = characters(&controller.subnqn);
    format!(
        "controller  {}, serial {}, firmware {}\n            NVMe {}, PCI vendor {:04x}, controller {}\n            \
         name {}\n\
         commands    {}\nadmin       {}\n            {} aborts and {} event requests at once, {} error log entries\n\
         power       {} states; temperature warning {}, critical {}\n\
         outstanding {commands} commands advised a queue\n",
        known(&geometry.model),
        known(&geometry.serial),
        known(&geometry.firmware),
        version(controller),
        controller.vid,
        controller.cntlid,
        known(&name),
        list(&abilities(controller.oncs, &COMMANDS)),
        list(&abilities(controller.oacs, &ADMINISTRATION)),
        u16::from(controller.acl) + 1,
        u16::from(controller.aerl) + 1,
        u16::from(controller.elpe) + 1,
        u16::from(controller.npss) + 1,
        kelvin(controller.wctemp),
        kelvin(controller.cctemp),
    )
}

fn namespace_lines(number: u32, namespace: &IdentifyNamespace) -> String {
    let formats: Vec<String> = formats(namespace)
        .map(|(index, bytes, metadata)| {
            let mark = if index == usize::from(namespace.flbas & 0xf) { " (in use)" } else { "" };
            let metadata = if metadata > 0 { format!(" and {metadata} of metadata") } else { String::new() };
            format!("{bytes}{metadata}{mark}")
        })
        .collect();
    let sizes = Sizes::of(namespace).map(|sizes| {
        format!(
            "            writes in multiples of {}, best {}; discards in multiples of {}\n",
            size(sizes.write_bytes),
            size(sizes.best_write_bytes),
            size(sizes.discard_bytes)
        )
    });
    let boundary = match namespace.noiob {
        0 => String::new(),
        blocks => format!("            commands best end at multiples of {blocks} LBAs\n"),
    };
    format!(
        "namespace   {number}: {} of {} LBAs allocated; LBA formats of {} bytes\n            {}\n{}{boundary}",
        namespace.nuse,
        namespace.ncap,
        formats.join(", "),
        list(&abilities(u16::from(namespace.nsfeat), &NAMESPACE)),
        sizes.unwrap_or_default(),
    )
}

/// The sizes that suit a device (NVM 1.0, 5.8.2), in bytes.
struct Sizes {
    write_bytes: u64,
    write_alignment_bytes: u64,
    best_write_bytes: u64,
    discard_bytes: u64,
    discard_alignment_bytes: u64,
}

impl Sizes {
    /// Those that a namespace reports, if it reports any.
    fn of(namespace: &IdentifyNamespace) -> Option<Self> {
        if namespace.nsfeat & IdentifyNamespace::NSFEAT_OPTPERF == 0 {
            return None;
        }
        let lba_bytes = 1u64.checked_shl(namespace.format()?.lbads.into())?;
        let bytes = |blocks_less_one: u16| (u64::from(blocks_less_one) + 1).saturating_mul(lba_bytes);
        Some(Self {
            write_bytes: bytes(namespace.npwg),
            write_alignment_bytes: bytes(namespace.npwa),
            best_write_bytes: bytes(namespace.nows),
            discard_bytes: bytes(namespace.npdg),
            discard_alignment_bytes: bytes(namespace.npda),
        })
    }

    fn facts(&self) -> Value {
        json!({
            "write_bytes": self.write_bytes,
            "write_alignment_bytes": self.write_alignment_bytes,
            "best_write_bytes": self.best_write_bytes,
            "discard_bytes": self.discard_bytes,
            "discard_alignment_bytes": self.discard_alignment_bytes,
        })
    }
}

/// The LBA formats that exist: index, bytes, metadata bytes. A device may write any exponent.
fn formats(namespace: &IdentifyNamespace) -> impl Iterator<Item = (usize, u64, u16)> {
    let count = usize::from(namespace.nlbaf).min(namespace.lbaf.len() - 1) + 1;
    let formats = namespace.lbaf[..count].iter().enumerate();
    formats.map(|(index, format)| (index, 1u64.checked_shl(format.lbads.into()).unwrap_or(0), format.ms))
}

/// Kelvin, as NVMe counts, in degrees that people know.
pub fn celsius(kelvin: u16) -> String {
    format!("{} C", i32::from(kelvin) - 273)
}

fn controller_json(controller: &IdentifyController) -> Value {
    json!({
        "nvme": version(controller),
        "vendor": controller.vid,
        "id": controller.cntlid,
        "nqn": characters(&controller.subnqn),
        "namespaces": controller.nn,
        "commands": abilities(controller.oncs, &COMMANDS),
        "administration": abilities(controller.oacs, &ADMINISTRATION),
        "aborts": u16::from(controller.acl) + 1,
        "event_requests": u16::from(controller.aerl) + 1,
        "error_entries": u16::from(controller.elpe) + 1,
        "power_states": u16::from(controller.npss) + 1,
        "temperature_warning_kelvin": controller.wctemp,
        "temperature_critical_kelvin": controller.cctemp,
        "commands_max": controller.maxcmd,
        "total_bytes": controller.tnvmcap[0],
        "unallocated_bytes": controller.unvmcap[0],
    })
}

fn namespace_json(number: u32, namespace: &IdentifyNamespace) -> Value {
    json!({
        "id": number,
        "size": namespace.nsze,
        "capacity": namespace.ncap,
        "used": namespace.nuse,
        "format": namespace.flbas & 0xf,
        "features": abilities(u16::from(namespace.nsfeat), &NAMESPACE),
        "capacity_bytes": namespace.nvmcap[0],
        "boundary": namespace.noiob,
        "sizes": Sizes::of(namespace).map(|sizes| sizes.facts()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_device_writes_cannot_reach_the_terminal() {
        assert_eq!(characters(b"  a\x1b[2Jb \0junk"), "a?[2Jb");
        assert_eq!(characters(&[0; 8]), "");
    }

    #[test]
    fn impossible_formats_are_no_panic() {
        let mut page = IdentifyNamespace::default();
        page.nlbaf = 0xff;
        page.flbas = 0xff;
        page.lbaf[3].lbads = 200;
        (page.nsfeat, page.lbaf[15].lbads, page.nows) = (0xff, 63, 0xffff);
        assert_eq!(formats(&page).count(), 16);
        assert!(namespace_lines(1, &page).contains("LBA formats"));
    }

    #[test]
    fn bits_have_names() {
        assert_eq!(abilities(0b1101, &COMMANDS), ["compare", "discard (dataset management)", "write zeroes"]);
    }
}
