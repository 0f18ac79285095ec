//! The log of posted changes: both sides at once, deaths between any two steps, and logs that nobody of ours wrote.

use super::*;
use nvmed_dice::Dice;
use nvmed_sys::Pages;
use rustix::fd::AsFd;
use std::panic::AssertUnwindSafe;

const INO: u64 = 77;
const GRANT: Grant = Grant { slot: 3, number: 9, reach: Reach::Writes };

/// A log with both sides, and a second view of its memory and ledger.
fn log() -> (Poster, Log, Mapping, Arc<Mapping>) {
    let memory = Mapping::shareable(LOG_BYTES, Pages::Base).unwrap();
    let (fd, _) = memory.backing().unwrap();
    let again = || Mapping::shared(fd.as_fd(), 0, LOG_BYTES, Pages::Base).unwrap();
    let (poster, seen) = (Poster::new(again()), again());
    let ledger = Arc::new(Mapping::anonymous(LEDGER_BYTES, Pages::Base).unwrap());
    let log = Log::new(memory, Arc::clone(&ledger), 0);
    log.begin(GRANT, INO, false);
    (poster, log, seen, ledger)
}

fn write(number: u64) -> Vec<u8> {
    number.to_le_bytes().repeat(1 + number as usize % 40)
}

fn post(poster: &Poster, number: u64) -> Outcome {
    poster.post(GRANT, Change::Write { offset: number, bytes: &write(number) })
}

/// The number of a write that is whole.
fn number(change: Change<'_>) -> u64 {
    let Change::Write { offset, bytes } = change else { panic!("{change:?}") };
    assert_eq!(bytes, write(offset));
    offset
}

#[test]
fn each_post_is_taken_once_and_in_order_while_both_sides_are_at_it() {
    let (poster, log, ..) = log();
    let mut taken = Vec::new();
    std::thread::scope(|scope| {
        let posting = scope.spawn(|| {
            for number in 0..20_000 {
                while post(&poster, number) == Outcome::Full {
                    std::thread::yield_now();
                }
            }
        });
        while !posting.is_finished() || log.has_posts() {
            log.take(|_, change| taken.push(number(change))).unwrap();
        }
    });
    assert!(taken.iter().copied().eq(0..20_000));
}

#[test]
fn nothing_is_posted_after_a_seal() {
    for _ in 0..200 {
        let (poster, log, ..) = log();
        let mut taken = Vec::new();
        let posted = std::thread::scope(|scope| {
            let posting = scope.spawn(|| (0..).take_while(|n| post(&poster, *n) == Outcome::Done).count());
            while !log.has_posts() {
                std::hint::spin_loop();
            }
            log.seal(GRANT.slot);
            log.take(|_, change| taken.push(number(change))).unwrap();
            posting.join().unwrap()
        });
        assert_eq!(taken.len(), posted, "what was agreed to is there when the grant is over");
        assert!(!log.has_posts() && !poster.stands(GRANT));
    }
}

#[test]
fn whenever_the_server_dies_what_it_has_not_made_is_left() {
    for posts in [1, 7, 30] {
        for made in 0..=posts {
            let (poster, log, seen, ledger) = log();
            // A turn before, so that what is left of it lies behind.
            (0..40).for_each(|number| assert_eq!(post(&poster, number), Outcome::Done));
            log.take(|_, _| {}).unwrap();
            (100..100 + posts).for_each(|number| assert_eq!(post(&poster, number), Outcome::Done));
            let dies = |change: Change<'_>| {
                if number(change) == 100 + made {
                    panic!("killed")
                }
            };
            let died = std::panic::catch_unwind(AssertUnwindSafe(|| log.take(|_, change| dies(change))));
            assert_eq!(died.is_err(), made < posts);
            let left: Vec<u64> = left(&seen, &ledger, 0)
                .iter()
                .map(|left| {
                    assert_eq!(left.ino, Ino(INO));
                    number(left.change().unwrap())
                })
                .collect();
            assert!(left.iter().copied().eq(100 + made..100 + posts), "{made} of {posts}: {left:?}");
        }
    }
}

#[test]
fn a_server_that_dies_between_the_two_turns_leaves_nothing_twice_and_nothing_out() {
    let (poster, log, seen, ledger) = log();
    (0..5).for_each(|number| _ = post(&poster, number));
    log.take(|_, _| {}).unwrap();
    // The log has turned, the ledger has not.
    let five: u64 = (0..5).map(|number| record_bytes(write(number).len()) as u64).sum();
    ledger.u64(0).store(five, Ordering::SeqCst);
    assert!(left(&seen, &ledger, 0).is_empty());
    post(&poster, 5);
    let left = left(&seen, &ledger, 0);
    assert_eq!(left.iter().map(|left| number(left.change().unwrap())).collect::<Vec<_>>(), [5]);
}

#[test]
fn every_change_comes_as_it_was_posted() {
    let (poster, log, seen, ledger) = log();
    log.begin(Grant { reach: Reach::Root, ..GRANT }, INO, true);
    let changes = [
        Change::Write { offset: 1 << 40, bytes: b"bytes" },
        Change::Times([Time::Now, Time::Omit]),
        Change::Times([Time::At(-5), Time::At(i64::MAX)]),
        Change::Owner { uid: Some(0), gid: None },
        Change::Owner { uid: None, gid: Some(u32::MAX - 1) },
        Change::Mode(0o6755),
    ];
    for change in changes {
        assert_eq!(poster.post(GRANT, change), Outcome::Done);
    }
    let left = left(&seen, &ledger, 0);
    assert!(left.iter().map(|left| left.change().unwrap()).eq(changes));
    let mut at = 0;
    let same = |slot: u32, change: Change<'_>| {
        assert_eq!((slot, change), (GRANT.slot, changes[at]));
        at += 1;
    };
    log.take(same).unwrap();
    assert_eq!(at, changes.len());
}

#[test]
fn a_log_that_is_full_or_too_small_says_so() {
    let (poster, log, ..) = log();
    let large = vec![1; WRITE_BYTES_MAX + 1];
    assert_eq!(poster.post(GRANT, Change::Write { offset: 0, bytes: &large }), Outcome::Full);
    let most = Change::Write { offset: 0, bytes: &large[1..] };
    assert_eq!((0..).take_while(|_| poster.post(GRANT, most) == Outcome::Done).count(), 3);
    log.take(|_, _| {}).unwrap();
    assert_eq!(poster.post(GRANT, most), Outcome::Done);
    assert_eq!(poster.post(Grant { number: 8, ..GRANT }, most), Outcome::Over);
    assert_eq!(poster.post(Grant { slot: 99, ..GRANT }, most), Outcome::Over);
}

#[test]
fn what_no_client_of_ours_writes_is_found_out() {
    let mut dice = Dice::of(&[15]);
    for _ in 0..3_000 {
        let (poster, log, seen, ledger) = log();
        (0..4).for_each(|number| _ = post(&poster, number));
        for _ in 0..=dice.roll(4) {
            let at = [WORD, NUMBERS, RECORDS][dice.index(3)] + 8 * dice.index(8);
            let word = [dice.next(), dice.roll(1 << 20), u64::MAX, 0][dice.index(4)];
            seen.u64(at).store(word, Ordering::SeqCst);
        }
        // Whatever it says, it ends, and no write is larger than one may be.
        let small = |change: Change<'_>| {
            if let Change::Write { bytes, .. } = change {
                assert!(bytes.len() <= WRITE_BYTES_MAX);
            }
        };
        let left = left(&seen, &ledger, 0);
        left.iter().filter_map(Left::change).for_each(small);
        let _ = log.take(|slot, change| {
            assert!((slot as usize) < SLOTS);
            small(change);
        });
    }
    let (poster, log, seen, _) = log();
    post(&poster, 1);
    seen.u64(WORD).fetch_add(1 << BYTES_BITS, Ordering::SeqCst);
    assert_eq!(log.take(|_, _| panic!("of another turn")), Err(Strange));
}

#[test]
fn what_a_dead_server_has_left_is_made_as_far_as_it_was_granted() {
    let mode = Change::Mode(0o2755);
    let times = Change::Times([Time::At(1), Time::At(2)]);
    let owner = Change::Owner { uid: Some(1), gid: None };
    let bytes = Change::Write { offset: 0, bytes: b"x" };
    let stripped = Change::Mode(0o755);
    for (reach, keeps_setgid, wanted) in [
        (Reach::Writes, true, [None, None, None, Some(bytes)]),
        (Reach::Owner, false, [Some(stripped), Some(times), None, Some(bytes)]),
        (Reach::Owner, true, [Some(mode), Some(times), None, Some(bytes)]),
        (Reach::Root, true, [Some(mode), Some(times), Some(owner), Some(bytes)]),
    ] {
        let (poster, log, seen, ledger) = log();
        log.begin(Grant { slot: 2, ..GRANT }, INO, !keeps_setgid);
        log.begin(Grant { reach, ..GRANT }, INO, keeps_setgid);
        // One of ours posts only what its grant covers; this one posts everything.
        for change in [mode, times, owner, bytes] {
            assert_eq!(poster.post(GRANT, change), Outcome::Done);
        }
        let left = left(&seen, &ledger, 0);
        let changes: Vec<_> = left.iter().map(Left::change).collect();
        assert_eq!(changes, wanted, "{reach:?}");
    }
}

#[test]
fn a_post_of_the_process_before_finds_another_seal() {
    let (poster, log, seen, _) = log();
    for _ in 0..3 {
        let before = seen.u64(WORD).load(Ordering::Relaxed);
        log.clear();
        let now = seen.u64(WORD).load(Ordering::Relaxed);
        assert!(now != before && now & (SEAL - 1) == 0, "{before:x} {now:x}");
    }
    log.begin(GRANT, INO, false);
    assert_eq!(post(&poster, 5), Outcome::Done);
    let mut taken = Vec::new();
    log.take(|_, change| taken.push(number(change))).unwrap();
    assert_eq!(taken, [5]);
}
