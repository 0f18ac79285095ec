//! A real NVMe controller in user space, through the kernel's VFIO.
//!
//! In: a PCI address. Out: [`Function`], a [`nvmed_dma::Transport`]: its registers, its interrupts, and memory that
//! it reaches through the IOMMU; beside it, what the kernel knows of NVMe controllers ([`functions`]) and
//! their way to vfio-pci and back ([`bind`], [`unbind`]). Neighbours: `dma` below; the driver above.
//! Invariants: a device reaches mapped memory and nothing else; memory is unmapped before it is freed; files of the
//! kernel are read below a [`Host`], so that tests have their own.
//! Source: Linux, `Documentation/driver-api/vfio.rst` and `include/uapi/linux/vfio.h`.
#![deny(unsafe_code)]

mod address;
mod bind;
mod error;
#[allow(unsafe_code, reason = "the kernel makes memory of this process visible to a device")]
mod function;
mod group;
mod host;
mod interrupt;
#[allow(unsafe_code, reason = "the kernel follows pointers in the arguments of its calls")]
mod ioctl;
mod iova;
mod pci;
mod usage;
mod watch;

pub use address::{Address, NotAnAddress};
pub use bind::{bind, unbind};
pub use error::VfioError;
pub use function::{Function, FunctionOptions};
pub use host::Host;
pub use pci::{Controller, Namespace, Neighbour, PciFunction, fabric_controllers, function, functions};
pub use usage::Use;
