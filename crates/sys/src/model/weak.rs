//! Deliberate mistakes in orderings: one place of the source is weakened, for the model that must notice it.

use core::cell::RefCell;
use core::ops::Range;
use core::panic::Location;
use core::sync::atomic::Ordering;

/// Lines behind a barrier's comment in which its access or fence is.
const LINES: usize = 5;

/// A place of the source.
struct Place {
    file: &'static str,
    lines: Range<usize>,
}

std::thread_local! {
    static PLACES: RefCell<Vec<Place>> = const { RefCell::new(Vec::new()) };
}

/// A barrier: the end of its file's name, the text of that file, and what the barrier's comment says.
pub type Barrier = (&'static str, &'static str, &'static str);

/// From now on, in models of this thread, the accesses and fences of these barriers order nothing: those in the
/// statement behind the first comment that says so. All others do what they say.
///
/// # Panics
/// When there is no such comment: a mistake that is not made proves nothing.
pub fn weaken(barriers: &[Barrier]) {
    let places = barriers.iter().map(|barrier| place(*barrier)).collect();
    PLACES.with(|own| *own.borrow_mut() = places);
}

fn place((file, text, barrier): Barrier) -> Place {
    let is_comment = |line: &str| line.trim_start().starts_with("//");
    let first = text.lines().position(|line| is_comment(line) && line.contains(barrier));
    let first = first.unwrap_or_else(|| panic!("{file} has no comment with {barrier}"));
    let code = first + text.lines().skip(first).take_while(|line| is_comment(line)).count();
    let last = text.lines().skip(code).take(LINES).position(|line| line.ends_with(';'));
    let last = code + last.unwrap_or_else(|| panic!("{file} has no short statement behind {barrier}"));
    // Lines count from 1.
    Place { file, lines: code + 1..last + 2 }
}

pub(super) fn is_weak(caller: &Location<'_>) -> bool {
    let is_its = |place: &Place| {
        caller.file().ends_with(place.file) && place.lines.contains(&(caller.line() as usize))
    };
    PLACES.with(|own| own.borrow().iter().any(is_its))
}

/// The ordering that an access has.
pub(super) fn order(order: Ordering, caller: &Location<'_>) -> Ordering {
    if is_weak(caller) { Ordering::Relaxed } else { order }
}
