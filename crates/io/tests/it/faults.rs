//! Handles over the whole driver and a controller that fails by plan, in simulated time: what was done is told as
//! done, what was not is done again or told, and nothing hangs.

use nvmed_engine::nvme::NvmeEngine;
use nvmed_engine::{QueueFault, Segment};
use nvmed_flash::{FixedProfile, Profile, Rate};
use nvmed_io::{
    Binding, Completions, Device, DeviceOptions, Handle, HandleSettings, IoError, OnReset, Operation,
    Request, Scheduler,
};
use nvmed_sys::{Mapping, Pages};
use nvmed_units::Lba;
use nvmed_vdev::{
    Clock, Controller, ControllerConfig, Corrupt, FaultAction, FaultPlan, FaultRule, InProcess, Media,
};
use std::sync::Arc;

const TIMEOUT_US: u64 = 5_000;
const PAGE_BYTES: usize = 4096;

struct Rig {
    plan: FaultPlan,
    device: Arc<Device>,
    handle: Handle,
    memory: Arc<Mapping>,
    /// Two pages: what is written, and what is read back.
    pages: [[Segment; 1]; 2],
}

fn rig(completion: Completions, on_reset: OnReset, scheduler: Scheduler) -> Rig {
    let plan = FaultPlan::default();
    let fixed = FixedProfile { read_ns: 20_000, write_ns: 20_000, link: Rate::UNLIMITED };
    let config = ControllerConfig {
        clock: Clock::Virtual,
        drive: Some(Profile::fixed(fixed)),
        faults: plan.clone(),
        ..ControllerConfig::default()
    };
    let controller = Controller::new(config, Media::ram(1 << 20, Pages::Base).unwrap());
    let engine = NvmeEngine::open(Arc::new(InProcess::new(controller).unwrap())).unwrap();
    let device = Device::open(Arc::new(engine), DeviceOptions { queues: 2, depth: 8 }).unwrap();
    device.set_scheduler(0, scheduler).unwrap();
    let memory = Arc::new(Mapping::anonymous(2 * PAGE_BYTES, Pages::Base).unwrap());
    let base = device.map(Arc::clone(&memory)).unwrap();
    let page = |n: u64| [Segment { address: base.plus(n * PAGE_BYTES as u64), bytes: PAGE_BYTES as u32 }];
    let handle = device.handle(Binding::Queue(0));
    let settings =
        HandleSettings { timeout_us: TIMEOUT_US, completion, on_reset, ..HandleSettings::default() };
    handle.set(settings).unwrap();
    Rig { plan, device, handle, memory, pages: [page(0), page(1)] }
}

impl Rig {
    /// Writes a page of `byte` and reads it back.
    fn round(&self, lba: u64, byte: u8) -> Result<(), IoError> {
        self.memory.fill(0, PAGE_BYTES, byte);
        self.memory.fill(PAGE_BYTES, PAGE_BYTES, !byte);
        self.handle.write(Lba(lba), &self.pages[0], false)?;
        self.handle.read(Lba(lba), &self.pages[1])?;
        assert!(
            self.memory.equal(0, &self.memory, PAGE_BYTES, PAGE_BYTES),
            "LBA {lba} reads as something else"
        );
        Ok(())
    }
}

fn fault_of(error: &IoError) -> Option<QueueFault> {
    match error {
        IoError::Device(error) => error.fault,
        IoError::Failed { fault, .. } => Some(*fault),
        other => panic!("{other}"),
    }
}

/// Policies without a thread of their own: simulated time is for one host thread.
const POLICIES: [Completions; 4] =
    [Completions::Adaptive, Completions::Poll, Completions::Hybrid, Completions::Interrupt];

fn each(run: impl Fn(Completions, Scheduler)) {
    for completion in POLICIES {
        for scheduler in [Scheduler::None, Scheduler::DEADLINE] {
            run(completion, scheduler);
        }
    }
}

#[test]
fn a_dropped_command_is_aborted_and_told() {
    each(|completion, scheduler| {
        let rig = rig(completion, OnReset::Replay, scheduler);
        rig.round(0, 1).unwrap();
        rig.plan.add(FaultRule { times: Some(1), ..FaultRule::new(FaultAction::Drop { executed: false }) });
        let error = rig.round(8, 2).unwrap_err();
        assert_eq!(fault_of(&error), None, "{completion:?}: {error}");
        assert!(error.to_string().starts_with("write at LBA 8: "), "{error}");
        assert_eq!((rig.device.resets(), rig.handle.stats().timeouts), (0, 1));
        rig.round(8, 3).unwrap();
    });
}

#[test]
fn a_controller_that_stops_is_reset_and_nothing_is_lost() {
    each(|completion, scheduler| {
        let rig = rig(completion, OnReset::Replay, scheduler);
        for n in 0..20 {
            if n % 7 == 3 {
                rig.plan.add(FaultRule::new(FaultAction::Stop));
            }
            rig.round(n * 8, n as u8).unwrap();
            rig.handle.flush().unwrap();
        }
        assert_eq!(rig.device.resets(), 3, "{completion:?}");
        assert!(rig.handle.stats().retries >= 3);
    });
}

#[test]
fn a_handle_that_does_not_replay_is_told() {
    each(|completion, scheduler| {
        let rig = rig(completion, OnReset::Fail, scheduler);
        rig.plan.add(FaultRule::new(FaultAction::Stop));
        let error = rig.round(16, 1).unwrap_err();
        assert_eq!(fault_of(&error), Some(QueueFault::Reset), "{completion:?}: {error}");
        rig.round(16, 1).unwrap();
    });
}

#[test]
fn tickets_are_sent_again_too() {
    let rig = rig(Completions::Adaptive, OnReset::Replay, Scheduler::None);
    rig.plan.add(FaultRule { nth: 3, ..FaultRule::new(FaultAction::Stop) });
    rig.memory.fill(0, PAGE_BYTES, 9);
    let tickets: Vec<_> = (0..6)
        .map(|n| {
            let data = rig.pages[0].to_vec();
            let operation = Operation::Write { fua: false };
            let request = Request { operation, lba: Lba(n * 8), blocks: 8, data: &data, tag: 0, stream: 0 };
            rig.handle.submit(&request).unwrap()
        })
        .collect();
    for ticket in tickets {
        rig.handle.wait(ticket).unwrap();
    }
    for n in 0..6 {
        rig.handle.read(Lba(n * 8), &rig.pages[1]).unwrap();
        assert!(rig.memory.equal(0, &rig.memory, PAGE_BYTES, PAGE_BYTES), "write {n} was lost");
    }
    assert_eq!(rig.device.resets(), 1);
}

#[test]
fn a_controller_that_is_pulled_out_is_noticed_before_any_timeout() {
    each(|completion, scheduler| {
        let rig = rig(completion, OnReset::Replay, scheduler);
        let settings = rig.handle.settings();
        rig.handle.set(HandleSettings { timeout_us: 30_000_000, ..settings }).unwrap();
        rig.plan.add(FaultRule::new(FaultAction::Die));
        let begin = rig.device.engine().now_ns();
        let error = rig.round(0, 1).unwrap_err();
        assert!(matches!(fault_of(&error), Some(QueueFault::Gone { .. })), "{completion:?}: {error}");
        let took_ms = (rig.device.engine().now_ns() - begin) / 1_000_000;
        assert!(took_ms <= 1_100, "{completion:?}: noticed after {took_ms} ms");
        assert!(rig.round(0, 1).is_err());
        assert_eq!(rig.device.resets(), 0, "there is nothing to reset");
    });
}

#[test]
fn a_controller_that_lies_is_not_believed() {
    for action in [
        FaultAction::Duplicate,
        FaultAction::Corrupt(Corrupt::Cid),
        FaultAction::Corrupt(Corrupt::SqId),
        FaultAction::Corrupt(Corrupt::Head),
        FaultAction::Corrupt(Corrupt::Status),
        FaultAction::Corrupt(Corrupt::Phase),
    ] {
        let rig = rig(Completions::Adaptive, OnReset::Replay, Scheduler::None);
        rig.plan.add(FaultRule { times: Some(1), ..FaultRule::new(action) });
        // Whatever it does, each call ends, and one that says it worked has worked.
        let worked = (0..5).filter(|&n| rig.round(n * 8, n as u8).is_ok()).count();
        assert!(worked < 5 || action == FaultAction::Duplicate || rig.device.resets() > 0, "{action:?}");
    }
}

#[test]
fn a_late_completion_is_still_one() {
    each(|completion, scheduler| {
        let rig = rig(completion, OnReset::Fail, scheduler);
        rig.plan.add(FaultRule { every: 5, ..FaultRule::new(FaultAction::Delay { ns: 2_000_000 }) });
        (0..30).for_each(|n| rig.round(n * 8, n as u8).unwrap());
        assert_eq!((rig.handle.stats().errors, rig.device.resets()), (0, 0));
    });
}
