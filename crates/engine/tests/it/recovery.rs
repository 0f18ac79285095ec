//! Abort, reset and events: what a driver does when a controller is late, wrong or changed.

use crate::puppet::{FIRST, LBAS, PAGE, Puppet, Vices, polled, read};
use nvmed_dma::Transport;
use nvmed_engine::nvme::NvmeEngine;
use nvmed_engine::{
    Command, Completion, Engine, EngineError, InvalidRequest, Operation, Priority, QueueFault, QueueOptions,
    Request, Segment, SubmitError, Transfer,
};
use nvmed_nvme::{AdminOpcode, AsyncEvent, CompletionEntry, Status};
use nvmed_units::{DeviceAddress, Lba};
use std::sync::Arc;

fn open(vices: Vices) -> (Arc<Puppet>, NvmeEngine) {
    let puppet = Puppet::new(vices);
    let transport: Arc<dyn Transport> = Arc::<Puppet>::clone(&puppet);
    (puppet, NvmeEngine::open(transport).expect("a good puppet comes up"))
}

fn fault(done: &Completion) -> Option<QueueFault> {
    done.result.expect_err("it did not work").fault
}

#[test]
fn a_reset_ends_what_was_outstanding_once_and_the_queue_goes_on() {
    let (puppet, engine) = open(Vices::default());
    let mut pair = engine.queue(QueueOptions::depth(4)).unwrap();
    for tag in 1..=3 {
        pair.submit(&read(tag)).unwrap();
    }
    pair.ring();
    let commands = puppet.fetch(FIRST);
    puppet.post(FIRST, puppet.good(FIRST, commands[0].cid, Status::SUCCESS));
    engine.reset().unwrap();
    assert_eq!(
        pair.submit(&read(4)),
        Err(SubmitError::NoSlot),
        "first the requests of before are handed out"
    );
    let done = polled(&mut *pair);
    assert_eq!(done[0], Completion { tag: 1, result: Ok(()), value: 0 }, "it was done before the reset");
    assert_eq!(
        done[1..].iter().map(|done| (done.tag, fault(done))).collect::<Vec<_>>(),
        [(2, Some(QueueFault::Reset)), (3, Some(QueueFault::Reset))]
    );
    assert!(polled(&mut *pair).is_empty());
    // The device has forgotten the queue: it is told again, and all four slots are there.
    for tag in 5..=8 {
        pair.submit(&read(tag)).unwrap();
    }
    assert_eq!(pair.submit(&read(9)), Err(SubmitError::NoSlot));
    pair.ring();
    assert_eq!(puppet.serve(FIRST), 4);
    let mut done = polled(&mut *pair);
    done.sort_by_key(|done| done.tag);
    assert_eq!(done.iter().map(|done| done.tag).collect::<Vec<_>>(), [5, 6, 7, 8]);
    assert!(done.iter().all(|done| done.result.is_ok()));
    assert_eq!(puppet.admin(AdminOpcode::CreateSq).len(), 2);
}

#[test]
fn queues_dropped_after_a_reset_leave_their_numbers() {
    let (puppet, engine) = open(Vices::default());
    let all: Vec<_> =
        (0..engine.geometry().queues_max).map(|_| engine.queue(QueueOptions::depth(1)).unwrap()).collect();
    engine.reset().unwrap();
    drop(all);
    assert!(puppet.admin(AdminOpcode::DeleteSq).is_empty(), "the device knows none of them");
    for _ in 0..engine.geometry().queues_max {
        std::mem::forget(engine.queue(QueueOptions::depth(1)).unwrap());
    }
}

#[test]
fn a_controller_that_does_not_come_back_fails_every_request() {
    let (puppet, engine) = open(Vices { one_life: true, ..Vices::default() });
    let mut pair = engine.queue(QueueOptions::depth(4)).unwrap();
    pair.submit(&read(1)).unwrap();
    pair.ring();
    assert!(matches!(engine.reset(), Err(EngineError::NotReady { .. })));
    assert_eq!(fault(&polled(&mut *pair)[0]), Some(QueueFault::Reset));
    assert!(matches!(pair.submit(&read(2)), Err(SubmitError::Failed(QueueFault::Fatal { .. }))));
    assert!(matches!(engine.identify_controller(), Err(EngineError::Queue { .. })));
    puppet.set_csts(u32::MAX);
    assert!(matches!(engine.reset(), Err(EngineError::Queue { fault: QueueFault::Gone { .. }, .. })));
}

#[test]
fn an_engine_that_was_shut_down_is_not_reset() {
    let (_puppet, engine) = open(Vices::default());
    let mut pair = engine.queue(QueueOptions::depth(4)).unwrap();
    let _ = engine.shutdown();
    assert!(matches!(engine.reset(), Err(EngineError::Queue { fault: QueueFault::Shutdown, .. })));
    assert_eq!(pair.submit(&read(1)), Err(SubmitError::Failed(QueueFault::Shutdown)));
    let another = engine.queue(QueueOptions::depth(4)).err();
    assert!(matches!(another, Some(EngineError::Queue { fault: QueueFault::Shutdown, .. })));
}

#[test]
fn cancel_aborts_each_command_of_the_request_and_no_other() {
    let (puppet, engine) = open(Vices::default());
    let mut pair = engine.queue(QueueOptions::depth(8)).unwrap();
    // MDTS is 16 KiB: 40 KiB are three commands.
    let data = [Segment { address: DeviceAddress(1 << 40), bytes: 40 << 10 }];
    pair.submit(&Request { blocks: 80, data: &data, ..read(1) }).unwrap();
    pair.submit(&read(2)).unwrap();
    pair.ring();
    let sent = puppet.fetch(FIRST);
    puppet.post(FIRST, puppet.good(FIRST, sent[0].cid, Status::SUCCESS));
    assert!(polled(&mut *pair).is_empty());
    pair.cancel(1).unwrap();
    pair.cancel(77).unwrap();
    let aborted: Vec<_> = puppet.admin(AdminOpcode::Abort).iter().map(|abort| abort.cdw10).collect();
    assert_eq!(aborted, [FIRST | u32::from(sent[1].cid) << 16, FIRST | u32::from(sent[2].cid) << 16]);
    for command in &sent[1..3] {
        puppet.post(FIRST, puppet.good(FIRST, command.cid, Status::ABORT_REQUESTED));
    }
    let done = polled(&mut *pair);
    assert_eq!((done.len(), done[0].tag), (1, 1));
    assert!(done[0].result.unwrap_err().status.is(Status::ABORT_REQUESTED));
}

#[test]
fn an_abort_waits_for_no_other_admin_command_and_each_finds_its_own_end() {
    let (puppet, engine) = open(Vices::default());
    let mut pair = engine.queue(QueueOptions::depth(4)).unwrap();
    pair.submit(&read(1)).unwrap();
    pair.ring();
    puppet.hold(AdminOpcode::GetLogPage);
    std::thread::scope(|scope| {
        let asks = scope.spawn(|| engine.log_page(2, &mut [0; 512]));
        puppet.until_held();
        pair.cancel(1).unwrap();
        assert_eq!(puppet.admin(AdminOpcode::Abort).len(), 1);
        // The Abort's thread takes the completion of the other's command, too.
        puppet.answer_held();
        pair.cancel(1).unwrap();
        puppet.wake();
        asks.join().unwrap().unwrap();
    });
}

#[test]
fn a_reset_ends_an_abort_that_is_not_answered_and_the_admin_queue_goes_on() {
    let (puppet, engine) = open(Vices::default());
    let mut pair = engine.queue(QueueOptions::depth(4)).unwrap();
    pair.submit(&read(1)).unwrap();
    pair.ring();
    puppet.hold(AdminOpcode::Abort);
    std::thread::scope(|scope| {
        let asks = scope.spawn(|| pair.cancel(1));
        puppet.until_held();
        engine.reset().unwrap();
        puppet.wake();
        let ended = asks.join().unwrap();
        assert!(matches!(ended, Err(EngineError::Queue { fault: QueueFault::Reset, .. })), "{ended:?}");
    });
    engine.identify_controller().unwrap();
    assert_eq!(fault(&polled(&mut *pair)[0]), Some(QueueFault::Reset));
    pair.submit(&read(2)).unwrap();
    pair.cancel(2).unwrap();
}

#[test]
fn a_passthrough_command_goes_out_as_it_is_and_answers_its_dword() {
    let (puppet, engine) = open(Vices::default());
    let mut pair = engine.queue(QueueOptions::depth(4)).unwrap();
    let command =
        Command { opcode: 0x9a, nsid: 1, cdw2: 2, cdw3: 3, cdw10: 10, cdw15: 15, ..Command::default() };
    pair.passthrough(&command, &PAGE, 6).unwrap();
    pair.ring();
    let [sent] = puppet.fetch(FIRST)[..] else { panic!("one command") };
    assert_eq!(sent, nvmed_nvme::SubmissionEntry { cid: sent.cid, prp1: 1 << 40, ..command.entry() });
    let entry = CompletionEntry { result: 0xdead_beef, ..puppet.good(FIRST, sent.cid, Status::SUCCESS) };
    puppet.post(FIRST, entry);
    assert_eq!(polled(&mut *pair), [Completion { tag: 6, result: Ok(()), value: 0xdead_beef }]);
    let long = [Segment { address: DeviceAddress(1 << 40), bytes: 16388 }];
    let refused = pair.passthrough(&command, &long, 7);
    assert!(matches!(refused, Err(SubmitError::Invalid { reason: InvalidRequest::Length { .. }, .. })));
    assert_eq!(engine.admin(&command, Transfer::None).unwrap(), u32::MAX);
    assert!(matches!(
        engine.admin(&command, Transfer::ToDevice(&[0; 5000])),
        Err(EngineError::Buffer { .. })
    ));
}

#[test]
fn queues_get_their_class_and_the_vectors_in_turn() {
    let (puppet, engine) = open(Vices { vectors: 3, ..Vices::default() });
    let urgent = QueueOptions { priority: Priority::Urgent, ..QueueOptions::depth(1) };
    let quiet = QueueOptions { interrupts: false, ..QueueOptions::depth(1) };
    let pairs = [urgent, QueueOptions::depth(1), quiet].map(|options| engine.queue(options).unwrap());
    assert_eq!(pairs.each_ref().map(|pair| pair.vector()), [1, 2, 1]);
    // Vector and IEN of the completion queues, QPRIO of the submission queues (Base 2.0, 5.4 and 5.5).
    let completions: Vec<_> = puppet.admin(AdminOpcode::CreateCq).iter().map(|entry| entry.cdw11).collect();
    assert_eq!(completions, [1 << 16 | 3, 2 << 16 | 3, 1]);
    let classes: Vec<_> = puppet.admin(AdminOpcode::CreateSq).iter().map(|entry| entry.cdw11 & 7).collect();
    assert_eq!(classes, [1, 5, 5]);
}

#[test]
fn a_namespace_that_changes_is_looked_at_again() {
    let (puppet, engine) = open(Vices::default());
    let mut pair = engine.queue(QueueOptions::depth(4)).unwrap();
    let last = Request { lba: Lba(LBAS - 8), ..read(1) };
    pair.submit(&last).unwrap();
    puppet.resize(LBAS / 2);
    pair.check();
    assert_eq!(engine.lba_count(), LBAS / 2);
    let refused = InvalidRequest::OutOfRange { blocks: 8, lba_count: LBAS / 2 };
    let (operation, lba) = (Operation::Read, Lba(LBAS - 8));
    assert_eq!(pair.submit(&last), Err(SubmitError::Invalid { operation, lba, reason: refused }));
    assert_eq!(engine.take_event().unwrap(), Some(AsyncEvent::NAMESPACE_CHANGED));
    assert_eq!(engine.take_event().unwrap(), None);
    puppet.resize(2 * LBAS);
    assert_eq!(engine.take_event().unwrap(), Some(AsyncEvent::NAMESPACE_CHANGED));
    pair.submit(&Request { lba: Lba(2 * LBAS - 8), ..read(2) }).unwrap();
    // The controller has forgotten that the host waits for events, and is told so again; always once.
    engine.reset().unwrap();
    puppet.resize(LBAS);
    assert_eq!(engine.take_event().unwrap(), Some(AsyncEvent::NAMESPACE_CHANGED));
    assert_eq!(engine.take_event().unwrap(), None);
    assert_eq!(
        puppet.admin(AdminOpcode::AsyncEventRequest).len(),
        5,
        "at first, after each event, and the reset"
    );
}
