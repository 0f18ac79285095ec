//! Why a device string names no device.

use crate::profile::ProfileFault;
use nvmed_flash::ProfileError;
use nvmed_vdev::FaultError;
use nvmed_vfio::NotAnAddress;

/// Engines, for messages.
const ENGINES: &str = "virtual (aliases nvmed, lib_nvmed.so), vfio, vfio-user, uring, uring-cmd, nvm";

/// A device string that names no device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SpecError {
    /// No such engine.
    #[error("unknown engine `{name}`; this version has: {ENGINES}")]
    UnknownEngine {
        /// As written.
        name: String,
    },
    /// An engine of the plan that is not built yet.
    #[error("engine `{name}` is not in this version, which has: {ENGINES}")]
    NotYet {
        /// As written.
        name: String,
    },
    /// Simulated time passes in the calls of a host in the same process.
    #[error("clock=virtual is simulated time, which does not pass for another process; take clock=threaded")]
    SimulatedTime,
    /// The driver of a served device is its client's.
    #[error(
        "`hmb_io` is what a driver asks for, and a served device has the driver of its client; leave it out here, and \
         give it to the client: vfio-user:SOCKET?hmb_io={slots}"
    )]
    ClientsDriver {
        /// Slots of HMB-I/O that were asked for.
        slots: u16,
    },
    /// Only a virtual device can be served.
    #[error("engine `{name}` is no virtual device; only those can be served (virtual:disk.img)")]
    NotServed {
        /// As written.
        name: String,
    },
    /// An option is not known or its value is not.
    #[error("device option `{option}` is not understood; engine {engine} knows: {known}")]
    Option {
        /// As written.
        option: String,
        /// The engine.
        engine: &'static str,
        /// Its options.
        known: &'static str,
    },
    /// An option's value is a size that nothing has.
    #[error("device option `{option}`: {why}; engine {engine} knows: {known}")]
    Size {
        /// As written.
        option: String,
        /// What is wrong with it.
        why: &'static str,
        /// The engine.
        engine: &'static str,
        /// Its options.
        known: &'static str,
    },
    /// An option is given twice.
    #[error("device option `{key}` is given twice, as `{before}` and as `{after}`; leave one out")]
    Twice {
        /// Its key.
        key: String,
        /// The first one.
        before: String,
        /// The second one.
        after: String,
    },
    /// A fault rule is not understood.
    #[error("device option `faults`: {error}")]
    Faults {
        /// What is wrong with it.
        error: FaultError,
    },
    /// The drive's times make no sense.
    #[error("the device's times, in ns: {error}")]
    Profile {
        /// What is wrong with them.
        error: ProfileError,
    },
    /// A profile, and latencies beside it.
    #[error(
        "device option `profile` says how long commands take; leave it out, or `latency` and `bandwidth`"
    )]
    ProfileAndLatency,
    /// What a drive asks its host's memory for makes no sense.
    #[error("device option `hmb`: {what}")]
    HostMemory {
        /// Why, and what to do.
        what: &'static str,
    },
    /// No built-in profile has the name that was given.
    #[error("device option `profile`: {fault}")]
    UnknownProfile {
        /// What there is.
        fault: ProfileFault,
    },
    /// A buffer needs to be told what is behind it, and its size.
    #[error(
        "`profile`, `buffer` and `clock` are of a buffer in front of slow memory: give `profile` and `buffer`, as in \
             profile=nand,buffer=64M"
    )]
    HalfBuffer,
    /// What `vfio` was given is no PCI address.
    #[error("{error}")]
    Address {
        /// What it is instead.
        error: NotAnAddress,
    },
    /// Nothing says which device.
    #[error("engine {engine} needs to know which device, as in `{example}`")]
    NoPath {
        /// The engine.
        engine: &'static str,
        /// A string that would do.
        example: &'static str,
    },
}
