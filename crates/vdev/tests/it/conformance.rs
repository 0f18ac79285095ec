//! The controller answers as the specification says, and survives hosts that do not read it.

use crate::host::{DATA, ENTRIES, Host, MEMORY};
use nvmed_dma::Transport;
use nvmed_nvme::{Status, SubmissionEntry, register};
use nvmed_sys::Pages;
use nvmed_units::QueueId;
use nvmed_vdev::{Clock, ControllerConfig, FileOptions, Flush, Media};
use std::path::Path;
use std::sync::atomic::Ordering;

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
    assert_eq!(host.device.read64(register::CAP) & 0xffff, 16_383);
    assert_eq!(host.device.read32(register::VS), 0x0001_0400);
}

#[test]
fn identify_tells_what_the_controller_is() {
    let mut host = host();
    let said = host.admin(with_page(&host, 6, 0, 1));
    assert!(said.status().is_success());
    let data = page(&host);
    assert_eq!(data[..4], [0x34, 0x12, 0x34, 0x12], "vendors as in PCI configuration space");
    assert_eq!(&data[4..10], b"nvmed-");
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
        (create(5, 16_384 << 16 | 2, 1), Status::INVALID_QUEUE_SIZE),
        (create(5, 0xffff << 16 | 2, 1), Status::INVALID_QUEUE_SIZE),
        (create(5, size | 2, 0), Status::INVALID_FIELD),
        (create(5, size | 2, 1 | 500 << 16), Status::INVALID_VECTOR),
        (SubmissionEntry { prp1: base + 8, ..create(5, size | 2, 1) }, Status::PRP_OFFSET_INVALID),
        (create(1, size | 2, 1 | 2 << 16), Status::CQ_INVALID),
        (create(1, size | 2, 1 | 65 << 16), Status::INVALID_QID),
        (create(1, size | 2, 1), Status::INVALID_QID),
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
fn a_features_values_are_selected_and_none_is_saved() {
    const SELECT_SAVE: u8 = 1 << 4;
    let mut host = host();
    assert!(host.admin(with_page(&host, 6, 0, 1)).status().is_success());
    assert_eq!(page(&host)[520] & SELECT_SAVE, SELECT_SAVE, "ONCS says so");
    // Feature, its default, and another value.
    for (id, default, other) in [
        (1, 0, 0x0102_0304),
        (4, 343, 400),
        (5, 0, 77),
        (8, 0, 0x203),
        (9, 3, 3 | 1 << 16),
        (0x0b, 0xff, 0x1ff),
    ] {
        // An index, of the feature that has a value a vector.
        let index = if id == 9 { 3 } else { 0 };
        let mut get = |select: u32| host.admin(admin(0x0a, id | select << 8, index));
        let [current, default_value, saved, capabilities] = [0, 1, 2, 3].map(|select| get(select).result);
        assert_eq!((current, default_value, saved), (default, default, default), "feature {id:x}h");
        assert_eq!(capabilities, 0b100, "feature {id:x}h is changeable and not saveable");
        assert!((4..8).all(|select| get(select).status().is(Status::INVALID_FIELD)), "feature {id:x}h");
        let refused = host.admin(admin(9, id | 1 << 31, other)).status();
        assert!(refused.is(Status::FEATURE_NOT_SAVEABLE), "feature {id:x}h: {refused}");
        assert_eq!(host.admin(admin(0x0a, id, index)).result, default, "feature {id:x}h is as it was");
        assert!(host.admin(admin(9, id, other)).status().is_success(), "feature {id:x}h");
        let mut get = |select: u32| host.admin(admin(0x0a, id | select << 8, index)).result;
        assert_eq!([0, 1, 2].map(&mut get), [other, default, default], "feature {id:x}h");
    }
    host.device.write32(register::CC, 0);
    host.enable();
    assert_eq!(host.admin(admin(0x0a, 1, 0)).result, 0, "a reset ends what was not saved");
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
    host.memory.u32(DATA + 4).store(4, Ordering::Relaxed);
    host.memory.u64(DATA + 8).store(14, Ordering::Relaxed);
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
    host.device.write32(register::sq_doorbell(QueueId(1), 0), u32::from(ENTRIES));
    host.device.write32(register::sq_doorbell(QueueId(9), 0), 0);
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

#[test]
fn a_list_of_pages_goes_on_in_further_pages() {
    let config = ControllerConfig { lba_bytes: 4096, ..ControllerConfig::default() };
    let mut host = Host::new(config, ram());
    let pages = 256;
    for page in 0..pages {
        host.memory.fill(DATA + 4096 * page, 4096, page as u8);
    }
    // The list begins with the last two slots of a page: an entry, and the address of the page with the rest.
    let list = MEMORY - (1 << 20);
    let put = |at: usize, address: usize| {
        host.memory.u64(at).store(host.address(address).0, Ordering::Relaxed);
    };
    put(list + 4080, DATA + 4096);
    put(list + 4088, list + 4096);
    (2..pages).for_each(|page| put(list + 4096 + 8 * (page - 2), DATA + 4096 * page));
    let chained = SubmissionEntry { prp2: host.address(list + 4080).0, ..host.data(1, 0, 256, 4096) };
    assert!(host.io(chained).status().is_success());
    host.memory.fill(DATA, pages * 4096, 0);
    let plain = host.data(2, 0, 256, pages * 4096);
    assert!(host.io(plain).status().is_success());
    for page in 0..pages {
        let at = DATA + 4096 * page + page;
        assert_eq!(host.memory.u8(at).load(Ordering::Relaxed), page as u8, "page {page}");
    }
    host.memory.u64(list + 4088).store(host.address(list + 4096 + 8).0, Ordering::Relaxed);
    assert!(host.io(chained).status().is(Status::PRP_OFFSET_INVALID), "a list goes on at a page's begin");
}

/// The last slot of a list's page is an entry if one page of data is left, else the way to the next page.
#[test]
fn the_last_slot_of_a_list_is_read_by_what_is_left() {
    let config = ControllerConfig { lba_bytes: 4096, ..ControllerConfig::default() };
    let mut host = Host::new(config, ram());
    let list = MEMORY - (1 << 20);
    let put = |at: usize, address: usize| {
        host.memory.u64(at).store(host.address(address).0, Ordering::Relaxed);
    };
    (0..3).for_each(|page| host.memory.fill(DATA + 4096 * page, 4096, 1 + page as u8));
    put(list + 4080, DATA + 4096);
    put(list + 4088, DATA + 8192);
    let entries = SubmissionEntry { prp2: host.address(list + 4080).0, ..host.data(1, 0, 3, 4096) };
    put(list + 8192 + 4088, list + 12_288);
    put(list + 12_288, DATA + 4096);
    put(list + 12_296, DATA + 8192);
    let chain = SubmissionEntry { prp2: host.address(list + 8192 + 4088).0, ..host.data(5, 0, 3, 4096) };
    assert!(host.io(entries).status().is_success());
    assert!(host.io(chain).status().is_success(), "both lists name the same pages");
    assert!(host.io(host.data(2, 2, 1, 4096)).status().is_success());
    assert_eq!(host.memory.u8(DATA).load(Ordering::Relaxed), 3);
}

#[test]
fn doorbells_of_nothing_and_values_of_nothing_are_events() {
    let sq = |queue| register::sq_doorbell(QueueId(queue), 0);
    let cq = |queue| register::cq_doorbell(QueueId(queue), 0);
    for (offset, value, info) in [
        (sq(1), u32::from(ENTRIES), 1),
        (cq(1), u32::from(ENTRIES), 1),
        (cq(0), 4095, 1),
        (sq(2), 0, 0),
        (cq(2), 0, 0),
        (sq(300), 0, 0),
    ] {
        let mut host = host();
        host.device.write32(offset, value);
        host.place(0, SubmissionEntry { opcode: 0x0c, cid: 9, ..Default::default() });
        host.ring(0);
        let event = host.reap(0).expect("an event was waiting");
        assert_eq!(event.result, info << 8 | 1 << 16, "{offset:x} was given {value}");
        assert!(host.io(host.data(2, 0, 8, 4096)).status().is_success(), "the queue goes on");
    }
}

#[test]
fn a_disabled_controller_has_no_doorbells_and_forgets_what_it_had() {
    let mut host = Host::disabled(ControllerConfig::default(), ram());
    host.device.write32(register::sq_doorbell(QueueId(1), 0), 3);
    host.enable();
    host.create_io();
    host.place(0, SubmissionEntry { opcode: 0x0c, cid: 9, ..Default::default() });
    host.ring(0);
    assert!(host.reap(0).is_none(), "no event from before it was ready");
    assert!(host.admin(admin(9, 1, 5)).status().is_success());
    host.device.write32(register::CC, 0);
    assert_eq!(csts(&host), 0);
    assert_ne!(host.device.read64(register::ASQ), 0, "ASQ survives a reset");
    host.ring(1);
    host.enable();
    assert!(host.reap(0).is_none(), "no request and no event from before the reset");
    assert_eq!(host.admin(admin(0x0a, 1, 0)).result, 0, "features have their defaults");
    let gone = SubmissionEntry { cdw10: 1, ..admin(4, 1, 0) };
    assert!(host.admin(gone).status().is(Status::INVALID_QID), "queues are gone");
}

#[test]
fn queues_need_the_entry_sizes_of_the_configuration() {
    let mut host = Host::disabled(ControllerConfig::default(), ram());
    host.enable();
    let create = |host: &Host, opcode, cdw11| SubmissionEntry {
        opcode,
        prp1: host.address(0x8000).0,
        cdw10: 7 << 16 | 1,
        cdw11,
        ..Default::default()
    };
    host.device.write32(register::CC, 0x0006_0001);
    let entry = create(&host, 5, 1);
    assert!(host.admin(entry).status().is(Status::INVALID_QUEUE_SIZE));
    host.device.write32(register::CC, 0x0040_0001);
    assert!(host.admin(entry).status().is_success());
    let entry = create(&host, 1, 1 | 1 << 16);
    assert!(host.admin(entry).status().is(Status::INVALID_QUEUE_SIZE));
}

#[test]
fn queues_share_a_completion_queue_and_events_wait_for_its_room() {
    let mut host = host();
    let sq = SubmissionEntry {
        opcode: 1,
        prp1: host.address(0x8000).0,
        cdw10: u32::from(ENTRIES - 1) << 16 | 2,
        cdw11: 1 | 1 << 16,
        ..Default::default()
    };
    assert!(host.admin(sq).status().is_success());
    assert!(host.admin(admin(4, 1, 0)).status().is(Status::INVALID_QUEUE_DELETION));
    let flush = SubmissionEntry { opcode: 0, nsid: 1, ..Default::default() };
    for slot in 0..7u16 {
        host.place(1, SubmissionEntry { cid: slot, ..flush });
        let second = SubmissionEntry { cid: 100 + slot, ..flush };
        host.memory.write(0x8000 + 64 * usize::from(slot), zerocopy::IntoBytes::as_bytes(&second));
    }
    host.ring(1);
    host.device.write32(register::sq_doorbell(QueueId(2), 0), 7);
    let done: Vec<_> = std::iter::from_fn(|| host.reap(1)).map(|done| (done.sq_id, done.cid)).collect();
    let expected: Vec<_> = (0..7).map(|cid| (1, cid)).chain((100..107).map(|cid| (2, cid))).collect();
    assert_eq!(done, expected);

    // The admin completion queue is full when the event comes; it follows when there is room.
    host.place(0, SubmissionEntry { opcode: 0x0c, cid: 77, ..Default::default() });
    for cid in 0..6 {
        host.place(0, SubmissionEntry { cid, ..admin(0x0a, 1, 0) });
    }
    host.ring(0);
    host.place(0, SubmissionEntry { cid: 6, ..admin(0x0a, 1, 0) });
    host.ring(0);
    host.device.write32(register::sq_doorbell(QueueId(9), 0), 0);
    let done: Vec<_> = std::iter::from_fn(|| host.reap(0)).map(|done| done.cid).collect();
    assert_eq!(done, [0, 1, 2, 3, 4, 5, 6, 77]);
}

#[test]
fn the_doorbell_stride_is_what_the_capabilities_say() {
    let config = ControllerConfig { doorbell_stride: 4, ..ControllerConfig::default() };
    let mut host = Host::new(config, ram());
    assert_eq!(host.device.read64(register::CAP) >> 32 & 0xf, 4);
    assert!(host.io(host.data(2, 0, 8, 4096)).status().is_success());
}

#[test]
fn thresholds_and_vectors_have_values_of_their_own() {
    let mut host = host();
    host.place(0, SubmissionEntry { opcode: 0x0c, cid: 55, ..Default::default() });
    host.ring(0);
    let under = 1 << 20;
    assert!(host.admin(admin(9, 4, 250 | under)).status().is_success());
    assert_eq!(host.admin(admin(0x0a, 4, under)).result, 250);
    assert_eq!(host.admin(admin(0x0a, 4, 0)).result, 343);
    assert_eq!(host.admin(admin(0x0a, 4 | 1 << 8, 0)).result, 343, "the default");
    assert!(host.admin(admin(9, 9, 3 | 1 << 16)).status().is_success());
    assert_eq!(host.admin(admin(0x0a, 9, 3)).result, 3 | 1 << 16);
    assert_eq!(host.admin(admin(0x0a, 9, 4)).result, 4);
    for (entry, want) in [
        (admin(9, 4, 300 | 3 << 16), Status::INVALID_FIELD),
        (admin(9, 5, 1 << 16), Status::INVALID_FIELD),
        (admin(9, 9, 65), Status::INVALID_FIELD),
        (admin(0x0a, 1 | 5 << 8, 0), Status::INVALID_FIELD),
        (admin(0x0a, 6, 0), Status::INVALID_FIELD),
        (SubmissionEntry { nsid: 1, ..admin(9, 1, 0) }, Status::FEATURE_NOT_NAMESPACE_SPECIFIC),
        (SubmissionEntry { flags: 0x40, ..admin(9, 1, 0) }, Status::INVALID_FIELD),
        (admin(0x18, 0, 0), Status::INVALID_OPCODE),
    ] {
        let status = host.admin(entry).status();
        assert!(status.is(want), "{entry:?} answered {status}");
    }
    host.place(0, SubmissionEntry { cid: 1, ..admin(9, 4, 290) });
    host.ring(0);
    assert_eq!(host.reap(0).unwrap().cid, 1);
    let event = host.reap(0).expect("300 K is above the threshold of 290 K");
    assert_eq!((event.cid, event.result), (55, 0x0002_0101));
    let smart = SubmissionEntry { cdw10: 2 | 127 << 16, ..with_page(&host, 2, u32::MAX, 0) };
    assert!(host.admin(smart).status().is_success());
    assert_eq!(page(&host)[0], 2, "critical warning: temperature");
    let of_namespace = SubmissionEntry { nsid: 1, ..smart };
    assert!(host.admin(of_namespace).status().is(Status::INVALID_FIELD));
}

/// What tells a device from others: serial number, controller identifier, EUI-64.
type Names = (String, u16, [u8; 8]);

fn names(serial: Option<&str>, media: Media) -> Names {
    let config = ControllerConfig { serial: serial.map(str::to_owned), ..ControllerConfig::default() };
    let mut host = Host::new(config, media);
    assert!(host.admin(with_page(&host, 6, 0, 1)).status().is_success());
    let data = page(&host);
    let serial = String::from_utf8(data[4..24].to_vec()).unwrap().trim_end().to_owned();
    assert!(data[768..].starts_with(format!("nqn.2026-11.io.nvmed:{serial}\0").as_bytes()));
    let controller = u16::from_le_bytes([data[78], data[79]]);
    assert!((1..0xfff0).contains(&controller), "{controller:x}");
    assert!(host.admin(with_page(&host, 6, 1, 0)).status().is_success());
    let eui64 = page(&host)[120..128].try_into().unwrap();
    assert!(host.admin(with_page(&host, 6, 1, 3)).status().is_success());
    assert_eq!(page(&host)[4..12], eui64, "the descriptor says the same");
    (serial, controller, eui64)
}

/// All three differ.
fn are_two(one: &Names, other: &Names) -> bool {
    one.0 != other.0 && one.1 != other.1 && one.2 != other.2
}

fn image(path: &Path) -> Media {
    let size = (!path.exists()).then_some(BYTES);
    Media::file(FileOptions { path: path.to_owned(), size, flush: Flush::Process, lock: true }).unwrap()
}

#[test]
fn an_image_keeps_its_names_and_no_two_devices_share_them() {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("names-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let (a, b, c) = (directory.join("a.img"), directory.join("b.img"), directory.join("c.img"));
    let first = names(None, image(&a));
    assert_eq!(names(None, image(&a)), first, "opened again");
    assert_eq!(names(None, Media::volatile(image(&a))), first, "behind a write cache");
    assert!(are_two(&first, &names(None, image(&b))), "another image");
    std::os::unix::fs::symlink(&a, directory.join("link")).unwrap();
    assert_eq!(names(None, image(&directory.join("link"))), first, "through a link");
    std::fs::write(&c, std::fs::read(&a).unwrap()).unwrap();
    // It has no attribute, so its path tells it from others, and looking leaves it without.
    let copy = names(None, image(&c));
    assert!(are_two(&first, &copy), "a copy");
    assert_eq!(names(None, image(&c)), copy, "opened again");
    std::fs::rename(&c, directory.join("d.img")).unwrap();
    assert!(are_two(&copy, &names(None, image(&directory.join("d.img")))), "moved");
    let given = (names(Some("A-7"), image(&a)), names(Some("A-7"), image(&b)));
    assert_eq!((&*given.0.0, &*given.1.0), ("A-7", "A-7"));
    assert!(given.0.1 != given.1.1 && given.0.2 != given.1.2, "one subsystem, two controllers");
    assert!(given.0.2 != first.2, "a copy with its attribute and another serial number is another namespace");
    std::fs::remove_dir_all(&directory).unwrap();
    assert!(are_two(&names(None, ram()), &names(None, ram())), "memory");
}

#[test]
fn a_moved_image_keeps_its_names_where_the_host_has_attributes() {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("moved-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let (before, after) = (directory.join("before.img"), directory.join("after.img"));
    let first = names(None, image(&before));
    let value = &mut [0; 64];
    let kept = rustix::fs::getxattr(&before, "user.nvmed.identity", value).is_ok();
    std::fs::rename(&before, &after).unwrap();
    let then = names(None, image(&after));
    std::fs::remove_dir_all(&directory).unwrap();
    if kept {
        assert_eq!(then, first);
    } else {
        eprintln!(
            "SKIPPED: {} has no user attributes; the name of an image is its path there",
            directory.display()
        );
        assert!(are_two(&then, &first));
    }
}
