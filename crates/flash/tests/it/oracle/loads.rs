//! Random drives and lists of arrivals, from a seed.

use super::host_memory::Lending;
use crate::drives::Dice;
use nvmed_flash::{
    ArrayProfile, BlockKind, Command, Flash, HostPages, Kind, MapCacheProfile, Medium, Profile, ProfileError,
    Rate, TranslationProfile, UNIT_BYTES, UrgentProfile, Victim, Wear,
};

/// What a seed stands for.
pub struct Case {
    pub array: ArrayProfile,
    /// Commands in the drive at once.
    pub room: u32,
    pub load: Vec<(u64, Command)>,
    pub lending: Lending,
}

impl Case {
    pub fn new(seed: u64) -> Self {
        let mut dice = Dice(seed);
        let array = array(&mut dice);
        let room = dice.of(&[1, 2, 7, 32, 64, 64]);
        let load = load(&mut dice, &array);
        let lending = lending(&mut dice, &array, &load);
        Self { array, room, load, lending }
    }

    pub fn profile(&self) -> Profile {
        Profile { commands: self.room, medium: Medium::Array(Box::new(self.array.clone())) }
    }
}

fn rate(dice: &mut Dice) -> Rate {
    match dice.roll(4) {
        0 => Rate::UNLIMITED,
        1 => Rate::per_second(dice.between(50_000_000, 20_000_000_000)),
        _ => Rate { bytes: dice.between(1, 5000), ns: dice.between(1, 9000) },
    }
}

fn times(dice: &mut Dice, about: u64) -> Vec<u64> {
    let one = |dice: &mut Dice| {
        // Round times let much happen at once, and a few are zero.
        if dice.one_in(2) { about * dice.roll(4) } else { dice.between(about / 2, about * 2) }
    };
    (0..dice.of(&[1, 1, 2, 3])).map(|_| one(dice)).collect()
}

fn block_kind(dice: &mut Dice, page_units: u64) -> BlockKind {
    let pages_per_program = dice.between(1, 3) as u32;
    BlockKind {
        per_plane: 6 + dice.roll(8) as u32,
        page_bytes: page_units * UNIT_BYTES,
        pages: pages_per_program * dice.between(2, 5) as u32,
        pages_per_program,
        read_ns: times(dice, 20_000),
        program_ns: times(dice, 100_000),
        erase_ns: dice.of(&[0, 300_000, 1_234_567]),
        endurance: dice.of(&[0, 0, 0, 0, 2, 9]),
    }
}

fn translation(dice: &mut Dice) -> TranslationProfile {
    TranslationProfile {
        buffer_bytes: dice.of(&[0, 2 << 20, 2 << 20, 3 << 20]),
        victim: dice.of(&[Victim::Greedy, Victim::CostBenefit]),
        gc_blocks: dice.between(3, 5) as u32,
        gc_idle_blocks: dice.of(&[0, 0, 5, 8]),
        idle_ns: dice.of(&[0, 50_000, 2_000_000]),
        wear: match dice.roll(3) {
            0 => Wear::Off,
            1 => Wear::Simple,
            _ => Wear::Full { spread: dice.between(0, 3) as u32 },
        },
        bad_ppm: dice.of(&[0, 0, 50_000, 100_000]),
        seed: dice.roll(u64::MAX),
        map_cache: dice.one_in(2).then(|| MapCacheProfile {
            bytes: dice.between(1, 8) * UNIT_BYTES,
            entry_bytes: (UNIT_BYTES / dice.between(2, 40)) as u32,
        }),
    }
}

fn urgent(dice: &mut Dice, registers: u32) -> UrgentProfile {
    let rank = !dice.one_in(4);
    UrgentProfile {
        places: dice.of(&[0, 1, 3]),
        rank,
        register: rank && registers > 1 && dice.one_in(2),
        inherit: rank && dice.one_in(2),
        share_percent: if rank { dice.of(&[1, 10, 33, 100]) } else { 100 },
    }
}

fn array(dice: &mut Dice) -> ArrayProfile {
    let is_in_place = dice.one_in(6);
    let blocks = if !is_in_place && dice.one_in(3) {
        let small = dice.between(1, 2);
        vec![block_kind(dice, small), block_kind(dice, small * 2)]
    } else {
        let page_units = dice.between(1, 3);
        vec![block_kind(dice, page_units)]
    };
    let mut array = ArrayProfile {
        host_memory_ns: 900,
        capacity_bytes: UNIT_BYTES,
        channels: 0,
        chips: 0,
        dies: 0,
        planes: 0,
        registers: dice.between(1, 3) as u32,
        multi_plane_ns: dice.of(&[0, 0, 3_000]),
        bus_out: rate(dice),
        bus_in: rate(dice),
        sector_bytes: dice.of(&[512, 1024, 4096, 1]),
        link_out: rate(dice),
        link_in: rate(dice),
        command_ns: dice.of(&[0, 0, 1_000, 777]),
        low_power_ns: dice.of(&[0, 0, 400_000]),
        packed_writes: dice.of(&[1, 1, 1, 2, 5, 63]),
        warm_up_ns: dice.of(&[0, 1_000_000]),
        overtakes: dice.of(&[1, 2, 3, 16]),
        blocks,
        translation: (!is_in_place).then(|| translation(dice)),
        urgent: None,
    };
    array.urgent = dice.one_in(2).then(|| urgent(dice, array.registers));
    if array.urgent.is_some_and(|urgent| urgent.share_percent < 100) {
        // Reads that take so long that a few of them are more than an account holds.
        array.blocks.iter_mut().for_each(|kind| kind.read_ns = times(dice, 400_000));
    }
    loop {
        array.channels = dice.between(1, 3) as u32;
        array.chips = dice.between(1, 2) as u32;
        array.dies = dice.between(1, 3) as u32;
        array.planes = dice.between(1, 4) as u32;
        if array.planes_total() <= dice.of(&[2, 4, 8, 24]) {
            break;
        }
    }
    size(dice, array)
}

/// Chooses a capacity, up to what there is room for.
fn size(dice: &mut Dice, mut array: ArrayProfile) -> ArrayProfile {
    let mut units = array.plane_units() * u64::from(array.planes_total());
    for _ in 0..100 {
        array.capacity_bytes = units * UNIT_BYTES;
        match Flash::new(&Profile { commands: 1, medium: Medium::Array(Box::new(array.clone())) }) {
            Ok(_) if dice.one_in(3) => units = (units * dice.between(5, 10) / 10).max(1),
            Ok(_) => return array,
            Err(ProfileError::Room { reserve, raw, .. }) if raw > reserve => {
                units = (raw - reserve) / UNIT_BYTES
            }
            Err(ProfileError::Room { .. }) => {
                array.blocks.iter_mut().for_each(|kind| kind.per_plane += 2);
                units = array.plane_units() * u64::from(array.planes_total());
            }
            Err(error) => panic!("the profile of a test: {error}"),
        }
    }
    panic!("no capacity fits {array:?}");
}

/// How often commands are what, and how long.
struct Mix {
    reads: u64,
    writes: u64,
    flushes: u64,
    deallocates: u64,
    fua: u64,
    partial: u64,
    units_max: u64,
    urgent: u64,
    /// Units that most commands are about.
    hot: u64,
}

impl Mix {
    fn new(dice: &mut Dice, units: u64) -> Self {
        Self {
            reads: dice.of(&[0, 3, 10]),
            writes: 8,
            flushes: dice.of(&[0, 1, 3]),
            deallocates: dice.of(&[0, 0, 1, 2]),
            fua: dice.of(&[0, 1, 5]),
            partial: dice.of(&[0, 1, 5]),
            urgent: dice.of(&[0, 1, 1, 5]),
            units_max: dice.of(&[1, 4, 8, 40, 250]),
            hot: dice.of(&[units, units, units.div_ceil(4), 3]).min(units),
        }
    }

    fn command(&self, dice: &mut Dice, units: u64) -> Command {
        let what = dice.roll(self.reads + self.writes + self.flushes + self.deallocates);
        let first = if dice.one_in(8) { dice.roll(units) } else { dice.roll(self.hot) };
        let count = dice.between(1, self.units_max.min(units - first));
        let (mut start, mut bytes) = (first * UNIT_BYTES, count * UNIT_BYTES);
        if dice.roll(10) < self.partial {
            let word = dice.of(&[512, 512, 4096, 1]);
            let (from, to) = (dice.roll(bytes / word) * word, dice.between(1, bytes / word) * word);
            start += from.min(to);
            bytes = from.abs_diff(to);
        }
        let kind = match what {
            _ if what < self.reads => Kind::Read,
            _ if what < self.reads + self.writes => Kind::Write { fua: dice.roll(10) < self.fua },
            _ if what < self.reads + self.writes + self.flushes => Kind::Flush,
            _ => Kind::Deallocate,
        };
        if kind == Kind::Flush {
            (start, bytes) = (0, 0);
        }
        Command { kind, start, bytes, urgent: dice.roll(10) < self.urgent }
    }
}

fn load(dice: &mut Dice, array: &ArrayProfile) -> Vec<(u64, Command)> {
    let units = array.logical_units();
    let mut load = Vec::new();
    let mut time = dice.of(&[0, 5, 1_000_000]);
    if !dice.one_in(4) {
        let mut first = 0;
        while first < units {
            let count = dice.between(1, 64).min(units - first);
            let kind = Kind::Write { fua: false };
            load.push((
                time,
                Command { kind, start: first * UNIT_BYTES, bytes: count * UNIT_BYTES, urgent: false },
            ));
            first += count;
        }
    }
    let count = dice.between(40, 240);
    let mut mix = Mix::new(dice, units);
    let gap = dice.of(&[0, 1_000, 40_000, 400_000]);
    while (load.len() as u64) < count {
        if dice.one_in(60) {
            mix = Mix::new(dice, units);
        }
        time += match dice.roll(20) {
            0 => dice.roll(20_000_000),
            1..8 => 0,
            _ => dice.roll(gap + 1),
        };
        for _ in 0..dice.of(&[1, 1, 1, 2, 12]) {
            load.push((time, mix.command(dice, units)));
        }
    }
    load
}

/// When the host gives memory, and takes it back: of two drives one has such a host.
fn lending(dice: &mut Dice, array: &ArrayProfile, load: &[(u64, Command)]) -> Lending {
    let mut lending = Lending { changes: Vec::new(), fails: dice.of(&[0, 0, 3, 20]) };
    if array.translation.is_none() || dice.one_in(2) {
        return lending;
    }
    let end = load.last().map_or(0, |&(time, _)| time);
    let mut times: Vec<u64> = (0..dice.of(&[1, 1, 2, 7])).map(|_| dice.roll(end + 1)).collect();
    if dice.one_in(2) {
        // From the beginning; and at the time of an arrival, before it.
        times[0] = 0;
        times.push(load[dice.roll(load.len() as u64) as usize].0);
    }
    times.sort_unstable();
    for (number, time) in times.into_iter().enumerate() {
        let pages = HostPages {
            map: dice.of(&[0, 2, 9, 30]),
            read: dice.of(&[0, 1, 40, 400]),
            write: dice.of(&[0, 9, 250, 1_500]),
        };
        lending.changes.push((time, (number % 2 == 0).then_some(pages)));
    }
    lending
}
