//! Rows of what is mapped by userfaultfd, in front of a medium that takes no time: the first touch of each page.

use crate::files::ROUNDS;
use crate::ours::text;
use crate::row::{Contender, Goal, Row};
use nvmed_flash::{FixedProfile, Medium, Profile};
use nvmed_lab::samples::Samples;
use nvmed_nvm::{
    BufferClock, BufferOptions, FlushTo, MediaProfile, Memory, MemoryOptions, Place, View, ViewOptions,
};
use nvmed_sys::{Mapping, Pages};
use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

/// The rows.
pub const NAMES: [&str; 2] = ["nvm.uffd_64k", "nvm.uffd_2m"];

/// Bytes that are mapped and touched.
const SET_BYTES: u64 = 64 << 20;
/// The kernel's page.
const PAGE_BYTES: usize = 4096;

/// All of a medium behind an empty buffer that has room for it, mapped.
fn mapped(home: &Arc<Mapping>, fill_bytes: u64) -> Result<View, String> {
    let medium = Profile { commands: 64, medium: Medium::Fixed(FixedProfile::default()) };
    let profile = MediaProfile { medium, program_bytes: 64, fill_bytes, log_percent: 0, kept: true };
    // A buffer has views from 16 frames on.
    let bytes = (2 * SET_BYTES).max(32 * fill_bytes);
    let options = BufferOptions { profile, bytes, clock: BufferClock::Virtual };
    let place = Place::Mapped { memory: Arc::clone(home) };
    let memory = Memory::open(MemoryOptions { place, flush: FlushTo::Process }).map_err(text)?;
    let memory = Arc::new(memory.buffered(&options).map_err(text)?);
    let how = ViewOptions { stores: false, fill_bytes, addresses: None };
    memory.map(0, SET_BYTES as usize, how).map_err(text)
}

/// Nanoseconds of `one`, called with the offset of each page in turn.
fn timed(mut one: impl FnMut(usize)) -> f64 {
    let begin = Instant::now();
    (0..SET_BYTES as usize).step_by(PAGE_BYTES).for_each(&mut one);
    begin.elapsed().as_nanos() as f64 / (SET_BYTES as usize / PAGE_BYTES) as f64
}

/// Fills of 64 KiB and of 2 MiB, each against anonymous memory that the same bytes are copied to.
pub fn measure() -> Result<Vec<Row>, String> {
    let home = Arc::new(Mapping::shareable(SET_BYTES as usize, Pages::Base).map_err(text)?);
    home.fill(0, SET_BYTES as usize, 7);
    let [mut small, mut large, mut copied] = [const { None }; 3].map(|_: Option<()>| Samples::default());
    for _ in 0..ROUNDS {
        for (fill_bytes, samples) in [(64 << 10, &mut small), (2 << 20, &mut large)] {
            let view = mapped(&home, fill_bytes)?;
            let mut byte = [0];
            samples.push(timed(|at| {
                view.memory().read(at, &mut byte);
                black_box(&byte);
            }));
        }
        let other = Mapping::anonymous(SET_BYTES as usize, Pages::Base).map_err(text)?;
        copied.push(timed(|at| home.copy(at, &other, at, PAGE_BYTES)));
    }
    let rows = [(NAMES[0], "64 KiB", small, 2.5), (NAMES[1], "2 MiB", large, 1.5)];
    let row = |(name, fill, samples, goal): (&str, &str, _, _)| Row {
        name: name.to_owned(),
        unit: "ns",
        ours: Contender { name: format!("a view, fills of {fill}"), samples },
        rival: Some(Contender {
            name: "anonymous memory, fault and memcpy".to_owned(),
            samples: copied.clone(),
        }),
        goal: Goal::Ratio(goal),
        flushes_per_op: None,
        conditions: format!(
            "the first touch of each 4 KiB of {SET_BYTES} bytes in turn, one thread, base pages, a medium in memory \
             that takes no time, a buffer that is empty and large enough; unmapping not counted; {ROUNDS} rounds"
        ),
    };
    Ok(rows.map(row).into())
}
