//! The host memory buffer: what is in it, when it passes, and what becomes of it when the buffer goes.

use crate::closed_forms::{WRITE, alone, command, map_in_flash};
use crate::drives::Dice;
use nvmed_flash::{Flash, HostPages, Kind, Move, Moved, UNIT_BYTES};

#[test]
fn no_move_comes_after_the_end_of_the_host_memory_buffer() {
    let (pages, units) = (32, 32 * 1024);
    for seed in 0..64 {
        let mut flash = map_in_flash(pages, 4);
        flash.give_host_memory(flash.now(), HostPages { map: 8, read: 8, write: 0 });
        let mut dice = Dice(seed);
        let mut under_way = 0;
        for _ in 0..200 {
            let _ = flash.arrive(flash.now(), &command(Kind::Read, dice.roll(units), 1));
            under_way += 1;
            let until = flash.now() + dice.roll(20_000);
            while flash.next_due() <= until {
                under_way -= usize::from(flash.advance(until).is_some());
                while flash.next_move().is_some() {}
            }
        }
        flash.end_host_memory(flash.now());
        while under_way > 0 {
            let done = flash.advance(u64::MAX);
            assert_eq!(flash.next_move(), None, "seed {seed}");
            under_way -= usize::from(done.is_some());
            assert!(done.is_some() || flash.next_due() < u64::MAX, "seed {seed}: a command waits for ever");
        }
    }
}

/// Completes all that is under way; what was moved meanwhile.
fn settle(flash: &mut Flash) -> Vec<Move> {
    let mut moves = Vec::new();
    while flash.next_due() < u64::MAX {
        let _ = flash.advance(u64::MAX);
        moves.extend(std::iter::from_fn(|| flash.next_move()));
    }
    moves
}

/// How long a read takes that arrives at a drive at rest, and what was moved until the drive is at rest again.
fn read(flash: &mut Flash, unit: u64) -> (u64, Vec<Move>) {
    let begin = flash.now() + 10_000_000;
    let _ = flash.arrive(begin, &command(Kind::Read, unit, 1));
    let mut moves = Vec::new();
    let end = loop {
        let done = flash.advance(u64::MAX);
        moves.extend(std::iter::from_fn(|| flash.next_move()));
        if let Some(done) = done {
            break done.time;
        }
    };
    moves.extend(settle(flash));
    (end - begin, moves)
}

#[test]
fn a_unit_that_was_read_comes_from_the_host_until_it_is_written() {
    let mut flash = map_in_flash(8, 8);
    // All of the map is in the drive's memory from here on.
    (0..8).for_each(|page| assert!(alone(&mut flash, command(Kind::Read, page * 1024, 1)) > 0));
    flash.give_host_memory(flash.now(), HostPages { map: 0, read: 2, write: 0 });
    let from_flash = 40_000 + 12_000 + 1024;
    let from_host = 1024 + 900 + 1024;
    let is_of = |of: &Move, unit: u32, is_put: bool| of.what == Moved::Unit(unit) && of.is_put == is_put;
    let (time, moves) = read(&mut flash, 7);
    assert_eq!(time, from_flash);
    assert!(moves.len() == 1 && is_of(&moves[0], 7, true), "{moves:?}");
    let (time, moves) = read(&mut flash, 7);
    assert_eq!(time, from_host);
    assert!(moves.len() == 1 && is_of(&moves[0], 7, false), "{moves:?}");
    // Of three units the one that was used least recently goes.
    for (unit, expected) in
        [(8, from_flash), (7, from_host), (9, from_flash), (7, from_host), (8, from_flash)]
    {
        assert_eq!(read(&mut flash, unit).0, expected, "unit {unit}");
    }
    for kind in [WRITE, Kind::Deallocate] {
        let _ = read(&mut flash, 7);
        assert_eq!(read(&mut flash, 7).0, from_host);
        let _ = flash.arrive(flash.now(), &command(kind, 7, 1));
        let _ = settle(&mut flash);
        let _ = flash.arrive(flash.now(), &command(Kind::Flush, 0, 0));
        let _ = settle(&mut flash);
        let (_, moves) = read(&mut flash, 7);
        assert!(moves.iter().all(|of| of.is_put), "unit 7 is old, and came from the host: {moves:?}");
    }
}

#[test]
fn a_unit_that_comes_when_the_buffer_ends_is_read_from_flash() {
    // The first life says when.
    let mut end_at = None;
    for _ in 0..2 {
        let mut flash = map_in_flash(8, 8);
        (0..8).for_each(|page| assert!(alone(&mut flash, command(Kind::Read, page * 1024, 1)) > 0));
        flash.give_host_memory(flash.now(), HostPages { map: 0, read: 2, write: 0 });
        let _ = read(&mut flash, 7);
        let begin = flash.now() + 1_000_000;
        let _ = flash.arrive(begin, &command(Kind::Read, 7, 1));
        match end_at {
            None => {
                assert!(flash.advance(u64::MAX).is_none());
                end_at = flash.next_move().map(|of| of.time);
            }
            Some(time) => {
                flash.end_host_memory(time);
                let done = flash.advance(u64::MAX).expect("it completes");
                assert_eq!(done.time, time + 40_000 + 12_000 + 1024);
            }
        }
    }
}

#[test]
fn an_owner_who_moves_nothing_does_not_stop_the_drive() {
    let mut flash = map_in_flash(32, 4);
    flash.give_host_memory(flash.now(), HostPages { map: 8, read: 8, write: 0 });
    let mut dice = Dice(1);
    for _ in 0..500 {
        assert!(alone(&mut flash, command(Kind::Read, dice.roll(32 * 1024), 1)) > 0);
    }
    assert!(flash.counts().host_gets > 50);
}

#[test]
fn reads_of_one_unit_at_once_come_from_one_slot() {
    let mut flash = map_in_flash(8, 8);
    flash.give_host_memory(flash.now(), HostPages { map: 0, read: 1, write: 0 });
    let _ = read(&mut flash, 7);
    let gets = flash.counts().host_gets;
    for _ in 0..4 {
        let _ = flash.arrive(flash.now(), &command(Kind::Read, 7, 1));
    }
    let _ = settle(&mut flash);
    assert_eq!(flash.counts().host_gets - gets, 4);
    let _ = read(&mut flash, 8);
    assert_eq!(read(&mut flash, 8).0, 1024 + 900 + 1024, "the slot was free again");
}

#[test]
fn one_list_gives_one_answer_however_it_is_asked() {
    let run = |seed: u64, step_ns: u64| {
        let mut flash = map_in_flash(32, 4);
        let (mut dice, mut log) = (Dice(seed), Vec::new());
        let mut time = flash.now();
        for number in 0..400 {
            time += dice.roll(30_000);
            let mut until = flash.now();
            while until < time {
                until = time.min(until + step_ns);
                while flash.next_due() <= until {
                    let done = flash.advance(until);
                    log.extend(done.map(|done| (done.time, u64::from(done.ticket.0), false)));
                    while let Some(of) = flash.next_move() {
                        log.push((of.time, u64::from(of.slot), of.is_put));
                        if of.time % 7 == 0 {
                            flash.move_failed(&of);
                        }
                    }
                }
            }
            match number % 100 {
                10 => flash.give_host_memory(time, HostPages { map: 6, read: 20, write: 0 }),
                90 => flash.end_host_memory(time),
                _ => {}
            }
            let unit = dice.roll(32 * 1024);
            let kind = dice.of(&[Kind::Read, Kind::Read, Kind::Read, WRITE]);
            if flash.takes(false) {
                let _ = flash.arrive(time, &command(kind, unit, dice.between(1, 3).min(32 * 1024 - unit)));
            }
        }
        log
    };
    for seed in 0..6 {
        let answer = run(seed, u64::MAX / 2);
        assert!(answer.len() > 300);
        assert!(run(seed, 500) == answer && run(seed, 7_777) == answer, "seed {seed}");
    }
}

#[test]
fn a_map_page_has_its_entries() {
    let flash = map_in_flash(2, 1);
    let mut page = [0; UNIT_BYTES as usize];
    flash.map_page(1, &mut page);
    let mut words = vec![0; 1024];
    flash.map_words(1024, &mut words);
    let expected: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    assert_eq!(page.as_slice(), expected);
}
