//! Errands: messages that take the server long, done by threads beside the event loop. Users take turns, so that one
//! user's many errands do not hold up another's.

use nvmed_sys::sync::{Arc, Condvar, Mutex};
use std::collections::{HashMap, VecDeque};

type Errand = Box<dyn FnOnce() + Send>;

/// Threads for messages that take long, and for the ends of sessions.
const CLERKS: usize = 4;

/// What clerks do, each user's in the order in which it came.
pub(crate) struct Errands {
    waiting: Mutex<Waiting>,
    more: Condvar,
    /// Clerks that work for one user at a time.
    clerks_of_user: usize,
}

#[derive(Default)]
struct Waiting {
    /// The user whose turn it is first; errands of no user are the server's own.
    lines: VecDeque<(Option<u32>, VecDeque<Errand>)>,
    /// Clerks at work.
    busy: HashMap<Option<u32>, usize>,
    /// Clerks in all, and those that wait for something to do.
    clerks: usize,
    idle: usize,
    ended: bool,
}

impl Waiting {
    /// The next errand, and whose it is. If that user has others waiting, the user goes to the end of the line.
    fn take(&mut self, most: usize) -> Option<(Option<u32>, Errand)> {
        let may = |whose: &Option<u32>| self.busy.get(whose).is_none_or(|busy| *busy < most);
        let at = self.lines.iter().position(|(whose, _)| may(whose))?;
        let (whose, mut errands) = self.lines.remove(at)?;
        let errand = errands.pop_front()?;
        if !errands.is_empty() {
            self.lines.push_back((whose, errands));
        }
        *self.busy.entry(whose).or_default() += 1;
        Some((whose, errand))
    }

    /// Whether more waits than clerks do, and there may be another one; it is counted.
    fn hires(&mut self) -> bool {
        let waiting: usize = self.lines.iter().map(|(_, errands)| errands.len()).sum();
        let hires = waiting > self.idle && self.clerks < CLERKS && !self.ended;
        self.clerks += usize::from(hires);
        hires
    }

    fn done(&mut self, whose: Option<u32>) {
        let busy = self.busy.remove(&whose).unwrap_or(0);
        assert!(busy > 0, "an errand of {whose:?} is done that no clerk was at");
        if busy > 1 {
            self.busy.insert(whose, busy - 1);
        }
    }
}

impl Errands {
    pub fn new(clerks_of_user: usize) -> Self {
        Self { waiting: Mutex::default(), more: Condvar::new(), clerks_of_user }
    }

    /// How many clerks there are from the beginning: one of a run's, since most runs never have two errands at a time.
    /// Where a user has only some of them, one for everybody else must not depend on what memory there is later.
    pub fn at_once(&self) -> usize {
        if self.clerks_of_user < CLERKS { CLERKS } else { 1 }
    }

    /// The clerks of the beginning are there.
    pub fn begin(&self) {
        self.waiting.lock().clerks = self.at_once();
    }

    /// One more, of a user or the server's own; whether there is to be one more clerk, too.
    #[must_use]
    pub fn add(&self, whose: Option<u32>, errand: Errand) -> bool {
        let mut waiting = self.waiting.lock();
        // Without clerks the server has ended, and everything with it.
        if waiting.ended {
            return false;
        }
        match waiting.lines.iter_mut().find(|(other, _)| *other == whose) {
            Some((_, errands)) => errands.push_back(errand),
            None => waiting.lines.push_back((whose, VecDeque::from([errand]))),
        }
        let hires = waiting.hires();
        drop(waiting);
        self.more.notify_one();
        hires
    }

    /// The host has no thread for one more clerk: those that are there do it.
    pub(crate) fn not_hired(&self) {
        let mut waiting = self.waiting.lock();
        assert!(
            waiting.clerks > 1,
            "of {} clerks one could not be made, and one has always been there",
            waiting.clerks
        );
        waiting.clerks -= 1;
    }

    /// There will be no more.
    pub fn end(&self) {
        self.waiting.lock().ended = true;
        self.more.notify_all();
    }

    /// Does errands until there are no more.
    pub fn run(&self) {
        let mut waiting = self.waiting.lock();
        loop {
            if let Some((whose, errand)) = waiting.take(self.clerks_of_user) {
                drop(waiting);
                // Errands guard themselves: a mistake of ours in one turns the file system read-only, and does not take
                // the clerk away from the others.
                let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(errand));
                waiting = self.waiting.lock();
                waiting.done(whose);
                // A user whose clerks were all at work has one clerk fewer now: another clerk may do his next errand.
                self.more.notify_one();
            } else if waiting.ended && waiting.lines.is_empty() {
                drop(waiting);
                return self.more.notify_all();
            } else {
                waiting.idle += 1;
                waiting = self.more.wait(waiting);
                waiting.idle -= 1;
            }
        }
    }
}

/// Sockets of refused clients, with the descriptors that they had sent. To close a descriptor may take as long as its
/// sender likes: so one thread closes them, while there are any, and only other such closes wait.
#[derive(Default)]
pub(crate) struct Refused(Mutex<(VecDeque<Errand>, bool)>);

impl Refused {
    /// Closes something, some time.
    pub fn add(self: &Arc<Self>, close: impl FnOnce() + Send + 'static) {
        let mut refused = self.0.lock();
        refused.0.push_back(Box::new(close));
        if refused.1 {
            return;
        }
        let all = Arc::clone(self);
        // Where there is no thread they wait for the next one that is refused.
        refused.1 = nvmed_sys::spawn_quiet("nvmed-refused", move || all.run()).is_ok();
    }

    fn run(&self) {
        loop {
            let mut refused = self.0.lock();
            let Some(close) = refused.0.pop_front() else {
                refused.1 = false;
                return;
            };
            drop(refused);
            let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(close));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    #[should_panic(expected = "an errand of Some(1) is done that no clerk was at")]
    fn an_errand_that_nobody_did_is_our_mistake() {
        Waiting::default().done(Some(1));
    }

    #[test]
    fn one_users_errands_leave_a_clerk_to_the_others() {
        let errands = Arc::new(Errands::new(1));
        let clerks: Vec<_> = (0..2)
            .map(|_| {
                let errands = Arc::clone(&errands);
                std::thread::spawn(move || errands.run())
            })
            .collect();
        let (go_on, wait) = channel::<()>();
        let (tell, told) = channel();
        let add =
            |whose, errand: Errand| assert!(!errands.add(Some(whose), errand), "there are enough clerks");
        errands.begin();
        add(1, Box::new(move || wait.recv().unwrap()));
        for number in 0..3 {
            let tell = tell.clone();
            add(1, Box::new(move || tell.send((1, number)).unwrap()));
        }
        for number in 0..2 {
            let tell = tell.clone();
            add(2, Box::new(move || tell.send((2, number)).unwrap()));
        }
        assert_eq!([told.recv().unwrap(), told.recv().unwrap()], [(2, 0), (2, 1)]);
        go_on.send(()).unwrap();
        assert_eq!([(); 3].map(|()| told.recv().unwrap()), [(1, 0), (1, 1), (1, 2)]);
        errands.end();
        clerks.into_iter().for_each(|clerk| clerk.join().unwrap());
    }

    #[test]
    fn a_clerk_is_hired_when_more_waits_than_clerks_do_and_no_more_than_there_may_be() {
        let errands = Errands::new(usize::MAX);
        errands.begin();
        let nothing = || -> Errand { Box::new(|| {}) };
        // The clerk of the beginning is busy, or has not come yet.
        let hired: Vec<_> = (0..CLERKS + 1).map(|_| errands.add(None, nothing())).collect();
        assert_eq!(hired, [true, true, true, false, false]);
        errands.not_hired();
        assert!(errands.add(None, nothing()), "the host may have a thread again");
        errands.waiting.lock().idle = 10;
        errands.not_hired();
        assert!(!errands.add(None, nothing()), "ten clerks wait for seven errands");
    }
}
