//! Group commit: callers of many threads share one append to the log.
//!
//! One caller at a time leads a round: it takes everything applied so far to the medium, with the
//! strictest ordering that anybody who waits has asked for. The others sleep until a round that began
//! after their call is over. No lock that `get` or `apply` needs is held during I/O.

use crate::log::Appender;
use crate::stream::Sequence;
use crate::{KvError, Store};
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use nvmed_io::caller::{self, Urgency};
use nvmed_mutant::Mutant;
use nvmed_sys::sync::{Condvar, Mutex, MutexGuard};

/// How a commit orders its log append against data that the caller wrote to the device itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Barrier {
    /// No data is concerned: one log append with FUA. With nothing to append, nothing.
    #[default]
    None,
    /// The batches name data that is written but not flushed: FLUSH, then the log append with FUA.
    /// With nothing to append, one FLUSH unless one was sent since the batch was applied.
    Before,
    /// Data was written in place of older data that the log already names: log append, then one FLUSH
    /// for both. With nothing to append, one FLUSH.
    After,
}

/// After a round that did not come to its end.
const EIO: i32 = 5;

/// What commits share.
pub(crate) struct Commits {
    rounds: Mutex<Rounds>,
    over: Condvar,
    /// The last batch that is durable, as the rounds have it, for who only asks.
    durable: AtomicU64,
    /// Held by the leader of a round, during its I/O.
    appender: Mutex<Appender>,
    /// Appends when [`Store::settle_if_quiet`] last looked.
    appends_seen: AtomicU64,
}

/// The round that runs and the one to come.
struct Rounds {
    /// A leader is at work.
    running: bool,
    /// Rounds that are over.
    finished: u64,
    /// Callers asleep.
    waiting: u32,
    /// What the next round must do besides appending.
    flush_before: bool,
    flush_after: bool,
    /// The last batch that is durable.
    durable: Sequence,
    /// The last batch that was applied before a flush which has returned.
    flushed: Sequence,
    /// The number of the last round that sent a flush; they are counted from 1.
    flush_round: u64,
    appends: u64,
    failed: Option<i32>,
}

/// What a round has done.
struct Done {
    durable: Sequence,
    flushed: bool,
    appended: bool,
}

impl Commits {
    pub(crate) fn new(appender: Appender, durable: Sequence) -> Self {
        let rounds = Rounds {
            running: false,
            finished: 0,
            waiting: 0,
            flush_before: false,
            flush_after: false,
            durable,
            flushed: durable,
            flush_round: 0,
            appends: 0,
            failed: None,
        };
        Self {
            rounds: Mutex::new(rounds),
            over: Condvar::new(),
            durable: AtomicU64::new(durable.0),
            appender: Mutex::new(appender),
            appends_seen: AtomicU64::new(0),
        }
    }

    pub(crate) fn appends(&self) -> u64 {
        self.rounds.lock().appends
    }

    /// The error that everything gets after the first failed write.
    pub(crate) fn check(&self) -> Result<(), KvError> {
        self.rounds.lock().check()
    }

    /// From now on nothing can be made durable.
    pub(crate) fn fail(&self, error: &KvError) {
        self.rounds.lock().failed.get_or_insert(error.errno());
        self.over.notify_all();
    }

    fn wait<'a>(&self, mut rounds: MutexGuard<'a, Rounds>) -> MutexGuard<'a, Rounds> {
        rounds.waiting += 1;
        let mut rounds = self.over.wait(rounds);
        assert!(rounds.waiting > 0, "who waits was not counted");
        rounds.waiting -= 1;
        rounds
    }
}

/// Who leads a round. It is dropped when an assert of ours fails in there: nobody must wait for the end of that round,
/// and what it did is unknown, so nothing is made durable from then on.
struct Leader<'a>(&'a Commits);

impl Drop for Leader<'_> {
    fn drop(&mut self) {
        let mut rounds = self.0.rounds.lock();
        rounds.running = false;
        rounds.finished += 1;
        rounds.failed.get_or_insert(EIO);
        self.0.over.notify_all();
    }
}

impl Rounds {
    fn check(&self) -> Result<(), KvError> {
        self.failed.map_or(Ok(()), |errno| Err(KvError::Failed { errno }))
    }

    /// Whether what was done so far is all that a caller wants.
    fn satisfies(&self, sequence: Sequence, barrier: Barrier) -> bool {
        let durable = self.durable >= sequence;
        match barrier {
            Barrier::None => durable,
            Barrier::Before => durable && self.flushed >= sequence,
            Barrier::After => false,
        }
    }

    fn queue(&mut self, barrier: Barrier) {
        self.flush_before |= barrier == Barrier::Before;
        self.flush_after |= barrier == Barrier::After;
    }

    fn finish(&mut self, outcome: &Result<Done, KvError>) {
        self.running = false;
        self.finished += 1;
        match outcome {
            Ok(done) => {
                // A round takes all that was applied, and they come one after the other.
                assert!(done.durable >= self.durable, "batch {} was durable already", self.durable);
                self.durable = self.durable.max(done.durable);
                self.appends += u64::from(done.appended);
                if done.flushed {
                    self.flushed = self.durable;
                    self.flush_round = self.finished;
                }
            }
            Err(error) => _ = self.failed.get_or_insert(error.errno()),
        }
    }
}

impl Store {
    /// Returns once every batch up to `sequence` is durable. Calls of many threads share log appends.
    ///
    /// A call that finds a step of a checkpoint due does it before it returns: at most
    /// [`crate::Options::commit_blocks_max`] blocks. An urgent caller ([`crate::Medium::has_urgent`]) leaves it to the
    /// next other one, or to an apply that finds the log too long.
    ///
    /// # Errors
    /// The medium's, the first time; [`KvError::Failed`] from then on.
    pub fn commit(&self, sequence: Sequence, barrier: Barrier) -> Result<(), KvError> {
        self.commit_telling(sequence, barrier).map(drop)
    }

    /// As [`Store::commit`]; answers whether a flush was sent after this call began, which covers what was written to
    /// the device before. A commit that an earlier round has done for says no, even if that round sent one.
    ///
    /// # Errors
    /// As [`Store::commit`].
    pub fn commit_telling(&self, sequence: Sequence, barrier: Barrier) -> Result<bool, KvError> {
        let flushed = self.commit_only(sequence, barrier)?;
        if !self.disk.has_urgent_here() {
            self.step_if_due();
        }
        Ok(flushed)
    }

    /// As [`Store::commit_telling`], but it does no step, for one that is under way.
    pub(crate) fn commit_only(&self, sequence: Sequence, barrier: Barrier) -> Result<bool, KvError> {
        if barrier != Barrier::None && self.disk.has_urgent() {
            return self.commit_flushed(sequence, barrier);
        }
        let mut rounds = self.commits.rounds.lock();
        rounds.check()?;
        if rounds.satisfies(sequence, barrier) {
            return Ok(false);
        }
        rounds.queue(barrier);
        // A round that runs already may have sent its flush before our data was written.
        let ours = rounds.finished + 1 + u64::from(rounds.running);
        while rounds.finished < ours && !rounds.satisfies(sequence, barrier) {
            if rounds.running {
                rounds = self.commits.wait(rounds);
            } else {
                rounds = self.lead(rounds)?;
            }
            rounds.check()?;
        }
        Ok(rounds.flush_round >= ours)
    }

    /// As [`Store::commit_only`] of a barrier, where callers are urgent: who wants a flush sends it before the round,
    /// not in it, so that nobody else waits for it. It covers what was written to the device before the call, which is
    /// all that either barrier is about, and the append that follows is durable itself.
    fn commit_flushed(&self, sequence: Sequence, barrier: Barrier) -> Result<bool, KvError> {
        let is_done = |rounds: &Rounds| rounds.check().map(|()| rounds.satisfies(sequence, barrier));
        if is_done(&self.commits.rounds.lock())? {
            return Ok(false);
        }
        // Whoever applied a batch had written its data before.
        let applied = self.applied();
        if !Mutant::NoDataFlush.is_made() {
            self.flush()?;
        }
        {
            let mut rounds = self.commits.rounds.lock();
            rounds.flushed = rounds.flushed.max(applied);
        }
        self.commit_only(sequence, Barrier::None).map(|_| true)
    }

    fn lead<'a>(&'a self, mut rounds: MutexGuard<'a, Rounds>) -> Result<MutexGuard<'a, Rounds>, KvError> {
        rounds.running = true;
        let before = core::mem::take(&mut rounds.flush_before);
        let after = core::mem::take(&mut rounds.flush_after);
        let flushed = rounds.flushed;
        drop(rounds);
        let leader = Leader(&self.commits);
        let outcome = self.round(before, after, flushed);
        core::mem::forget(leader);
        let mut rounds = self.commits.rounds.lock();
        assert!(rounds.running, "two rounds ran at once");
        rounds.finish(&outcome);
        self.commits.durable.store(rounds.durable.0, Release);
        if rounds.waiting > 0 {
            self.commits.over.notify_all();
        }
        outcome.map(|_| rounds)
    }

    /// Appends everything applied so far. `flushed` is the last batch that a flush has followed.
    fn round(&self, before: bool, after: bool, flushed: Sequence) -> Result<Done, KvError> {
        self.for_all(|| {
            let mut appender = self.commits.appender.lock();
            let done = self.append_all(&mut appender, before, after, flushed);
            // Said while nobody else has the appender: what it has written is perhaps not durable, and must not be
            // settled.
            done.inspect_err(|error| self.commits.fail(error))
        })
    }

    /// Does what others wait for meanwhile: urgently, where any of them may be urgent. So there is no rank to be handed
    /// on, and no circle of those who wait.
    fn for_all<T>(&self, work: impl FnOnce() -> T) -> T {
        if self.disk.has_urgent() { caller::with(Urgency::Urgent, work) } else { work() }
    }

    fn append_all(
        &self,
        appender: &mut Appender,
        before: bool,
        after: bool,
        flushed: Sequence,
    ) -> Result<Done, KvError> {
        let (end, durable, flush_first) = {
            let state = self.state.read();
            (state.end, state.sequence, state.flush_first)
        };
        // What a caller asked for, unless a mistake is being made on purpose.
        let flushes = !Mutant::NoDataFlush.is_made();
        let (before, after) = (before && flushes, after && flushes);
        let flush_first = if flushes { flush_first } else { Sequence(0) };
        assert!(end >= appender.position(), "the stream ends at {end}, before the log");
        if end == appender.position() {
            let flush = before || after;
            if flush {
                self.disk.flush()?;
            }
            return Ok(Done { durable, flushed: flush, appended: false });
        }
        if !appender.has_epoch() {
            self.store_epoch()?;
            appender.epoch_stored();
        }
        let before = before || flush_first > flushed;
        if before {
            self.disk.flush()?;
        }
        // Data written before the call is covered by either flush; after a first one FUA will do.
        let after = after && !before;
        let volatile = Mutant::NoLogFlush.is_made();
        appender.append(&self.disk, &self.pending, end, !after && !volatile)?;
        if after && !volatile {
            self.disk.flush()?;
        }
        assert_eq!(appender.position(), end, "the append ended elsewhere");
        self.pending.release(end);
        Ok(Done { durable, flushed: before || after, appended: true })
    }

    /// Writes the block that the log ends in to both its places, unless both hold it: from then on no loss of one
    /// block takes what the last append wrote along in silence. Two writes, and none when nothing was appended since.
    ///
    /// # Errors
    /// The medium's; [`KvError::Failed`] from then on.
    pub fn settle(&self) -> Result<(), KvError> {
        self.for_all(|| self.settle_now())
    }

    fn settle_now(&self) -> Result<(), KvError> {
        // A round has this lock until what it appended is durable.
        let mut appender = self.commits.appender.lock();
        self.commits.check()?;
        if !appender.is_settled() {
            // A place is written over that an interrupted append may have left something in.
            self.store_epoch().inspect_err(|error| self.commits.fail(error))?;
        }
        appender.settle(&self.disk).inspect_err(|error| self.commits.fail(error))
    }

    /// As [`Store::settle`], if nothing was appended since the last call: to be called every so often.
    ///
    /// # Errors
    /// As for [`Store::settle`].
    pub fn settle_if_quiet(&self) -> Result<(), KvError> {
        let appends = self.commits.rounds.lock().appends;
        if self.commits.appends_seen.swap(appends, Relaxed) == appends { self.settle() } else { Ok(()) }
    }

    /// A flush outside of a round. If it fails, what was written before may be lost for good, a commit's data
    /// among it, and the next flush would not say so: nothing is made durable from then on.
    pub(crate) fn flush(&self) -> Result<(), KvError> {
        self.disk.flush().inspect_err(|error| self.commits.fail(error))
    }

    /// The last batch known to be durable.
    #[inline]
    #[must_use]
    pub fn durable(&self) -> Sequence {
        Sequence(self.commits.durable.load(Acquire))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Batch, Medium, MediumError, MemoryMedium, Options, PendingMemory};
    use core::sync::atomic::AtomicBool;
    use nvmed_units::Block;
    use std::sync::Arc;

    /// Panics in a write, as an assert of ours would.
    struct PanickingMedium(MemoryMedium, AtomicBool);

    impl Medium for PanickingMedium {
        fn blocks(&self) -> u64 {
            self.0.blocks()
        }

        fn read(&self, block: Block, into: &mut [u8]) -> Result<(), MediumError> {
            self.0.read(block, into)
        }

        fn write(&self, block: Block, data: &[u8], fua: bool) -> Result<(), MediumError> {
            assert!(!self.1.load(Relaxed), "a mistake");
            self.0.write(block, data, fua)
        }

        fn flush(&self) -> Result<(), MediumError> {
            self.0.flush()
        }
    }

    /// Takes writes, and flushes nothing.
    struct UnflushingMedium(MemoryMedium, AtomicBool);

    impl Medium for UnflushingMedium {
        fn blocks(&self) -> u64 {
            self.0.blocks()
        }

        fn read(&self, block: Block, into: &mut [u8]) -> Result<(), MediumError> {
            self.0.read(block, into)
        }

        fn write(&self, block: Block, data: &[u8], fua: bool) -> Result<(), MediumError> {
            self.0.write(block, data, fua)
        }

        fn flush(&self) -> Result<(), MediumError> {
            if self.1.load(Relaxed) { Err(MediumError { errno: EIO }) } else { self.0.flush() }
        }
    }

    /// The thread that settles may come as soon as the round has let go of the appender: before its leader knows.
    #[test]
    fn what_a_round_has_not_flushed_is_not_settled_as_durable() {
        let medium = Arc::new(UnflushingMedium(MemoryMedium::new(1024), AtomicBool::new(false)));
        Store::format(&medium.0, &Options::default()).unwrap();
        let store =
            Store::open(medium.clone(), PendingMemory::private().unwrap(), &Options::default()).unwrap();
        let mut batch = Batch::new();
        batch.put(b"key", b"value");
        store.apply(&batch).unwrap();
        medium.1.store(true, Relaxed);
        assert!(store.round(false, true, Sequence(0)).is_err());
        let written = medium.0.to_bytes();
        assert_eq!(store.settle(), Err(KvError::Failed { errno: EIO }));
        assert!(medium.0.to_bytes() == written, "a block says that it is durable");
    }

    /// Data written after that flush is not covered, so whoever wrote it must not take the flush for theirs.
    #[test]
    fn a_flush_that_another_commit_sent_is_not_told_as_ones_own() {
        let medium = Arc::new(MemoryMedium::new(1024));
        Store::format(&*medium, &Options::default()).unwrap();
        let store = Store::open(medium, PendingMemory::private().unwrap(), &Options::default()).unwrap();
        let mut batch = Batch::new();
        batch.put(b"key", b"value");
        batch.require_flush();
        let sequence = store.apply(&batch).unwrap();
        assert_eq!(store.commit_telling(sequence, Barrier::None), Ok(true), "the batch wants one");
        assert_eq!(store.commit_telling(sequence, Barrier::Before), Ok(false), "sent before this call");
        assert_eq!(store.commit_telling(sequence, Barrier::After), Ok(true));
    }

    /// Has urgent callers, and notes what comes: `f` a flush, `w` a write; in capitals of an urgent caller.
    struct UrgentMedium(MemoryMedium, nvmed_sys::sync::Mutex<String>);

    impl UrgentMedium {
        fn note(&self, what: char) {
            let noted = if caller::now().is_urgent() { what.to_ascii_uppercase() } else { what };
            self.1.lock().push(noted);
        }
    }

    impl Medium for UrgentMedium {
        fn blocks(&self) -> u64 {
            self.0.blocks()
        }

        fn read(&self, block: Block, into: &mut [u8]) -> Result<(), MediumError> {
            self.0.read(block, into)
        }

        fn write(&self, block: Block, data: &[u8], fua: bool) -> Result<(), MediumError> {
            self.note('w');
            self.0.write(block, data, fua)
        }

        fn flush(&self) -> Result<(), MediumError> {
            self.note('f');
            self.0.flush()
        }

        fn has_urgent(&self) -> bool {
            true
        }
    }

    /// A round may be waited for by an urgent caller: it is urgent whoever leads it, and flushes come before it.
    #[test]
    fn where_callers_are_urgent_a_round_has_no_flush_and_is_urgent() {
        let medium = Arc::new(UrgentMedium(MemoryMedium::new(1024), nvmed_sys::sync::Mutex::default()));
        Store::format(&medium.0, &Options::default()).unwrap();
        let store =
            Store::open(medium.clone(), PendingMemory::private().unwrap(), &Options::default()).unwrap();
        let change = |wants_flush: bool| {
            let mut batch = Batch::new();
            batch.put(b"key", b"value");
            if wants_flush {
                batch.require_flush();
            }
            store.apply(&batch).unwrap()
        };
        store.commit(change(false), Barrier::None).unwrap();
        for (barrier, wants_flush, urgent, noted) in [
            (Barrier::None, false, false, "W"),
            (Barrier::None, false, true, "W"),
            (Barrier::Before, false, false, "fW"),
            (Barrier::Before, true, false, "fW"),
            (Barrier::After, false, false, "fW"),
            // Somebody's data that is not flushed: then there is no other way.
            (Barrier::None, true, true, "FW"),
        ] {
            medium.1.lock().clear();
            let sequence = change(wants_flush);
            let flushed = caller::with(Urgency::of(urgent), || store.commit_telling(sequence, barrier));
            assert_eq!(*medium.1.lock(), noted, "{barrier:?}, {wants_flush}, {urgent}");
            assert_eq!(flushed, Ok(noted.len() > 1));
            assert_eq!(store.durable(), sequence);
        }
    }

    #[test]
    fn nobody_waits_for_a_round_in_which_an_assert_failed() {
        let medium = Arc::new(PanickingMedium(MemoryMedium::new(1024), AtomicBool::new(false)));
        Store::format(&medium.0, &Options::default()).unwrap();
        let pending = PendingMemory::private().unwrap();
        let store = Store::open(medium.clone(), pending, &Options::default()).unwrap();
        let mut batch = Batch::new();
        batch.put(b"key", b"value");
        let sequence = store.apply(&batch).unwrap();
        medium.1.store(true, Relaxed);
        let commit = || store.commit(sequence, Barrier::None);
        let died = std::panic::catch_unwind(std::panic::AssertUnwindSafe(commit));
        assert!(died.is_err());
        medium.1.store(false, Relaxed);
        assert_eq!(store.commit(sequence, Barrier::None), Err(KvError::Failed { errno: EIO }));
        assert_eq!(store.settle(), Err(KvError::Failed { errno: EIO }));
        let mut value = Vec::new();
        assert!(store.get(b"key", &mut value).unwrap(), "what is in memory can be read");
    }
}
