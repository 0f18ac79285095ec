//! One thread at a time: who runs next is for the dice to say, wherever a thread could be switched away.
//!
//! A thread may hand on between two operations, whenever it looks at the device and before it takes a lock, and does
//! where it would sleep for another thread: on a lock, on a condition, or yielding ([`nvmed_sys::sync`]). Nobody else
//! runs meanwhile, so that the same dice make the same run.

use nvmed_dice::Dice;
use nvmed_sys::sync::{Pause, on_pause};
// Not the locks of `nvmed_sys`: those ask the schedule before they are taken, and this is the schedule.
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Threads that wait for each other so many times running, while none of them waits for the device, wait for ever.
const WAITS_MAX: u64 = 100_000;
/// In percent, how often a thread that could go on is switched away: rarely, and at nearly every chance.
const SWITCHES: [u64; 4] = [10, 25, 50, 80];
/// As that, of a thousand locks that it is about to take: a file system takes many.
const SWITCHES_AT_LOCKS: [u64; 4] = [0, 5, 20, 100];

struct State {
    running: usize,
    alive: Vec<bool>,
    dice: Dice,
    /// In percent, how often who could go on does not.
    switches: u64,
    /// Of a thousand, before it takes a lock.
    at_locks: u64,
    /// Waits since the last thing that was no wait.
    waits: u64,
    /// Waits for another thread, in all.
    waited: u64,
    /// A thread failed, or nobody can go on.
    stuck: bool,
}

/// Who runs.
pub(crate) struct Schedule {
    state: Mutex<State>,
    turn: Condvar,
}

impl Schedule {
    /// Of so many threads, which [`Schedule::run`] runs.
    #[must_use]
    pub fn new(threads: usize, mut dice: Dice) -> Arc<Self> {
        let switches = *dice.pick(&SWITCHES).unwrap_or(&0);
        let at_locks = *dice.pick(&SWITCHES_AT_LOCKS).unwrap_or(&0);
        let running = dice.roll(threads as u64) as usize;
        let alive = vec![true; threads];
        let state = State { running, alive, dice, switches, at_locks, waits: 0, waited: 0, stuck: false };
        Arc::new(Self { state: Mutex::new(state), turn: Condvar::new() })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How often a thread waited for another one.
    #[must_use]
    pub fn waited(&self) -> u64 {
        self.lock().waited
    }

    /// Runs `work` as thread `me`, when it is its turn.
    pub fn run<T>(self: &Arc<Self>, me: usize, work: impl FnOnce() -> T) -> T {
        let leaves = Leaves { schedule: Arc::clone(self), me };
        let schedule = Arc::clone(self);
        on_pause(Some(Arc::new(move |why| match why {
            Pause::Look => schedule.switch(me),
            Pause::May => schedule.lock_soon(me),
            Pause::Must => schedule.wait(me),
        })));
        drop(self.until_turn(self.lock(), me));
        let done = work();
        drop(leaves);
        done
    }

    fn until_turn<'a>(&self, mut state: MutexGuard<'a, State>, me: usize) -> MutexGuard<'a, State> {
        while state.running != me && !state.stuck {
            state = self.turn.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state
    }

    /// Thread `me` could go on, and perhaps does.
    fn switch(&self, me: usize) {
        let mut state = self.lock();
        state.waits = 0;
        let switches = state.switches;
        if state.dice.chance(switches) {
            drop(self.hand_on(state, me));
        }
    }

    /// Thread `me` is about to take a lock.
    fn lock_soon(&self, me: usize) {
        let mut state = self.lock();
        if state.dice.roll(1000) < state.at_locks {
            drop(self.hand_on(state, me));
        }
    }

    /// Thread `me` waits for another one.
    fn wait(&self, me: usize) {
        let mut state = self.lock();
        state.waits += 1;
        state.waited += 1;
        state.stuck |= state.waits > WAITS_MAX;
        state = self.hand_on(state, me);
        if state.stuck {
            drop(state);
            self.turn.notify_all();
            // What unwinds takes the locks that it needs as they come.
            on_pause(None);
            assert!(std::thread::panicking(), "each thread waits for another one, or one of them failed");
        }
    }

    /// Another thread runs, until it is the turn of `me` again.
    fn hand_on<'a>(&self, mut state: MutexGuard<'a, State>, me: usize) -> MutexGuard<'a, State> {
        let others: Vec<usize> =
            (0..state.alive.len()).filter(|&other| other != me && state.alive[other]).collect();
        if let Some(&next) = state.dice.pick(&others) {
            state.running = next;
            self.turn.notify_all();
            return self.until_turn(state, me);
        }
        state
    }

    fn leave(&self, me: usize) {
        let mut state = self.lock();
        state.alive[me] = false;
        state.waits = 0;
        state.stuck |= std::thread::panicking();
        let others: Vec<usize> = (0..state.alive.len()).filter(|&other| state.alive[other]).collect();
        state.running = state.dice.pick(&others).copied().unwrap_or(usize::MAX);
        self.turn.notify_all();
    }
}

/// A thread leaves when its work ends, however it does.
struct Leaves {
    schedule: Arc<Schedule>,
    me: usize,
}

impl Drop for Leaves {
    fn drop(&mut self) {
        on_pause(None);
        self.schedule.leave(self.me);
    }
}
