//! The log of posted writes (docs/spec/posted-writes.md).

use crate::{fails_with, fails_without, holds};
use nvmed_fs::posted::{Change, Grant, LEDGER_BYTES, LOG_BYTES, Log, Outcome, Poster, Reach};
use nvmed_mutant::Mutant;
use nvmed_sys::model::thread;
use nvmed_sys::{Mapping, Pages};
use std::sync::Arc;

const POSTED: &str = include_str!("../../../fs/src/posted.rs");
const GRANT: Grant = Grant { slot: 0, number: 9, reach: Reach::Writes };
/// Writes that the client posts at most.
const POSTS: u64 = 2;

fn log() -> (Log, Poster) {
    let memory = Mapping::shareable(LOG_BYTES, Pages::Base).unwrap();
    let (fd, _) = memory.backing().unwrap();
    let poster = Poster::new(Mapping::shared(fd, 0, LOG_BYTES, Pages::Base).unwrap());
    let ledger = Arc::new(Mapping::anonymous(LEDGER_BYTES, Pages::Base).unwrap());
    let log = Log::new(memory, ledger, 0);
    log.begin(GRANT, 77, false);
    (log, poster)
}

/// Posts one write after the other, and begins anew where the log is full; what became of the last one.
fn post_all(poster: &Poster) -> (u64, Outcome) {
    for number in 1..=POSTS {
        let bytes = number.to_le_bytes();
        let outcome = poster.post(GRANT, Change::Write { offset: number, bytes: &bytes });
        if outcome != Outcome::Done {
            return (number - 1, outcome);
        }
    }
    (POSTS, Outcome::Done)
}

/// Takes what there is; each write must be the next one, and whole.
fn take(log: &Log, taken: &mut u64) {
    let next = |_, change: Change<'_>| {
        *taken += 1;
        assert_eq!(
            change,
            Change::Write { offset: *taken, bytes: &taken.to_le_bytes() },
            "a write is not whole"
        );
    };
    log.take(next).expect("the client is one of ours");
}

/// The client posts while the server takes, and takes again, as before calls.
fn posted_while_taken() {
    let (log, poster) = log();
    let posting = thread::spawn(move || post_all(&poster));
    let mut taken = 0;
    take(&log, &mut taken);
    take(&log, &mut taken);
    let (posted, outcome) = posting.join().unwrap();
    assert_eq!(outcome, Outcome::Done, "the grant stands, and there is room");
    take(&log, &mut taken);
    assert_eq!(taken, posted, "each post is taken once");
    assert!(!log.has_posts());
}

/// The client posts while the server ends the grant.
fn posted_while_sealed() {
    let (log, poster) = log();
    let posting = thread::spawn(move || post_all(&poster));
    let mut taken = 0;
    take(&log, &mut taken);
    log.seal(GRANT.slot);
    take(&log, &mut taken);
    log.forget(GRANT.slot);
    let (posted, outcome) = posting.join().unwrap();
    assert_eq!(taken, posted, "what was posted is made when the grant is over: {outcome:?}");
    assert!(!log.has_posts());
}

fn without(barrier: &'static str, says: &str, model: fn()) {
    fails_without(&[("posted.rs", POSTED, barrier)], says, None, model);
}

#[test]
fn each_write_is_taken_once_and_whole() {
    holds(None, posted_while_taken);
    without("Barrier L1", "a write is not whole", posted_while_taken);
    without("Barrier L2", "a write is not whole", posted_while_taken);
}

#[test]
fn nothing_is_posted_after_the_seal() {
    holds(None, posted_while_sealed);
    fails_with(Mutant::SealForgotten, "is made when the grant is over", None, posted_while_sealed);
    without("Barrier L5", "is made when the grant is over", posted_while_sealed);
    without("Barriers L4 and L6", "is made when the grant is over", posted_while_sealed);
}
