//! Pages of tracefs' ring buffers, and the events of the block layer in them.

use crate::format::event::rwbs;
use crate::pairing::Stage;
use crate::request::{Flags, Op};
use std::collections::{HashMap, VecDeque};
use std::io::{self, Read};

/// Bytes before a page's events: its time, and how many bytes of events follow.
const HEADER: usize = 16;
/// The part of the second word that is a length.
const LENGTH: u64 = 0xf_ffff;
/// Bytes of a sector, whatever the device's blocks are.
const SECTOR: u64 = 512;
/// Events were lost before the page (`RB_MISSED_EVENTS`): older pages were overwritten.
const MISSED: u64 = 1 << 31;

/// What happens to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelEvent {
    /// A part of one comes to the block layer (`block_bio_queue`): it arrives.
    Queue,
    /// What has come becomes two (`block_split`).
    Split,
    /// It is given to the device (`block_rq_issue`).
    Issue,
    /// The device has done it, or part of it (`block_rq_complete`).
    Complete,
    /// The device did not take it (`block_rq_requeue`).
    Requeue,
    /// What was never issued is done (`block_bio_complete`): by a device that takes no requests (device mapper, md,
    /// zram), or it was refused.
    Answer,
}

impl KernelEvent {
    /// All of them, with the directories of `events/block` that describe them.
    pub const ALL: [(Self, &'static str); 6] = [
        (Self::Queue, "block_bio_queue"),
        (Self::Split, "block_split"),
        (Self::Issue, "block_rq_issue"),
        (Self::Complete, "block_rq_complete"),
        (Self::Requeue, "block_rq_requeue"),
        (Self::Answer, "block_bio_complete"),
    ];
}

/// Where an event of one kind has what.
#[derive(Clone, Debug)]
struct Layout {
    event: KernelEvent,
    dev: usize,
    sector: usize,
    /// How many sectors; of a split, the first one of its second part.
    sectors: usize,
    rwbs: (usize, usize),
    comm: Option<(usize, usize)>,
    error: Option<usize>,
}

/// What a running kernel's events look like.
#[derive(Clone, Debug, Default)]
pub struct KernelLayout {
    by_id: HashMap<u16, Layout>,
}

impl KernelLayout {
    /// Takes the text of an event's `format` file.
    ///
    /// # Errors
    /// What it has not.
    pub fn add(&mut self, event: KernelEvent, text: &str) -> Result<(), &'static str> {
        let id = text.lines().find_map(|line| line.strip_prefix("ID:")).and_then(|id| id.trim().parse().ok());
        let field = |name: &str| {
            text.lines().find_map(|line| {
                let line = line.trim().strip_prefix("field:")?;
                let mut parts = line.split(';').map(str::trim);
                let declared = parts.next()?.rsplit(' ').next()?;
                let is_it = declared.split('[').next() == Some(name);
                let number =
                    |part: &str| part.split_once(':').and_then(|(_, number)| number.parse::<usize>().ok());
                let (offset, size) = (number(parts.next()?)?, number(parts.next()?)?);
                is_it.then_some((offset, size))
            })
        };
        let place = |name: &'static str, size: usize| {
            field(name).filter(|(_, found)| *found == size).map(|(offset, _)| offset).ok_or(name)
        };
        let sectors = match event {
            KernelEvent::Split => place("new_sector", 8)?,
            _ => place("nr_sector", 4)?,
        };
        let layout = Layout {
            event,
            dev: place("dev", 4)?,
            sector: place("sector", 8)?,
            sectors,
            rwbs: field("rwbs").ok_or("rwbs")?,
            comm: field("comm"),
            error: place("error", 4).ok(),
        };
        self.by_id.insert(id.ok_or("ID")?, layout);
        Ok(())
    }
}

/// An event, read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) time_ns: u64,
    pub(super) stage: Stage,
    pub(super) device: (u32, u32),
    pub(super) op: Op,
    pub(super) flags: Flags,
    pub(super) offset: u64,
    pub(super) bytes: u64,
    pub(super) process: String,
    pub(super) has_failed: bool,
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().copied().map(u32::from_ne_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().copied().map(u64::from_ne_bytes)
}

/// Text up to the first zero byte.
fn text_at(bytes: &[u8], (offset, size): (usize, usize)) -> Option<&str> {
    let field = bytes.get(offset..offset.checked_add(size)?)?;
    let end = field.iter().position(|&byte| byte == 0).unwrap_or(size);
    std::str::from_utf8(&field[..end]).ok()
}

impl Layout {
    fn read(&self, record: &[u8], time_ns: u64) -> Option<Record> {
        let dev = u32_at(record, self.dev)?;
        let offset = u64_at(record, self.sector)?.saturating_mul(SECTOR);
        let (stage, bytes) = match self.event {
            KernelEvent::Split => (Stage::Split(u64_at(record, self.sectors)?.checked_mul(SECTOR)?), 0),
            event => {
                let stage = match event {
                    KernelEvent::Queue => Stage::Queued,
                    KernelEvent::Issue => Stage::Issued,
                    KernelEvent::Requeue => Stage::Requeued,
                    _ => Stage::Completed,
                };
                (stage, u64::from(u32_at(record, self.sectors)?) * SECTOR)
            }
        };
        let is_split = self.event == KernelEvent::Split;
        let (op, flags) = rwbs(text_at(record, self.rwbs)?, if is_split { SECTOR } else { bytes })?;
        if bytes == 0 && op != Op::Flush && !is_split {
            // Of a write that had to flush first, the end of it all; or a command that is for no blocks.
            return None;
        }
        let is_flush = op == Op::Flush;
        Some(Record {
            time_ns,
            stage,
            device: (dev >> 20, dev & 0xf_ffff),
            op,
            flags: if is_flush { Flags::default() } else { flags },
            offset: if is_flush { 0 } else { offset },
            bytes: if is_flush { 0 } else { bytes },
            process: self.comm.and_then(|comm| text_at(record, comm)).unwrap_or_default().to_owned(),
            has_failed: self.error.and_then(|error| u32_at(record, error)).is_some_and(|error| error != 0),
        })
    }
}

/// The events of one processor, page by page.
#[derive(Debug)]
pub(super) struct Processor<R> {
    pages: R,
    page: Vec<u8>,
    events: VecDeque<Record>,
    /// Events were lost before this time, which nobody was told of.
    hole_until_ns: Option<u64>,
}

impl<R: Read> Processor<R> {
    /// Pages of so many bytes.
    pub(super) fn new(pages: R, page_bytes: usize) -> Self {
        Self { pages, page: vec![0; page_bytes], events: VecDeque::new(), hole_until_ns: None }
    }

    /// When the next event happened; `None` at the end.
    pub(super) fn next_time(&mut self, layout: &KernelLayout) -> io::Result<Option<u64>> {
        while self.events.is_empty() {
            if !fill(&mut self.pages, &mut self.page)? {
                return Ok(None);
            }
            self.hole_until_ns = self.hole_until_ns.max(missed_until(&self.page));
            read_page(&self.page, layout, &mut self.events);
        }
        Ok(self.events.front().map(|event| event.time_ns))
    }

    /// Takes the next event.
    pub(super) fn next(&mut self) -> Option<Record> {
        self.events.pop_front()
    }

    /// Until when events were lost after the last one that was taken; each is told once.
    pub(super) fn take_hole(&mut self) -> Option<u64> {
        self.hole_until_ns.take()
    }
}

/// When a page begins before which events were lost.
fn missed_until(page: &[u8]) -> Option<u64> {
    let (time_ns, commit) = (u64_at(page, 0)?, u64_at(page, 8)?);
    (commit & MISSED != 0).then_some(time_ns)
}

/// Reads a whole page; false when there is none any more.
fn fill(input: &mut impl Read, page: &mut [u8]) -> io::Result<bool> {
    let mut filled = 0;
    while filled < page.len() {
        match input.read(&mut page[filled..]) {
            Ok(0) => return Ok(false),
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}

/// The events of a page; what is damaged ends it.
fn read_page(page: &[u8], layout: &KernelLayout, events: &mut VecDeque<Record>) {
    let (Some(mut time_ns), Some(commit)) = (u64_at(page, 0), u64_at(page, 8)) else { return };
    let end = page.len().min(HEADER + (commit & LENGTH) as usize);
    let page = &page[..end];
    let mut at = HEADER;
    while let Some(word) = u32_at(page, at) {
        let (kind, delta) = (word & 0x1f, u64::from(word >> 5));
        let extended = || u32_at(page, at + 4).map(|high| u64::from(high) << 27 | delta);
        let (begin, bytes) = match kind {
            // Padding: to the end of the page, or of so many bytes.
            29 if delta == 0 => return,
            29 => {
                let Some(bytes) = u32_at(page, at + 4) else { return };
                at += 4 + bytes as usize;
                time_ns = time_ns.wrapping_add(delta);
                continue;
            }
            30 => {
                time_ns = time_ns.wrapping_add(extended().unwrap_or(0));
                at += 8;
                continue;
            }
            31 => {
                // Lower 59 bits of a time of its own.
                time_ns = time_ns & !((1 << 59) - 1) | extended().unwrap_or(0);
                at += 8;
                continue;
            }
            0 => match u32_at(page, at + 4) {
                Some(bytes) if bytes >= 4 => (at + 8, bytes as usize - 4),
                _ => return,
            },
            words => (at + 4, words as usize * 4),
        };
        time_ns = time_ns.wrapping_add(delta);
        let Some(record) = page.get(begin..begin + bytes) else { return };
        let id = record.first_chunk().copied().map(u16::from_ne_bytes);
        let known = id.and_then(|id| layout.by_id.get(&id));
        events.extend(known.and_then(|known| known.read(record, time_ns)));
        at = begin + bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::{KernelEvent, KernelLayout, Record, read_page};
    use crate::request::{Flags, Op};
    use std::collections::VecDeque;

    /// As Linux 6.18 has it.
    const ISSUE: &str = "name: block_rq_issue\nID: 1033\nformat:\n\
        \tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\n\
        \tfield:dev_t dev;\toffset:8;\tsize:4;\tsigned:0;\n\
        \tfield:sector_t sector;\toffset:16;\tsize:8;\tsigned:0;\n\
        \tfield:unsigned int nr_sector;\toffset:24;\tsize:4;\tsigned:0;\n\
        \tfield:char rwbs[10];\toffset:34;\tsize:10;\tsigned:0;\n\
        \tfield:char comm[16];\toffset:44;\tsize:16;\tsigned:0;\n";

    fn record(sector: u64, sectors: u32, rwbs: &str) -> Vec<u8> {
        let mut record = vec![0; 64];
        record[..2].copy_from_slice(&1033_u16.to_ne_bytes());
        record[8..12].copy_from_slice(&(8_u32 << 20 | 16).to_ne_bytes());
        record[16..24].copy_from_slice(&sector.to_ne_bytes());
        record[24..28].copy_from_slice(&sectors.to_ne_bytes());
        record[34..34 + rwbs.len()].copy_from_slice(rwbs.as_bytes());
        record[44..47].copy_from_slice(b"git");
        record
    }

    fn layout() -> KernelLayout {
        let mut layout = KernelLayout::default();
        layout.add(KernelEvent::Issue, ISSUE).unwrap();
        layout
    }

    fn read(page: &[u8]) -> Vec<Record> {
        let mut events = VecDeque::new();
        read_page(page, &layout(), &mut events);
        events.into()
    }

    /// A page of these bytes of events.
    fn page(time_ns: u64, events: &[u8]) -> Vec<u8> {
        let mut page = [time_ns.to_ne_bytes(), (events.len() as u64).to_ne_bytes()].concat();
        page.extend_from_slice(events);
        page.resize(4096, 0xff);
        page
    }

    fn word(kind: u32, delta: u32) -> [u8; 4] {
        (delta << 5 | kind).to_ne_bytes()
    }

    #[test]
    fn all_kinds_of_entries_are_read() {
        let mut events = Vec::new();
        // 16 words of an event, 5 ns on; one whose length stands behind its header.
        events.extend(word(16, 5));
        events.extend(record(800, 8, "WFSM"));
        events.extend(word(0, 2));
        events.extend(68_u32.to_ne_bytes());
        events.extend(record(0, 0, "FF"));
        // 2^27 + 3 ns more; a discarded entry of 12 bytes; an absolute time.
        events.extend(word(30, 3));
        events.extend(1_u32.to_ne_bytes());
        events.extend(word(29, 1));
        events.extend(8_u32.to_ne_bytes());
        events.extend([0; 4]);
        events.extend(word(16, 0));
        events.extend(record(16, 16, "RA"));
        events.extend(word(31, 7));
        events.extend(2_u32.to_ne_bytes());
        events.extend(word(16, 1));
        events.extend(record(1, 1, "D"));
        let found = read(&page(1000, &events));
        let times: Vec<u64> = found.iter().map(|event| event.time_ns).collect();
        assert_eq!(times, [1005, 1007, 1007 + (1 << 27) + 4, (2 << 27) + 8]);
        let what = found.iter().map(|event| (event.op, event.offset / 512, event.bytes / 512, event.flags));
        let waited = Flags::FUA.and(Flags::SYNC).and(Flags::META);
        assert_eq!(
            what.collect::<Vec<_>>(),
            [
                (Op::Write, 800, 8, waited),
                (Op::Flush, 0, 0, Flags::default()),
                (Op::Read, 16, 16, Flags::AHEAD),
                (Op::Discard, 1, 1, Flags::default())
            ]
        );
        assert!(found.iter().all(|event| event.device == (8, 16) && event.process == "git"));
    }

    #[test]
    fn a_damaged_page_ends_where_it_is_damaged() {
        let mut events = Vec::new();
        events.extend(word(16, 5));
        events.extend(record(800, 8, "W"));
        let whole = events.len();
        events.extend(word(0, 2));
        events.extend(u32::MAX.to_ne_bytes());
        assert_eq!(read(&page(0, &events)).len(), 1);
        for end in 0..events.len() {
            let count = read(&page(0, &events[..end])).len();
            assert_eq!(count, usize::from(end >= whole), "{end}");
        }
        assert!(read(&[1, 2, 3]).is_empty());
    }

    #[test]
    fn a_kernel_without_a_field_is_told() {
        let mut layout = KernelLayout::default();
        assert_eq!(layout.add(KernelEvent::Issue, &ISSUE.replace("nr_sector", "count")), Err("nr_sector"));
        assert_eq!(layout.add(KernelEvent::Issue, &ISSUE.replace("ID: 1033", "ID: x")), Err("ID"));
    }
}
