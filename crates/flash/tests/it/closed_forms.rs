//! What a drive does in simple cases is what a formula says, within 1 %; write amplification within 3 %.
//!
//! In the formulas: C channels, n dies of a channel, P planes of a die, R registers of a plane; r, w, e the array
//! times of a page's read, of a program and of an erase; x the bus time of a page. All pages are of one unit unless
//! said.

use crate::drives::{Dice, nand, translation};
use nvmed_flash::{
    ArrayProfile, Command, FixedProfile, Flash, HostPages, Kind, MapCacheProfile, Medium, Move, Profile,
    Rate, TranslationProfile, UNIT_BYTES,
};

const READ_NS: u64 = 40_000;
const PROGRAM_NS: u64 = 200_000;
const ERASE_NS: u64 = 3_000_000;

/// Geometries that the formulas are tried with: channels, chips of each, dies of each, planes of each, registers.
const GEOMETRIES: [[u32; 5]; 7] = [
    [1, 1, 1, 1, 1],
    [1, 1, 1, 1, 2],
    [2, 1, 1, 3, 1],
    [2, 1, 1, 2, 2],
    [1, 2, 4, 1, 2],
    [3, 1, 2, 4, 2],
    [2, 2, 2, 2, 4],
];
/// Nanoseconds of a page on the bus.
const BUSES: [u64; 4] = [0, 3_000, 12_000, 100_000];

fn drive(array: &ArrayProfile) -> Flash {
    Flash::new(&Profile { commands: 1024, medium: Medium::Array(Box::new(array.clone())) }).unwrap()
}

/// A drive with 12 blocks of 64 pages in each plane.
fn array([channels, chips, dies, planes, registers]: [u32; 5], bus_ns: u64) -> ArrayProfile {
    let bus = Rate { bytes: UNIT_BYTES, ns: bus_ns };
    let mut array = nand(12, 64);
    (array.channels, array.chips, array.dies, array.planes) = (channels, chips, dies, planes);
    (array.registers, array.bus_in, array.bus_out) = (registers, bus, bus);
    array.capacity_bytes = u64::from(array.planes_total()) * 8 * 64 * UNIT_BYTES;
    array
}

fn in_place(array: &ArrayProfile) -> ArrayProfile {
    ArrayProfile { translation: None, ..array.clone() }
}

pub(crate) fn command(kind: Kind, unit: u64, units: u64) -> Command {
    Command { kind, start: unit * UNIT_BYTES, bytes: units * UNIT_BYTES, urgent: false }
}

pub(crate) const WRITE: Kind = Kind::Write { fua: false };

/// Keeps `depth` commands of a source under way until it ends; answers when each completed.
fn saturate(flash: &mut Flash, depth: usize, commands: impl IntoIterator<Item = Command>) -> Vec<u64> {
    let mut commands = commands.into_iter();
    let (mut under_way, mut times) = (0, Vec::new());
    let mut now = flash.now();
    loop {
        while under_way < depth
            && let Some(command) = commands.next()
        {
            flash.arrive(now, &command);
            under_way += 1;
        }
        if under_way == 0 {
            return times;
        }
        now = flash.advance(u64::MAX).expect("what is under way completes").time;
        times.push(now);
        under_way -= 1;
    }
}

/// Nanoseconds of a command, over the middle half of many.
fn pace(times: &[u64]) -> f64 {
    let (begin, end) = (times.len() / 4, times.len() * 3 / 4);
    (times[end] - times[begin]) as f64 / (end - begin) as f64
}

/// Writes all units once, in their order, and waits until they are in flash.
fn fill(flash: &mut Flash, units: u64) {
    saturate(flash, 64, (0..units).map(|unit| command(WRITE, unit, 1)));
    saturate(flash, 1, [command(Kind::Flush, 0, 0)]);
}

#[track_caller]
fn near(measured: f64, expected: f64, percent: f64, what: &str) {
    let off = (measured / expected - 1.0) * 100.0;
    assert!(off.abs() <= percent, "{what}: {measured:.4}, by the formula {expected:.4}, {off:+.2} %");
}

/// How long `command` takes alone, from a time when the drive is idle.
pub(crate) fn alone(flash: &mut Flash, command: Command) -> u64 {
    let begin = flash.now() + 10_000_000;
    let _ = flash.arrive(begin, &command);
    loop {
        if let Some(done) = flash.advance(u64::MAX) {
            return done.time - begin;
        }
        assert!(flash.next_due() < u64::MAX, "it completes");
    }
}

#[test]
fn one_command_alone_takes_the_sum_of_its_path() {
    for geometry in GEOMETRIES {
        let mut array = array(geometry, 12_000);
        array.command_ns = 1_500;
        array.blocks[0].per_plane = 20;
        (array.link_in, array.link_out) = (Rate { bytes: 4, ns: 1 }, Rate { bytes: 8, ns: 1 });
        let (sent, received) = (UNIT_BYTES / 8, UNIT_BYTES / 4);
        let units = array.capacity_bytes / UNIT_BYTES;
        let mut flash = drive(&array);
        fill(&mut flash, units);
        let mut dice = Dice(1);
        for _ in 0..20 {
            let unit = dice.roll(units);
            // Look, read, bus, link.
            assert_eq!(alone(&mut flash, command(Kind::Read, unit, 1)), 1_500 + READ_NS + 12_000 + sent);
            // Half of it: the cells take as long, bus and link half.
            let half =
                Command { kind: Kind::Read, start: unit * UNIT_BYTES, bytes: UNIT_BYTES / 2, urgent: false };
            assert_eq!(alone(&mut flash, half), 1_500 + READ_NS + 6_000 + sent / 2);
            // A write is in memory; with FUA it is on its way to the cells, too.
            assert_eq!(alone(&mut flash, command(WRITE, unit, 1)), 1_500 + received);
            // It is gathered alone, and the Flush programs it; but where it fills a stripe it was programmed at once.
            let program_ns = if array.planes > 1 { 12_000 + PROGRAM_NS } else { 0 };
            assert_eq!(alone(&mut flash, command(Kind::Flush, 0, 0)), 1_500 + program_ns);
            let fua = command(Kind::Write { fua: true }, unit, 1);
            assert_eq!(alone(&mut flash, fua), 1_500 + received + 12_000 + PROGRAM_NS);
        }
        let mut flash = drive(&in_place(&array));
        for unit in (0..units).step_by(37) {
            assert_eq!(alone(&mut flash, command(Kind::Read, unit, 1)), 1_500 + READ_NS + 12_000 + sent);
            assert_eq!(alone(&mut flash, command(WRITE, unit, 1)), 1_500 + received + 12_000 + PROGRAM_NS);
            assert_eq!(alone(&mut flash, command(Kind::Flush, 0, 0)), 1_500, "nothing waits in memory");
        }
    }
}

#[test]
fn the_largest_transfer_fits_in_the_smallest_buffer() {
    let mut array = array([1, 1, 1, 4, 1], 0);
    array.translation.iter_mut().for_each(|layer| layer.buffer_bytes = 2 << 20);
    let mut flash = drive(&array);
    for start in [0, 512, UNIT_BYTES - 512] {
        alone(&mut flash, Command { kind: WRITE, start, bytes: 2 << 20, urgent: false });
    }
}

/// Nanoseconds of a page where all planes have enough to do, on buses that carry pages of `bus_ns` and operations of
/// `array_ns`.
///
/// With two registers or more a die works while its pages pass, so its P pages take the longer of `array_ns` and what
/// the bus takes for the pages of all n dies: max(a, n P x) ÷ P for a page of each die. With one register no plane
/// begins before its page has passed, and the die waits for all of its planes: a + P x, or n P x where the other dies
/// fill the bus meanwhile.
fn page_ns([channels, chips, dies, planes, registers]: [u32; 5], bus_ns: u64, array_ns: u64) -> f64 {
    let of_channel = u64::from(chips * dies);
    let pass = u64::from(planes) * bus_ns;
    let alone = if registers == 1 { array_ns + pass } else { array_ns };
    let round = alone.max(of_channel * pass);
    round as f64 / (u64::from(channels * planes) * of_channel) as f64
}

#[test]
fn saturated_reads_and_writes_in_place() {
    // Reads and writes of successive pages, which lie on successive planes; and of random pages, as many of each plane:
    // each round goes to all planes once, in random order. Enough depth: 16 for each plane, so that each has something
    // to do however a round falls.
    for (geometry, bus_ns) in GEOMETRIES.into_iter().flat_map(|g| BUSES.map(|bus| (g, bus))) {
        let array = in_place(&array(geometry, bus_ns));
        let planes = u64::from(array.planes_total());
        let units = array.capacity_bytes / UNIT_BYTES;
        let rounds = 200;
        for (kind, array_ns) in [(Kind::Read, READ_NS), (WRITE, PROGRAM_NS)] {
            let expected = page_ns(geometry, bus_ns, array_ns);
            let what = format!("{kind:?} on {geometry:?}, bus {bus_ns}");
            let depth = 16 * planes as usize;
            let in_order = (0..planes * rounds).map(|number| command(kind, number % units, 1));
            let times = saturate(&mut drive(&array), depth, in_order);
            near(pace(&times), expected, 1.0, &format!("{what}, in order"));
            let mut dice = Dice(3);
            let at_random = (0..rounds).flat_map(|_| permuted(&mut dice, planes, units / planes));
            let commands: Vec<Command> =
                at_random.map(|(plane, row)| command(kind, row * planes + plane, 1)).collect();
            let times = saturate(&mut drive(&array), depth, commands);
            near(pace(&times), expected, 1.0, &format!("{what}, at random"));
        }
    }
}

/// All of so many places in random order, each with a random number below `sides`.
fn permuted(dice: &mut Dice, places: u64, sides: u64) -> Vec<(u64, u64)> {
    let mut order: Vec<(u64, u64)> = (0..places).map(|place| (place, dice.roll(sides))).collect();
    for at in (1..order.len()).rev() {
        order.swap(at, dice.roll(at as u64 + 1) as usize);
    }
    order
}

#[test]
fn saturated_reads_of_flash() {
    // A drive that was filled in order has neighbours in one stripe, and stripes on the dies in turn: unit s P + p is
    // on plane p + r of die s modulo the dies, where r is the round of the dies. So reads in order, and reads of one
    // random unit of each plane of each die in random order, keep all planes busy.
    for (geometry, bus_ns) in GEOMETRIES.into_iter().flat_map(|g| BUSES.map(|bus| (g, bus))) {
        let array = array(geometry, bus_ns);
        let planes = u64::from(array.planes_total());
        let units = array.capacity_bytes / UNIT_BYTES;
        let mut flash = drive(&array);
        fill(&mut flash, units);
        let expected = page_ns(geometry, bus_ns, READ_NS);
        let what = format!("{geometry:?}, bus {bus_ns}");
        let depth = 16 * planes as usize;
        let in_order = (0..planes * 200).map(|number| command(Kind::Read, number % units, 1));
        let times = saturate(&mut flash, depth, in_order);
        near(pace(&times), expected, 1.0, &format!("{what}, in order"));
        let mut dice = Dice(4);
        let at_random = (0..200).flat_map(|_| permuted(&mut dice, planes, units / planes));
        let of_die = u64::from(geometry[3]);
        let unit = |(place, round): (u64, u64)| {
            let plane = (place + of_die - round % of_die) % of_die;
            round * planes + place / of_die * of_die + plane
        };
        let commands: Vec<Command> = at_random.map(|place| command(Kind::Read, unit(place), 1)).collect();
        let times = saturate(&mut flash, depth, commands);
        near(pace(&times), expected, 1.0, &format!("{what}, at random"));
        // Large reads, a round of all planes each.
        let large = (0..200).map(|round| command(Kind::Read, round * planes % units, planes));
        let times = saturate(&mut flash, 16, large);
        near(pace(&times) / planes as f64, expected, 1.0, &format!("{what}, large"));
    }
}

#[test]
fn saturated_writes_to_fresh_flash() {
    // In order or not is the same to blocks that are empty: a stripe on each die in turn, of all planes. The buffer is
    // full before the first quarter of the writes, from which on they go at the pace of programs.
    for (geometry, bus_ns) in GEOMETRIES.into_iter().flat_map(|g| BUSES.map(|bus| (g, bus))) {
        let mut array = array(geometry, bus_ns);
        array.blocks[0].per_plane = 48;
        array.capacity_bytes = u64::from(array.planes_total()) * 44 * 64 * UNIT_BYTES;
        array.translation.iter_mut().for_each(|layer| layer.buffer_bytes = 2 << 20);
        let units = array.capacity_bytes / UNIT_BYTES;
        let expected = page_ns(geometry, bus_ns, PROGRAM_NS);
        let mut order = permuted(&mut Dice(5), units, 1);
        for what in ["at random", "in order"] {
            let commands = order.iter().map(|&(unit, _)| command(WRITE, unit, 1));
            let times = saturate(&mut drive(&array), 32, commands);
            near(pace(&times), expected, 1.0, &format!("{geometry:?}, bus {bus_ns}, {what}"));
            order.sort_unstable();
        }
    }
}

#[test]
fn random_reads_wait_for_the_part_of_the_map_that_the_cache_lacks() {
    // Each page of the map is as likely as any other to be read, so a cache of a part f of them has the next one with
    // the chance f. A read alone takes one page operation, and one more where its map page is not there.
    let (pages, operation_ns) = (256, READ_NS + 12_000);
    for cached in [32, 128, 224] {
        let mut flash = filled_with_map(array([2, 1, 2, 2, 2], 12_000), (pages, cached));
        let units = pages * 1024;
        let mut dice = Dice(cached);
        let mut reads = |flash: &mut Flash, count: u64| {
            let commands = (0..count).map(|_| command(Kind::Read, dice.roll(units), 1));
            saturate(flash, 1, commands);
        };
        // All that is dirty is written out.
        reads(&mut flash, 128 * pages);
        let (before, began, count) = (flash.counts(), flash.now(), 400_000);
        reads(&mut flash, count);
        let (after, ended) = (flash.counts(), flash.now());
        let added = (ended - began) as f64 / count as f64 - operation_ns as f64;
        let lacks = 1.0 - cached as f64 / pages as f64;
        near(added, lacks * operation_ns as f64, 1.0, &format!("{cached} of {pages} map pages"));
        assert_eq!(after.map_reads - before.map_reads, after.map_misses - before.map_misses);
        assert_eq!(after.map_hits + after.map_misses - before.map_hits - before.map_misses, count);
        assert_eq!(after.map_writes, before.map_writes, "reads change nothing");
    }
}

/// A drive with `pages` pages of a map in flash, of which its memory has room for `cached`, filled in its order.
fn filled_with_map(mut array: ArrayProfile, (pages, cached): (u64, u64)) -> Flash {
    (array.blocks[0].per_plane, array.blocks[0].pages) = (48, 1024);
    let units = pages * 1024;
    array.capacity_bytes = units * UNIT_BYTES;
    let map_cache = Some(MapCacheProfile { bytes: cached * UNIT_BYTES, entry_bytes: 4 });
    array.translation.iter_mut().for_each(|layer| layer.map_cache = map_cache);
    let mut flash = drive(&array);
    fill(&mut flash, units);
    flash
}

/// The same, behind a link, which is the way to the host's memory, too.
pub(crate) fn map_in_flash(pages: u64, cached: u64) -> Flash {
    let mut array = array([2, 1, 2, 2, 2], 12_000);
    (array.link_in, array.link_out) = (Rate { bytes: 4, ns: 1 }, Rate { bytes: 4, ns: 1 });
    array.host_memory_ns = 900;
    filled_with_map(array, (pages, cached))
}

/// Mean time of `count` reads of units at random, one after another; `moved` is told each move.
fn random_reads(flash: &mut Flash, units: u64, count: u64, mut moved: impl FnMut(&mut Flash, Move)) -> f64 {
    let mut dice = Dice(count);
    let mut busy = 0;
    for _ in 0..count {
        let begin = flash.now();
        let _ = flash.arrive(begin, &command(Kind::Read, dice.roll(units), 1));
        let end = loop {
            let done = flash.advance(u64::MAX);
            while let Some(of) = flash.next_move() {
                moved(flash, of);
            }
            if let Some(done) = done {
                break done.time;
            }
        };
        busy += end - begin;
    }
    busy as f64 / count as f64
}

#[test]
fn a_host_memory_buffer_saves_the_reads_of_the_map_pages_that_it_has() {
    // Of M map pages c are in the drive's memory and h in the host's, each as likely as any other: an idle read, and of
    // the part h / M a slot's way over the link, and of what neither has one more page operation.
    let (pages, cached) = (256, 32);
    let (operation_ns, link_ns, latency_ns) = (READ_NS as f64 + 12_000.0, 1024.0, 900.0);
    let mut means = Vec::new();
    for held in [0, 64, 128] {
        let mut flash = map_in_flash(pages, cached);
        let units = pages * 1024;
        if held > 0 {
            flash.give_host_memory(flash.now(), HostPages { map: held, read: 0, write: 0 });
        }
        let _ = random_reads(&mut flash, units, 128 * pages, |_, _| ());
        let before = flash.counts();
        let mean = random_reads(&mut flash, units, 100_000, |_, _| ());
        let of = |part: u64| part as f64 / pages as f64;
        let from_host = of(held.into()) * (latency_ns + link_ns);
        let from_flash = (1.0 - of(cached + u64::from(held))) * operation_ns;
        let expected = operation_ns + link_ns + from_host + from_flash;
        near(mean, expected, 3.0, &format!("{cached} and {held} of {pages} map pages"));
        let (after, gets) = (flash.counts(), of(held.into()) * 100_000.0);
        if held > 0 {
            near((after.host_gets - before.host_gets) as f64, gets, 3.0, "map pages from the host");
        }
        means.push(mean);
    }
    assert!(means[1] < means[0] && means[2] < means[1], "the buffer is of no use: {means:?}");
}

#[test]
fn a_host_memory_buffer_that_cannot_be_read_costs_the_way_there() {
    // Each get fails: what should have come from the host is read from flash after all.
    let (pages, cached, held) = (64, 8, 16);
    let mut flash = map_in_flash(pages, cached);
    flash.give_host_memory(flash.now(), HostPages { map: held, read: 0, write: 0 });
    let fail = |flash: &mut Flash, of: Move| {
        if !of.is_put {
            flash.move_failed(&of);
        }
    };
    let _ = random_reads(&mut flash, pages * 1024, 8_192, fail);
    let before = flash.counts();
    let mean = random_reads(&mut flash, pages * 1024, 30_000, fail);
    let after = flash.counts();
    assert_eq!(after.host_gets, before.host_gets);
    assert_eq!(after.map_reads - before.map_reads, after.map_misses - before.map_misses);
    let of = |part: u64| part as f64 / pages as f64;
    let operation_ns = READ_NS as f64 + 12_000.0;
    let expected = operation_ns + 1024.0 + (1.0 - of(cached)) * operation_ns + of(held.into()) * 1924.0;
    near(mean, expected, 3.0, "gets that fail");
}

#[test]
fn word_lines_and_the_host_link() {
    // Three pages of a program, of 16 KiB, whose times differ: 12 units of a plane. Programs take 1, 2, 3 times `w` in
    // turn: 2 w on average. Reads of whole pages take r, 2 r, 3 r in turn: 2 r on average. One plane of a die: those of
    // several fall out of step, and wait for each other.
    let mut array = array([2, 1, 2, 1, 2], 1_000);
    array.blocks[0].page_bytes = 4 * UNIT_BYTES;
    array.blocks[0].pages = 63;
    array.blocks[0].pages_per_program = 3;
    array.blocks[0].program_ns = vec![PROGRAM_NS, 2 * PROGRAM_NS, 3 * PROGRAM_NS];
    array.blocks[0].read_ns = vec![READ_NS, 2 * READ_NS, 3 * READ_NS];
    array.blocks[0].per_plane = 40;
    array.capacity_bytes = 4 * 34 * 63 * 4 * UNIT_BYTES;
    let units = array.capacity_bytes / UNIT_BYTES;
    let mut flash = drive(&array);
    let times = saturate(&mut flash, 64, (0..units).map(|unit| command(WRITE, unit, 1)));
    near(pace(&times), 2.0 * PROGRAM_NS as f64 / (4.0 * 12.0), 1.0, "programs of three pages");
    saturate(&mut flash, 1, [command(Kind::Flush, 0, 0)]);
    let pages = (0..units).step_by(4).map(|unit| command(Kind::Read, unit, 4));
    let times = saturate(&mut flash, 512, pages);
    near(pace(&times), 2.0 * READ_NS as f64 / 4.0, 1.0, "reads of pages");
    // A link that is slower than all dies: 4096 bytes in 10,000 ns and a third.
    array.link_in = Rate { bytes: 3 * UNIT_BYTES, ns: 30_001 };
    array.link_out = array.link_in;
    let mut flash = drive(&array);
    let times = saturate(&mut flash, 64, (0..units).map(|unit| command(WRITE, unit, 1)));
    near(pace(&times), 10_000.33, 0.01, "a link in");
    saturate(&mut flash, 1, [command(Kind::Flush, 0, 0)]);
    let pages = (0..units).step_by(4).map(|unit| command(Kind::Read, unit, 4));
    near(pace(&saturate(&mut flash, 64, pages)), 4.0 * 10_000.33, 0.01, "a link out");
}

#[test]
fn a_fixed_medium_is_its_latency_and_its_link() {
    let fixed = FixedProfile { read_ns: 8_000, write_ns: 5_000, link: Rate::per_second(20_000_000_000) };
    let sector = |kind| Command { kind, start: 0, bytes: 512, urgent: false };
    let mut flash = Flash::new(&Profile::fixed(fixed)).unwrap();
    // 25.6 ns of the link, rounded up.
    assert_eq!(alone(&mut flash, sector(Kind::Read)), 8_026);
    assert_eq!(alone(&mut flash, sector(WRITE)), 5_026);
    assert_eq!(alone(&mut flash, sector(Kind::Flush)), 5_000);
    // Depth 1: the next one arrives when the one before completes.
    let times = saturate(&mut flash, 1, (0..100).map(|_| sector(Kind::Read)));
    near(pace(&times), 8_025.6, 0.01, "depth 1");
    // Depth beyond 8,025.6 ÷ 25.6: the link is the limit. Below it, latency is.
    let times = saturate(&mut flash, 1000, (0..20_000).map(|_| sector(Kind::Read)));
    near(pace(&times), 25.6, 1.0, "the link");
    let times = saturate(&mut flash, 100, (0..20_000).map(|_| sector(Kind::Read)));
    near(pace(&times), 80.256, 1.0, "depth 100");
    let both = (0..20_000).map(|number| sector(if number % 2 == 0 { Kind::Read } else { WRITE }));
    near(pace(&saturate(&mut flash, 1000, both)), 25.6, 1.0, "one link for both");
}

/// What greedy collection converges to with large blocks under uniform random writes: A = α ÷ (α + W(−α e^−α)), with
/// α the physical over the logical units (Desnoyers, "Analytic Models of SSD Write Performance", ACM TOS 10(2),
/// 2014).
fn amplification(alpha: f64) -> f64 {
    // Lambert's W at its upper branch, by Newton's method.
    let z = -alpha * (-alpha).exp();
    let mut w = -0.5_f64;
    for _ in 0..100 {
        w -= (w * w.exp() - z) / (w.exp() * (1.0 + w));
    }
    alpha / (alpha + w)
}

#[test]
fn random_overwrites_amplify_as_published_and_keep_the_die_busy() {
    // Blocks are many and large; what the layer keeps free, or open, is no over-provisioning.
    for (percent, blocks, pages) in [(28, 500, 512), (15, 1000, 512)] {
        let mut array = nand(blocks, pages);
        (array.channels, array.dies, array.planes) = (1, 1, 1);
        let used = u64::from(blocks - 4) * u64::from(pages);
        let logical = used * 100 / (100 + percent);
        array.capacity_bytes = logical * UNIT_BYTES;
        let mut flash = drive(&array);
        fill(&mut flash, logical);
        let mut dice = Dice(percent);
        let mut random = |flash: &mut Flash, count: u64| {
            let commands = (0..count).map(|_| command(WRITE, dice.roll(logical), 1));
            saturate(flash, 32, commands);
        };
        // Settled after as many writes as make a block's age that of the oldest a few times.
        random(&mut flash, logical * 3 / 2);
        let (before, began) = (flash.counts(), flash.now());
        random(&mut flash, logical / 2);
        let (after, ended) = (flash.counts(), flash.now());
        let host = after.host_units - before.host_units;
        let measured = (after.programmed_units - before.programmed_units) as f64 / host as f64;
        let published = amplification(used as f64 / logical as f64);
        near(measured, published, 3.0, &format!("{percent} % more than the capacity"));
        // The die never rests: programs of the host wait at any time, and the bus passes what is next meanwhile. So
        // time is that of what was programmed, read and erased.
        let busy = (after.programs - before.programs) * PROGRAM_NS
            + (after.page_reads - before.page_reads) * READ_NS
            + (after.erases - before.erases) * ERASE_NS;
        near((ended - began) as f64, busy as f64, 1.0, "the die's time");
    }
}

#[test]
fn writes_that_wait_are_one_command_of_a_drive_that_packs_them() {
    // Two planes, and one command at a time: two writes take as long as one, and complete with it.
    let mut array = nand(12, 16);
    (array.channels, array.chips, array.dies, array.planes, array.packed_writes) = (2, 1, 1, 1, 3);
    array.capacity_bytes = 40 * UNIT_BYTES;
    array.translation = Some(TranslationProfile { buffer_bytes: 0, ..translation() });
    let write = |unit: u64| Command {
        kind: Kind::Write { fua: false },
        start: unit * UNIT_BYTES,
        bytes: UNIT_BYTES,
        urgent: false,
    };
    let times = |array: &ArrayProfile| {
        let mut flash =
            Flash::new(&Profile { commands: 1, medium: Medium::Array(Box::new(array.clone())) }).unwrap();
        let (mut times, mut sent) = (Vec::new(), 0);
        while times.len() < 6 {
            while sent < 6 && flash.takes(false) {
                let _ = flash.arrive(flash.now(), &write(sent));
                sent += 1;
            }
            times.push(flash.advance(u64::MAX).unwrap().time);
        }
        times
    };
    let alone = times(&ArrayProfile { packed_writes: 1, ..array.clone() });
    assert_eq!(alone, [1, 2, 3, 4, 5, 6].map(|turn| turn * alone[0]));
    // The first one found the drive idle with two more; the next three waited.
    let packed = times(&array);
    let turn = |number: usize| packed[3 * number + 2] - number.checked_sub(1).map_or(0, |_| packed[2]);
    assert!(
        packed[..3].iter().all(|&time| time == packed[2])
            && packed[3..].iter().all(|&time| time == packed[5])
    );
    assert!((0..2).all(|number| turn(number) < 3 * alone[0]), "{packed:?} beside {alone:?}");
}
