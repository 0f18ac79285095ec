//! Assembly: a configuration becomes a device, a cache and a mounted file system.
//!
//! In: [`Config`] or a [`DeviceSpec`]. Out: [`Mount`], [`open_device`]. The only room that names all
//! concrete types. Neighbours: every room below; the edges above.
//! Invariant: one mount per device at a time; what a dead mount left in shared memory is written
//! back before the next one begins.
#![forbid(unsafe_code)]

mod behaviour;
mod belongings;
mod caller;
pub mod config;
mod device;
mod drive;
mod driver;
mod error;
mod flusher;
mod host_memory;
mod keys;
mod mount;
mod partition;
mod profile;
mod rate;
mod record;
mod run;
mod serve;
mod spared;
mod spec;
mod statistics;

pub use behaviour::Behaviour;
pub use caller::Caller;
pub use config::{Behind, Config, ConfigError, IoUring, RawSyscalls, Sharing};
pub use device::{Open, Opened, open_device, open_engine, open_with_bytes};
pub use drive::{NewDrive, create_drive, drive_bytes, precondition_drive};
pub use driver::DriverKeys;
pub use error::{PartitionError, StackError};
pub use host_memory::{HostMemoryKeys, HostMemoryShares};
pub use mount::{Mount, Surroundings, mount, salvage, salvage_watched};
pub use nvmed_fs::Durability;
pub use nvmed_stamps::STAMPS_VARIABLE;
pub use partition::{PartitionOptions, ServedPartition};
pub use profile::{DriveProfile, Figures, Pace, ProfileFault, SlowMedium, Work};
pub use record::{OtherTime, Replayed, replay};
pub use run::{LOGS, RUN_MEMORY_VARIABLE, RunMemory, Unfinished};
pub use serve::ServedDevice;
pub use spared::Spared;
pub use spec::{
    DeviceSpec, FlushTo, Medium, NvmBuffer, NvmSpec, SpecError, UringCmdSpec, UringSpec, VfioSpec,
    VfioUserSpec, VirtualSpec,
};
pub use statistics::{Calls, STATISTICS_VARIABLE};
