//! The way to a function: its IOMMU group, a container for it, and the device's descriptor.

use crate::address::Address;
use crate::error::VfioError;
use crate::host::Host;
use crate::ioctl;
use crate::pci;
use crate::usage;
use nvmed_sys::QuietFd;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use std::ffi::CString;

/// The three descriptors of VFIO, in the order in which they are closed.
#[derive(Debug)]
pub(crate) struct Attachment {
    pub device: QuietFd,
    /// Holds the group; nothing is asked of it once the device is open.
    _group: QuietFd,
    /// The IOMMU's address space.
    pub container: QuietFd,
}

/// Opens the NVMe controller at `address`.
///
/// # Errors
/// Each step that the kernel refuses, with what it is that is missing.
pub(crate) fn attach(host: &Host, address: Address) -> Result<Attachment, VfioError> {
    let function = pci::function(host, address)?;
    if let Some(obstacle) = function.obstacle() {
        return Err(obstacle);
    }
    let Some(number) = function.group else { return Err(VfioError::NoIommu { address }) };
    let container = open(host, "dev/vfio/vfio", || "another process".to_owned(), address, number)?;
    let path = format!("dev/vfio/{number}");
    let busy =
        || usage::holder(host, &format!("/{path}")).unwrap_or_else(|| "a process of another user".to_owned());
    let group = open(host, &path, busy, address, number)?;
    if !ioctl::is_viable(group.as_fd()).map_err(|errno| VfioError::host("VFIO_GROUP_GET_STATUS", errno))? {
        return Err(VfioError::NotViable { address, group: number, others: function.strangers() });
    }
    join(&container, &group)?;
    let name = CString::new(address.to_string()).unwrap_or_default();
    let device = ioctl::device(group.as_fd(), &name)
        .map_err(|errno| VfioError::host(format!("opening {address} in its group {number}"), errno))?;
    Ok(Attachment {
        device: QuietFd::new(device),
        _group: QuietFd::new(group),
        container: QuietFd::new(container),
    })
}

/// Opens one of VFIO's files, and says what an error means there.
fn open(
    host: &Host,
    name: &str,
    holder: impl Fn() -> String,
    address: Address,
    group: u32,
) -> Result<OwnedFd, VfioError> {
    let path = host.path(name);
    let shown = path.display().to_string();
    ioctl::open(&path).map_err(|errno| match errno {
        Errno::NOENT | Errno::NODEV | Errno::NXIO => VfioError::NotLoaded { path: shown },
        Errno::ACCESS | Errno::PERM => VfioError::Denied {
            what: format!("opening {shown}"),
            advice: "run as root, or give this user the file (`chown`, or a udev rule)",
        },
        Errno::BUSY => VfioError::Busy { address, group, holder: holder() },
        errno => VfioError::host(format!("opening {shown}"), errno),
    })
}

/// Puts the group into the container and switches the IOMMU of the container on.
fn join(container: &OwnedFd, group: &OwnedFd) -> Result<(), VfioError> {
    let version = ioctl::api_version(container.as_fd());
    let type1 = ioctl::has_extension(container.as_fd(), ioctl::TYPE1_V2);
    if version != Ok(ioctl::API_VERSION) || type1 != Ok(true) {
        return Err(VfioError::host(
            "asking VFIO for the IOMMU model type1v2 (run `modprobe vfio_iommu_type1`)",
            Errno::NODEV,
        ));
    }
    ioctl::set_container(group.as_fd(), container.as_fd())
        .map_err(|errno| VfioError::host("VFIO_GROUP_SET_CONTAINER", errno))?;
    ioctl::set_iommu(container.as_fd(), ioctl::TYPE1_V2).map_err(|errno| match errno {
        Errno::PERM => VfioError::Denied {
            what: "switching the IOMMU on for this group".to_owned(),
            advice: "the machine has no interrupt remapping; boot with intremap=on, or load vfio_iommu_type1 with \
                     allow_unsafe_interrupts=1 if you trust the device",
        },
        errno => VfioError::host("VFIO_SET_IOMMU", errno),
    })
}
