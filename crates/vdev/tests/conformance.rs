//! The controller answers as the specification says, and survives hosts that do not read it.

mod host;

use host::{DATA, ENTRIES, Host};
use nvmed_dma::Transport;
use nvmed_nvme::{Status, SubmissionEntry, register};
use nvmed_sys::Pages;
use nvmed_vdev::{Clock, ControllerConfig, Media};
use proptest::prelude::*;

const BYTES: u64 = 1 << 20;

fn ram() -> Media {
    Media::ram(BYTES, Pages::Base).unwrap()
}

fn host() -> Host {
    Host::new(ControllerConfig::default(), ram())
}

fn admin(opcode: u8, cdw10: u32, cdw11: u32) -> SubmissionEntry {
    SubmissionEntry { opcode, cdw10, cdw11, ..Default::default() }
}

/// An admin command with a page of data at `DATA`.
fn with_page(host: &Host, opcode: u8, nsid: u32, cdw10: u32) -> SubmissionEntry {
    SubmissionEntry { opcode, nsid, cdw10, prp1: host.address(DATA).0, ..Default::default() }
}

fn page(host: &Host) -> Vec<u8> {
    let mut bytes = vec![0; 4096];
    host.memory.read(DATA, &mut bytes);
    bytes
}

fn csts(host: &Host) -> u32 {
    host.device.read32(register::CSTS)
}

#[test]
fn enabling_needs_sound_queues_and_sizes() {
    let mut host = Host::disabled(ControllerConfig::default(), ram());
    assert_eq!(csts(&host), 0);
    host.device.write32(register::CC, 0x0046_0001);
    assert_eq!(csts(&host) & 2, 2, "enabled without an admin queue: CFS");
    host.device.write32(register::CC, 0);
    assert_eq!(csts(&host), 0, "a reset clears CFS");
    host.enable();
    assert_eq!(csts(&host), 1);
    host.device.write32(register::CC, 0x0046_4001);
    assert_eq!(csts(&host) >> 2 & 3, 2, "shutdown completes");
    assert_eq!(host.device.read64(register::CAP) & 0xffff, 1023);
    assert_eq!(host.device.read32(register::VS), 0x0001_0400);
}

#[test]
fn identify_tells_what_the_controller_is() {
    let mut host = host();
    let said = host.admin(with_page(&host, 6, 0, 1));
    assert!(said.status().is_success());
    let data = page(&host);
    assert_eq!(&data[4..13], b"NVMED0001");
    assert_eq!((data[77], data[512], data[513]), (8, 0x66, 0x44));
    assert!(host.admin(with_page(&host, 6, 1, 0)).status().is_success());
    let data = page(&host);
    assert_eq!(u64::from_le_bytes(data[..8].try_into().unwrap()), BYTES / 512);
    assert_eq!((data[25], data[26], data[130], data[134]), (1, 0, 9, 12));
    assert!(host.admin(with_page(&host, 6, 0, 2)).status().is_success());
    assert_eq!(page(&host)[..8], [1, 0, 0, 0, 0, 0, 0, 0]);
    assert!(host.admin(with_page(&host, 6, 1, 3)).status().is_success());
    for (nsid, cns, want) in [
        (2, 0, Status::INVALID_NAMESPACE),
        (0, 3, Status::INVALID_NAMESPACE),
        (0, 0x77, Status::INVALID_FIELD),
    ] {
        assert!(host.admin(with_page(&host, 6, nsid, cns)).status().is(want), "CNS {cns:x}h of {nsid}");
    }
}

#[test]
fn queues_are_made_and_deleted_in_order() {
    let mut host = host();
    let base = host.address(0x8000).0;
    let create =
        |opcode, cdw10, cdw11| SubmissionEntry { opcode, prp1: base, cdw10, cdw11, ..Default::default() };
    let size = 7 << 16;
    for (entry, want) in [
        (create(5, size, 1), Status::INVALID_QID),
        (create(5, size | 65, 1), Status::INVALID_QID),
        (create(5, size | 1, 1), Status::INVALID_QID),
        (create(5, 2, 1), Status::INVALID_QUEUE_SIZE),
        (create(5, 1024 << 16 | 2, 1), Status::INVALID_QUEUE_SIZE),
        (create(5, size | 2, 0), Status::INVALID_FIELD),
        (create(5, size | 2, 1 | 500 << 16), Status::INVALID_VECTOR),
        (SubmissionEntry { prp1: base + 8, ..create(5, size | 2, 1) }, Status::PRP_OFFSET_INVALID),
        (create(1, size | 2, 1 | 2 << 16), Status::CQ_INVALID),
        (create(1, size | 2, 1), Status::CQ_INVALID),
        (admin(4, 1, 0), Status::INVALID_QUEUE_DELETION),
        (admin(4, 0, 0), Status::INVALID_QID),
        (admin(0, 7, 0), Status::INVALID_QID),
        (admin(0xee, 0, 0), Status::INVALID_OPCODE),
    ] {
        let status = host.admin(entry).status();
        assert!(status.is(want), "{entry:?} answered {status}");
    }
    assert!(host.admin(admin(0, 1, 0)).status().is_success());
    assert!(host.admin(admin(4, 1, 0)).status().is_success());
}

#[test]
fn features_are_set_read_and_refused() {
    let mut host = Host::disabled(ControllerConfig::default(), ram());
    host.enable();
    let granted = host.admin(admin(9, 7, 99 | 3 << 16));
    assert_eq!((granted.status(), granted.result), (Status::SUCCESS, 63 | 63 << 16), "all there are");
    assert!(host.admin(admin(9, 1, 0x0102_0304)).status().is_success());
    assert_eq!(host.admin(admin(0x0a, 1, 0)).result, 0x0102_0304);
    for (entry, want) in [
        (admin(9, 0x77, 0), Status::INVALID_FIELD),
        (admin(9, 7, 0xffff), Status::INVALID_FIELD),
        (admin(9, 1 | 1 << 31, 0), Status::FEATURE_NOT_SAVEABLE),
        (admin(9, 6, 0), Status::INVALID_FIELD),
        (admin(9, 2, 3), Status::INVALID_FIELD),
        (admin(0x0a, 0x0d, 0), Status::INVALID_FIELD),
    ] {
        let status = host.admin(entry).status();
        assert!(status.is(want), "{entry:?} answered {status}");
    }
    host.create_io();
    assert!(host.admin(admin(9, 7, 0)).status().is(Status::SEQUENCE_ERROR));
}

#[test]
fn io_commands_check_everything_before_they_touch_anything() {
    let mut host = host();
    let blocks = BYTES / 512;
    let good = host.data(2, 0, 8, 4096);
    for (entry, want) in [
        (SubmissionEntry { opcode: 0x77, ..good }, Status::INVALID_OPCODE),
        (SubmissionEntry { nsid: 2, ..good }, Status::INVALID_NAMESPACE),
        (SubmissionEntry { flags: 0x40, ..good }, Status::INVALID_FIELD),
        (SubmissionEntry { prp1: good.prp1 + 2, ..good }, Status::PRP_OFFSET_INVALID),
        (SubmissionEntry { prp1: 0xdead_0000, ..good }, Status::DATA_TRANSFER_ERROR),
        (SubmissionEntry { prp2: good.prp2 + 512, ..host.data(2, 0, 16, 8192) }, Status::PRP_OFFSET_INVALID),
        (SubmissionEntry { prp2: good.prp2 + 4, ..host.data(2, 0, 24, 12288) }, Status::PRP_OFFSET_INVALID),
        (SubmissionEntry { prp2: 0xdead_0000, ..host.data(2, 0, 24, 12288) }, Status::DATA_TRANSFER_ERROR),
        (host.data(2, blocks - 7, 8, 4096), Status::LBA_OUT_OF_RANGE),
        (host.data(1, u64::MAX - 3, 8, 4096), Status::LBA_OUT_OF_RANGE),
        (host.data(8, blocks, 1, 0), Status::LBA_OUT_OF_RANGE),
        (host.data(2, 0, 2049, 4096), Status::LBA_OUT_OF_RANGE),
    ] {
        let status = host.io(entry).status();
        assert!(status.is(want), "{entry:?} answered {status}");
    }
    assert!(host.io(good).status().is_success());
    let log = SubmissionEntry { cdw10: 1 | 15 << 16, ..with_page(&host, 2, 0, 0) };
    assert!(host.admin(log).status().is_success());
    assert_eq!(u64::from_le_bytes(page(&host)[..8].try_into().unwrap()), 12, "errors are logged");
}

#[test]
fn log_pages_tell_what_was_done() {
    let mut host = host();
    for lba in 0..3 {
        assert!(host.io(host.data(1, lba * 8, 8, 4096)).status().is_success());
    }
    let log = |host: &Host, page: u32, dwords: u32| with_page(host, 2, 0, page | (dwords - 1) << 16);
    assert!(host.admin(log(&host, 2, 128)).status().is_success());
    let smart = page(&host);
    assert_eq!(u64::from_le_bytes(smart[80..88].try_into().unwrap()), 3, "host writes");
    assert!(host.admin(log(&host, 5, 1024)).status().is_success());
    assert_eq!(page(&host)[1024 + 4], 3, "Write is supported and changes data");
    assert!(host.admin(log(&host, 3, 128)).status().is_success());
    assert_eq!(&page(&host)[8..11], b"0.1");
    assert!(host.admin(log(&host, 0x77, 128)).status().is(Status::INVALID_LOG));
    let beyond = SubmissionEntry { cdw12: 4096, ..log(&host, 2, 4) };
    assert!(host.admin(beyond).status().is(Status::INVALID_FIELD));
}

#[test]
fn a_transfer_over_mdts_is_refused() {
    let config = ControllerConfig { mdts: 1, ..ControllerConfig::default() };
    let mut host = Host::new(config, ram());
    assert!(host.io(host.data(2, 0, 16, 8192)).status().is_success());
    assert!(host.io(host.data(2, 0, 17, 8704)).status().is(Status::INVALID_FIELD));
}

#[test]
fn compare_zeroes_and_deallocate() {
    let mut host = host();
    host.memory.fill(DATA, 8192, 0x5a);
    assert!(host.io(host.data(1, 8, 16, 8192)).status().is_success());
    assert!(host.io(host.data(5, 8, 16, 8192)).status().is_success());
    host.memory.fill(DATA + 8191, 1, 0);
    assert!(host.io(host.data(5, 8, 16, 8192)).status().is(Status::COMPARE_FAILURE));
    assert!(host.io(host.data(8, 8, 4, 0)).status().is_success());
    host.memory.u32(DATA + 4).store(4, std::sync::atomic::Ordering::Relaxed);
    host.memory.u64(DATA + 8).store(14, std::sync::atomic::Ordering::Relaxed);
    let discard = SubmissionEntry { cdw10: 0, cdw11: 4, cdw12: 0, ..host.data(9, 0, 1, 16) };
    assert!(host.io(discard).status().is_success());
    assert!(host.io(host.data(2, 8, 16, 8192)).status().is_success());
    let mut bytes = vec![0; 8192];
    host.memory.read(DATA, &mut bytes);
    let zero = |range: std::ops::Range<usize>| bytes[range].iter().all(|&byte| byte == 0);
    assert!(zero(0..2048) && zero(3072..5120), "zeroed and deallocated blocks read as zeroes");
    assert!(bytes[2048..3072].iter().chain(&bytes[5120..]).all(|&byte| byte == 0x5a));
}

#[test]
fn events_wait_for_a_request_and_aborts_take_one_back() {
    let mut host = host();
    host.device.write32(register::sq_doorbell(nvmed_units::QueueId(1), 0), u32::from(ENTRIES));
    host.device.write32(register::sq_doorbell(nvmed_units::QueueId(9), 0), 0);
    host.place(0, SubmissionEntry { opcode: 0x0c, cid: 77, ..Default::default() });
    host.ring(0);
    let event = host.reap(0).expect("an event was waiting");
    assert_eq!((event.cid, event.result), (77, 0x0001_0100), "error event: invalid doorbell value, log 1");
    for cid in 0..4 {
        host.place(0, SubmissionEntry { opcode: 0x0c, cid, ..Default::default() });
        host.ring(0);
        assert!(host.reap(0).is_none(), "the second event is masked until the log is read");
    }
    assert!(host.admin(admin(0x0c, 0, 0)).status().is(Status::AER_LIMIT));
    host.place(0, admin(8, 2 << 16, 0));
    host.ring(0);
    assert_eq!(host.reap(0).unwrap().result, 0, "the abort says that it did");
    let aborted = host.reap(0).unwrap();
    assert_eq!((aborted.cid, aborted.status()), (2, Status::ABORT_REQUESTED));
    assert_eq!(host.admin(admin(8, 99 << 16, 0)).result, 1, "nothing to abort");
}

#[test]
fn a_full_completion_queue_holds_commands_back() {
    let mut host = host();
    let flush = |cid| SubmissionEntry { opcode: 0, nsid: 1, cid, ..Default::default() };
    for cid in 0..7 {
        host.place(1, flush(cid));
    }
    host.ring(1);
    for cid in 7..10 {
        host.place(1, flush(cid));
    }
    host.ring(1);
    let order: Vec<u16> = std::iter::from_fn(|| host.reap(1)).map(|done| done.cid).collect();
    assert_eq!(order, (0..10).collect::<Vec<_>>(), "each once, in order, none overwritten");
}

#[test]
fn the_threaded_clock_completes_behind_the_doorbell() {
    let config = ControllerConfig { clock: Clock::Threaded, ..ControllerConfig::default() };
    let mut host = Host::new(config, ram());
    host.memory.fill(DATA, 4096, 7);
    for lba in 0..100 {
        assert!(host.io(host.data(1, lba * 8, 8, 4096)).status().is_success());
        assert!(host.io(host.data(5, lba * 8, 8, 4096)).status().is_success());
    }
}

#[derive(Clone, Debug)]
enum Step {
    Property(u32, u32),
    Doorbell(u16, bool, u32),
    Entry(usize, Box<[u8; 64]>),
    Sound,
}

fn step() -> impl Strategy<Value = Step> {
    let entry = (0usize..2, prop::collection::vec(any::<u8>(), 64), 0u8..16, any::<bool>()).prop_map(
        |(queue, bytes, opcode, near)| {
            let mut entry: [u8; 64] = bytes.try_into().unwrap();
            entry[0] = opcode;
            if near {
                // Addresses near mapped memory and small identifiers get further than random ones.
                entry[4..8].copy_from_slice(&1u32.to_le_bytes());
                entry[28..32].copy_from_slice(&[0, 1, 0, 0]);
                entry[36..40].copy_from_slice(&[0, 1, 0, 0]);
                entry[42..48].fill(0);
                entry[49] &= 7;
            }
            Step::Entry(queue, Box::new(entry))
        },
    );
    prop_oneof![
        2 => (prop::sample::select(vec![0u32, 0x0c, 0x10, 0x14, 0x1c, 0x24, 0x28, 0x2c, 0x30, 0x34, 0x777]), any::<u32>())
            .prop_map(|(at, value)| Step::Property(at, value)),
        3 => (0u16..70, any::<bool>(), prop_oneof![0u32..20, any::<u32>()])
            .prop_map(|(queue, head, value)| Step::Doorbell(queue, head, value)),
        10 => entry,
        2 => Just(Step::Sound),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// No host brings the controller down; after a reset it works.
    #[test]
    fn fuzz_a_hostile_host_is_survived(steps in prop::collection::vec(step(), 1..60)) {
        let mut host = host();
        for step in steps {
            match step {
                Step::Property(at, value) => host.device.write32(at, value),
                Step::Doorbell(queue, head, value) => {
                    let queue = nvmed_units::QueueId(queue);
                    let at = if head { register::cq_doorbell(queue, 0) } else { register::sq_doorbell(queue, 0) };
                    host.device.write32(at, value);
                }
                Step::Entry(queue, bytes) => {
                    host.place(queue, zerocopy::FromBytes::read_from_bytes(&bytes[..]).unwrap());
                    host.ring(queue);
                    host.reap(queue);
                }
                Step::Sound => {
                    host.device.write32(register::CC, 0);
                    host.enable();
                    host.create_io();
                }
            }
        }
        host.device.write32(register::CC, 0);
        host.enable();
        host.create_io();
        prop_assert!(host.io(host.data(2, 0, 8, 4096)).status().is_success());
    }
}
