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
pub const NAMES: [&str; 3] = ["nvm.uffd_64k", "nvm.uffd_2m", "nvm.uffd_64k_apart"];

/// Bytes that are mapped and touched.
const SET_BYTES: u64 = 64 << 20;
/// The kernel's page.
const PAGE_BYTES: usize = 4096;
/// A small fill.
const FILL_BYTES: usize = 64 << 10;
/// Fills of the set from one to the next, where none follows the one before: all of them are met.
const APART: usize = 389;

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

/// Nanoseconds of `one`, called with the offset of each page, of one small fill after the other in turn, or of every
/// so many-th.
fn timed(step: usize, mut one: impl FnMut(usize)) -> f64 {
    let fills = SET_BYTES as usize / FILL_BYTES;
    let begin = Instant::now();
    for fill in (0..fills).map(|turn| turn * step % fills * FILL_BYTES) {
        (fill..fill + FILL_BYTES).step_by(PAGE_BYTES).for_each(&mut one);
    }
    begin.elapsed().as_nanos() as f64 / (SET_BYTES as usize / PAGE_BYTES) as f64
}

/// Fills of 64 KiB and of 2 MiB, in turn and not, each against anonymous memory that the same bytes are copied to.
pub fn measure() -> Result<Vec<Row>, String> {
    let home = Arc::new(Mapping::shareable(SET_BYTES as usize, Pages::Base).map_err(text)?);
    home.fill(0, SET_BYTES as usize, 7);
    let [mut small, mut large, mut apart] = [(); 3].map(|()| Samples::default());
    let [mut copied, mut copied_apart] = [(); 2].map(|()| Samples::default());
    for _ in 0..ROUNDS {
        for (fill_bytes, step, samples) in
            [(FILL_BYTES, 1, &mut small), (2 << 20, 1, &mut large), (FILL_BYTES, APART, &mut apart)]
        {
            let view = mapped(&home, fill_bytes as u64)?;
            let mut byte = [0];
            samples.push(timed(step, |at| {
                view.memory().read(at, &mut byte);
                black_box(&byte);
            }));
        }
        for (step, samples) in [(1, &mut copied), (APART, &mut copied_apart)] {
            let other = Mapping::anonymous(SET_BYTES as usize, Pages::Base).map_err(text)?;
            samples.push(timed(step, |at| home.copy(at, &other, at, PAGE_BYTES)));
        }
    }
    let rows = [
        (NAMES[0], "64 KiB, in turn", small, copied.clone(), 2.5),
        (NAMES[1], "2 MiB, in turn", large, copied, 1.5),
        (NAMES[2], "64 KiB, none behind the one before", apart, copied_apart, 2.5),
    ];
    let row = |(name, fills, ours, rival, goal): (&str, &str, _, _, _)| Row {
        name: name.to_owned(),
        unit: "ns",
        ours: Contender { name: format!("a view, fills of {fills}"), samples: ours },
        rival: Some(Contender { name: "anonymous memory, fault and memcpy".to_owned(), samples: rival }),
        goal: Goal::Ratio(goal),
        flushes_per_op: None,
        conditions: format!(
            "the first touch of each 4 KiB of {SET_BYTES} bytes, one thread, base pages, a medium in memory that takes \
             no time, flush=process, a buffer that is empty and large enough; unmapping not counted; {ROUNDS} rounds"
        ),
    };
    Ok(rows.map(row).into())
}
