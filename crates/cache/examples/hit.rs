//! What a hit costs: 4 KiB reads and writes through the cache beside bare copies of the same frames.
//!
//! `cargo run --release -p nvmed-cache --example hit -- [FILE_MIB] [base|huge]`

use nvmed_cache::{Cache, Claimed, Layout, Object, Options, Outcome, PageState, Written};
use nvmed_dice::Dice;
use nvmed_sys::{Mapping, Pages};
use nvmed_units::Page;
use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

const PAGE: usize = 4096;
const ROUNDS: usize = 9;

fn median(mut samples: Vec<f64>) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples[samples.len() / 2]
}

fn time(count: u32, mut each: impl FnMut(u64)) -> f64 {
    let start = Instant::now();
    let mut dice = Dice::new(1);
    for _ in 0..count {
        each(dice.next() >> 33);
    }
    start.elapsed().as_nanos() as f64 / f64::from(count)
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let mib: u64 = arguments.next().map_or(1, |text| text.parse().expect("FILE_MIB is a number"));
    let pages = if arguments.next().as_deref() == Some("huge") { Pages::Huge } else { Pages::Base };
    let count = mib * 256;
    let frames = (count + 16) as u32;
    let table = Layout::table_bytes(frames).next_multiple_of(2 << 20);
    let layout = Layout { table_offset: 0, frames_offset: table, frames };
    let mapping = Mapping::anonymous(table + frames as usize * PAGE, pages).expect("memory");
    let mapping = Arc::new(mapping);
    let cache = Cache::new(Arc::clone(&mapping), layout, Options::dirty_limit(frames));
    let object = Object::new(1);
    for page in 0..count {
        if let Ok(Claimed::Fill(claim)) = cache.claim(&object, Page(page)) {
            claim.zero(0, PAGE);
            claim.publish(PageState { dirty: false, backed: true });
        }
    }
    let mut buffer = vec![1; PAGE];
    let steps = 200_000;
    let (mut copies, mut reads) = (Vec::new(), Vec::new());
    let (mut stores, mut writes, mut firsts) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        copies
            .push(time(steps, |r| mapping.read(table + (r % count) as usize * PAGE, black_box(&mut buffer))));
        reads.push(time(steps, |r| assert!(cache.read(&object, Page(r % count), 0, black_box(&mut buffer)))));
        stores.push(time(steps, |r| mapping.write(table + (r % count) as usize * PAGE, black_box(&buffer))));
        firsts.push(time(count.min(200_000) as u32, |r| {
            assert_ne!(cache.write(&object, Page(r % count), 0, black_box(&buffer)), Written::Absent);
        }));
        writes.push(time(steps, |r| {
            assert_ne!(cache.write(&object, Page(r % count), 0, black_box(&buffer)), Written::Absent);
        }));
        let mut taken = Vec::new();
        let mut pass = cache.write_back(&object);
        pass.take(Page(0)..Page(count), count as usize, &mut taken);
        pass.complete(&taken, Outcome::Written);
    }
    let [copy, read, store, write, first] = [copies, reads, stores, writes, firsts].map(median);
    println!("{mib} MiB, {pages:?} pages, ns per 4 KiB, median of {ROUNDS}");
    println!("copy out {copy:.0}  read {read:.0}  (+{:.0})", read - copy);
    println!("copy in  {store:.0}  write {write:.0}  (+{:.0}); from clean {first:.0}", write - store);
}
