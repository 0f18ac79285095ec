//! Rows of the buffer in front of slow memory: what is programmed, and what a pin costs.

use crate::files::ROUNDS;
use crate::ours::text;
use crate::row::{Contender, Goal, Row};
use nvmed_dice::Dice;
use nvmed_lab::samples::Samples;
use nvmed_nvm::{BufferClock, BufferOptions, FlushTo, MediaProfile, Memory, MemoryOptions, Place};
use nvmed_stack::SlowMedium;
use nvmed_sys::{Mapping, Pages};
use std::time::Instant;

/// The rows.
pub const NAMES: [&str; 3] = ["nvm.write_log", "nvm.pin_8k", "nvm.pinned_read_8k"];

/// Bytes of the set that is updated or read.
const SET_BYTES: u64 = 16 << 20;
/// An eighth of it.
const BUFFER_BYTES: u64 = SET_BYTES / 8;
/// Bytes of a record's place.
const RECORD_BYTES: u64 = 256;
/// Updates of a round, of which a quarter comes before anything is counted.
const UPDATES: u64 = 200_000;
/// Pins of a round.
const PINS: u64 = 200_000;
/// Bytes of a pinned range.
const PINNED_BYTES: usize = 8192;

fn memory(profile: MediaProfile, buffer_bytes: u64) -> Result<Memory, String> {
    let options = BufferOptions { profile, bytes: buffer_bytes, clock: BufferClock::Virtual };
    let place = Place::Ram { bytes: SET_BYTES };
    let memory = Memory::open(MemoryOptions { place, flush: FlushTo::Process }).map_err(text)?;
    memory.buffered(&options).map_err(text)
}

/// Which records are updated, by Zipf's law with an exponent of 0.99: the popular ones are anywhere.
struct Popular {
    /// How many of 2^32 draws are of a record so popular or more.
    up_to: Vec<u64>,
    places: Vec<u64>,
}

impl Popular {
    fn new(dice: &mut Dice) -> Self {
        let records = SET_BYTES / RECORD_BYTES;
        let weights: Vec<f64> = (1..=records).map(|rank| (rank as f64).powf(-0.99)).collect();
        let all: f64 = weights.iter().sum();
        let mut sum = 0.0;
        let up_to = weights.iter().map(|weight| {
            sum += weight;
            (sum / all * (1_u64 << 32) as f64) as u64
        });
        let mut places: Vec<u64> = (0..records).collect();
        for left in (1..places.len()).rev() {
            places.swap(left, dice.index(left + 1));
        }
        Self { up_to: up_to.collect(), places }
    }

    fn draw(&self, dice: &mut Dice) -> u64 {
        let drawn = dice.roll(1 << 32);
        let rank = self.up_to.partition_point(|&up_to| up_to <= drawn);
        self.places[rank.min(self.places.len() - 1)] * RECORD_BYTES
    }
}

/// Bytes that an update programs.
fn programmed(profile: MediaProfile, seed: u64) -> Result<f64, String> {
    let memory = memory(profile, BUFFER_BYTES)?;
    let mut dice = Dice::of(&[seed]);
    let popular = Popular::new(&mut dice);
    let bytes = [1; RECORD_BYTES as usize];
    let mut before = 0;
    for turn in 0..UPDATES {
        if turn == UPDATES / 4 {
            before = memory.buffer_stats().ok_or("no buffer")?.programmed_bytes;
        }
        let len = 64 + dice.index(RECORD_BYTES as usize - 64 + 1);
        memory.store(popular.draw(&mut dice), &bytes[..len]).map_err(text)?;
    }
    let after = memory.buffer_stats().ok_or("no buffer")?.programmed_bytes;
    Ok((after - before) as f64 / (UPDATES - UPDATES / 4) as f64)
}

/// Small updates of popular records on flash: with a log of lines, and by whole pages in as large a buffer.
pub fn write_log() -> Result<Vec<Row>, String> {
    let profile = SlowMedium::named("cxl-flash").and_then(|medium| medium.medium(SET_BYTES)).map_err(text)?;
    let pages = MediaProfile { log_percent: 0, ..profile.clone() };
    let (mut ours, mut rival) = (Samples::default(), Samples::default());
    for round in 0..ROUNDS as u64 {
        ours.push(programmed(profile.clone(), round)?);
        rival.push(programmed(pages.clone(), round)?);
    }
    Ok(vec![Row {
        name: NAMES[0].to_owned(),
        unit: "B",
        ours: Contender {
            name: format!("a write log, {} % of the buffer", profile.log_percent),
            samples: ours,
        },
        rival: Some(Contender { name: "pages written back whole".to_owned(), samples: rival }),
        goal: Goal::Ratio(0.25),
        flushes_per_op: None,
        conditions: format!(
            "bytes of flash programmed an update of 64 to {RECORD_BYTES} bytes, of {SET_BYTES} bytes of records by \
             Zipf 0.99 scattered over the pages, profile cxl-flash, a buffer of {BUFFER_BYTES} bytes, memory of the \
             process with flush=process, counted after a quarter of {UPDATES} updates; {ROUNDS} rounds, a seed each"
        ),
    }])
}

/// Nanoseconds of `one`, called with offsets at random.
fn timed(mut one: impl FnMut(u64) -> Result<(), String>) -> Result<f64, String> {
    let mut dice = Dice::of(&[1]);
    let places = SET_BYTES / PINNED_BYTES as u64;
    let begin = Instant::now();
    (0..PINS).try_for_each(|_| one(dice.roll(places) * PINNED_BYTES as u64))?;
    Ok(begin.elapsed().as_nanos() as f64 / PINS as f64)
}

/// A pin of 8 KiB that are resident; and a read through it, against a copy between two mappings.
pub fn pins() -> Result<Vec<Row>, String> {
    let profile = SlowMedium::named("pcm").and_then(|medium| medium.medium(SET_BYTES)).map_err(text)?;
    // All of it is resident.
    let memory = memory(MediaProfile { log_percent: 0, ..profile }, 2 * SET_BYTES)?;
    let page = [1; 4096];
    (0..SET_BYTES / 4096).try_for_each(|at| memory.store(at * 4096, &page)).map_err(text)?;
    let into = Mapping::anonymous(PINNED_BYTES, Pages::Base).map_err(text)?;
    let other = Mapping::shareable(SET_BYTES as usize, Pages::Base).map_err(text)?;
    other.fill(0, SET_BYTES as usize, 1);
    let [mut pin, mut read, mut copy] = [(); 3].map(|()| Samples::default());
    for _ in 0..ROUNDS {
        // What the loop itself takes, and the dice.
        let nothing = timed(|at| {
            std::hint::black_box(at);
            Ok(())
        })?;
        pin.push(
            timed(|at| {
                std::hint::black_box(memory.pin(at, PINNED_BYTES).map_err(text)?.memory().1);
                Ok(())
            })? - nothing,
        );
        read.push(timed(|at| {
            let pinned = memory.pin(at, PINNED_BYTES).map_err(text)?;
            let (memory, at) = pinned.memory();
            memory.copy(at, &into, 0, PINNED_BYTES);
            Ok(())
        })?);
        copy.push(timed(|at| {
            other.copy(at as usize, &into, 0, PINNED_BYTES);
            Ok(())
        })?);
    }
    let row = |name: &str, ours, rival, goal| Row {
        name: name.to_owned(),
        unit: "ns",
        ours: Contender { name: "a pin of 8 KiB, resident".to_owned(), samples: ours },
        rival,
        goal,
        flushes_per_op: None,
        conditions: format!(
            "{PINNED_BYTES} bytes at random of {SET_BYTES} that are resident, memory of the process with \
             flush=process, one thread, the loop itself taken off a bare pin; {ROUNDS} rounds of {PINS}"
        ),
    };
    let rival = Contender { name: "memcpy from another mapping".to_owned(), samples: copy };
    Ok(vec![row(NAMES[1], pin, None, Goal::Figure(50.0)), row(NAMES[2], read, Some(rival), Goal::Ratio(1.1))])
}
