//! The kernel's VFIO: a PCI function's registers, interrupts and IOMMU in user space.
