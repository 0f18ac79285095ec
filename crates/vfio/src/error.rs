//! Why a function cannot be had.

use crate::address::{Address, NotAnAddress};
use crate::usage::Use;
use rustix::io::Errno;

/// What keeps a PCI function from being opened, bound or unbound. The text is one line: what, where, what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum VfioError {
    /// The text is no address.
    #[error(transparent)]
    Address(#[from] NotAnAddress),
    /// No such function.
    #[error("no PCI function {address} on this machine; `nvmed list` shows the NVMe controllers")]
    Missing {
        /// Which.
        address: Address,
    },
    /// It is something else.
    #[error("{address} is no NVMe controller (PCI class {class:#08x}); `nvmed list` shows those")]
    NotNvme {
        /// Which.
        address: Address,
        /// Its class code.
        class: u32,
    },
    /// The function has no IOMMU group.
    #[error(
        "{address} is behind no IOMMU, so its DMA could not be confined; switch VT-d or AMD-Vi on in the firmware \
         setup and boot Linux with intel_iommu=on (Intel; AMD needs no option)"
    )]
    NoIommu {
        /// Which.
        address: Address,
    },
    /// VFIO is not there.
    #[error("VFIO is not loaded ({path} is missing); run `modprobe vfio-pci`")]
    NotLoaded {
        /// What is missing.
        path: String,
    },
    /// Another driver has the function.
    #[error("{address} is driven by `{driver}`{}; {}", used(uses), hint(*address, uses))]
    Bound {
        /// Which.
        address: Address,
        /// The driver.
        driver: String,
        /// Who uses its block devices.
        uses: Vec<Use>,
    },
    /// No driver has the function.
    #[error("{address} has no driver; `nvmed bind {address}` gives it to vfio-pci")]
    Unbound {
        /// Which.
        address: Address,
    },
    /// Its block devices are in use.
    #[error("{address} is in use{}; {}", used(uses), hint(*address, uses))]
    InUse {
        /// Which.
        address: Address,
        /// By whom.
        uses: Vec<Use>,
    },
    /// Other functions of the group are in the kernel's hands.
    #[error(
        "{address} shares IOMMU group {group} with {}; VFIO gives out whole groups: bind those to vfio-pci too, or \
         move the controller to a slot with a group of its own",
        list(others)
    )]
    NotViable {
        /// Which.
        address: Address,
        /// Its group.
        group: u32,
        /// The others and their drivers.
        others: Vec<String>,
    },
    /// Another process has the group.
    #[error("{address} (IOMMU group {group}) is in use by {holder}; one process at a time can have it")]
    Busy {
        /// Which.
        address: Address,
        /// Its group.
        group: u32,
        /// `name (pid N)`, or "another process".
        holder: String,
    },
    /// A right is missing.
    #[error("no permission for {what}; {advice}")]
    Denied {
        /// What was to be done.
        what: String,
        /// What to do.
        advice: &'static str,
    },
    /// The driver did not take the function.
    #[error("{driver} did not take {address}; it is back with {back}. `dmesg` says why")]
    Refused {
        /// Which.
        address: Address,
        /// Who should have taken it.
        driver: &'static str,
        /// Who has it now.
        back: String,
    },
    /// The function is not as NVMe wants it.
    #[error("{address} cannot be driven: {reason}")]
    Unsuitable {
        /// Which.
        address: Address,
        /// Why.
        reason: String,
    },
    /// The host failed.
    #[error("{what} failed: {errno}")]
    Host {
        /// What was to be done.
        what: String,
        /// The answer.
        errno: Errno,
    },
}

impl VfioError {
    pub(crate) fn host(what: impl Into<String>, errno: Errno) -> Self {
        Self::Host { what: what.into(), errno }
    }

    /// The errno of a call that failed so.
    #[must_use]
    pub fn errno(&self) -> Errno {
        match self {
            Self::Address(_) => Errno::INVAL,
            Self::Missing { .. } | Self::NotNvme { .. } | Self::NotLoaded { .. } => Errno::NODEV,
            Self::Bound { .. } | Self::InUse { .. } | Self::Busy { .. } => Errno::BUSY,
            Self::NoIommu { .. } | Self::NotViable { .. } | Self::Unbound { .. } => Errno::NODEV,
            Self::Denied { .. } => Errno::PERM,
            Self::Refused { .. } | Self::Unsuitable { .. } => Errno::NODEV,
            Self::Host { errno, .. } => *errno,
        }
    }
}

fn list(names: &[String]) -> String {
    names.join(", ")
}

fn used(uses: &[Use]) -> String {
    if uses.is_empty() {
        return String::new();
    }
    let uses: Vec<_> = uses.iter().map(ToString::to_string).collect();
    format!(": {}", uses.join(", "))
}

fn hint(address: Address, uses: &[Use]) -> String {
    if uses.is_empty() {
        return format!("`nvmed bind {address}` takes it from there");
    }
    "end that first: nothing may use the drive when it changes hands".to_owned()
}
