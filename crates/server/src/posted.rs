//! Posted changes: who may post, and when what was posted is made (docs/spec/posted-writes.md).

use crate::answer::Asker;
use crate::description::Description;
use crate::logs::{Changes, Granted, LogDesk, PAGES_PROMISED, SessionLog};
use crate::peer::Peer;
use crate::service::Service;
use crate::session::Session;
use crate::statistics::{Done, POSTED_CHANGE, POSTED_WRITE};
use nvmed_fs::posted::{Change, Grant, Reach, SLOTS, Strange};
use nvmed_fs::{Credentials, FsError, Object, OpenFlags, Stat};
use nvmed_mutant::Point;
use nvmed_sys::sync::Arc;
use nvmed_wire::Answer;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use std::ops::Range;
use std::sync::atomic::Ordering;

impl SessionLog<Session> {
    /// Makes what was posted. The caller has the desk.
    fn take(&self, service: &Service, desk: &LogDesk<Session>) {
        if self.strange.load(Ordering::Relaxed) || !self.log.has_posts() {
            return;
        }
        let mut is_strange = false;
        let taken = self.log.take(|slot, change| match &desk.grants[slot as usize] {
            Some(granted) if granted.grant.covers(&change) => service.make_posted(desk, granted, change),
            _ => is_strange = true,
        });
        if is_strange || taken == Err(Strange) {
            self.strange.store(true, Ordering::Relaxed);
        }
    }
}

impl Service {
    /// How many descriptions have lost posted changes without an error of a call that said so: no sync came later.
    #[must_use]
    pub fn untold_losses(&self) -> usize {
        self.unmade.untold()
    }

    /// Makes what all processes have posted: whoever is answered after this sees it.
    #[inline]
    pub(crate) fn take_posted_writes(&self) {
        for log in self.logs.in_use().filter(|log| log.log.has_posts()) {
            log.take(self, &log.desk.lock());
        }
    }

    /// Makes what a session's process has posted, if nobody else is at it.
    #[inline]
    pub(crate) fn take_posted_writes_of(&self, session: &Session) {
        if let Some(log) = self.log_of(session)
            && log.log.has_posts()
            && let Some(desk) = log.desk.try_lock()
        {
            log.take(self, &desk);
        }
    }

    #[inline]
    fn log_of(&self, session: &Session) -> Option<&SessionLog<Session>> {
        self.logs.get(*session.log.get()?)
    }

    /// Whether a session's log holds what no client of ours writes: it is to end.
    pub(crate) fn has_strange_posts(&self, session: &Session) -> bool {
        self.log_of(session).is_some_and(|log| log.strange.load(Ordering::Relaxed))
    }

    fn make_posted(&self, desk: &LogDesk<Session>, granted: &Granted, change: Change<'_>) {
        let Some(session) = &desk.session else { return };
        let begun = self.statistics.begin();
        let (made, kind) = match change {
            Change::Write { offset, bytes } => {
                let description = &granted.description;
                let spared = description.pages_spared();
                let made = self.write_all(description, bytes, offset);
                if description.pages_spared() != spared {
                    self.has_moved(description, offset..offset.saturating_add(bytes.len() as u64));
                }
                (made, POSTED_WRITE)
            }
            change => (self.alter_posted(session, granted, change), POSTED_CHANGE),
        };
        if let Err(error) = &made {
            self.unmade.add(granted.description.owed(), error.errno());
        }
        let written = if let Change::Write { bytes, .. } = change { bytes.len() as u64 } else { 0 };
        let (failed, time) = (made.is_err(), begun.elapsed());
        let done = Done { kind, failed, read: 0, written, time };
        session.counts.count(&done);
        self.statistics.count(&done);
    }

    /// Writes all of it: what is missing says why.
    fn write_all(&self, description: &Description, bytes: &[u8], offset: u64) -> Result<(), FsError> {
        let mut done = 0;
        while done < bytes.len() {
            let at = offset.saturating_add(done as u64);
            let (written, ..) = self.write_there(description, Some(at), &bytes[done..])?;
            if written == 0 {
                return Err(FsError::Host(Errno::IO));
            }
            done += written;
        }
        Ok(())
    }

    /// Pages of a file lie elsewhere than windows say. Nobody looks into them before its grant is over.
    #[cold]
    fn has_moved(&self, description: &Description, range: Range<u64>) {
        let size = || description.stat().size;
        let _ = self.windows.change(description.node().ino(), |_| range, || Ok(()), size);
    }

    fn alter_posted(&self, session: &Session, granted: &Granted, change: Change<'_>) -> Result<(), FsError> {
        let _counted = self.board.change_names();
        let (peer, node, files) = (session.peer(), granted.description.node(), session.files());
        let (who, object) = (peer.credentials(), Object::Held(&node));
        match change {
            Change::Times(times) => files.utimens(object, times, &who),
            Change::Owner { uid, gid } => files.chown(object, uid, gid, &who),
            Change::Mode(mode) => files.chmod(object, mode, &who),
            Change::Write { .. } => Err(FsError::Invalid),
        }
    }

    /// The log of a session, made if it has none; its memory for the client.
    ///
    /// # Errors
    /// [`FsError::NotSupported`] when there is none for it; the host has no memory.
    pub(crate) fn log(&self, session: &Arc<Session>) -> Result<OwnedFd, FsError> {
        if !self.logs.are_offered() || self.mount.writes_are_durable() || session.log.get().is_some() {
            return Err(FsError::NotSupported);
        }
        let number = self.logs.take_number(session.user.uid).ok_or(FsError::NotSupported)?;
        self.open_log(number, session).inspect_err(|_| self.logs.give_number(number))
    }

    fn open_log(&self, number: usize, session: &Arc<Session>) -> Result<OwnedFd, FsError> {
        let log = match self.logs.get(number) {
            Some(log) => log,
            None => self.logs.put(number, self.mount.log(number)?.ok_or(FsError::NotSupported)?),
        };
        let (memory, _) = log.log.memory().backing().ok_or(Errno::IO)?;
        let memory = rustix::io::fcntl_dupfd_cloexec(memory, 0)?;
        let mut desk = log.desk.lock();
        log.log.clear();
        Point::LogCleared.reached();
        log.strange.store(false, Ordering::Relaxed);
        (desk.session, desk.uid) = (Some(Arc::clone(session)), Some(session.user.uid));
        session.log.set(number).map_err(|_| FsError::NotSupported)?;
        Ok(memory)
    }

    /// Grants a session that it posts the changes of a description's file, if it may.
    pub(crate) fn grant(&self, asker: &Asker<'_>, description: &Arc<Description>) -> Option<Grant> {
        let number = *asker.session.log.get()?;
        let flags = description.flags();
        // One that is not alone is asked about again and again: that costs those who read it nothing.
        let is_alone = || description.is_alone() && description.holders() == 1;
        if !flags.writes() || flags.has_any(OpenFlags::WAITING) || !is_alone() {
            return None;
        }
        let log = self.logs.get(number)?;
        let (ino, who) = (description.node().ino(), asker.who());
        // In this order: no shelf answers for it from here on, and who has opened it so is known to the server.
        let changes = Changes::begin(self.board.versions(), ino);
        let _going = self.take_back(ino);
        let mut desk = log.desk.lock();
        // The session may have ended, or its process have other ids by now.
        let is_its = desk.session.as_ref().is_some_and(|its| std::ptr::eq(&raw const **its, asker.session));
        if !is_its || !std::ptr::eq(&raw const *asker.session.peer(), asker.peer) {
            return None;
        }
        let slot = desk.grants.iter().position(Option::is_none)?;
        if !self.logs.enter(ino, (number, slot as u32)) {
            return None;
        }
        // Who opens it after this finds it granted, and waits for the desk.
        if !is_alone() || description.promise_ahead(PAGES_PROMISED).is_err() {
            description.give_back_ahead();
            self.logs.leave(ino);
            return None;
        }
        let stat = description.stat();
        let grant = Grant { slot: slot as u32, number: self.logs.new_grant(), reach: reach(&who, &stat) };
        log.log.begin(grant, ino, who.is_root() || who.in_group(stat.gid));
        desk.grants[slot] = Some(Granted { grant, description: Arc::clone(description), changes });
        Some(grant)
    }

    /// Promises more pages to a file whose changes a session posts, or has it post them from now on, if it may.
    pub(crate) fn renew(&self, asker: &Asker<'_>, description: &Arc<Description>) -> Answer {
        let grant = self.renewed(asker, description);
        Answer::Renewed { grant, bytes: description.stat().size }
    }

    fn renewed(&self, asker: &Asker<'_>, description: &Arc<Description>) -> Option<Grant> {
        let (number, ino) = (*asker.session.log.get()?, description.node().ino());
        let place = self.logs.place(ino).filter(|(log, _)| *log == number);
        let Some((_, slot)) = place else {
            // Whoever had it open may have closed it since.
            self.take_all_posts();
            return self.grant(asker, description);
        };
        let stands = {
            let desk = self.logs.get(number)?.desk.lock();
            let granted = desk.grants[slot as usize].as_ref();
            let granted = granted.filter(|one| Arc::ptr_eq(&one.description, description));
            granted.filter(|_| description.promise_ahead(PAGES_PROMISED).is_ok()).map(|one| one.grant)
        };
        if stands.is_none() {
            self.end_grant(ino);
        }
        stands
    }

    /// The writes of a file are posted no more, if they were, and those that were are made.
    #[inline]
    pub(crate) fn end_grant(&self, ino: u64) {
        if let Some((number, slot)) = self.logs.place(ino)
            && let Some(log) = self.logs.get(number)
        {
            let mut desk = log.desk.lock();
            let is_its = desk.grants[slot as usize].as_ref().is_some_and(|one| one.changes.ino == ino);
            let ended = if is_its { self.end_slot(log, &mut desk, slot) } else { None };
            drop(desk);
            drop(ended);
        }
    }

    /// Ends the grant in a slot of a log whose desk the caller has; what it was is to be dropped without the desk.
    fn end_slot(&self, log: &SessionLog<Session>, desk: &mut LogDesk<Session>, slot: u32) -> Option<Granted> {
        let ino = desk.grants[slot as usize].as_ref()?.changes.ino;
        log.log.seal(slot);
        log.take(self, desk);
        Point::GrantTaken.reached();
        log.log.forget(slot);
        Point::GrantForgotten.reached();
        let ended = desk.grants[slot as usize].take()?;
        // In this order: what the next grant of the file is promised is its own.
        ended.description.give_back_ahead();
        self.logs.leave(ino);
        Some(ended)
    }

    /// Ends all grants: what was promised to them is wanted by others.
    pub(crate) fn end_grants(&self) {
        self.logs.files().into_iter().for_each(|ino| self.end_grant(ino));
    }

    /// A session ends: what it has posted is made, and its log is another's.
    pub(crate) fn end_log(&self, session: &Session) {
        let Some(&number) = session.log.get() else { return };
        let Some(log) = self.logs.get(number) else { return };
        let mut desk = log.desk.lock();
        // A session ends once; who finds it ended before has nothing to do.
        if !desk.session.as_ref().is_some_and(|its| std::ptr::eq(&raw const **its, session)) {
            return;
        }
        let ended = self.end_slots(log, &mut desk);
        let its = desk.session.take();
        drop(desk);
        drop((ended, its));
        self.logs.give_number(number);
    }

    fn end_slots(&self, log: &SessionLog<Session>, desk: &mut LogDesk<Session>) -> Vec<Granted> {
        (0..SLOTS as u32).filter_map(|slot| self.end_slot(log, desk, slot)).collect()
    }

    /// The process of a session has other ids: what it posted before is made as who it was, and is granted anew.
    pub(crate) fn has_ids(&self, session: &Session, peer: Peer) {
        let Some(log) = self.log_of(session) else { return session.set_peer(peer) };
        let mut desk = log.desk.lock();
        let ended = self.end_slots(log, &mut desk);
        session.set_peer(peer);
        drop(desk);
        drop(ended);
    }
}

/// Which changes of its file the opener of a description may make in any case.
fn reach(who: &Credentials<'_>, stat: &Stat) -> Reach {
    match (who.is_root(), who.uid == stat.uid) {
        (true, _) => Reach::Root,
        (false, true) => Reach::Owner,
        (false, false) => Reach::Writes,
    }
}
