//! The NVMe protocol as data: queue entries, registers, identify structures, features, logs, status.
//!
//! In and out: bytes and the types that are laid over them. Both sides use it: the host driver and the
//! virtual controller. Neighbours: `units` below; `engine` and `vdev` above.
//! Invariants: no I/O, no unsafe; every structure's size is asserted; little-endian throughout.
//! Source: NVM Express Base Specification 2.0, NVM Command Set Specification 1.0.
#![forbid(unsafe_code)]

mod drive_identity;
mod drive_log;
mod entry;
mod hmb_io;
mod host_memory;
mod identify;
mod log;
mod opcode;
pub mod register;
mod status;

pub use drive_identity::{DriveBlocks, DriveIdentity};
pub use drive_log::DriveLog;
pub use entry::{CompletionEntry, DEALLOCATE_BIT, DsmRange, FUA_BIT, SubmissionEntry};
pub use hmb_io::{HmbIoControl, HmbIoMetadata, HmbIoPlaces, HmbIoSlots, HostMemoryPlace};
pub use host_memory::{ENABLE_HOST_MEMORY, HostMemoryAttributes, HostMemoryDescriptor, MEMORY_RETURN};
pub use identify::{Cns, IdentifyController, IdentifyNamespace, LbaFormat, command_set};
pub use log::{ErrorEntry, LogPage, SmartLog};
pub use opcode::{AdminOpcode, AsyncEvent, FeatureId, IoOpcode};
pub use status::Status;
