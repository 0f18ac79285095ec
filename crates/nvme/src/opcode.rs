//! Opcodes, feature identifiers and asynchronous events.

macro_rules! codes {
    ($(#[$outer:meta])* $name:ident: $repr:ty { $($(#[$doc:meta])* $variant:ident = $value:literal,)* }) => {
        $(#[$outer])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr($repr)]
        pub enum $name { $($(#[$doc])* $variant = $value,)* }

        impl $name {
            /// The code's meaning, if it has one here.
            #[must_use]
            pub fn from_code(code: $repr) -> Option<Self> {
                match code {
                    $($value => Some(Self::$variant),)*
                    _ => None,
                }
            }
        }
    };
}

codes! {
    /// Admin commands (Base 2.0, figure 138).
    AdminOpcode: u8 {
        /// Delete I/O Submission Queue.
        DeleteSq = 0x00,
        /// Create I/O Submission Queue.
        CreateSq = 0x01,
        /// Get Log Page.
        GetLogPage = 0x02,
        /// Delete I/O Completion Queue.
        DeleteCq = 0x04,
        /// Create I/O Completion Queue.
        CreateCq = 0x05,
        /// Identify.
        Identify = 0x06,
        /// Abort.
        Abort = 0x08,
        /// Set Features.
        SetFeatures = 0x09,
        /// Get Features.
        GetFeatures = 0x0a,
        /// Asynchronous Event Request.
        AsyncEventRequest = 0x0c,
        /// Keep Alive.
        KeepAlive = 0x18,
        /// Directive Send.
        DirectiveSend = 0x19,
        /// Directive Receive.
        DirectiveReceive = 0x1a,
        /// The vendor's: of a virtual drive that offers it, HMB-I/O ([`crate::HmbIoMetadata`]).
        HmbIo = 0xc4,
    }
}

codes! {
    /// I/O commands of the NVM command set (NVM 1.0, figure 22).
    IoOpcode: u8 {
        /// Flush (Base 2.0, 7.1).
        Flush = 0x00,
        /// Write.
        Write = 0x01,
        /// Read.
        Read = 0x02,
        /// Compare.
        Compare = 0x05,
        /// Write Zeroes.
        WriteZeroes = 0x08,
        /// Dataset Management.
        DatasetManagement = 0x09,
    }
}

codes! {
    /// Features (Base 2.0, figure 317).
    FeatureId: u8 {
        /// Arbitration.
        Arbitration = 0x01,
        /// Power Management.
        PowerManagement = 0x02,
        /// Temperature Threshold.
        TemperatureThreshold = 0x04,
        /// Error Recovery.
        ErrorRecovery = 0x05,
        /// Volatile Write Cache.
        VolatileWriteCache = 0x06,
        /// Number of Queues.
        NumberOfQueues = 0x07,
        /// Interrupt Coalescing.
        InterruptCoalescing = 0x08,
        /// Interrupt Vector Configuration.
        InterruptVectorConfiguration = 0x09,
        /// Write Atomicity Normal.
        WriteAtomicity = 0x0a,
        /// Asynchronous Event Configuration.
        AsyncEventConfiguration = 0x0b,
        /// Host Memory Buffer.
        HostMemoryBuffer = 0x0d,
        /// The vendor's: of a virtual drive that offers it, HMB-I/O ([`crate::HmbIoSlots`]).
        HmbIo = 0xc1,
    }
}

/// An asynchronous event, as completion dword 0 reports it (Base 2.0, figure 146).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AsyncEvent {
    /// Event type: 0 error, 1 SMART/health, 2 notice.
    pub kind: u8,
    /// What happened, within its type.
    pub info: u8,
    /// The log page that says more, and clears the event when read.
    pub log: u8,
}

impl AsyncEvent {
    /// A doorbell of a queue that does not exist was written.
    pub const INVALID_DOORBELL_REGISTER: Self = Self { kind: 0, info: 0, log: 1 };
    /// A doorbell was given a value outside its queue.
    pub const INVALID_DOORBELL_VALUE: Self = Self { kind: 0, info: 1, log: 1 };

    /// The namespace's attributes, such as its size, changed.
    pub const NAMESPACE_CHANGED: Self = Self { kind: 2, info: 0, log: 4 };

    /// The composite temperature passed a threshold.
    pub const TEMPERATURE_THRESHOLD: Self = Self { kind: 1, info: 1, log: 2 };

    /// As completion dword 0.
    #[must_use]
    pub fn dword0(self) -> u32 {
        u32::from(self.kind) | u32::from(self.info) << 8 | u32::from(self.log) << 16
    }
}
