//! Controller properties and doorbells (Base 2.0, 3.1.3; NVMe over PCIe Transport 1.0, 3.1).

use nvmed_units::QueueId;

/// Controller Capabilities, 64 bits.
pub const CAP: u32 = 0x00;
/// Version.
pub const VS: u32 = 0x08;
/// Interrupt Mask Set.
pub const INTMS: u32 = 0x0c;
/// Interrupt Mask Clear.
pub const INTMC: u32 = 0x10;
/// Controller Configuration.
pub const CC: u32 = 0x14;
/// Controller Status.
pub const CSTS: u32 = 0x1c;
/// Admin Queue Attributes.
pub const AQA: u32 = 0x24;
/// Admin Submission Queue Base Address, 64 bits.
pub const ASQ: u32 = 0x28;
/// Admin Completion Queue Base Address, 64 bits.
pub const ACQ: u32 = 0x30;
/// The first doorbell.
pub const DOORBELLS: u32 = 0x1000;

/// Version 1.4, which Linux and the other emulators speak.
pub const VERSION_1_4: u32 = 0x0001_0400;

/// Offset of a submission queue's tail doorbell; `stride` is CAP.DSTRD.
#[must_use]
pub const fn sq_doorbell(queue: QueueId, stride: u32) -> u32 {
    DOORBELLS + 2 * queue.0 as u32 * (4 << stride)
}

/// Offset of a completion queue's head doorbell.
#[must_use]
pub const fn cq_doorbell(queue: QueueId, stride: u32) -> u32 {
    DOORBELLS + (2 * queue.0 as u32 + 1) * (4 << stride)
}

macro_rules! field {
    ($(#[$doc:meta])* $get:ident, $with:ident, $shift:literal, $bits:literal, $word:ty) => {
        $(#[$doc])*
        #[must_use]
        pub const fn $get(self) -> $word {
            self.0 >> $shift & ((1 << $bits) - 1)
        }
        #[doc = concat!("With [`Self::", stringify!($get), "`] set; surplus bits are cut.")]
        #[must_use]
        pub const fn $with(self, value: $word) -> Self {
            let mask = ((1 << $bits) - 1) << $shift;
            Self(self.0 & !mask | value << $shift & mask)
        }
    };
}

/// Controller Capabilities (Base 2.0, 3.1.3.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capabilities(pub u64);

impl Capabilities {
    field!(/** Maximum Queue Entries Supported, 0's based. */ mqes, with_mqes, 0, 16, u64);
    field!(/** Contiguous Queues Required. */ cqr, with_cqr, 16, 1, u64);
    field!(/** Arbitration Mechanism Supported. */ ams, with_ams, 17, 2, u64);
    field!(/** Timeout, in units of 500 ms. */ to, with_to, 24, 8, u64);
    field!(/** Doorbell Stride: 4 << DSTRD bytes. */ dstrd, with_dstrd, 32, 4, u64);
    field!(/** Command Sets Supported; bit 0 is NVM. */ css, with_css, 37, 8, u64);
    field!(/** Memory Page Size Minimum: 4096 << MPSMIN. */ mpsmin, with_mpsmin, 48, 4, u64);
    field!(/** Memory Page Size Maximum. */ mpsmax, with_mpsmax, 52, 4, u64);
}

/// Controller Configuration (Base 2.0, 3.1.3.5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Configuration(pub u32);

impl Configuration {
    field!(/** Enable. */ en, with_en, 0, 1, u32);
    field!(/** I/O Command Set Selected. */ css, with_css, 4, 3, u32);
    field!(/** Memory Page Size. */ mps, with_mps, 7, 4, u32);
    field!(/** Arbitration Mechanism Selected. */ ams, with_ams, 11, 3, u32);
    field!(/** Shutdown Notification: 1 normal, 2 abrupt. */ shn, with_shn, 14, 2, u32);
    field!(/** I/O Submission Queue Entry Size, log2. */ iosqes, with_iosqes, 16, 4, u32);
    field!(/** I/O Completion Queue Entry Size, log2. */ iocqes, with_iocqes, 20, 4, u32);
}

/// Controller Status (Base 2.0, 3.1.3.6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ControllerStatus(pub u32);

impl ControllerStatus {
    /// What a controller that is gone reads as.
    pub const GONE: Self = Self(u32::MAX);

    field!(/** Ready. */ rdy, with_rdy, 0, 1, u32);
    field!(/** Controller Fatal Status. */ cfs, with_cfs, 1, 1, u32);
    field!(/** Shutdown Status: 1 occurring, 2 complete. */ shst, with_shst, 2, 2, u32);
}

/// Admin Queue Attributes (Base 2.0, 3.1.3.8): both sizes 0's based.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AdminQueueAttributes(pub u32);

impl AdminQueueAttributes {
    field!(/** Admin Submission Queue Size. */ asqs, with_asqs, 0, 12, u32);
    field!(/** Admin Completion Queue Size. */ acqs, with_acqs, 16, 12, u32);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_lie_where_the_specification_has_them() {
        // QEMU's controller: MQES 2047, CQR, TO 15, CSS NVM, MPSMAX 4 (and bit 43, several sets).
        let cap = Capabilities(0x0040_1820_0f01_07ff & !(1 << 44 | 1 << 43));
        assert_eq!((cap.mqes(), cap.cqr(), cap.to(), cap.dstrd()), (0x7ff, 1, 15, 0));
        assert_eq!((cap.css() & 1, cap.mpsmin(), cap.mpsmax()), (1, 0, 4));
        let cc = Configuration::default().with_en(1).with_iosqes(6).with_iocqes(4);
        assert_eq!(cc.0, 0x0046_0001);
        assert_eq!(ControllerStatus(0b1001).shst(), 2);
        assert_eq!((sq_doorbell(QueueId(3), 0), cq_doorbell(QueueId(3), 0)), (0x1018, 0x101c));
        assert_eq!(cq_doorbell(QueueId(1), 2), 0x1030);
    }
}
