use nvmed_flash::*;
fn cpu() -> u64 { std::fs::read_to_string("/proc/self/schedstat").unwrap().split(" ").next().unwrap().parse().unwrap() }
fn main() {
    let gib: u64 = std::env::args().nth(1).map_or(4, |a| a.parse().unwrap());
    let cap = gib << 30;
    let (channels, chips, dies, planes) = (8u32, 4u32, 1u32, 4u32);
    let block = 16384u64 * 768;
    let raw = cap * 115 / 100 / u64::from(channels * chips * dies * planes);
    let array = ArrayProfile {
        capacity_bytes: cap, channels, chips, dies, planes, registers: 2, multi_plane_ns: 0,
        bus_out: Rate::per_second(1_200_000_000), bus_in: Rate::per_second(1_200_000_000), sector_bytes: 4096,
        link_out: Rate::per_second(7_000_000_000), link_in: Rate::per_second(7_000_000_000),
        command_ns: 5000, low_power_ns: 0, warm_up_ns: 0, overtakes: 16,
        blocks: vec![BlockKind { per_plane: raw.div_ceil(block) as u32 + 6, page_bytes: 16384, pages: 768, pages_per_program: 3, read_ns: vec![45_000], program_ns: vec![700_000], erase_ns: 5_000_000, endurance: 0 }],
        translation: Some(TranslationProfile { buffer_bytes: 64 << 20, map_cache_bytes: 0, victim: Victim::Greedy, gc_blocks: 3, gc_idle_blocks: 0, idle_ns: 0, wear: Wear::Simple, bad_ppm: 0, seed: 1 }),
    };
    let mut flash = Flash::new(&Profile { commands: 1024, medium: Medium::Array(Box::new(array)) }).unwrap();
    let units = cap / 4096;
    let mut state = 1u64;
    let mut roll = move |n: u64| { state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407); (state >> 33) % n };
    let mut go = |flash: &mut Flash, name: &str, count: u64, depth: usize, next: &mut dyn FnMut(u64) -> Command| {
        let before = flash.counts();
        let (start, t0) = (cpu(), flash.now());
        let (mut issued, mut under, mut now) = (0, 0, flash.now());
        loop {
            while under < depth && issued < count { flash.arrive(now, &next(issued)); issued += 1; under += 1; }
            if under == 0 { break; }
            now = flash.advance(u64::MAX).unwrap().time; under -= 1;
        }
        let wall = (cpu() - start) as f64;
        let c = flash.counts();
        let ops = (c.programs - before.programs) + (c.page_reads - before.page_reads) + (c.erases - before.erases);
        println!("{name}: {:.0} ns/command, {:.0} ns/page op, {:.2} M IOPS simulated, WAF {:.2}", wall / count as f64, wall / ops.max(1) as f64, count as f64 * 1e3 / (now - t0) as f64,
            (c.programmed_units - before.programmed_units) as f64 / (c.host_units - before.host_units).max(1) as f64);
    };
    let w = |unit: u64, n: u64| Command { kind: Kind::Write { fua: false }, start: unit * 4096, bytes: n * 4096 };
    let r = |unit: u64| Command { kind: Kind::Read, start: unit * 4096, bytes: 4096 };
    go(&mut flash, "seq fill 128K", units / 32, 64, &mut |i| w(i * 32, 32));
    go(&mut flash, "rand read 4K", std::env::args().nth(2).map_or(2_000_000, |a| a.parse().unwrap()), 256, &mut |_| r(roll(units)));
    let mut s2 = 7u64;
    let mut roll2 = move |n: u64| { s2 = s2.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407); (s2 >> 33) % n };
    if std::env::args().nth(2).is_some() { return; }
    go(&mut flash, "seq write 4K", 1_000_000, 64, &mut |i| w(i, 1));
    go(&mut flash, "rand write 4K", units, 64, &mut |_| w(roll2(units), 1));
    go(&mut flash, "rand write 4K steady", units, 64, &mut |_| w(roll2(units), 1));
}
