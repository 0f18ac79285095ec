//! Controllers that do not answer, answer nonsense or die: errors, within bounded time, never a panic.

use crate::puppet::{FIRST, LBAS, PAGE, Puppet, Vices, polled, read};
use nvmed_dma::Transport;
use nvmed_engine::nvme::NvmeEngine;
use nvmed_engine::{
    Completion, Engine, EngineError, InvalidRequest, Operation, QueueFault, QueueOptions, QueuePair, Request,
    Segment, SubmitError,
};
use nvmed_nvme::{AsyncEvent, CompletionEntry, Status};
use nvmed_units::{DeviceAddress, Lba};
use proptest::prelude::*;
use std::sync::Arc;
use std::sync::atomic::Ordering;

fn open(vices: Vices) -> (Arc<Puppet>, Result<NvmeEngine, EngineError>) {
    let puppet = Puppet::new(vices);
    let transport: Arc<dyn Transport> = Arc::<Puppet>::clone(&puppet);
    (puppet, NvmeEngine::open(transport))
}

fn queue(depth: u16) -> (Arc<Puppet>, NvmeEngine, Box<dyn QueuePair>) {
    let (puppet, engine) = open(Vices::default());
    let engine = engine.expect("a good puppet comes up");
    let pair = engine.queue(QueueOptions::depth(depth)).expect("a queue");
    (puppet, engine, pair)
}

#[test]
fn a_controller_that_never_gets_ready_is_given_its_time_and_no_more() {
    let (puppet, engine) = open(Vices { never_ready: true, ..Vices::default() });
    assert!(matches!(engine, Err(EngineError::NotReady { timeout_ms: 1000, .. })));
    let waited = puppet.waited_us.load(Ordering::Relaxed);
    assert!((1_000_000..1_100_000).contains(&waited), "waited {waited} us for CAP.TO = 1 s");
}

#[test]
fn what_cannot_be_driven_is_refused_with_the_reason() {
    let said = |vices| open(vices).1.err().expect("refused").to_string();
    assert!(said(Vices { fails_to_enable: true, ..Vices::default() }).contains("become ready"));
    assert!(said(Vices { mute: true, ..Vices::default() }).contains("did not answer in time"));
    assert!(said(Vices { no_namespace: true, ..Vices::default() }).contains("namespace 1"));
    assert!(said(Vices { metadata: true, ..Vices::default() }).contains("metadata"));
    assert!(said(Vices { command_set: Some(2), ..Vices::default() }).contains("zoned"));
    assert!(said(Vices { command_set: Some(1), ..Vices::default() }).contains("keys and values"));
    assert!(said(Vices { command_set: Some(77), ..Vices::default() }).contains("unknown command set"));
    open(Vices { command_set: Some(0), ..Vices::default() }).1.expect("one of several, and the right one");
    struct Nothing;
    impl Transport for Nothing {
        fn read32(&self, _: u32) -> u32 {
            u32::MAX
        }
        fn write32(&self, _: u32, _: u32) {}
        fn map(&self, _: Arc<nvmed_sys::Mapping>) -> Result<DeviceAddress, nvmed_dma::MapError> {
            unreachable!("nothing is mapped for a controller that is not there")
        }
        fn unmap(&self, _: DeviceAddress) {}
    }
    let said = NvmeEngine::open(Arc::new(Nothing)).err().expect("refused").to_string();
    assert!(said.contains("nothing is there"), "{said}");
}

#[test]
fn completions_come_back_by_tag_in_any_order() {
    let (puppet, _engine, mut pair) = queue(4);
    for tag in 1..=3 {
        pair.submit(&read(tag)).unwrap();
    }
    pair.ring();
    let commands = puppet.fetch(FIRST);
    assert_eq!(commands.iter().map(|c| c.lba().0).collect::<Vec<_>>(), [8, 16, 24]);
    assert!(polled(&mut *pair).is_empty());
    puppet.post(FIRST, puppet.good(FIRST, commands[2].cid, Status::SUCCESS));
    puppet.post(FIRST, puppet.good(FIRST, commands[0].cid, Status::UNRECOVERED_READ.do_not_retry()));
    let done = polled(&mut *pair);
    assert_eq!(done[0], Completion { tag: 3, result: Ok(()), value: 0 });
    let error = done[1].result.expect_err("a media error");
    assert_eq!((done[1].tag, error.lba, error.fault), (1, Lba(8), None));
    assert!(error.status.is(Status::UNRECOVERED_READ));
    assert!(error.to_string().contains("read at LBA 8: Unrecovered Read Error"), "{error}");
    assert_eq!(pair.outstanding(), 1);
}

#[test]
fn operations_become_the_commands_of_the_specification() {
    let (puppet, _engine, mut pair) = queue(16);
    const FUA: u32 = 1 << 30;
    let none: &[Segment] = &[];
    let ask = |operation, blocks, data| Request { operation, lba: Lba(8), blocks, data, tag: 0, stream: 0 };
    for request in [
        ask(Operation::Read, 8, &PAGE),
        ask(Operation::Write { fua: false }, 8, &PAGE),
        ask(Operation::Write { fua: true }, 8, &PAGE),
        ask(Operation::Compare, 8, &PAGE),
        ask(Operation::WriteZeroes { fua: true }, 65536, none),
        ask(Operation::Discard, 100_000, none),
        ask(Operation::Flush, 0, none),
    ] {
        pair.submit(&request).unwrap();
    }
    pair.ring();
    let sent = puppet.fetch(FIRST);
    let shown: Vec<_> = sent.iter().map(|c| (c.opcode, c.cdw10, c.cdw11, c.cdw12)).collect();
    // Opcodes and fields: NVM Command Set 1.0, figure 22 and 3.2.
    assert_eq!(
        shown,
        [
            (0x02, 8, 0, 7),
            (0x01, 8, 0, 7),
            (0x01, 8, 0, 7 | FUA),
            (0x05, 8, 0, 7),
            (0x08, 8, 0, 0xffff | FUA),
            (0x09, 0, 4, 0),
            (0x00, 0, 0, 0),
        ]
    );
    assert!(sent.iter().all(|command| command.nsid == 1 && command.flags == 0));
    assert_eq!(puppet.ranges(&sent[5]), [(100_000, 8)]);
}

#[test]
fn a_long_request_completes_once_with_the_first_error_and_its_block() {
    let (puppet, _engine, mut pair) = queue(4);
    // MDTS is 16 KiB: 40 KiB are three commands.
    let data = [Segment { address: DeviceAddress(1 << 40), bytes: 40 << 10 }];
    let request =
        Request { operation: Operation::Read, lba: Lba(100), blocks: 80, data: &data, tag: 9, stream: 0 };
    pair.submit(&request).unwrap();
    assert_eq!(pair.submit(&request), Err(SubmitError::NoSlot), "one slot is left, three are needed");
    pair.submit(&read(1)).unwrap();
    pair.ring();
    let commands = puppet.fetch(FIRST);
    assert_eq!(
        commands.iter().map(|c| (c.lba().0, c.blocks())).collect::<Vec<_>>(),
        [(100, 32), (132, 32), (164, 16), (8, 8)]
    );
    for (index, status) in [(1, Status::WRITE_FAULT), (0, Status::SUCCESS), (2, Status::UNRECOVERED_READ)] {
        assert_eq!(polled(&mut *pair), [], "it is not done yet");
        puppet.post(FIRST, puppet.good(FIRST, commands[index].cid, status));
    }
    let done = polled(&mut *pair);
    let error = done[0].result.expect_err("two commands failed");
    assert_eq!((done.len(), done[0].tag, error.lba, error.status), (1, 9, Lba(132), Status::WRITE_FAULT));
    // The slots are free again: the same request fits beside the one still outstanding.
    pair.submit(&request).unwrap();
}

#[test]
fn a_request_that_can_never_work_is_refused_before_the_device_sees_it() {
    let (puppet, _engine, mut pair) = queue(2);
    let reason = |pair: &mut dyn QueuePair, request: Request<'_>| match pair.submit(&request) {
        Err(SubmitError::Invalid { reason, .. }) => reason,
        other => panic!("{other:?}"),
    };
    let end = Request { lba: Lba(LBAS - 7), ..read(0) };
    assert!(matches!(reason(&mut *pair, end), InvalidRequest::OutOfRange { blocks: 8, lba_count: LBAS }));
    let wrap = Request { lba: Lba(u64::MAX), ..read(0) };
    assert!(matches!(reason(&mut *pair, wrap), InvalidRequest::OutOfRange { .. }));
    assert_eq!(reason(&mut *pair, Request { blocks: 0, data: &[], ..read(0) }), InvalidRequest::Empty);
    assert!(matches!(reason(&mut *pair, Request { blocks: 7, ..read(0) }), InvalidRequest::Length { .. }));
    let data = [Segment { address: DeviceAddress(1 << 40), bytes: 1 << 20 }];
    let long = Request { blocks: 2048, data: &data, ..read(0) };
    assert_eq!(reason(&mut *pair, long), InvalidRequest::TooLarge { commands: 64, depth: 2 });
    pair.ring();
    assert!(puppet.fetch(FIRST).is_empty());
    assert_eq!(pair.outstanding(), 0);
}

/// Two commands are outstanding; the controller posts `entry`; both must fail with `fault`, and so must
/// everything after.
fn must_latch(change: impl Fn(&mut CompletionEntry), fault: impl Fn(&QueueFault) -> bool) {
    let (puppet, _engine, mut pair) = queue(8);
    pair.submit(&read(1)).unwrap();
    pair.submit(&read(2)).unwrap();
    pair.ring();
    let commands = puppet.fetch(FIRST);
    let mut entry = puppet.good(FIRST, commands[0].cid, Status::SUCCESS);
    change(&mut entry);
    puppet.post(FIRST, entry);
    let mut done = polled(&mut *pair);
    done.sort_by_key(|one| one.tag);
    assert_eq!(done.iter().map(|one| one.tag).collect::<Vec<_>>(), [1, 2]);
    for one in done {
        let found = one.result.expect_err("the queue failed").fault.expect("because of a fault");
        assert!(fault(&found), "{found}");
    }
    assert!(matches!(pair.submit(&read(3)), Err(SubmitError::Failed(_))));
    puppet.post(FIRST, puppet.good(FIRST, commands[1].cid, Status::SUCCESS));
    assert_eq!((polled(&mut *pair).len(), pair.outstanding()), (0, 0), "a failed queue believes nothing");
}

#[test]
fn hostile_completions_fail_the_queue() {
    must_latch(|entry| entry.cid = 0x7777, |fault| *fault == QueueFault::UnknownCommand { cid: 0x7777 });
    must_latch(|entry| entry.cid ^= 0x1000, |fault| matches!(fault, QueueFault::UnknownCommand { .. }));
    must_latch(|entry| entry.sq_id = 2, |fault| *fault == QueueFault::WrongQueue { expected: 1, found: 2 });
    must_latch(|entry| entry.sq_head = 3, |fault| *fault == QueueFault::BadHead { head: 3 });
    must_latch(|entry| entry.sq_head = 9, |fault| *fault == QueueFault::BadHead { head: 9 });
}

#[test]
fn a_command_completed_twice_fails_the_queue_and_counts_once() {
    let (puppet, _engine, mut pair) = queue(4);
    pair.submit(&read(1)).unwrap();
    pair.submit(&read(2)).unwrap();
    pair.ring();
    let first = puppet.fetch(FIRST)[0];
    puppet.post(FIRST, puppet.good(FIRST, first.cid, Status::SUCCESS));
    puppet.post(FIRST, puppet.good(FIRST, first.cid, Status::SUCCESS));
    let done = polled(&mut *pair);
    assert_eq!(done[0], Completion { tag: 1, result: Ok(()), value: 0 });
    let error = done[1].result.expect_err("the queue failed");
    assert_eq!((done.len(), done[1].tag), (2, 2));
    assert_eq!(error.fault, Some(QueueFault::UnknownCommand { cid: first.cid }));
}

#[test]
fn a_phase_that_never_changes_is_an_empty_queue_until_the_host_gives_up() {
    let (_puppet, _engine, mut pair) = queue(4);
    pair.submit(&read(1)).unwrap();
    pair.ring();
    assert!(polled(&mut *pair).is_empty());
    pair.expire();
    let done = polled(&mut *pair);
    assert_eq!(done[0].result.expect_err("given up").fault, Some(QueueFault::Timeout));
}

#[test]
fn a_controller_that_dies_fails_what_is_outstanding() {
    type Wanted = fn(QueueFault) -> bool;
    let cases: [(u32, Wanted); 3] = [
        (3, |fault| fault == QueueFault::Fatal { csts: 3 }),
        (u32::MAX, |fault| fault == QueueFault::Gone { csts: u32::MAX }),
        (0, |fault| fault == QueueFault::Gone { csts: 0 }),
    ];
    for (csts, wanted) in cases {
        let (puppet, _engine, mut pair) = queue(4);
        pair.submit(&read(1)).unwrap();
        pair.ring();
        pair.check();
        assert!(polled(&mut *pair).is_empty(), "a healthy controller is not suspected");
        puppet.set_csts(csts);
        pair.check();
        let done = polled(&mut *pair);
        assert!(wanted(done[0].result.expect_err("it died").fault.expect("a fault")));
    }
}

#[test]
fn a_controller_that_tells_without_end_does_not_hold_the_host() {
    let (puppet, engine) = open(Vices { chatty: true, ..Vices::default() });
    let engine = engine.expect("it can be driven");
    let mut pair = engine.queue(QueueOptions::depth(4)).expect("a queue");
    for tag in 1..=4 {
        assert_eq!(engine.take_event().unwrap(), Some(AsyncEvent::NAMESPACE_CHANGED));
        pair.submit(&read(tag)).unwrap();
        pair.ring();
        pair.check();
        puppet.serve(FIRST);
        assert_eq!(polled(&mut *pair), [Completion { tag, result: Ok(()), value: 0 }]);
    }
}

#[test]
fn the_caller_s_room_is_never_exceeded() {
    let (puppet, _engine, mut pair) = queue(8);
    for tag in 0..8 {
        pair.submit(&read(tag)).unwrap();
    }
    assert_eq!(pair.submit(&read(9)), Err(SubmitError::NoSlot));
    pair.ring();
    assert_eq!(puppet.serve(FIRST), 8);
    let mut out = Vec::with_capacity(3);
    let room = out.capacity();
    let mut seen = 0;
    while pair.outstanding() > 0 {
        let got = pair.poll(&mut out);
        assert!(got > 0 && out.capacity() == room);
        seen += out.drain(..).count();
    }
    assert_eq!(seen, 8);
}

#[test]
fn doorbells_are_rung_once_for_many() {
    let (puppet, _engine, mut pair) = queue(8);
    let before = puppet.doorbells().len();
    for round in 0..100 {
        for tag in 0..4 {
            pair.submit(&read(round * 4 + tag)).unwrap();
        }
        pair.ring();
        pair.ring();
        puppet.serve(FIRST);
        assert_eq!(polled(&mut *pair).len(), 4);
    }
    let rung = puppet.doorbells()[before..].iter().filter(|bell| bell.0 == 0x1008).count();
    let told = puppet.doorbells()[before..].iter().filter(|bell| bell.0 == 0x100c).count();
    assert_eq!(rung, 100);
    assert!((1..=100).contains(&told), "{told} completion doorbells for 100 batches");
}

#[test]
fn after_a_shutdown_nothing_is_taken() {
    let (_puppet, engine, mut pair) = queue(4);
    engine.shutdown().unwrap();
    engine.shutdown().unwrap();
    assert_eq!(pair.submit(&read(1)), Err(SubmitError::Failed(QueueFault::Shutdown)));
}

#[test]
fn queue_numbers_are_lent_and_given_back() {
    let (_puppet, engine, pair) = queue(4);
    assert!(matches!(engine.queue(QueueOptions::depth(0)), Err(EngineError::Depth { .. })));
    assert!(matches!(engine.queue(QueueOptions::depth(u16::MAX)), Err(EngineError::Depth { .. })));
    drop(pair);
    let all: Vec<_> =
        (0..engine.geometry().queues_max).map(|_| engine.queue(QueueOptions::depth(1)).unwrap()).collect();
    assert!(matches!(engine.queue(QueueOptions::depth(1)), Err(EngineError::NoQueue { .. })));
    drop(all);
    engine.queue(QueueOptions::depth(1)).unwrap();
}

proptest! {
    /// Whatever the controller posts, every request ends at most once, and after a fault exactly once.
    #[test]
    fn fuzz_any_completions_are_survived(
        script in prop::collection::vec((any::<bool>(), any::<[u8; 16]>(), 0usize..4), 1..60),
    ) {
        let (puppet, _engine, mut pair) = queue(8);
        let (mut open, mut next, mut commands) = (vec![], 0, vec![]);
        for (honest, noise, which) in script {
            if pair.submit(&read(next)).is_ok() {
                open.push(next);
                next += 1;
            }
            pair.ring();
            commands.extend(puppet.fetch(FIRST));
            if honest && !commands.is_empty() {
                let command = commands.remove(which % commands.len());
                puppet.post(FIRST, puppet.good(FIRST, command.cid, Status::SUCCESS));
            } else if which == 0 {
                puppet.post(FIRST, zerocopy::FromBytes::read_from_bytes(&noise).unwrap());
            }
            for done in polled(&mut *pair) {
                let at = open.iter().position(|tag| *tag == done.tag);
                prop_assert!(at.is_some(), "tag {} ended twice or was never asked for", done.tag);
                open.swap_remove(at.unwrap());
            }
            prop_assert_eq!(pair.outstanding(), open.len());
        }
        pair.expire();
        for done in polled(&mut *pair) {
            open.retain(|tag| *tag != done.tag);
        }
        prop_assert!(open.is_empty());
    }
}
