//! Calls: the server decodes a client's call, has the file system carry it out, and encodes the answer.

use crate::hold::Thing;
use crate::peer::Peer;
use crate::service::Service;
use crate::session::Session;
use crate::shelf::Question;
use crate::statistics::{self, Done};
use nvmed_fs::{self as fs, Credentials, Follow, FsError, Node, OpenFlags, PATH_BYTES_MAX, StatFs};
use nvmed_wire::{Answer, Call, CardBytes, Data, Handle, Object, XattrCall};

/// Makes `bytes` the data of an answer.
pub(crate) fn put(data: &mut Data, bytes: &[u8]) -> u32 {
    data.room(bytes.len()).copy_from_slice(bytes);
    bytes.len() as u32
}

/// The first `bytes` bytes that came with a call.
///
/// # Errors
/// [`FsError::Invalid`] when fewer came.
pub(crate) fn given(data: &Data, bytes: u32) -> Result<&[u8], FsError> {
    data.given().get(..bytes as usize).ok_or(FsError::Invalid)
}

/// How many bytes of the data area belong to an answer.
#[must_use]
pub fn data_bytes(answer: &Answer) -> usize {
    match answer {
        Answer::Data(bytes) | Answer::Entries { bytes, .. } | Answer::Away(bytes) => *bytes as usize,
        _ => 0,
    }
}

/// A path as a call brings it.
///
/// # Errors
/// [`FsError::Invalid`] with a NUL, which no path of a program has; [`FsError::NameTooLong`].
pub(crate) fn path(bytes: &[u8]) -> Result<&[u8], FsError> {
    if bytes.len() >= PATH_BYTES_MAX {
        return Err(FsError::NameTooLong);
    }
    if bytes.contains(&0) { Err(FsError::Invalid) } else { Ok(bytes) }
}

/// One call under way: whose it is, and with which rights.
pub(crate) struct Asker<'a> {
    pub session: &'a Session,
    pub peer: &'a Peer,
}

impl Asker<'_> {
    pub fn who(&self) -> Credentials<'_> {
        self.peer.credentials()
    }

    pub fn node(&self, handle: Handle) -> Result<Node, FsError> {
        self.session.node(handle)
    }
}

impl Service {
    /// Answers a call of a session. The call's data is in `data`, and the answer's afterwards ([`data_bytes`]).
    pub fn answer(&self, session: &Session, call: Call<'_>, data: &mut Data) -> Answer {
        self.answer_as(session, call, data, statistics::kind(&call))
    }

    /// As [`Service::answer`], counted as a call of `kind`.
    pub(crate) fn answer_as(
        &self,
        session: &Session,
        call: Call<'_>,
        data: &mut Data,
        kind: usize,
    ) -> Answer {
        let begun = self.statistics.begin();
        let peer = session.peer();
        let asker = Asker { session, peer: &peer };
        self.mount.calls.count();
        self.take_posted_writes();
        let mut done = self.act(&asker, call, data);
        if done.as_ref().is_err_and(|error| self.has_made_room(&asker, &call, error)) {
            done = self.act(&asker, call, data);
        }
        let answer = done.unwrap_or_else(|error| match error {
            FsError::Away(rest) => Answer::Away(put(data, &rest)),
            error => Answer::Failed(error.errno().raw_os_error()),
        });
        let (read, written) = moved(&call, &answer);
        let failed = matches!(answer, Answer::Failed(_));
        let done = Done { kind, failed, read, written, time: begun.elapsed() };
        session.counts.count(&done);
        self.statistics.count(&done);
        answer
    }

    fn act(&self, asker: &Asker<'_>, call: Call<'_>, data: &mut Data) -> Result<Answer, FsError> {
        let _counted = changes_names(&call).then(|| self.board.change_names());
        let files = asker.session.files();
        match call {
            Call::Ping => Ok(Answer::Done),
            Call::Lookup(object) => self.look_up(asker, object),
            Call::Open { object, flags, mode } => self.open(asker, object, flags, mode),
            Call::Close { handle, last, record_locks } => {
                self.close(asker.session, handle, last, record_locks)
            }
            Call::Claim { slot, ino, flags } => self.claim(asker, (slot, ino), flags),
            Call::Accessed { ino } => self.accessed(asker, ino),
            Call::Stat(object) => self.stat(asker, object),
            Call::StatFs => Ok(Answer::FileSystem(self.statfs(asker))),
            Call::PathOf(handle) => Ok(Answer::Data(put(data, &files.path_of(&asker.node(handle)?)?))),
            Call::Readlink(object) => Ok(Answer::Data(put(data, &self.target(asker, object)?))),
            Call::Access { object, mask, real } => self.access(asker, object, mask, real),
            Call::Xattr { object, call, bytes } => self.attribute(asker, object, call, bytes, data),
            Call::Read { handle, offset, bytes } => self.read(asker.session, handle, offset, bytes, data),
            Call::Write { handle, offset, bytes, sync } => {
                self.write(asker.session, handle, offset, given(data, bytes)?, sync)
            }
            Call::Renew { handle } => Ok(self.renew(asker, &asker.session.description(handle)?)),
            Call::ReadDir { handle, after, bytes } => {
                self.read_directory(asker.session, handle, (after, bytes), data)
            }
            Call::Truncate { object, bytes } => self.truncate(asker, object, bytes).map(|()| Answer::Done),
            Call::Lock { handle, class, range, kind } => self.lock(asker.session, handle, class, range, kind),
            Call::LockTest { handle, class, range, kind } => {
                self.test_lock(asker.session, handle, class, range, kind)
            }
            Call::Chmod { object, mode } => {
                let node = self.inode(asker, object)?;
                self.end_grant(node.ino());
                let _going = self.take_back(node.ino());
                files.chmod(fs::Object::Held(&node), mode, &asker.who()).map(|()| Answer::Done)
            }
            Call::Chown { object, uid, gid } => {
                let node = self.inode(asker, object)?;
                self.end_grant(node.ino());
                let _going = self.take_back(node.ino());
                files.chown(fs::Object::Held(&node), uid, gid, &asker.who()).map(|()| Answer::Done)
            }
            Call::Utimens { object, times } => {
                let node = self.inode(asker, object)?;
                self.end_grant(node.ino());
                files.utimens(fs::Object::Held(&node), times, &asker.who()).map(|()| Answer::Done)
            }
            Call::Mkdir { .. }
            | Call::Mknod { .. }
            | Call::Symlink { .. }
            | Call::Link { .. }
            | Call::Rmdir { .. }
            | Call::Unlink { .. }
            | Call::Rename { .. } => self.name(asker, call).map(|()| Answer::Done),
            Call::Seek { .. }
            | Call::Flags { .. }
            | Call::SetFlags { .. }
            | Call::Allocate { .. }
            | Call::Advise { .. }
            | Call::Sync { .. }
            | Call::SyncAll
            | Call::WriteBack { .. }
            | Call::SyncMap { .. }
            | Call::Unmap { .. } => self.on_description(asker.session, call),
        }
    }

    fn statfs(&self, asker: &Asker<'_>) -> StatFs {
        self.take_all_posts();
        // In this order: what is promised and then used is not free.
        let ahead = self.logs.pages_promised();
        let status = asker.session.files().statfs();
        StatFs { blocks_free: status.blocks_free + ahead, ..status }
    }

    /// The inode that a call is about.
    ///
    /// # Errors
    /// Those of resolution.
    pub(crate) fn inode(&self, asker: &Asker<'_>, object: Object<'_>) -> Result<Node, FsError> {
        match object {
            Object::Held(handle) => asker.node(handle),
            Object::Path { at, path: text, follow } => {
                asker.session.files().lookup(&asker.node(at)?, path(text)?, follow, &asker.who())
            }
        }
    }

    fn look_up(&self, asker: &Asker<'_>, object: Object<'_>) -> Result<Answer, FsError> {
        let node = self.inode(asker, object)?;
        self.hold_node(asker.session, node)
    }

    /// As [`Service::inode`]; where the caller's class has a shelf, the answer is put on it.
    ///
    /// # Errors
    /// As there.
    fn inode_shown(&self, asker: &Asker<'_>, object: Object<'_>) -> Result<Node, FsError> {
        match object {
            Object::Held(handle) => {
                let node = asker.node(handle)?;
                self.show_status(asker, &node);
                Ok(node)
            }
            Object::Path { at, path: text, follow } => {
                let (at, path) = (asker.node(at)?, path(text)?);
                self.look_up_shown(asker, &Question { at: &at, path, follow })
            }
        }
    }

    fn stat(&self, asker: &Asker<'_>, object: Object<'_>) -> Result<Answer, FsError> {
        Ok(Answer::Status(self.inode_shown(asker, object)?.stat()))
    }

    fn target(&self, asker: &Asker<'_>, object: Object<'_>) -> Result<Vec<u8>, FsError> {
        let node = self.inode_shown(asker, object)?;
        // What it leads to never changes, but reading it renews its access time.
        let target = asker.session.files().readlink(fs::Object::Held(&node), &asker.who())?;
        if let Some(version) = node.version() {
            self.show_whole(asker.session, &node, CardBytes::whole(&target, version));
        }
        Ok(target)
    }

    fn access(
        &self,
        asker: &Asker<'_>,
        object: Object<'_>,
        mask: u32,
        real: bool,
    ) -> Result<Answer, FsError> {
        let who = if real { asker.peer.real_credentials() } else { asker.who() };
        let same = !real || asker.peer.real == (asker.peer.uid, asker.peer.gid);
        let node = match object {
            Object::Path { .. } if same => self.inode_shown(asker, object)?,
            Object::Path { at, path: text, follow } => {
                asker.session.files().lookup(&asker.node(at)?, path(text)?, follow, &who)?
            }
            Object::Held(handle) => asker.node(handle)?,
        };
        asker.session.files().access(fs::Object::Held(&node), mask, &who)?;
        Ok(Answer::Done)
    }

    fn attribute(
        &self,
        asker: &Asker<'_>,
        object: Object<'_>,
        call: XattrCall<'_>,
        bytes: u32,
        data: &mut Data,
    ) -> Result<Answer, FsError> {
        let is_asked = matches!(call, XattrCall::Get(_) | XattrCall::List);
        let node = if is_asked { self.inode_shown(asker, object)? } else { self.inode(asker, object)? };
        let (who, files, object) = (asker.who(), asker.session.files(), fs::Object::Held(&node));
        match call {
            XattrCall::Get(name) => Ok(Answer::Data(put(data, &files.get_xattr(object, name, &who)?))),
            XattrCall::List => Ok(Answer::Data(put(data, &files.list_xattr(object, &who)?))),
            XattrCall::Set(name, how) => {
                files.set_xattr(object, name, given(data, bytes)?, how, &who)?;
                Ok(Answer::Done)
            }
            XattrCall::Remove(name) => {
                files.remove_xattr(object, name, &who)?;
                Ok(Answer::Done)
            }
        }
    }

    fn open(
        &self,
        asker: &Asker<'_>,
        object: Object<'_>,
        flags: OpenFlags,
        mode: u32,
    ) -> Result<Answer, FsError> {
        let files = asker.session.files();
        // Cutting the file is a change of its own, so that its window hears of it before.
        let cuts = flags.has(OpenFlags::TRUNCATE) && !flags.has(OpenFlags::PATH);
        let flags = if cuts { OpenFlags(flags.0 & !OpenFlags::TRUNCATE.0) } else { flags };
        let file = match object {
            Object::Held(handle) => files.open_node(&asker.node(handle)?, flags, &asker.who())?,
            Object::Path { at, path: text, follow } => {
                let flags = if follow == Follow::No { flags.with(OpenFlags::NOFOLLOW) } else { flags };
                let (at, path) = (asker.node(at)?, path(text)?);
                let opened = files.open(&at, path, flags, mode & 0o7777, &asker.who());
                let follow = if flags.has(OpenFlags::NOFOLLOW) { Follow::No } else { Follow::Yes };
                self.show_open(asker, &Question { at: &at, path, follow }, &opened, flags);
                opened?
            }
        };
        self.end_grant(file.node().ino());
        // A file that was made here is empty. A cut would take the set-id bits away that the caller asked for.
        if cuts && !file.was_made() {
            let node = file.node();
            // Not through the description, which may be open for reading only.
            self.resize(&node, 0, || files.truncate(fs::Object::Held(&node), 0, &asker.who()))?;
        }
        self.hold_and_grant(asker, file)
    }

    fn close(
        &self,
        session: &Session,
        handle: Handle,
        last: bool,
        record_locks: bool,
    ) -> Result<Answer, FsError> {
        let thing = session.thing(handle)?;
        if record_locks
            && let Thing::Description(description) = &thing
            && session.owner.closed(description.node().ino())
        {
            self.board.lock_released();
        }
        if last {
            let released = session.holds().release(handle)?;
            if let Some(hold) = released {
                if let Thing::Description(description) = &thing {
                    self.end_grant(description.node().ino());
                }
                self.unmap_all(&hold);
            }
        }
        Ok(Answer::Done)
    }
}

/// Whether a call may change names or attributes, which an fdatasync of any file makes durable (docs/spec/crash.md).
fn changes_names(call: &Call<'_>) -> bool {
    match call {
        Call::Open { flags, .. } => flags.has(OpenFlags::CREATE) || flags.has(OpenFlags::TRUNCATE),
        Call::Xattr { call, .. } => matches!(call, XattrCall::Set(..) | XattrCall::Remove(_)),
        Call::Ping
        | Call::Lookup(_)
        | Call::Claim { .. }
        | Call::Accessed { .. }
        | Call::Close { .. }
        | Call::Stat(_)
        | Call::StatFs
        | Call::PathOf(_)
        | Call::Readlink(_)
        | Call::Access { .. }
        | Call::Read { .. }
        | Call::Write { .. }
        | Call::Renew { .. }
        | Call::Seek { .. }
        | Call::ReadDir { .. }
        | Call::Flags { .. }
        | Call::SetFlags { .. }
        | Call::Advise { .. }
        | Call::Sync { .. }
        | Call::SyncAll
        | Call::WriteBack { .. }
        | Call::SyncMap { .. }
        | Call::Unmap { .. }
        | Call::Lock { .. }
        | Call::LockTest { .. } => false,
        // One too many costs a sync that could have been spared; one too few, a name.
        _ => true,
    }
}

/// Bytes of file data that a call read and wrote.
fn moved(call: &Call<'_>, answer: &Answer) -> (u64, u64) {
    match (call, answer) {
        (Call::Read { .. }, Answer::Data(bytes)) => (u64::from(*bytes), 0),
        (Call::Write { .. }, Answer::Written { bytes, .. }) => (0, u64::from(*bytes)),
        _ => (0, 0),
    }
}
