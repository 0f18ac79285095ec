//! Ranges of a buffered medium that are mapped: what is touched comes, what is stored stays, and nothing is lost when
//! frames leave under those who touch them.

use crate::buffer::{BYTES, PAGE, buffered, options, stats, step};
use crate::{Scratch, file};
use nvmed_dice::Dice;
use nvmed_flash::{FixedProfile, Medium};
use nvmed_nvm::{
    BufferOptions, FlushTo, Hint, Memory, MemoryOptions, NvmError, Place, Prefetch, View, ViewOptions,
};
use nvmed_sys::{Addresses, Mapping, Pages, door};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Threads that answer touches are counted: who starts some is alone.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn how(stores: bool) -> ViewOptions {
    ViewOptions { stores, fill_bytes: 64 << 10, addresses: None }
}

/// A view, unless this user or host has no userfaultfd.
fn view(memory: &Arc<Memory>, at: u64, bytes: u64, stores: bool) -> Option<View> {
    match memory.map(at, bytes as usize, how(stores)) {
        Ok(view) => Some(view),
        Err(error) if matches!(&error, NvmError::View { what, .. } if what.contains("not to be had")) => {
            println!("SKIPPED: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn on_file(scratch: &Scratch, options: &BufferOptions) -> Arc<Memory> {
    let memory = Memory::open(file(&scratch.image(), Some(BYTES), FlushTo::Process)).expect("a file");
    Arc::new(memory.buffered(options).expect("a buffer"))
}

fn look(view: &View, at: usize, len: usize) -> Vec<u8> {
    let mut found = vec![0; len];
    view.memory().read(at, &mut found);
    found
}

/// Calls and views, readers and writers, in buffers far smaller than what is mapped: all see the bytes of a plain copy,
/// and after the last settling and fence the file has them.
#[test]
fn calls_and_views_see_the_same_bytes() {
    let _alone = alone();
    for (seed, buffer, frame, log, kept) in
        [(0, 128 << 10, 4096, 30, false), (1, 64 << 10, 4096, 0, true), (2, 512 << 10, 16_384, 0, true)]
    {
        let scratch = Scratch::new();
        let memory = on_file(&scratch, &options(buffer, frame, log, kept));
        // Two pieces that can be stored to, with a gap, and all of it to be read.
        let pieces = [(0, 75 * PAGE), (80 * PAGE, BYTES - 80 * PAGE)];
        let Some(all) = view(&memory, 0, BYTES, false) else { return };
        let views = pieces.map(|(at, bytes)| view(&memory, at, bytes, true).expect("a second one"));
        let (mut plain, mut dice) = (vec![0; BYTES as usize], Dice::of(&[seed]));
        for turn in 0..3000 {
            let piece = dice.index(2);
            let (begin, bytes) = pieces[piece];
            let len = if dice.chance(70) { 1 + dice.index(300) } else { 1 + dice.index(20_000) };
            let at = dice.index(bytes as usize - len);
            let range = begin as usize + at..begin as usize + at + len;
            match dice.roll(6) {
                0 => {
                    let mut stored = vec![0; len];
                    dice.fill(&mut stored);
                    views[piece].memory().write(at, &stored);
                    plain[range].copy_from_slice(&stored);
                }
                1 => assert!(look(&views[piece], at, len) == plain[range], "seed {seed}, turn {turn}"),
                2 => assert!(look(&all, range.start, len) == plain[range], "seed {seed}, turn {turn}"),
                3 if dice.chance(20) => memory.settle_mapped(begin, bytes).expect("room"),
                _ => step(&memory, &mut plain, &mut dice),
            }
        }
        assert!(look(&all, 0, BYTES as usize) == plain, "seed {seed}");
        let done = stats(&memory);
        assert!(done.evictions > 100 && done.touches > 500, "seed {seed}: {done:?}");
        memory.settle_mapped(0, BYTES).expect("room");
        memory.fence().expect("a fence");
        assert!(std::fs::read(scratch.image()).expect("the file") == plain, "seed {seed}");
    }
}

/// Threads that store by views and by calls, and look at what is theirs by the other, while frames leave, are settled
/// and hinted away.
#[test]
fn no_store_is_lost_when_frames_leave_under_it() {
    let _alone = alone();
    let memory = Arc::new(buffered(&options(64 << 10, 4096, 0, true)));
    let Some(view) = view(&memory, 0, BYTES, true) else { return };
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..3_u64)
            .map(|thread| {
                let (memory, view) = (&memory, &view);
                scope.spawn(move || {
                    let mut dice = Dice::of(&[thread]);
                    let mut mine = vec![0_u8; (BYTES / 4) as usize];
                    for turn in 0..3000 {
                        // Every fourth line: neighbours are in the same pages. A few pages are popular.
                        let lines = if dice.chance(50) { 64 } else { BYTES / 256 };
                        let line = dice.roll(lines);
                        let at = line * 256 + thread * 64;
                        let known = &mut mine[line as usize * 64..][..64];
                        let mut found = [0; 64];
                        if dice.chance(50) {
                            memory.read(at, &mut found).expect("bytes");
                        } else {
                            view.memory().read(at as usize, &mut found);
                        }
                        assert!(found == *known, "thread {thread}, turn {turn}");
                        known.fill(turn as u8);
                        if dice.chance(70) {
                            view.memory().write(at as usize, known);
                        } else {
                            memory.store(at, known).expect("bytes");
                        }
                    }
                })
            })
            .collect();
        scope.spawn(|| {
            let mut dice = Dice::of(&[9]);
            while !over.load(Ordering::SeqCst) {
                memory.settle_mapped(0, BYTES).expect("room");
                memory.fence().expect("a fence");
                memory.advise(dice.roll(BYTES), 50_000, Hint::DontNeed).expect("a hint");
            }
        });
        let ended: Vec<_> = workers.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
        over.store(true, Ordering::SeqCst);
        assert!(ended.iter().all(Result::is_ok));
    });
}

/// A range that is discarded again and again reads as what was stored last or as zeroes, and is never missing.
#[test]
fn what_is_discarded_under_a_touch_is_there() {
    let _alone = alone();
    let memory = Arc::new(buffered(&options(256 << 10, 4096, 0, true)));
    let Some(view) = view(&memory, 0, 64 << 10, false) else { return };
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let readers = [0, 1].map(|first| {
            let (view, over) = (&view, &over);
            scope.spawn(move || {
                while !over.load(Ordering::SeqCst) {
                    for page in first..16 {
                        let byte = look(view, page << 12, 1)[0];
                        assert!(byte == 0 || byte == 7, "{byte}");
                    }
                }
            })
        });
        for _ in 0..1000 {
            memory.store(20_000, &[7; 4096]).expect("bytes");
            memory.zero(0, 64 << 10, true).expect("zeroes");
        }
        over.store(true, Ordering::SeqCst);
        assert!(readers.map(std::thread::ScopedJoinHandle::join).iter().all(Result::is_ok));
    });
    assert_eq!(look(&view, 0, 64 << 10), vec![0; 64 << 10]);
}

/// What was stored through a view is in the file after its settling, or after the view; a plain settling is not about
/// it. Only lines that are other than before are written.
#[test]
fn a_settling_of_a_view_writes_home_what_it_stored() {
    let _alone = alone();
    let scratch = Scratch::new();
    let memory = on_file(&scratch, &options(256 << 10, 4096, 50, false));
    let Some(view) = view(&memory, 64 << 10, 128 << 10, true) else { return };
    let home = || std::fs::read(scratch.image()).expect("the file")[(64 << 10) + 5000..][..9].to_vec();
    view.memory().write(5000, b"by a view");
    memory.fence().expect("a fence");
    assert_eq!(home(), [0; 9]);
    memory.settle_mapped((64 << 10) + 4096, 4096).expect("room");
    assert_eq!(home(), b"by a view");
    memory.fence().expect("a fence");
    assert_eq!(stats(&memory).programmed_bytes, 64, "{:?}", stats(&memory));
    view.memory().write(5000, b"after all");
    assert_eq!(home(), b"by a view");
    memory.settle_mapped((64 << 10) + 8192, 4096).expect("room");
    assert_eq!(home(), b"by a view", "of another page");
    drop(view);
    assert_eq!(home(), b"after all");
}

/// One touch brings a fill, which ends where the view ends; what is evicted costs a touch again.
#[test]
fn a_touch_brings_a_fill_and_none_crosses_a_cut() {
    let _alone = alone();
    let memory = buffered(&options(512 << 10, 4096, 0, true)).prefetching(Prefetch::Off);
    let memory = Arc::new(memory);
    let Some(one) = view(&memory, 0, 20 << 10, false) else { return };
    let other = view(&memory, 20 << 10, 300 << 10, false).expect("a second one");
    let touched = |view: &View, pages: std::ops::Range<usize>| {
        let before = stats(&memory);
        pages.for_each(|page| drop(look(view, page << 12, 1)));
        let after = stats(&memory);
        (after.touches - before.touches, after.fills - before.fills)
    };
    assert_eq!(touched(&one, 0..5), (1, 5));
    assert_eq!(touched(&other, 0..11), (1, 11), "the rest of 64 KiB");
    assert_eq!(touched(&other, 11..43), (2, 32));
    assert_eq!(touched(&other, 0..43), (0, 0));
    memory.advise(0, BYTES, Hint::DontNeed).expect("a hint");
    assert_eq!(touched(&other, 5..6), (1, 11));
    // What was read by a call is here already, and no fill; the rest of 64 KiB comes with it.
    memory.read(100 << 10, &mut [0; 4096]).expect("bytes");
    assert_eq!(touched(&other, 20..21), (1, 15));
    let large = memory.map(0, BYTES as usize, ViewOptions { fill_bytes: 2 << 20, ..how(false) });
    let large = large.expect("a third one");
    memory.advise(0, BYTES, Hint::DontNeed).expect("a hint");
    assert_eq!(touched(&large, 40..41), (1, 32), "a quarter of the buffer");
}

/// Who touches in order is given what is here already, as much as he has touched so; who does not, one fill. It is no
/// more than a quarter of the buffer, and no more than is here.
#[test]
fn who_touches_in_order_is_given_what_came_ahead() {
    let _alone = alone();
    let (bytes, fill) = (16 << 20, 64 << 10);
    let fills = bytes / fill;
    let mut options = options(bytes as u64, 16_384, 0, true);
    // Nothing takes time, so that what comes ahead is there at the next touch.
    options.profile.medium.medium = Medium::Fixed(FixedProfile::default());
    let place = Place::Ram { bytes: bytes as u64 };
    let memory = Memory::open(MemoryOptions { place, flush: FlushTo::Process }).expect("memory");
    let memory = Arc::new(memory.buffered(&options).expect("a buffer"));
    memory.store(0, &vec![5; bytes]).expect("bytes");
    let touched = |offsets: &mut dyn Iterator<Item = usize>| {
        memory.advise(0, bytes as u64, Hint::DontNeed).expect("a hint");
        let view = view(&memory, 0, bytes as u64, false)?;
        let before = stats(&memory);
        offsets.for_each(|at| assert_eq!(look(&view, at, 1), [5], "at {at}"));
        Some((stats(&memory).touches - before.touches) as usize)
    };
    let Some(in_order) = touched(&mut (0..bytes).step_by(4096)) else { return };
    assert!(in_order < fills / 8, "{in_order} touches of {fills} fills");
    let backwards = touched(&mut (0..fills).rev().map(|number| number * fill)).expect("a second one");
    assert_eq!(backwards, fills);
}

/// What is used in a view again and again is not taken for unused: it stays while what is used once goes.
#[test]
fn what_a_view_uses_stays() {
    let _alone = alone();
    let memory = buffered(&options(64 << 10, 4096, 0, true)).prefetching(Prefetch::Off);
    let memory = Arc::new(memory);
    let Some(view) = view(&memory, 0, PAGE, false) else { return };
    let once = 200;
    for page in 1..=once {
        assert_eq!(look(&view, 100, 4), [0; 4]);
        memory.read(page * PAGE, &mut [0; 64]).expect("bytes");
    }
    let done = stats(&memory);
    assert_eq!(done.fills, once + 1, "{done:?}");
    // Seen once a turn of the clock's hand at most, not at each use.
    assert!(done.touches < once / 4, "{done:?}");
}

/// A page that the medium cannot give is SIGBUS for who touches it, which the door tells; the rest is there.
#[test]
fn a_page_that_cannot_be_read_is_told_to_who_touches_it() {
    let _alone = alone();
    let scratch = Scratch::new();
    let memory = on_file(&scratch, &options(256 << 10, 4096, 0, true));
    (0..BYTES / PAGE).for_each(|page| memory.store(page * PAGE, &[1; PAGE as usize]).expect("bytes"));
    memory.store(5000, b"sound").expect("bytes");
    memory.fence().expect("a fence");
    memory.advise(0, BYTES, Hint::DontNeed).expect("a hint");
    let Some(view) = view(&memory, 0, BYTES, false) else { return };
    let cut = std::fs::OpenOptions::new().write(true).open(scratch.image()).expect("the file");
    cut.set_len(BYTES / 2).expect("a cut");
    let there = |at: u64| door::there(view.memory().address().addr() + at as usize, PAGE as usize);
    assert_eq!((there(BYTES / 2 + PAGE), there(BYTES - PAGE)), (0, 0));
    assert_eq!(there(PAGE), PAGE as usize);
    assert_eq!(look(&view, 5000, 5), b"sound");
}

/// Of a forked child nobody would answer the touches: it has no such memory, and its parent goes on.
#[test]
fn a_forked_child_does_not_have_a_view() {
    let _alone = alone();
    let memory = Arc::new(buffered(&options(256 << 10, 4096, 0, true)));
    let Some(view) = view(&memory, 0, BYTES, true) else { return };
    view.memory().write(5000, b"parent");
    // SAFETY: the child makes system calls and touches memory, until it ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // Rust's own handler takes a lock, which another test's thread may have had.
        // SAFETY: sets the default action of a signal.
        unsafe { libc::signal(libc::SIGSEGV, libc::SIG_DFL) };
        view.memory().write(5000, b"child!");
        // SAFETY: ends the child at once, without its parent's destructors.
        unsafe { libc::_exit(0) };
    }
    let mut status = 0;
    // SAFETY: `status` lives on this stack.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!((libc::WIFSIGNALED(status), libc::WTERMSIG(status)), (true, libc::SIGSEGV));
    assert_eq!(look(&view, 5000, 6), b"parent");
}

/// A view lies where the caller has room for it; the thread that answers ends with the medium.
#[test]
fn a_view_lies_where_it_is_told_and_its_thread_ends_with_the_medium() {
    let _alone = alone();
    let memory = Arc::new(buffered(&options(256 << 10, 4096, 0, true)));
    memory.store(8192, b"placed").expect("bytes");
    let room = Mapping::anonymous(8 * PAGE as usize, Pages::Base).expect("room");
    room.write(4096, b"before");
    let base = NonNull::new(room.address()).expect("an address").map_addr(|it| it.saturating_add(4096));
    // SAFETY: a part of memory that this test alone knows, and that nobody has a reference to.
    let addresses = unsafe { Addresses::new(base, 2 * PAGE as usize) };
    let placed =
        memory.map(8192, 2 * PAGE as usize, ViewOptions { addresses: Some(addresses), ..how(false) });
    let placed = match placed {
        Ok(view) => view,
        Err(error) => return println!("SKIPPED: {error}"),
    };
    let mut found = [0; 6];
    room.read(4096, &mut found);
    assert_eq!((&found, placed.memory().address()), (b"placed", base.as_ptr()));
    assert!(answering() > 0);
    placed.abandon();
    drop(room);
    drop(memory);
    // It may be about to end itself, having had the medium last.
    while answering() > 0 {
        std::thread::yield_now();
    }
}

/// Threads of this process that answer touches.
fn answering() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").expect("threads");
    let names = tasks.flatten().map(|task| std::fs::read_to_string(task.path().join("comm")));
    names.flatten().filter(|name| name.trim() == "nvmed-views").count()
}

#[test]
fn what_cannot_be_mapped_is_told_in_one_line() {
    let _alone = alone();
    let said = |memory: &Arc<Memory>| {
        let error = memory.map(0, BYTES as usize, how(true)).expect_err("no view");
        let said = error.to_string();
        assert!(!said.contains('\n'), "{said}");
        (said, error.errno())
    };
    let (none, errno) = said(&crate::ram(BYTES));
    assert!(none.contains("it has no buffer") && errno == rustix::io::Errno::INVAL, "{none}");
    let (small, errno) = said(&Arc::new(buffered(&options(60 << 10, 4096, 0, true))));
    assert!(small.contains("fewer than 16 frames") && errno == rustix::io::Errno::NOMEM, "{small}");
    let is_for_all =
        std::fs::read_to_string("/proc/sys/vm/unprivileged_userfaultfd").is_ok_and(|it| it.trim() == "1");
    if is_for_all {
        return println!("SKIPPED: every user may have a userfaultfd here");
    }
    let told = std::thread::spawn(move || {
        // Of this thread alone: libc's function would change all of the process.
        // SAFETY: the call takes three numbers and no pointer.
        unsafe { libc::syscall(libc::SYS_setresuid, 65_534, 65_534, 65_534) };
        said(&Arc::new(buffered(&options(256 << 10, 4096, 0, true))))
    });
    let (denied, errno) = told.join().expect("a thread");
    assert!(denied.contains("userfaultfd is not to be had") && errno == rustix::io::Errno::PERM, "{denied}");
}
