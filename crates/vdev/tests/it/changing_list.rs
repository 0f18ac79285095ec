//! A list of a host memory buffer that the host changes while the device reads it, and after it was accepted: what the
//! device has read counts, once, and nothing else of the host's memory is touched.

use crate::host::{DATA, Host};
use crate::host_memory::{Ranges, WANTED, controller_of, profile, take_back};
use nvmed_dice::Dice;
use nvmed_dma::{Distant, DmaFault, Transport};
use nvmed_nvme::{HostMemoryDescriptor, Status, SubmissionEntry};
use nvmed_sys::sync::Mutex;
use nvmed_sys::{Mapping, Pages};
use nvmed_units::DeviceAddress;
use nvmed_vdev::{Clock, HostMemoryConfig};
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use zerocopy::IntoBytes;

const CLOCKS: [Clock; 3] = [Clock::Inline, Clock::Threaded, Clock::Virtual];
const PAGE: usize = 4096;
const UNITS: u64 = 1024;
/// Ranges that may be lent, and pages of each.
const RANGES: usize = 4;
const PAGES: u32 = 24;
/// What memory has that nobody touched.
const UNTOUCHED: u8 = 0xa5;
/// Where the list is that lies elsewhere, and where it lies in the host's own memory.
const AT: u64 = 0x20_0000;
const LIST: usize = 0x5000;

const ASKED: HostMemoryConfig =
    HostMemoryConfig { bytes: 40 << 12, bytes_min: 4 << 12, entries_max: 4, ..WANTED };

/// A range of a list: its address and its pages.
type Range = (u64, u32);

/// What the host does with a list that the device looks at.
#[derive(Debug, Default)]
struct Looks {
    /// What all of the list is at each look; the last one at all later ones.
    versions: Vec<Vec<Range>>,
    /// The look that is refused.
    refused: Option<usize>,
    /// What was looked at: the offset in the list, and bytes.
    seen: Vec<(u64, usize)>,
    /// Is told the first look.
    told: Option<Sender<()>>,
}

/// A list of which the device has a copy, so that each look of it is a step of the host's.
#[derive(Debug, Default)]
struct Elsewhere(Mutex<Looks>);

impl Distant for Elsewhere {
    fn fetch(&self, address: DeviceAddress, to: &Mapping, _: usize, len: usize) -> Result<(), DmaFault> {
        let mut looks = self.0.lock();
        let look = looks.seen.len();
        looks.seen.push((address.0 - AT, len));
        looks.told.take().into_iter().for_each(|told| told.send(()).unwrap());
        if looks.refused == Some(look) {
            return Err(DmaFault { address, len });
        }
        write_list(to, 0, &looks.versions[look.min(looks.versions.len() - 1)]);
        Ok(())
    }

    fn send(&self, address: DeviceAddress, _: &Mapping, _: usize, len: usize) -> Result<(), DmaFault> {
        panic!("the device writes {len} bytes of the list, at {address:?}");
    }
}

fn write_list(to: &Mapping, begin: usize, list: &[Range]) {
    for (at, &(address, pages)) in list.iter().enumerate() {
        let entry = HostMemoryDescriptor { address, pages, reserved: 0 };
        to.write(begin + 16 * at, entry.as_bytes());
    }
}

fn lend_entry(at: u64, pages: u32, entries: usize) -> SubmissionEntry {
    SubmissionEntry {
        opcode: 9,
        cdw10: 13,
        cdw11: 1,
        cdw12: pages,
        cdw13: at as u32,
        cdw14: (at >> 32) as u32,
        cdw15: entries as u32,
        ..Default::default()
    }
}

/// A host whose drive is full, and ranges that it may lend.
struct Lender {
    host: Host,
    ranges: Ranges,
    dice: Dice,
}

impl Lender {
    fn new(clock: Clock, seed: u64) -> Self {
        let mut host = Host::of(controller_of(clock, profile(), ASKED));
        host.enable();
        host.create_io();
        host.memory.fill(DATA, PAGE, 0x3c);
        for unit in 0..UNITS {
            let entry = host.data(1, unit, 1, PAGE);
            assert!(host.io(entry).status().is_success());
        }
        let ranges = Ranges::new(&host, RANGES, PAGES);
        Self { host, ranges, dice: Dice::new(seed) }
    }

    /// Reads units at random, which have what was written.
    fn read(&mut self, count: usize) {
        for _ in 0..count {
            let entry = self.host.data(2, self.dice.roll(UNITS), 1, PAGE);
            self.host.memory.fill(DATA, PAGE, 0);
            assert!(self.host.io(entry).status().is_success());
            let mut bytes = vec![0; PAGE];
            self.host.memory.read(DATA, &mut bytes);
            assert!(bytes.iter().all(|&byte| byte == 0x3c));
        }
    }

    /// Addresses of pages that were written to.
    fn touched(&self) -> HashSet<u64> {
        let mut touched = HashSet::new();
        for (memory, address) in self.ranges.memory.iter().zip(&self.ranges.addresses) {
            let mut bytes = vec![0; memory.len()];
            memory.read(0, &mut bytes);
            for (page, bytes) in bytes.chunks(PAGE).enumerate() {
                if bytes.iter().any(|&byte| byte != UNTOUCHED) {
                    touched.insert(address.0 + (page * PAGE) as u64);
                }
            }
        }
        touched
    }

    /// A list, sound or nearly so, by a turn that moves its ranges.
    fn list(&mut self, entries: usize, turn: usize) -> Vec<Range> {
        (0..entries)
            .map(|at| {
                let first = self.dice.roll(u64::from(PAGES) / 2);
                let pages = 1 + self.dice.roll(u64::from(PAGES) - first) as u32;
                let base = self.ranges.addresses[(at + turn) % RANGES].0;
                match self.dice.index(40) {
                    0 => (base + 512, pages),
                    1 => (u64::MAX - 4095, pages.max(2)),
                    2 => (base, PAGES + 1),
                    3 => (0x7777 << 40, pages),
                    _ => (base + first * PAGE as u64, pages),
                }
            })
            .collect()
    }

    /// What the device has to answer to a list that it has read so.
    fn judge(&self, list: &[Range], pages: u32) -> Status {
        let sum: u64 = list.iter().map(|&(_, pages)| u64::from(pages)).sum();
        let ends: Vec<(u128, u128)> = list
            .iter()
            .map(|&(address, pages)| (address.into(), u128::from(address) + u128::from(pages) * 4096))
            .collect();
        let overlaps =
            (0..list.len()).any(|a| (0..a).any(|b| ends[a].0 < ends[b].1 && ends[b].0 < ends[a].1));
        let is_odd = ends.iter().any(|&(begin, end)| begin % 4096 != 0 || end > 1 << 64);
        let usable = usable(list);
        if sum != u64::from(pages) || overlaps || is_odd || usable.len() < 4 {
            return Status::INVALID_FIELD;
        }
        let is_mapped = |page: &u64| {
            self.ranges.addresses.iter().any(|address| (address.0..address.0 + 24 * 4096).contains(page))
        };
        if usable.iter().all(is_mapped) { Status::SUCCESS } else { Status::DATA_TRANSFER_ERROR }
    }
}

/// Addresses of the pages of a list that the drive uses.
fn usable(list: &[Range]) -> HashSet<u64> {
    let pages = list.iter().take(4).flat_map(|&(address, pages)| {
        (0..u64::from(pages)).map(move |page| address.wrapping_add(page * PAGE as u64))
    });
    pages.take(40).collect()
}

#[test]
fn what_was_read_of_a_list_counts_whatever_the_host_makes_of_it() {
    let mut answers = [0; 3];
    for (clock, rounds) in [(Clock::Inline, 60), (Clock::Virtual, 400)] {
        let mut lender = Lender::new(clock, 3);
        let list = Arc::new(Elsewhere::default());
        let copy = Arc::new(Mapping::anonymous(PAGE, Pages::Base).unwrap());
        let distant = Arc::clone(&list);
        lender.host.device.controller().map_distant(DeviceAddress(AT), copy, distant).unwrap();
        for round in 0..rounds {
            let entries = 1 + lender.dice.index(5);
            let turns = 1 + lender.dice.index(entries);
            // Each version begins where the one before was read up to, or anywhere.
            let moves = lender.dice.index(2);
            let versions: Vec<_> = (0..turns).map(|turn| lender.list(entries, turn * moves)).collect();
            let read: Vec<Range> = (0..entries).map(|at| versions[at.min(turns - 1)][at]).collect();
            let of = if lender.dice.index(8) == 0 { &versions[0] } else { &read };
            let pages = of.iter().fold(0_u32, |sum, &(_, pages)| sum.wrapping_add(pages));
            let refused = (lender.dice.index(10) == 0).then(|| lender.dice.index(entries));
            *list.0.lock() = Looks { versions, refused, ..Looks::default() };
            let status = lender.host.admin(lend_entry(AT, pages, entries)).status();
            let expected = match refused {
                Some(_) => Status::DATA_TRANSFER_ERROR,
                None => lender.judge(&read, pages),
            };
            assert!(status.is(expected), "{clock:?}, round {round}: {status:?} to {read:?}");
            let looks: Vec<_> =
                (0..refused.map_or(entries, |at| at + 1)).map(|at| (16 * at as u64, 16)).collect();
            assert_eq!(list.0.lock().seen, looks, "each entry is read once");
            // From here on the list says that everything is lent.
            let all = lender.ranges.addresses.iter().map(|address| (address.0, PAGES)).collect();
            list.0.lock().versions = vec![all];
            lender.read(30);
            let may = if status.is_success() { usable(&read) } else { HashSet::new() };
            let touched = lender.touched();
            assert!(touched.is_subset(&may), "{clock:?}, round {round}: {touched:x?} of {read:x?}");
            assert_eq!(list.0.lock().seen, looks, "the list is read again");
            answers[[Status::SUCCESS, Status::INVALID_FIELD, Status::DATA_TRANSFER_ERROR]
                .iter()
                .position(|one| one.is(expected))
                .unwrap()] += 1;
            assert!(!status.is_success() || !touched.is_empty(), "it is not used");
            assert!(take_back(&mut lender.host).is_success());
            lender.ranges.fill();
        }
    }
    assert!(answers.iter().all(|&count| count > 40), "answers that were hardly met: {answers:?}");
}

#[test]
fn a_range_that_goes_while_its_list_is_read_is_given_up() {
    for clock in CLOCKS {
        let mut lender = Lender::new(clock, 5);
        let list = Arc::new(Elsewhere::default());
        let copy = Arc::new(Mapping::anonymous(PAGE, Pages::Base).unwrap());
        let distant = Arc::clone(&list);
        lender.host.device.controller().map_distant(DeviceAddress(AT), copy, distant).unwrap();
        let versions = vec![lender.ranges.addresses.iter().map(|address| (address.0, 10)).collect()];
        let (told, begun) = channel();
        *list.0.lock() = Looks { versions, told: Some(told), ..Looks::default() };
        let (device, gone) = (Arc::clone(&lender.host.device), lender.ranges.addresses[1]);
        let status = std::thread::scope(|scope| {
            // It waits for the look that is under way, and is answered when the drive has let go of the range.
            let unmapping = scope.spawn(move || {
                begun.recv().unwrap();
                device.unmap(gone);
            });
            let status = lender.host.admin(lend_entry(AT, 40, RANGES)).status();
            unmapping.join().unwrap();
            status
        });
        assert!(status.is_success() || status.is(Status::DATA_TRANSFER_ERROR), "{clock:?}: {status:?}");
        assert_eq!(Arc::strong_count(&lender.ranges.memory[1]), 1, "{clock:?}: the drive holds what is gone");
        lender.ranges.fill();
        lender.read(100);
        assert!(lender.touched().is_empty(), "{clock:?}");
        assert!(take_back(&mut lender.host).is_success());
    }
}

/// A thread that writes one list over the other all the time.
#[test]
fn a_list_that_is_written_while_it_is_read_names_what_may_be_touched() {
    for (clock, rounds) in CLOCKS.into_iter().zip([100, 100, 300]) {
        let mut lender = Lender::new(clock, 7);
        let addresses: Vec<u64> = lender.ranges.addresses.iter().map(|address| address.0).collect();
        // Of an entry that is half of each, the address is one of both, and the pages are: 8 pages of each range.
        let lists: [Vec<Range>; 2] = [
            vec![(addresses[0], 8), (addresses[1], 4), (addresses[2], 8)],
            vec![(addresses[1], 4), (addresses[0], 8), (addresses[3] + 512, 8)],
        ];
        let may: HashSet<u64> = addresses
            .iter()
            .flat_map(|address| (0..8).map(move |page| address + page * PAGE as u64))
            .collect();
        let (is_over, memory) = (AtomicBool::new(false), Arc::clone(&lender.host.memory));
        let mut taken = 0;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    lists.iter().for_each(|list| write_list(&memory, LIST, list));
                }
            });
            let at = lender.host.address(LIST).0;
            let rounds = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                for _ in 0..rounds {
                    let status = lender.host.admin(lend_entry(at, 20, 3)).status();
                    let is_known = [Status::SUCCESS, Status::INVALID_FIELD, Status::DATA_TRANSFER_ERROR]
                        .iter()
                        .any(|one| status.is(*one));
                    assert!(is_known, "{clock:?}: {status:?}");
                    taken += usize::from(status.is_success());
                    lender.read(10);
                    let touched = lender.touched();
                    assert!(touched.is_subset(&may), "{clock:?}: {touched:x?}");
                    assert!(status.is_success() || touched.is_empty(), "{clock:?}: {touched:x?}");
                    assert!(take_back(&mut lender.host).is_success());
                    lender.ranges.fill();
                }
            }));
            is_over.store(true, Ordering::Relaxed);
            rounds.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        });
        eprintln!("{clock:?}: {taken} of {rounds} lists were taken");
    }
}
