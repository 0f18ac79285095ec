//! Rows of the flash model alone: how fast it simulates, and whether a drive amplifies writes as published.

use crate::files::ROUNDS;
use crate::row::{Contender, Goal, Row};
use nvmed_dice::Dice;
use nvmed_flash::{
    ArrayProfile, BlockKind, Command, Counts, Flash, Kind, Medium, Profile, Rate, Tables, TranslationProfile,
    UNIT_BYTES, table_sizes,
};
use nvmed_lab::machine::thread_cpu_ns;
use nvmed_lab::samples::Samples;
use nvmed_sys::Words;

/// The simulator's rows.
pub const SIMULATOR: [&str; 2] = ["flash.simulator.read", "flash.simulator.write"];
/// The rows of write amplification, by over-provisioning in percent.
pub const AMPLIFICATION: [&str; 3] =
    ["flash.amplification.7", "flash.amplification.15", "flash.amplification.28"];
/// The rows of a large drive that was made used.
pub const PRECONDITION: [&str; 3] =
    ["flash.precondition.time", "flash.precondition.amplification", "flash.precondition.memory"];

const COMMANDS: u32 = 1024;
/// Commands under way.
const DEPTH: usize = 256;

/// TLC NAND of so many blocks a plane behind 8 channels, or fewer where `planes` are.
fn tlc(planes: u32, per_plane: u32, (page_units, pages): (u64, u32)) -> ArrayProfile {
    ArrayProfile {
        channels: planes.min(8),
        chips: (planes / 32).max(1),
        planes: (planes / 8).clamp(1, 4),
        registers: 2,
        bus_out: Rate::per_second(1_200_000_000),
        bus_in: Rate::per_second(1_200_000_000),
        sector_bytes: UNIT_BYTES,
        link_out: Rate::per_second(7_000_000_000),
        link_in: Rate::per_second(7_000_000_000),
        command_ns: 2_000,
        blocks: vec![BlockKind {
            per_plane,
            page_bytes: page_units * UNIT_BYTES,
            pages,
            pages_per_program: if page_units == 1 { 1 } else { 3 },
            read_ns: vec![45_000],
            program_ns: vec![700_000],
            erase_ns: 5_000_000,
            endurance: 0,
        }],
        translation: Some(TranslationProfile { buffer_bytes: 16 << 20, ..TranslationProfile::default() }),
        ..ArrayProfile::default()
    }
}

/// A drive, its tables in huge pages, and what it was told so far.
pub(crate) struct Bench {
    pub flash: Flash<Words>,
    units: u64,
    dice: Dice,
}

impl Bench {
    pub fn new(array: ArrayProfile) -> Result<Self, String> {
        let units = array.logical_units();
        let profile = Profile { commands: COMMANDS, medium: Medium::Array(Box::new(array)) };
        let (map, owners) = table_sizes(&profile);
        let words = |count| Words::new(count).map_err(|error| error.to_string());
        let tables = Tables { map: words(map)?, owners: words(owners)? };
        let flash = Flash::with_tables(&profile, tables).map_err(|error| error.to_string())?;
        Ok(Self { flash, units, dice: Dice::new(7) })
    }

    /// Keeps [`DEPTH`] of the commands under way; what the layer did for them, and the processor's nanoseconds.
    fn run(
        &mut self,
        count: u64,
        mut next: impl FnMut(&mut Dice, u64) -> Command,
    ) -> Result<(Counts, u64), String> {
        let (before, begin) = (self.flash.counts(), thread_cpu_ns());
        let (mut given, mut under_way, mut now) = (0, 0, self.flash.now());
        loop {
            while under_way < DEPTH && given < count {
                let _ = self.flash.arrive(now, &next(&mut self.dice, given));
                (given, under_way) = (given + 1, under_way + 1);
            }
            if under_way == 0 {
                break;
            }
            let done = self.flash.advance(u64::MAX).ok_or("a command did not complete")?;
            (now, under_way) = (done.time, under_way - 1);
        }
        let cpu_ns = thread_cpu_ns() - begin;
        Ok((self.flash.counts().since(before), cpu_ns))
    }

    fn fill(&mut self) -> Result<(), String> {
        self.run(self.units.div_ceil(32), |_, at| write(at * 32, 32)).map(|_| ())
    }

    fn overwrite(&mut self, count: u64) -> Result<(Counts, u64), String> {
        let units = self.units;
        self.run(count, |dice, _| write(dice.roll(units), 1))
    }
}

fn write(unit: u64, count: u64) -> Command {
    Command {
        kind: Kind::Write { fua: false },
        start: unit * UNIT_BYTES,
        bytes: count * UNIT_BYTES,
        urgent: false,
    }
}

/// Page operations.
pub(crate) fn operations(counts: Counts) -> u64 {
    counts.programs + counts.page_reads + counts.erases
}

pub(crate) fn row(
    name: &str,
    unit: &'static str,
    who: &str,
    samples: Samples,
    goal: Goal,
    conditions: String,
) -> Row {
    let ours = Contender { name: who.to_owned(), samples };
    Row { name: name.to_owned(), unit, ours, rival: None, goal, flushes_per_op: None, conditions }
}

/// Page operations a second of processor time, of reads at random and of writes in the steady state.
pub fn simulator() -> Result<Vec<Row>, String> {
    const COUNT: u64 = 500_000;
    let mut array = tlc(64, 130, (1, 256));
    array.capacity_bytes = 64 * 126 * 256 * 100 / 115 * UNIT_BYTES / (32 * UNIT_BYTES) * (32 * UNIT_BYTES);
    let mut bench = Bench::new(array)?;
    bench.fill()?;
    bench.overwrite(2 * bench.units)?;
    let units = bench.units;
    let (mut reads, mut writes) = (Samples::default(), Samples::default());
    let rate = |(counts, cpu_ns): (Counts, u64)| operations(counts) as f64 * 1e3 / cpu_ns as f64;
    for _ in 0..ROUNDS {
        let read = |dice: &mut Dice, _| {
            let start = dice.roll(units) * UNIT_BYTES;
            Command { kind: Kind::Read, start, bytes: UNIT_BYTES, urgent: false }
        };
        reads.push(rate(bench.run(COUNT, read)?));
        writes.push(rate(bench.overwrite(COUNT)?));
    }
    let conditions = format!(
        "{} GiB in pages of 4 KiB, 64 planes of 16 dies on 8 channels, depth {DEPTH}, 4 KiB at random; write \
         amplification {:.2} since the drive was made; {ROUNDS} rounds of {COUNT} commands",
        (units * UNIT_BYTES) >> 30,
        bench.flash.counts().amplification()
    );
    let unit = "M page operations a CPU second";
    Ok([(SIMULATOR[0], reads), (SIMULATOR[1], writes)]
        .map(|(name, samples)| row(name, unit, "flash model", samples, Goal::Least(2.0), conditions.clone()))
        .into())
}

/// What greedy collection converges to with large blocks under uniform random writes: A = α ÷ (α + W(−α e^−α)), with
/// α the physical over the logical units (Desnoyers, "Analytic Models of SSD Write Performance", ACM TOS 10(2), 2014).
fn published(alpha: f64) -> f64 {
    let z = -alpha * (-alpha).exp();
    // Lambert's W at its upper branch, by Newton's method.
    let step = |w: f64, _| w - (w * w.exp() - z) / (w.exp() * (1.0 + w));
    alpha / (alpha + (0..100).fold(-0.5, step))
}

/// Write amplification over the published one, in percent off.
pub fn amplification(wanted: &str) -> Result<Vec<Row>, String> {
    const BLOCKS: u32 = 2500;
    const UNITS: u64 = 1024;
    let mut rows = Vec::new();
    for (name, percent) in
        AMPLIFICATION.into_iter().zip([7, 15, 28]).filter(|(name, _)| name.starts_with(wanted))
    {
        let mut array = tlc(1, BLOCKS, (1, UNITS as u32));
        // Free blocks and open ones are no over-provisioning.
        let used = u64::from(BLOCKS - 4) * UNITS;
        array.capacity_bytes = used * 100 / (100 + percent) / 32 * 32 * UNIT_BYTES;
        let mut bench = Bench::new(array)?;
        bench.fill()?;
        bench.overwrite(3 * bench.units)?;
        let expected = published(used as f64 / bench.units as f64);
        let mut off = Samples::default();
        for _ in 0..3 {
            let (counts, _) = bench.overwrite(bench.units / 2)?;
            off.push(100.0 * (counts.amplification() / expected - 1.0).abs());
        }
        let conditions = format!(
            "greedy, uniform random overwrites of 4 KiB, {BLOCKS} blocks of {UNITS} units in one plane, \
             {percent} % over-provisioning beyond 4 blocks; published {expected:.3}; after three overwrites, 3 rounds \
             of half an overwrite"
        );
        rows.push(row(name, "% off the closed form", "flash model", off, Goal::Figure(3.0), conditions));
    }
    Ok(rows)
}

/// A drive of 64 GiB that was made used, beside one of 1 GiB that was used.
pub fn precondition() -> Result<Vec<Row>, String> {
    // As many blocks a plane, and as large: what a group keeps free is no part of the difference.
    const PER_PLANE: u32 = 174;
    let sized = |planes: u32| {
        let mut array = tlc(planes, PER_PLANE, (4, 384));
        let used = u64::from(PER_PLANE - 4) * 4 * 384 * u64::from(planes);
        array.capacity_bytes = used * 100 / 115 / 32 * 32 * UNIT_BYTES;
        array
    };
    let mut used = Bench::new(sized(1))?;
    used.fill()?;
    used.overwrite(4 * used.units)?;
    let (steady, _) = used.overwrite(2 * used.units)?;
    let (mut times, mut off) = (Samples::default(), Samples::default());
    let before = resident_bytes()?;
    let begin = thread_cpu_ns();
    let mut made = Bench::new(sized(64))?;
    made.flash.precondition();
    times.push((thread_cpu_ns() - begin) as f64 / 1e9);
    let memory = (resident_bytes()?.saturating_sub(before)) as f64 / made.units as f64;
    let (counts, _) = made.overwrite(made.units)?;
    off.push(100.0 * (counts.amplification() / steady.amplification() - 1.0).abs());
    let gib = |units: u64| (units * UNIT_BYTES) as f64 / f64::from(1 << 30);
    let conditions = format!(
        "{:.1} GiB in 64 planes made used, beside {:.2} GiB in one plane of as many and as large blocks after six \
         random overwrites, whose amplification is {:.3}; the next full overwrite of the large one {:.3}",
        gib(made.units),
        gib(used.units),
        steady.amplification(),
        counts.amplification()
    );
    let of = |name, unit, samples, goal| row(name, unit, "flash model", samples, goal, conditions.clone());
    Ok(vec![
        of(PRECONDITION[0], "s", times, Goal::Figure(10.0)),
        of(PRECONDITION[1], "% off the used one", off, Goal::Figure(5.0)),
        of(PRECONDITION[2], "bytes a 4 KiB page", [memory].into_iter().collect(), Goal::Figure(10.0)),
    ])
}

/// Memory of this process that is there.
pub(crate) fn resident_bytes() -> Result<u64, String> {
    let text = std::fs::read_to_string("/proc/self/statm").map_err(|error| error.to_string())?;
    let pages = text.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok());
    pages.map(|pages| pages * 4096).ok_or_else(|| "/proc/self/statm is not understood".to_owned())
}
