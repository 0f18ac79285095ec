//! A block layer that says what it does, with the truth beside it: it queues, splits, merges, issues, completes by
//! parts and takes back, on two processors. Its events are pages of tracefs' buffers, or blkparse's text.

use nvmed_dice::Dice;
use nvmed_trace::{KernelEvent, KernelLayout, KernelTrace, Op, Request};
use std::fmt::Write;

pub const PAGE_BYTES: usize = 4096;
/// Bytes of a page before its events.
const HEADER: usize = 16;
/// Bytes of an event's record.
const RECORD: usize = 64;

/// An event: when, on which processor, and sectors.
#[derive(Clone, Copy, Debug)]
pub struct Said {
    pub time_ns: u64,
    pub processor: usize,
    pub event: KernelEvent,
    pub op: Op,
    pub sector: u64,
    /// How many; of a split, the first one of the second part.
    pub sectors: u64,
    pub error: i32,
}

impl Said {
    pub fn new(time_ns: u64, event: KernelEvent, op: Op, (sector, sectors): (u64, u64)) -> Self {
        Self { time_ns, processor: 0, event, op, sector, sectors, error: 0 }
    }

    fn letter(&self) -> &'static str {
        match self.op {
            Op::Read => "R",
            Op::Write => "WS",
            Op::Discard => "D",
            // As who asks for it, and as the kernel does.
            Op::Flush if self.event == KernelEvent::Queue => "FWS",
            Op::Flush => "FF",
        }
    }

    /// The process that is at work.
    fn process(&self) -> String {
        format!("p{}", self.time_ns % 3)
    }
}

/// The numbers of events, and where they have what: any order will do.
pub fn layout() -> KernelLayout {
    let mut layout = KernelLayout::default();
    for (number, (event, name)) in KernelEvent::ALL.into_iter().enumerate() {
        let sectors = match event {
            KernelEvent::Split => "sector_t new_sector;\toffset:16;\tsize:8",
            _ => "unsigned int nr_sector;\toffset:16;\tsize:4",
        };
        let text = format!(
            "name: {name}\nID: {}\nformat:\n\tfield:sector_t sector;\toffset:8;\tsize:8;\tsigned:0;\n\
             \tfield:{sectors};\tsigned:0;\n\tfield:dev_t dev;\toffset:24;\tsize:4;\tsigned:0;\n\
             \tfield:int error;\toffset:28;\tsize:4;\tsigned:1;\n\
             \tfield:char rwbs[10];\toffset:32;\tsize:10;\tsigned:0;\n\
             \tfield:char comm[16];\toffset:44;\tsize:16;\tsigned:0;\n",
            number + 100
        );
        layout.add(event, &text).unwrap();
    }
    layout
}

fn record(said: &Said) -> Vec<u8> {
    let mut record = vec![0; RECORD];
    let number = KernelEvent::ALL.iter().position(|(event, _)| *event == said.event).unwrap();
    record[..2].copy_from_slice(&(number as u16 + 100).to_ne_bytes());
    record[8..16].copy_from_slice(&said.sector.to_ne_bytes());
    record[16..24].copy_from_slice(&said.sectors.to_ne_bytes());
    record[24..28].copy_from_slice(&(8_u32 << 20).to_ne_bytes());
    record[28..32].copy_from_slice(&said.error.to_ne_bytes());
    record[32..32 + said.letter().len()].copy_from_slice(said.letter().as_bytes());
    let process = said.process();
    record[44..44 + process.len()].copy_from_slice(process.as_bytes());
    record
}

/// A page of these events, which are later than those that were lost before it.
pub fn page(events: &[Said], is_behind_a_hole: bool) -> Vec<u8> {
    let mut page = vec![0; HEADER];
    let mut last_ns = events[0].time_ns;
    page[..8].copy_from_slice(&last_ns.to_ne_bytes());
    for said in events {
        let delta = (said.time_ns - last_ns) as u32;
        page.extend((delta << 5 | (RECORD / 4) as u32).to_ne_bytes());
        page.extend(record(said));
        last_ns = said.time_ns;
    }
    let commit = (page.len() - HEADER) as u64 | u64::from(is_behind_a_hole) << 31;
    page[8..16].copy_from_slice(&commit.to_ne_bytes());
    page.resize(PAGE_BYTES, 0);
    page
}

/// What was recorded of these pages of processors.
pub fn trace(processors: &[Vec<u8>]) -> KernelTrace<&[u8]> {
    KernelTrace::new(layout(), processors.iter().map(Vec::as_slice).collect(), PAGE_BYTES)
}

/// All requests of a recording.
pub fn requests(trace: &mut KernelTrace<&[u8]>) -> Vec<Request> {
    std::iter::from_fn(|| trace.next().unwrap()).collect()
}

/// The pages of two processors.
pub fn pages(events: &[Said]) -> [Vec<u8>; 2] {
    [0, 1].map(|processor| {
        let own: Vec<Said> = events.iter().filter(|said| said.processor == processor).copied().collect();
        own.chunks(20).flat_map(|events| page(events, false)).collect()
    })
}

/// The same as blkparse's text.
pub fn text(events: &[Said]) -> String {
    let mut text = String::new();
    for (number, said) in events.iter().enumerate() {
        let (letter, name) = match said.event {
            KernelEvent::Queue => ('Q', said.process()),
            KernelEvent::Split => ('X', said.process()),
            KernelEvent::Issue => ('D', said.process()),
            KernelEvent::Requeue => ('R', "0".to_owned()),
            KernelEvent::Complete | KernelEvent::Answer => ('C', said.error.to_string()),
        };
        let Said { time_ns, sector, sectors, .. } = said;
        let (s, ns, what) = (time_ns / 1_000_000_000, time_ns % 1_000_000_000, said.letter());
        write!(text, "8,0 {} {number} {s}.{ns:09} 1 {letter} {what} ", said.processor).unwrap();
        match (said.event, said.op) {
            (KernelEvent::Split, _) => writeln!(text, "{sector} / {sectors} [{name}]"),
            (_, Op::Flush) => writeln!(text, "[{name}]"),
            _ => writeln!(text, "{sector} + {sectors} [{name}]"),
        }
        .unwrap();
    }
    text
}

/// What is on its way: sectors, and what is true of it.
#[derive(Clone, Copy, Debug)]
struct Way {
    op: Op,
    /// What is left of it.
    from: u64,
    to: u64,
    /// Where it began.
    first: u64,
    arrival_ns: u64,
    start_ns: u64,
}

impl Way {
    fn is_at(&self, op: Op, from: u64, to: u64) -> bool {
        self.op == op && self.from == from && self.to == to
    }

    fn touches(&self, op: Op, from: u64, to: u64) -> bool {
        self.op == op && self.from < to && from < self.to
    }
}

/// A block layer that decides by dice. No two requests of one kind, place and length are open at a time, and none may
/// be taken for parts of another: nobody could tell these apart.
pub struct BlockLayer {
    dice: Dice,
    now_ns: u64,
    waiting: Vec<Way>,
    issued: Vec<Way>,
    pub said: Vec<Said>,
    /// Requests in the order in which they were completed.
    pub truth: Vec<(Op, u64, u64, u64, u64, u64)>,
}

impl BlockLayer {
    /// Runs until so many steps were made, and until nothing is open.
    pub fn run(seed: u64, steps: usize) -> Self {
        let mut layer = Self {
            dice: Dice::new(seed),
            now_ns: 1000,
            waiting: Vec::new(),
            issued: Vec::new(),
            said: Vec::new(),
            truth: Vec::new(),
        };
        for step in 0.. {
            let is_ending = step >= steps;
            if is_ending && layer.waiting.is_empty() && layer.issued.is_empty() {
                return layer;
            }
            match layer.dice.roll(10) {
                0..4 if !is_ending => layer.queue(),
                4 => layer.split(),
                5..7 => layer.issue(),
                7 => layer.give_back(),
                _ => layer.complete(),
            }
        }
        unreachable!("steps have no end")
    }

    fn say(&mut self, event: KernelEvent, op: Op, sector: u64, sectors: u64) -> u64 {
        self.now_ns += 1 + self.dice.roll(100);
        let processor = self.dice.index(2);
        self.said.push(Said { processor, ..Said::new(self.now_ns, event, op, (sector, sectors)) });
        self.now_ns
    }

    fn queue(&mut self) {
        let op = if self.dice.chance(50) { Op::Read } else { Op::Write };
        let from = self.dice.roll(30) * 8;
        let to = from + 8 * (1 + self.dice.roll(4));
        if self.waiting.iter().any(|way| way.is_at(op, from, to)) {
            return;
        }
        let arrival_ns = self.say(KernelEvent::Queue, op, from, to - from);
        self.waiting.push(Way { op, from, to, first: from, arrival_ns, start_ns: 0 });
    }

    fn split(&mut self) {
        let Some(way) = self.waiting.last().copied().filter(|way| way.to - way.from > 8) else { return };
        let at = way.from + 8 * (1 + self.dice.roll((way.to - way.from) / 8 - 1));
        let is_there = |from, to| self.waiting.iter().any(|other| other.is_at(way.op, from, to));
        let is_first =
            self.waiting.iter().filter(|other| other.op == way.op && other.from == way.from).count() == 1;
        if !is_first || is_there(way.from, at) || is_there(at, way.to) {
            return;
        }
        self.say(KernelEvent::Split, way.op, way.from, at);
        let last = self.waiting.len() - 1;
        self.waiting[last].to = at;
        self.waiting.push(Way { from: at, first: at, ..way });
    }

    /// Issues one that waits, with those that follow it on the disk, if it can be merged.
    fn issue(&mut self) {
        if self.waiting.is_empty() {
            return;
        }
        let mut whole = self.waiting.remove(self.dice.index(self.waiting.len()));
        let (op, from) = (whole.op, whole.from);
        while self.dice.chance(60) {
            let touching = |to| self.waiting.iter().filter(move |other| other.touches(op, from, to)).count();
            let Some(next) = self.waiting.iter().position(|other| other.op == op && other.from == whole.to)
            else {
                break;
            };
            if touching(self.waiting[next].to) > 1 {
                break;
            }
            let next = self.waiting.remove(next);
            (whole.to, whole.arrival_ns) = (next.to, whole.arrival_ns.min(next.arrival_ns));
        }
        let is_same = |other: &Way| other.is_at(op, from, whole.to);
        let is_open = self.issued.iter().any(is_same) || self.waiting.iter().any(is_same);
        whole.start_ns = self.say(KernelEvent::Issue, op, from, whole.to - from);
        assert!(!is_open || self.issued.iter().any(is_same), "what waits is told apart");
        self.issued.push(whole);
        if is_open {
            // It would not be told from the other: it is done before anything else happens.
            let other = self.issued.iter().position(is_same).unwrap();
            self.finish(other);
        }
    }

    fn finish(&mut self, which: usize) {
        let way = self.issued.remove(which);
        let finish_ns = self.say(KernelEvent::Complete, way.op, way.from, way.to - way.from);
        let (offset, bytes) = (way.first * 512, (way.to - way.first) * 512);
        self.truth.push((way.op, offset, bytes, way.arrival_ns, way.start_ns, finish_ns));
    }

    fn complete(&mut self) {
        if self.issued.is_empty() {
            return;
        }
        let which = self.dice.index(self.issued.len());
        let way = self.issued[which];
        let at = way.from + 8 * self.dice.roll((way.to - way.from) / 8);
        let is_alone =
            self.issued.iter().filter(|other| other.op == way.op && other.from == way.from).count() == 1;
        let is_new = !self.issued.iter().any(|other| other.is_at(way.op, at, way.to));
        if at > way.from && is_alone && is_new && self.dice.chance(50) {
            self.say(KernelEvent::Complete, way.op, way.from, at - way.from);
            self.issued[which].from = at;
        } else {
            self.finish(which);
        }
    }

    fn give_back(&mut self) {
        if self.issued.is_empty() {
            return;
        }
        let which = self.dice.index(self.issued.len());
        let way = self.issued[which];
        if self.waiting.iter().any(|other| other.touches(way.op, way.from, way.to)) {
            return;
        }
        self.issued.remove(which);
        self.say(KernelEvent::Requeue, way.op, way.from, way.to - way.from);
        self.waiting.push(way);
    }
}
