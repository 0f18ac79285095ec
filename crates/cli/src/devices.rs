//! `nvmed list`, `bind` and `unbind`: the NVMe devices of this machine, who drives them, and handing them over.

use crate::arguments::{Devices, Function};
use crate::failure::{Failure, Status};
use crate::inspect::size;
use crate::output::Output;
use nvmed_vfio::{Address, Controller, Host, Namespace, PciFunction, VfioError};
use serde_json::{Value, json};

/// Lists every NVMe device: functions on the PCI bus, and controllers that the kernel reaches otherwise.
///
/// # Errors
/// Standard output does not take it.
pub fn list(arguments: &Devices) -> Result<(), Failure> {
    let host = arguments.root.as_ref().map_or_else(Host::default, Host::at);
    let functions = nvmed_vfio::functions(&host);
    let fabrics = nvmed_vfio::fabric_controllers(&host);
    let mut out = Output::new();
    for function in &functions {
        out.text(&if arguments.json { line(&function_json(function)) } else { function_text(function) })?;
    }
    for controller in &fabrics {
        let text =
            || format!("{} {}\n{}", controller.transport, controller.address, controller_text(controller));
        out.text(&if arguments.json { line(&controller_json(controller)) } else { text() })?;
    }
    if functions.is_empty() && fabrics.is_empty() && !arguments.json {
        out.text("no NVMe device on this machine; `virtual:disk.img` needs none\n")?;
    }
    out.finish()
}

/// Gives functions to vfio-pci.
///
/// # Errors
/// The first that cannot be given, with the reason; those before it were.
pub fn bind(arguments: &Function) -> Result<(), Failure> {
    each(arguments, "bind", nvmed_vfio::bind, |address| {
        format!("{address} is vfio-pci's: open it as vfio:{address}")
    })
}

/// Gives functions back to the kernel's driver.
///
/// # Errors
/// As [`bind`].
pub fn unbind(arguments: &Function) -> Result<(), Failure> {
    each(arguments, "unbind", nvmed_vfio::unbind, |address| format!("{address} is the kernel's again"))
}

fn each(
    arguments: &Function,
    command: &str,
    action: fn(&Host, Address) -> Result<(), VfioError>,
    done: impl Fn(Address) -> String,
) -> Result<(), Failure> {
    let host = Host::default();
    let mut out = Output::new();
    for text in &arguments.addresses {
        let address: Result<Address, _> = text.parse();
        let fail = |error: VfioError| Failure::new(status(&error), format!("{command}: {error}"));
        let address = address.map_err(|error| fail(error.into()))?;
        action(&host, address).map_err(fail)?;
        out.text(&format!("{}\n", done(address)))?;
    }
    out.finish()
}

fn status(error: &VfioError) -> Status {
    match error {
        VfioError::Address(_) => Status::Usage,
        VfioError::InUse { .. } | VfioError::Busy { .. } | VfioError::Bound { .. } => Status::Busy,
        _ => Status::Failed,
    }
}

/// The strings by which a namespace of the kernel's driver can be opened.
fn kernel_engines(namespace: &Namespace) -> Vec<String> {
    let block = format!("uring:/dev/{}", namespace.block);
    let generic = namespace.generic.as_ref().map(|name| format!("uring-cmd:/dev/{name}"));
    std::iter::once(block).chain(generic).collect()
}

/// The strings by which a function can be opened as it is now.
fn engines(function: &PciFunction) -> Vec<String> {
    let namespaces = function.controller.iter().flat_map(|controller| &controller.namespaces);
    let kernel = namespaces.flat_map(kernel_engines);
    let own = function.obstacle().is_none().then(|| format!("vfio:{}", function.address));
    kernel.chain(own).collect()
}

fn function_text(function: &PciFunction) -> String {
    let PciFunction { address, vendor, device, .. } = function;
    let driver = function.driver.as_deref().unwrap_or("no driver");
    let group = function.group.map_or("no IOMMU".to_owned(), |group| format!("IOMMU group {group}"));
    let mut text = format!("{address}  {vendor:04x}:{device:04x}, {driver}, {group}\n");
    if let Some(controller) = &function.controller {
        text.push_str(&controller_text(controller));
    }
    text.push_str(&match function.obstacle() {
        None => format!("  open as  vfio:{address}\n"),
        Some(reason) => format!("  not as   vfio:{address}: {reason}\n"),
    });
    text
}

fn controller_text(controller: &Controller) -> String {
    let Controller { name, model, serial, firmware, state, queues, .. } = controller;
    let queues = queues.saturating_sub(1);
    let mut text = format!(
        "  /dev/{name}  {model}, serial {serial}, firmware {firmware}, {state}, {queues} I/O queues\n"
    );
    for namespace in &controller.namespaces {
        let uses: Vec<_> = namespace.uses.iter().map(ToString::to_string).collect();
        let uses = if uses.is_empty() { "not in use".to_owned() } else { uses.join(", ") };
        text.push_str(&format!(
            "  /dev/{}  namespace {}, {}, blocks of {} B, {uses}\n  can      {}\n  open as  {}\n",
            namespace.block,
            namespace.nsid,
            size(namespace.bytes),
            namespace.lba_bytes,
            abilities(namespace).join(", "),
            kernel_engines(namespace).join("  ")
        ));
    }
    text
}

/// What a namespace can do by way of the kernel.
fn abilities(namespace: &Namespace) -> Vec<String> {
    let mut can = vec![format!("{} a request", size(namespace.transfer_bytes_max))];
    let known = [
        (namespace.read_only, "read only"),
        (namespace.discards, "discard"),
        (namespace.write_cache, "flush (volatile write cache)"),
        (namespace.polls, "polled queues (iopoll=on)"),
        (namespace.generic.is_some(), "passthrough"),
    ];
    can.extend(known.into_iter().filter(|(has, _)| *has).map(|(_, name)| name.to_owned()));
    can
}

fn line(facts: &Value) -> String {
    format!("{facts}\n")
}

fn function_json(function: &PciFunction) -> Value {
    let mut facts = json!({
        "address": function.address.to_string(),
        "id": format!("{:04x}:{:04x}", function.vendor, function.device),
        "driver": function.driver.as_deref().unwrap_or(""),
        "engines": engines(function),
    });
    if let Some(group) = function.group {
        facts["iommu_group"] = json!(group);
    }
    if let Some(obstacle) = function.obstacle() {
        facts["not_vfio"] = json!(obstacle.to_string());
    }
    if let Some(controller) = &function.controller {
        facts["controller"] = controller_json(controller);
    }
    facts
}

fn controller_json(controller: &Controller) -> Value {
    json!({
        "name": controller.name,
        "transport": controller.transport,
        "address": controller.address,
        "state": controller.state,
        "model": controller.model,
        "serial": controller.serial,
        "firmware": controller.firmware,
        "queues": controller.queues,
        "namespaces": controller.namespaces.iter().map(namespace_json).collect::<Vec<_>>(),
    })
}

fn namespace_json(namespace: &Namespace) -> Value {
    let mut facts = json!({
        "block": format!("/dev/{}", namespace.block),
        "nsid": namespace.nsid,
        "bytes": namespace.bytes,
        "lba_bytes": namespace.lba_bytes,
        "transfer_bytes_max": namespace.transfer_bytes_max,
        "polls": namespace.polls,
        "discards": namespace.discards,
        "write_cache": namespace.write_cache,
        "read_only": namespace.read_only,
        "engines": kernel_engines(namespace),
        "uses": namespace.uses.iter().map(ToString::to_string).collect::<Vec<_>>(),
    });
    if let Some(generic) = &namespace.generic {
        facts["generic"] = json!(format!("/dev/{generic}"));
    }
    facts
}
