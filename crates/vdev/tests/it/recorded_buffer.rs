//! A record tells of the host memory buffer, too: a fresh drive that is told it has the same times.

use crate::host::{DATA, Host};
use crate::host_memory::{Ranges, WANTED, controller_of, lend, profile, take_back};
use nvmed_dice::Dice;
use nvmed_dma::Transport;
use nvmed_flash::{Flash, HostPages, Medium, Profile, Rate};
use nvmed_nvme::{SubmissionEntry, register};
use nvmed_vdev::{BufferChange, Clock, DriveEvent, HostMemoryConfig, Replay, ReplayError, Replayed};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

const CLOCKS: [Clock; 3] = [Clock::Inline, Clock::Threaded, Clock::Virtual];
const PAGE: usize = 4096;
const UNITS: u64 = 1024;

/// Drives with a map in flash and a write buffer: with a link that takes time, and with one that takes none, so that
/// moves end when commands do.
fn drives() -> [Profile; 2] {
    [Rate { bytes: 4, ns: 1 }, Rate::UNLIMITED].map(|link| {
        let mut profile = profile();
        let Medium::Array(array) = &mut profile.medium else { unreachable!("a drive of NAND") };
        (array.link_in, array.link_out) = (link, link);
        array.host_memory_ns = if link.is_unlimited() { 0 } else { 900 };
        array.translation.as_mut().unwrap().buffer_bytes = 2 << 20;
        profile
    })
}

/// A drive, its host, and what the drive is told.
struct Recorded {
    host: Host,
    events: Receiver<DriveEvent>,
    dice: Dice,
}

impl Recorded {
    fn new(clock: Clock, drive: Profile) -> Self {
        let wanted = HostMemoryConfig { map_percent: 30, read_percent: 30, write_percent: 40, ..WANTED };
        let controller = controller_of(clock, drive, wanted);
        let (sender, events) = channel();
        controller.record_events(Box::new(move |event| {
            let _ = event.map(|event| sender.send(*event));
        }));
        let mut host = Host::of(controller);
        host.enable();
        host.create_io();
        Self { host, events, dice: Dice::new(11) }
    }

    /// Reads and writes at random, several at once.
    fn work(&mut self, rounds: usize) {
        for _ in 0..rounds {
            let count = 1 + self.dice.index(7);
            for cid in 0..count {
                let opcode = [1, 2, 2][self.dice.index(3)];
                let (unit, blocks) = (self.dice.roll(UNITS - 2), 1 + self.dice.index(2));
                let entry = self.host.data(opcode, unit, blocks as u32, blocks * PAGE);
                self.host.place(1, SubmissionEntry { cid: cid as u16, ..entry });
                if self.dice.index(2) == 0 {
                    self.host.ring(1);
                }
            }
            self.host.ring(1);
            (0..count).for_each(|_| assert!(self.host.rings[1].wait().status().is_success()));
        }
        let flush = SubmissionEntry { opcode: 0, nsid: 1, ..Default::default() };
        assert!(self.host.io(flush).status().is_success());
    }

    /// All that a host can do with its memory.
    fn live(&mut self) {
        self.host.memory.fill(DATA, 2 * PAGE, 0x11);
        for unit in 0..UNITS {
            let entry = self.host.data(1, unit, 1, PAGE);
            assert!(self.host.io(entry).status().is_success());
        }
        let ranges = Ranges::new(&self.host, 3, 64);
        assert!(lend(&mut self.host, &ranges.list()).is_success());
        self.work(200);
        assert!(take_back(&mut self.host).is_success());
        self.work(20);
        assert!(lend(&mut self.host, &ranges.list()[..2]).is_success());
        self.work(100);
        // What comes from there is another: a move fails.
        ranges.memory.iter().for_each(|memory| memory.fill(0, memory.len(), 0x77));
        self.work(50);
        assert!(take_back(&mut self.host).is_success());
        assert!(lend(&mut self.host, &ranges.list()).is_success());
        self.work(100);
        self.host.device.unmap(ranges.addresses[2]);
        self.work(50);
        self.host.device.write32(register::CC, 0x0046_0000);
        self.host.enable();
        self.host.create_io();
        assert!(lend(&mut self.host, &ranges.list()[..2]).is_success());
        self.work(100);
    }

    fn end(self) -> Vec<DriveEvent> {
        let Self { host, events, .. } = self;
        let controller = Arc::clone(host.device.controller());
        host.device.write32(register::CC, 0x0046_4001);
        drop(host);
        controller.end_recording();
        events.iter().collect()
    }
}

/// What a fresh drive makes of a record.
fn replayed(drive: &Profile, events: &[DriveEvent]) -> Result<Replayed, ReplayError> {
    let mut replay = Replay::new(drive, Flash::new(drive).unwrap());
    events.iter().try_for_each(|event| replay.tell(event))?;
    Ok(replay.end())
}

fn changes(events: &[DriveEvent]) -> impl Iterator<Item = (usize, BufferChange)> {
    events.iter().enumerate().filter_map(|(at, event)| match event {
        DriveEvent::Buffer { change, .. } => Some((at, *change)),
        DriveEvent::Arrival(_) => None,
    })
}

#[test]
fn a_record_of_a_buffer_that_was_lent_and_ended_is_due_at_the_same_times_again() {
    for (clock, drive) in CLOCKS.into_iter().flat_map(|clock| drives().map(|drive| (clock, drive))) {
        let mut recorded = Recorded::new(clock, drive.clone());
        recorded.live();
        let events = recorded.end();
        let told: Vec<BufferChange> = changes(&events).map(|(_, change)| change).collect();
        let pages = |ranges: u32| {
            let percent = |part: u32| ranges * 64 * part / 100;
            BufferChange::Lent(HostPages { map: percent(30), read: percent(30), write: percent(40) })
        };
        let [failed] = told
            .iter()
            .filter(|change| matches!(change, BufferChange::MoveFailed(_)))
            .collect::<Vec<_>>()[..]
        else {
            panic!("{clock:?}: one move fails: {told:?}")
        };
        let ended = BufferChange::Ended;
        let expected = [pages(3), ended, pages(2), *failed, pages(3), ended, pages(2), ended];
        assert_eq!(told, expected, "{clock:?}");
        let commands = (events.len() - told.len()) as u64;
        let found = replayed(&drive, &events);
        let expected = Replayed { commands, buffer_changes: 8, ..Replayed::default() };
        assert_eq!(found, Ok(expected), "{clock:?}");
        // Without a change, or with another one, it is not the same.
        let (lent_at, _) = changes(&events).next().unwrap();
        let mut others = events.clone();
        others[lent_at] = DriveEvent::Buffer {
            time_ns: events[lent_at].time_ns(),
            change: BufferChange::Lent(HostPages { map: 1, read: 1, write: 1 }),
        };
        let other = replayed(&drive, &others);
        assert!(other.is_err() || other.is_ok_and(|found| found.others > 100), "{clock:?}: {other:?}");
        others.remove(lent_at);
        assert!(replayed(&drive, &others).is_err(), "{clock:?}");
    }
}
