//! HMB-I/O: what slots are granted, what passes through them, and in which order.

use crate::slots::{PAGE, SlotHost, UNITS, UNTOUCHED, config};
use nvmed_nvme::{HmbIoMetadata, HmbIoSlots};
use nvmed_vdev::Clock;

const CLOCKS: [Clock; 3] = [Clock::Inline, Clock::Threaded, Clock::Virtual];
const READ: u32 = HmbIoMetadata::READ;
const WRITE: u32 = HmbIoMetadata::WRITE;

#[test]
fn a_read_is_in_its_slot_when_it_completes() {
    for clock in CLOCKS {
        let asked = HmbIoSlots { slots: 4, pages: 8 };
        let mut host = SlotHost::with_slots(config(clock), asked);
        assert_eq!((host.granted, host.feature()), (asked, asked.dword()));
        assert!(host.control.unwrap().is_of(asked));
        // From within a page, over its end: the slot's pages are the drive's.
        let status = host.run(2, READ, 9 * PAGE as u64 + 3584, 1536);
        assert!(status.is_success(), "{clock:?}: {status:?}");
        assert_eq!(host.read(2, 3584, 1536), [vec![9; 512], vec![10; 1024]].concat());
        assert!(host.read(2, 0, 3584).iter().all(|&byte| byte == UNTOUCHED));
        let log = host.log();
        assert_eq!((log.hmb_io_slots, log.hmb_io_reads, log.hmb_io_writes), (4, 1, 0));
        assert_eq!(log.hmb_io_errors, 0);
        let last = (UNITS - 8) * PAGE as u64;
        assert!(host.run(3, READ, last, 8 * PAGE as u32).is_success());
        assert!(host.read(3, 7 * PAGE, PAGE).iter().all(|&byte| byte == (UNITS - 1) as u8));
    }
    let _ = WRITE;
}
