//! Puts what calls were answered on shelves, and takes it back (docs/spec/shelf.md).
//!
//! Order of locks: a shelf's state, who is going; a session's notes. The file system is not called, and nothing that is
//! kept is dropped, under any of them. A class's members are looked up before and after, under none.

use crate::answer::Asker;
use crate::description::Description;
use crate::following::put_name;
use crate::service::Service;
use crate::session::{ClassShelf, Session};
use crate::share::Resource;
use crate::shelf::{Class, Going, Note, Question};
use nvmed_fs::versions::{Trail, Version};
use nvmed_fs::{self as fs, Credentials, FileType, FsError, Kept, Node, OpenFlags};
use nvmed_mutant::Point;
use nvmed_sys::sync::Arc;
use nvmed_wire::{Answer, CardBytes, Facts, POSTED_FLAGS, SHELF_BYTES_AT_ONCE, SLOTS, ServerLane};
use std::sync::atomic::Ordering;

/// Tries to remove a name whose file somebody keeps: each gives way to those who take a card back at this moment.
const TRIES: usize = 100_000;
/// What the class may do, as access(2) has it.
const READS: u32 = 4;
const EXECUTES: u32 = 1;
const PAGE: u64 = 4096;
/// From this size on a file that clients can read where it lies takes no room on the shelf; a smaller one is worth
/// that, since programs open it, read it once and close it.
const DIRECT_BYTES_MIN: u64 = 1 << 20;

/// What can be done without a call with what is put on a shelf.
pub(crate) enum Offer {
    /// Its status is told.
    Status,
    /// It may also be opened, and these bytes read, which are the file's at this count.
    Open(Option<(Vec<u8>, Version)>),
}

impl Service {
    /// The shelf of a session's class, from now on the session's, and its memory.
    ///
    /// # Errors
    /// [`FsError::NotSupported`] when it has none; its user's share; the host has no memory.
    pub(crate) fn shelf(&self, session: &Arc<Session>) -> Result<rustix::fd::OwnedFd, FsError> {
        let shelf = match session.shelf() {
            Some(shelf) => shelf,
            None => {
                let told = (self.mount.root().stat().dev, !session.files().statfs().read_only);
                let (peer, joins) = (session.peer(), (session.number(), session));
                let (class, user) = (Class::of(&peer, session.view()), self.shares.user(peer.uid));
                let take = |shelf: &Arc<ClassShelf>| session.take_shelf(shelf);
                self.shelves.join(&self.board, class, joins, &user, told, take)?
            }
        };
        // Its process may have got other ids while it asked.
        if !shelf.is_of(&session.peer()) {
            self.end_shelf(session, false);
            return Err(FsError::NotSupported);
        }
        Ok(rustix::io::fcntl_dupfd_cloexec(shelf.lock().shelf.readers(), 0)?)
    }

    /// A session has no shelf any more; `ended`: and gets none.
    pub(crate) fn end_shelf(&self, session: &Session, ended: bool) {
        if let Some(shelf) = session.give_shelf(ended) {
            self.shelves.leave(&shelf, session.number());
        }
    }

    /// The inode that a path leads to; where the caller's class has a shelf, the answer is put on it.
    ///
    /// # Errors
    /// Those of resolution.
    pub(crate) fn look_up_shown(&self, asker: &Asker<'_>, question: &Question<'_>) -> Result<Node, FsError> {
        let Question { at, path, follow } = *question;
        let Some(shelf) = shelf_of(asker) else {
            return asker.session.files().lookup(at, path, follow, &asker.who());
        };
        let mut trail = Trail::default();
        let found = asker.session.files().trace(at, path, follow, &asker.who(), &mut trail);
        self.show(asker, &shelf, question, (&found, &trail), &Offer::Status);
        if let Some((directory, name)) = self.show_parts(asker, &shelf, question) {
            let last = Question { at: &directory, path: name, follow };
            self.show_what_follows(asker, &shelf, &last, trail.listed(), false);
        }
        found
    }

    /// As [`Service::look_up_shown`], after an open at a path: what was opened to be read may be opened by a post next,
    /// and that there is nothing needs no call either.
    pub(crate) fn show_open(
        &self,
        asker: &Asker<'_>,
        question: &Question<'_>,
        opened: &Result<std::sync::Arc<fs::File>, FsError>,
        flags: OpenFlags,
    ) {
        let Some(shelf) = shelf_of(asker) else { return };
        let opened = match opened {
            Ok(file) => Some(file.node()).filter(|node| is_kept_kind(node.kind())),
            Err(FsError::NotFound) => None,
            Err(_) => return,
        };
        if flags.without(POSTED_FLAGS) != OpenFlags::READ {
            return;
        }
        let mut trail = Trail::default();
        let Question { at, path, follow } = *question;
        let found = asker.session.files().trace(at, path, follow, &asker.who(), &mut trail);
        if found.as_ref().ok() == opened.as_ref() {
            let bytes = found.as_ref().ok().and_then(|node| self.whole(asker, &shelf, node));
            self.show(asker, &shelf, question, (&found, &trail), &Offer::Open(bytes));
            if let Some((directory, name)) = self.show_parts(asker, &shelf, question)
                && opened.is_some_and(|node| node.kind() == FileType::File)
            {
                let last = Question { at: &directory, path: name, follow };
                self.show_what_follows(asker, &shelf, &last, trail.listed(), true);
            }
        }
    }

    /// Puts what was found at a path on a shelf.
    pub(crate) fn show(
        &self,
        asker: &Asker<'_>,
        shelf: &Arc<ClassShelf>,
        question: &Question<'_>,
        (found, trail): (&Result<Node, FsError>, &Trail),
        offer: &Offer,
    ) {
        if let Ok(node) = found
            && trail.versions().is_some()
        {
            let (keep, bytes) = match offer {
                Offer::Status => (false, None),
                Offer::Open(bytes) => (true, bytes.as_ref()),
            };
            let bytes = bytes.map(|(bytes, version)| CardBytes::whole(bytes, *version));
            self.put_card(asker, shelf, node, keep, bytes);
        }
        put_name(shelf, question, found, trail);
    }

    /// Puts the status of an inode on a session's shelf.
    pub(crate) fn show_status(&self, asker: &Asker<'_>, node: &Node) {
        if let Some(shelf) = shelf_of(asker) {
            self.put_card(asker, &shelf, node, false, None);
        }
    }

    /// All that a session has read of what is no file goes on its shelf, if it is not too much.
    pub(crate) fn show_whole(&self, session: &Session, node: &Node, bytes: CardBytes<'_>) {
        if bytes.bytes.len() <= SHELF_BYTES_AT_ONCE {
            self.show_part(session, node, bytes);
        }
    }

    fn show_part(&self, session: &Session, node: &Node, bytes: CardBytes<'_>) {
        let peer = session.peer();
        let asker = Asker { session, peer: &peer };
        if let Some(shelf) = shelf_of(&asker) {
            self.put_card(&asker, &shelf, node, false, Some(bytes));
        }
    }

    /// The count of a file before it is read, if its bytes may go on a session's shelf.
    pub(crate) fn before_read(&self, session: &Session, description: &Description) -> Option<Version> {
        session.shelf()?;
        let node = description.node();
        if node.kind() != FileType::File || description.flags().has(OpenFlags::DIRECT) {
            return None;
        }
        self.bytes_to_show(node.ino())
    }

    /// The count of a file whose bytes may go on shelves.
    pub(crate) fn bytes_to_show(&self, ino: u64) -> Option<Version> {
        let version = self.board.bytes_version(ino)?;
        // In this order: what may be stored later than this look changes the count.
        (!self.windows.is_stored(ino)).then_some(version)
    }

    /// A session has read `bytes` at an offset of a file that had the count `version` before: their pages go on the
    /// shelf, and those that follow where it reads on.
    pub(crate) fn show_bytes(
        &self,
        session: &Session,
        description: &Description,
        (bytes, offset): (&[u8], u64),
        version: Version,
    ) {
        let Some(shelf) = session.shelf() else { return };
        let node = description.node();
        let size = description.stat().size;
        // Of a large file one call for so much costs less than a second copy, if it is not read again.
        let is_call = bytes.len() > SHELF_BYTES_AT_ONCE && size > bytes.len() as u64;
        let (pages, reads_on) = {
            let shelf = &shelf.lock().shelf;
            let is_read_directly =
                size >= DIRECT_BYTES_MIN && self.windows.may_be_direct(&session.peer(), description);
            let is_too_large = size > shelf.file_bytes_max() || is_read_directly;
            if is_too_large || is_call || offset > size {
                return;
            }
            let first = offset / PAGE;
            let reads_on = first > 0 && shelf.has_page(node.ino(), (version, size), first as usize - 1);
            (first..(offset + bytes.len() as u64).div_ceil(PAGE), reads_on)
        };
        let start = pages.start * PAGE;
        let least = if reads_on { start + SHELF_BYTES_AT_ONCE as u64 } else { 0 };
        let end = (pages.end * PAGE).max(least).min(size);
        let mut part = Vec::new();
        let bytes = if start == offset && end == offset + bytes.len() as u64 {
            bytes
        } else {
            part.resize(end.saturating_sub(start) as usize, 0);
            match description.pread(&mut part, start) {
                Ok(read) if read == part.len() => &part[..],
                _ => return,
            }
        };
        if self.board.bytes_version(node.ino()) == Some(version) {
            self.show_part(session, &node, CardBytes { bytes, first: pages.start as usize, size, version });
        }
    }

    /// Puts an inode's status, and bytes, on a shelf; `keep`: and keeps it, so that it may be opened by a post.
    fn put_card(
        &self,
        asker: &Asker<'_>,
        shelf: &Arc<ClassShelf>,
        node: &Node,
        keep: bool,
        bytes: Option<CardBytes<'_>>,
    ) {
        // In this order: what changes after the first look changes the version.
        let Some(version) = node.version() else { return };
        let (stat, who, files) = (node.stat(), asker.who(), asker.session.files());
        let may = |mask: &u32| files.access(fs::Object::Held(node), *mask, &who).is_ok();
        let rights: u32 = [READS, EXECUTES].into_iter().filter(may).sum();
        let plain = node.has_xattrs() == Some(false);
        let reads = rights & READS != 0;
        if node.version() != Some(version) || bytes.is_some() && !reads {
            return;
        }
        let ino = node.ino();
        // What is kept for a moment too is in the way of who removes it: of those who keep on opening it there may be
        // many.
        let keep = keep && reads && self.spared.opens && !self.shelves.is_going(ino);
        let mut kept = if keep { node.keep() } else { None };
        let (victim, _going) = self.make_way(shelf, ino);
        {
            let mut state = shelf.lock();
            let state = &mut *state;
            // What is not taken here is dropped below, outside of the lock.
            if !self.shelves.is_going(ino)
                && !state.keeps(ino)
                && state.shelf.has_room_for(ino)
                && let Some(new) = kept.take()
            {
                kept = self.shelves.keep(state, ino, new);
            }
            let opens = reads && state.keeps(ino) && !self.shelves.is_going(ino);
            let facts = Facts { stat: &stat, version, rights, opens, plain };
            state.shelf.put_card(&facts, bytes, &mut state.pages);
        }
        drop((kept, victim));
    }

    /// Takes a card back that gives way to one of `ino`, if there is no free place.
    fn make_way(&self, shelf: &Arc<ClassShelf>, ino: u64) -> (Option<Kept>, Option<Going<'_>>) {
        let victim = shelf.lock().shelf.gives_way(ino);
        let going = victim.map(|victim| self.shelves.going(victim));
        (victim.and_then(|victim| self.take_back_from(shelf, victim)), going)
    }

    /// Takes the card of an inode back, after which no open by a post begins; those that stand are the server's from
    /// then on. What was kept is for the caller to drop. The inode is [`Going`].
    fn take_back_from(&self, shelf: &Arc<ClassShelf>, ino: u64) -> Option<Kept> {
        let node = {
            let mut state = shelf.lock();
            state.shelf.take_back(ino);
            state.kept(ino)?
        };
        Point::CardTaken.reached();
        for session in shelf.members() {
            for lane in session.counts.lanes() {
                lane.opens().with(ino).for_each(|slot| self.note(&session, &lane, slot, &node));
            }
        }
        // Until here a claim found it: either in the notes, or still kept.
        self.shelves.give_back(shelf, ino)
    }

    /// A posted open becomes a description that waits to be claimed.
    fn note(&self, session: &Session, lane: &Arc<ServerLane>, slot: u32, node: &Node) {
        // A client of ours posts in one lane: of what others write nothing more is opened.
        if session.notes.lock().len() >= SLOTS as usize {
            return;
        }
        let peer = session.peer();
        // It was permitted when it was opened.
        let who = Credentials::permitted(peer.uid, peer.gid);
        let Ok(file) = session.files().open_node(node, OpenFlags::READ, &who) else { return };
        let description = Description::new(self.handle(), file, Arc::clone(&self.board));
        let mut share = session.user.none(Resource::Handle);
        share.set(1);
        let is_of_slot = |note: &mut Note| Arc::ptr_eq(&note.lane, lane) && note.slot == slot;
        Point::NoteOpened.reached();
        let mut notes = session.notes.lock();
        // Under the lock: who sees that the slot was taken over finds the note. A slot has one at most.
        let before: Vec<_> = if lane.opens().take_over(slot, node.ino()) {
            Point::SlotMarked.reached();
            let before = notes.extract_if(.., is_of_slot).collect();
            let lane = Arc::clone(lane);
            notes.push(Note { lane, slot, ino: node.ino(), description, _share: share });
            before
        } else {
            // It was closed meanwhile, or another thread has noted it.
            Vec::new()
        };
        drop(notes);
        drop(before);
    }

    /// Takes the cards of an inode back on all shelves, until the answer is dropped.
    pub(crate) fn take_back(&self, ino: u64) -> Going<'_> {
        let going = self.shelves.going(ino);
        if self.shelves.kept.load(Ordering::SeqCst) > 0 {
            let shelves = self.shelves.all();
            drop(shelves.iter().filter_map(|shelf| self.take_back_from(shelf, ino)).collect::<Vec<_>>());
        }
        going
    }

    /// Does what may remove a file's last name, once nobody keeps the file.
    ///
    /// # Errors
    /// What `act` answers.
    pub(crate) fn with_nothing_kept(&self, act: impl Fn() -> Result<(), FsError>) -> Result<(), FsError> {
        let mut going: Vec<Going<'_>> = Vec::new();
        for _ in 0..TRIES {
            match act() {
                Err(FsError::Kept(ino)) => {
                    if going.iter().all(|one| one.ino != ino) {
                        going.push(self.shelves.going(ino));
                    }
                    drop(self.take_back(ino));
                    Point::KeptDropped.reached();
                    // Somebody else may be at taking it back.
                    std::thread::yield_now();
                }
                done => return done,
            }
        }
        act()
    }

    /// Holds a description for an open that was posted.
    ///
    /// # Errors
    /// [`FsError::BadDescriptor`] for one that the server does not know; those of open(2).
    pub(crate) fn claim(
        &self,
        asker: &Asker<'_>,
        (slot, ino): (u32, u64),
        flags: OpenFlags,
    ) -> Result<Answer, FsError> {
        if flags.without(POSTED_FLAGS) != OpenFlags::READ {
            return Err(FsError::Invalid);
        }
        if let Some(answer) = self.claim_noted(asker, (slot, ino), flags)? {
            return Ok(answer);
        }
        let shelf = asker.session.shelf();
        let node = shelf.and_then(|shelf| shelf.lock().kept(ino));
        if let Some(node) = node
            && let Ok(file) = asker.session.files().open_node(&node, flags, &asker.who())
        {
            self.end_grant(ino);
            return self.hold_file(asker.session, file);
        }
        // It was taken back meanwhile.
        self.claim_noted(asker, (slot, ino), flags)?.ok_or(FsError::BadDescriptor)
    }

    /// The caller reads a file from its shelf whose access time relatime wants to renew.
    ///
    /// # Errors
    /// [`FsError::BadDescriptor`] for one that its class may not open without a call.
    pub(crate) fn accessed(&self, asker: &Asker<'_>, ino: u64) -> Result<Answer, FsError> {
        let shelf = shelf_of(asker).ok_or(FsError::BadDescriptor)?;
        let node = shelf.lock().kept(ino);
        let node = node.ok_or(FsError::BadDescriptor)?;
        asker.session.files().accessed(&node);
        self.put_card(asker, &shelf, &node, false, None);
        Ok(Answer::Done)
    }

    fn claim_noted(
        &self,
        asker: &Asker<'_>,
        (slot, ino): (u32, u64),
        flags: OpenFlags,
    ) -> Result<Option<Answer>, FsError> {
        let note = {
            let mut notes = asker.session.notes.lock();
            let at = notes.iter().position(|note| note.slot == slot && note.ino == ino);
            at.map(|at| notes.swap_remove(at))
        };
        let Some(note) = note else { return Ok(None) };
        note.description.set_flags(flags)?;
        match self.hold_description(asker.session, &note.description) {
            Ok(answer) => {
                note.lane.opens().free(slot);
                Ok(Some(answer))
            }
            Err(error) => {
                // It was opened, and stays so.
                asker.session.notes.lock().push(note);
                Err(error)
            }
        }
    }

    /// The process has other ids from now on: what it has opened by posts is taken over, and its shelf is another one.
    pub(crate) fn leave_shelf(&self, session: &Session) {
        let Some(shelf) = session.shelf() else { return };
        for lane in session.counts.lanes() {
            for (slot, ino) in lane.opens().all() {
                let node = shelf.lock().kept(ino);
                if let Some(node) = node {
                    self.note(session, &lane, slot, &node);
                }
            }
        }
        // Only now: until here a claim, and who takes a card back, find what is posted.
        self.end_shelf(session, false);
        let brought = session.brings.lock().take();
        drop(brought);
    }
}

/// Whether what is of this kind can be opened by a post.
fn is_kept_kind(kind: FileType) -> bool {
    matches!(kind, FileType::File | FileType::Directory)
}

/// The shelf of a caller's class; none while its process changes its ids.
fn shelf_of(asker: &Asker<'_>) -> Option<Arc<ClassShelf>> {
    asker.session.shelf().filter(|shelf| shelf.is_of(asker.peer))
}
