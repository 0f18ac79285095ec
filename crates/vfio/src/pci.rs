//! NVMe controllers as the kernel lists them: on the PCI bus, and behind its own driver.

use crate::address::Address;
use crate::bind;
use crate::error::VfioError;
use crate::host::Host;
use crate::usage::{self, Use};

/// Class code of NVMe controllers without the programming interface: mass storage, non-volatile memory.
const CLASS_NVM: u32 = 0x0108;
/// `/sys/class/block/*/size` counts in these.
const SECTOR_BYTES: u64 = 512;

/// An NVMe controller on the PCI bus.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PciFunction {
    /// Where.
    pub address: Address,
    /// Vendor.
    pub vendor: u16,
    /// Device of that vendor.
    pub device: u16,
    /// Class code, 24 bits.
    pub class: u32,
    /// The driver that has it.
    pub driver: Option<String>,
    /// Its IOMMU group; none where no IOMMU is on.
    pub group: Option<u32>,
    /// Other functions of the group, with their drivers.
    pub neighbours: Vec<Neighbour>,
    /// The kernel's controller, when its nvme driver has it.
    pub controller: Option<Controller>,
}

impl PciFunction {
    /// What keeps it from being opened by VFIO as it is now.
    #[must_use]
    pub fn obstacle(&self) -> Option<VfioError> {
        let address = self.address;
        let Some(group) = self.group else { return Some(VfioError::NoIommu { address }) };
        match self.driver.clone() {
            None => return Some(VfioError::Unbound { address }),
            Some(driver) if !bind::is_vfio(&driver) => {
                return Some(VfioError::Bound { address, driver, uses: self.uses() });
            }
            Some(_) => {}
        }
        let others = self.strangers();
        (!others.is_empty()).then_some(VfioError::NotViable { address, group, others })
    }

    /// What uses its block devices.
    #[must_use]
    pub fn uses(&self) -> Vec<Use> {
        let namespaces = self.controller.iter().flat_map(|controller| &controller.namespaces);
        namespaces.flat_map(|namespace| namespace.uses.clone()).collect()
    }

    /// The functions of its group that keep VFIO from giving it out, each with its driver.
    pub(crate) fn strangers(&self) -> Vec<String> {
        let foreign = self.neighbours.iter().filter(|other| !other.is_harmless());
        foreign
            .map(|other| format!("{} ({})", other.address, other.driver.as_deref().unwrap_or("?")))
            .collect()
    }
}

/// A function in the same IOMMU group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// Where.
    pub address: Address,
    /// The driver that has it.
    pub driver: Option<String>,
    /// Class code, 24 bits.
    pub class: u32,
}

impl Neighbour {
    /// Whether VFIO gives the group out in spite of this one: nobody drives it, or a driver that does no DMA.
    #[must_use]
    pub(crate) fn is_harmless(&self) -> bool {
        // `vfio_dev_driver_allowed` of Linux; bridges go without DMA of their own.
        let harmless = |driver: &String| {
            ["vfio-pci", "pci-stub", "pcieport"].contains(&driver.as_str()) || driver.ends_with("-vfio-pci")
        };
        self.driver.as_ref().is_none_or(harmless) || self.class >> 8 == 0x0604
    }
}

/// A controller that the kernel's own driver has, on PCI or over a fabric.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Controller {
    /// As `nvme0`.
    pub name: String,
    /// `pcie`, `tcp`, …
    pub transport: String,
    /// Where: a PCI address, or that of a fabric.
    pub address: String,
    /// `live`, `resetting`, …
    pub state: String,
    /// Model.
    pub model: String,
    /// Serial number.
    pub serial: String,
    /// Firmware revision.
    pub firmware: String,
    /// Queue pairs in use by the kernel, the admin queue's included.
    pub queues: u64,
    /// Its namespaces.
    pub namespaces: Vec<Namespace>,
}

/// A namespace of a controller of the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Namespace {
    /// Its number.
    pub nsid: u64,
    /// The block device, as `nvme0n1`.
    pub block: String,
    /// The character device, as `ng0n1`; kernels before 5.13 have none.
    pub generic: Option<String>,
    /// Size.
    pub bytes: u64,
    /// Bytes of a logical block.
    pub lba_bytes: u64,
    /// Bytes that one request moves at most.
    pub transfer_bytes_max: u64,
    /// Whether the kernel has queues to be polled for it.
    pub polls: bool,
    /// Whether blocks can be discarded.
    pub discards: bool,
    /// Whether the device has a volatile write cache.
    pub write_cache: bool,
    /// Whether the kernel lets nobody write.
    pub read_only: bool,
    /// Who uses it.
    pub uses: Vec<Use>,
}

/// Every NVMe controller on the PCI bus.
#[must_use]
pub fn functions(host: &Host) -> Vec<PciFunction> {
    let names = host.names("sys/bus/pci/devices");
    let addresses = names.iter().filter_map(|name| name.parse::<Address>().ok());
    addresses.filter_map(|address| function(host, address).ok()).collect()
}

/// The NVMe controller at `address`.
///
/// # Errors
/// Nothing is there, or something else.
pub fn function(host: &Host, address: Address) -> Result<PciFunction, VfioError> {
    let dir = format!("sys/bus/pci/devices/{address}");
    let class = class(host, address).ok_or(VfioError::Missing { address })?;
    if class >> 8 != CLASS_NVM {
        return Err(VfioError::NotNvme { address, class });
    }
    let group = host.link(&format!("{dir}/iommu_group")).and_then(|name| name.parse().ok());
    let controllers = host.names(&format!("{dir}/nvme"));
    Ok(PciFunction {
        address,
        vendor: host.number(&format!("{dir}/vendor")).unwrap_or(0) as u16,
        device: host.number(&format!("{dir}/device")).unwrap_or(0) as u16,
        class,
        driver: driver(host, address),
        group,
        neighbours: group.map(|group| neighbours(host, group, address)).unwrap_or_default(),
        controller: controllers.first().map(|name| controller(host, &format!("{dir}/nvme/{name}"), name)),
    })
}

/// Controllers of the kernel's driver that are not on the PCI bus.
#[must_use]
pub fn fabric_controllers(host: &Host) -> Vec<Controller> {
    let names = host.names("sys/class/nvme");
    let all = names.iter().map(|name| controller(host, &format!("sys/class/nvme/{name}"), name));
    all.filter(|controller| controller.transport != "pcie").collect()
}

fn class(host: &Host, address: Address) -> Option<u32> {
    host.number(&format!("sys/bus/pci/devices/{address}/class")).map(|class| class as u32)
}

pub(crate) fn driver(host: &Host, address: Address) -> Option<String> {
    host.link(&format!("sys/bus/pci/devices/{address}/driver"))
}

fn neighbours(host: &Host, group: u32, own: Address) -> Vec<Neighbour> {
    let names = host.names(&format!("sys/kernel/iommu_groups/{group}/devices"));
    let others = names.iter().filter_map(|name| name.parse().ok()).filter(|address| *address != own);
    let read = |address| Neighbour {
        address,
        driver: driver(host, address),
        class: class(host, address).unwrap_or(0),
    };
    others.map(read).collect()
}

fn controller(host: &Host, dir: &str, name: &str) -> Controller {
    let text = |file: &str| host.text(&format!("{dir}/{file}")).unwrap_or_default().trim().to_owned();
    Controller {
        name: name.to_owned(),
        transport: text("transport"),
        address: text("address"),
        state: text("state"),
        model: text("model"),
        serial: text("serial"),
        firmware: text("firmware_rev"),
        queues: host.number(&format!("{dir}/queue_count")).unwrap_or(0),
        namespaces: namespaces(host, dir),
    }
}

/// The namespaces below a controller. With several paths to one, its directory here is `nvme0c0n1`, and the
/// block device that programs open is `nvme0n1`.
fn namespaces(host: &Host, dir: &str) -> Vec<Namespace> {
    let names = host.names(dir);
    let heads = names.iter().filter_map(|name| head(name));
    heads.map(|block| namespace(host, &block)).filter(|namespace| namespace.bytes > 0).collect()
}

/// `nvme0n1` of `nvme0n1` and of `nvme0c3n1`; nothing of other names.
fn head(name: &str) -> Option<String> {
    let rest = name.strip_prefix("nvme")?;
    let (left, nsid) = rest.split_once('n')?;
    let instance = left.split('c').next()?;
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let plain = left.split('c').all(digits) && digits(nsid);
    plain.then(|| format!("nvme{instance}n{nsid}"))
}

fn namespace(host: &Host, block: &str) -> Namespace {
    let dir = format!("sys/class/block/{block}");
    let number = |file: &str| host.number(&format!("{dir}/{file}")).unwrap_or(0);
    let generic = block.replacen("nvme", "ng", 1);
    let generic = host.exists(&format!("sys/class/nvme-generic/{generic}")).then_some(generic);
    Namespace {
        nsid: number("nsid"),
        block: block.to_owned(),
        generic,
        bytes: number("size").saturating_mul(SECTOR_BYTES),
        lba_bytes: number("queue/logical_block_size"),
        transfer_bytes_max: number("queue/max_hw_sectors_kb").saturating_mul(1024),
        polls: number("queue/io_poll") == 1,
        discards: number("queue/discard_max_bytes") > 0,
        write_cache: host.text(&format!("{dir}/queue/write_cache")).as_deref() == Some("write back"),
        read_only: number("ro") == 1,
        uses: usage::uses(host, block),
    }
}
