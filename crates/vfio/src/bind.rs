//! Giving a function to vfio-pci and back, by `driver_override` (Linux, `Documentation/ABI/testing/sysfs-bus-pci`).

use crate::address::Address;
use crate::error::VfioError;
use crate::host::Host;
use crate::pci;
use crate::usage;

/// The driver that hands functions to user space.
pub(crate) const VFIO_PCI: &str = "vfio-pci";
/// The kernel's own driver.
const NVME: &str = "nvme";

/// Whether a driver that is there now is VFIO's.
pub(crate) fn is_vfio(driver: &str) -> bool {
    driver == VFIO_PCI || driver.ends_with("-vfio-pci")
}

/// Gives the NVMe controller at `address` to vfio-pci; one that is there already stays.
///
/// # Errors
/// Nothing was changed: it is in use, is behind no IOMMU, shares its group with functions that other drivers
/// have, vfio-pci is not loaded, or a right is missing. Or vfio-pci did not take it; then it is back where it was.
pub fn bind(host: &Host, address: Address) -> Result<(), VfioError> {
    let function = pci::function(host, address)?;
    if function.driver.as_deref().is_some_and(is_vfio) {
        return Ok(());
    }
    let Some(group) = function.group else { return Err(VfioError::NoIommu { address }) };
    let uses = function.uses();
    if !uses.is_empty() {
        return Err(VfioError::InUse { address, uses });
    }
    let others = function.strangers();
    if !others.is_empty() {
        return Err(VfioError::NotViable { address, group, others });
    }
    let driver = format!("sys/bus/pci/drivers/{VFIO_PCI}");
    if !host.exists(&driver) {
        return Err(VfioError::NotLoaded { path: host.path(&driver).display().to_string() });
    }
    hand_over(host, address, VFIO_PCI, VFIO_PCI)?;
    if pci::driver(host, address).as_deref().is_some_and(is_vfio) {
        return Ok(());
    }
    hand_over(host, address, "\n", NVME)?;
    let back = pci::driver(host, address).unwrap_or_else(|| "no driver".to_owned());
    Err(VfioError::Refused { address, driver: VFIO_PCI, back })
}

/// Gives the NVMe controller at `address` back to the kernel's driver.
///
/// # Errors
/// A process has it open (the kernel would wait for that one without end), a right is missing, or no driver
/// took it.
pub fn unbind(host: &Host, address: Address) -> Result<(), VfioError> {
    let function = pci::function(host, address)?;
    match function.driver.as_deref() {
        Some(driver) if is_vfio(driver) => {}
        Some(NVME) => return Ok(()),
        Some(driver) => {
            let reason = format!("it is driven by `{driver}`, which is not VFIO's");
            return Err(VfioError::Unsuitable { address, reason });
        }
        None => {}
    }
    if let Some(group) = function.group
        && let Some(holder) = usage::holder(host, &format!("/dev/vfio/{group}"))
    {
        return Err(VfioError::Busy { address, group, holder });
    }
    hand_over(host, address, "\n", NVME)?;
    match pci::driver(host, address) {
        Some(driver) if !is_vfio(&driver) => Ok(()),
        other => {
            let back = other.unwrap_or_else(|| "no driver".to_owned());
            Err(VfioError::Refused { address, driver: NVME, back })
        }
    }
}

/// Names the driver that may have the function, takes it from the present one, and has the kernel look again.
fn hand_over(host: &Host, address: Address, name: &str, driver: &str) -> Result<(), VfioError> {
    let dir = format!("sys/bus/pci/devices/{address}");
    host.write(&format!("{dir}/driver_override"), name)?;
    if pci::driver(host, address).as_deref().is_some_and(|now| now != driver) {
        host.write(&format!("{dir}/driver/unbind"), &address.to_string())?;
    }
    // A driver that refuses leaves the function without one, and the caller looks whether it has one.
    match host.write("sys/bus/pci/drivers_probe", &address.to_string()) {
        Err(VfioError::Host { .. }) | Ok(()) => Ok(()),
        denied => denied,
    }
}
