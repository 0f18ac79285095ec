//! What one user may take of a server that several users share (docs/serve.md, "Limits").

use nvmed_sys::sync::{Arc, Mutex, Weak};
use rustix::io::Errno;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// What each user may have at a time, and how long a connection may send nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Sessions, heirs among them.
    pub sessions: usize,
    /// Lanes of all sessions together: each is 1 MiB and a thread.
    pub lanes: usize,
    /// Connections that have not said hello, and those that ended with messages that the server had not taken.
    pub silent: usize,
    /// Handles of all sessions together: some 700 bytes each, with what they stand for.
    pub handles: usize,
    /// Things on their way in messages: each is looked for once a second.
    pub messages: usize,
    /// Ranges of record locks: some 50 bytes each.
    pub locks: usize,
    /// Bytes of the names that open directories have told.
    pub names: usize,
    /// Files that are mapped: each is a descriptor.
    pub maps: usize,
    /// Bytes that mapped files had when they were mapped.
    pub mapped: usize,
    /// Descriptors that the server has for a user: of sessions, connections, lanes and mapped files.
    pub descriptors: usize,
    /// Shelves: each is 12 MiB as it fills, beside its pages.
    pub shelves: usize,
    /// Pages of bytes on shelves, of those that there are.
    pub shelf_pages: usize,
    /// Inodes that are kept so that they may be opened by posts: some 600 bytes each.
    pub kept: usize,
    /// Threads for long messages that work for one user at a time.
    pub clerks: usize,
    /// After so long without a hello a connection ends.
    pub hello: Duration,
}

/// Far more than a process needs that waits for a processor.
const HELLO: Duration = Duration::from_secs(30);
/// Shelves at a time where several users share the server.
pub(crate) const SHELVES_MAX: usize = 64;
/// Each user has at most this part of what there is for all.
pub(crate) const PART: usize = 4;

impl Limits {
    /// Of a run: whatever ids its processes take on, they are one user's.
    pub const RUN: Self = Self {
        sessions: usize::MAX,
        lanes: usize::MAX,
        silent: usize::MAX,
        handles: usize::MAX,
        messages: usize::MAX,
        locks: usize::MAX,
        names: usize::MAX,
        maps: usize::MAX,
        mapped: usize::MAX,
        descriptors: usize::MAX,
        shelves: usize::MAX,
        shelf_pages: usize::MAX,
        kept: usize::MAX,
        clerks: usize::MAX,
        hello: HELLO,
    };

    /// Of a machine's server: far more than programs need, and little enough that others find theirs.
    pub const MACHINE: Self = Self {
        // A quarter of what there is.
        sessions: 1024,
        lanes: 2048,
        silent: 256,
        // What systemd lets one process have, five times what 1,000 processes with 100 files each take.
        handles: 1 << 19,
        messages: 4096,
        locks: 1 << 20,
        // A listing of some 30 million names.
        names: 1 << 30,
        maps: 16_384,
        mapped: 64 << 30,
        descriptors: usize::MAX,
        // A quarter of what there is.
        shelves: SHELVES_MAX / PART,
        shelf_pages: usize::MAX,
        // What two classes keep that have come across so many files.
        kept: 1 << 15,
        clerks: 3,
        hello: HELLO,
    };

    /// The same on this host: not all of its descriptors and its memory are one user's.
    pub(crate) fn on_this_host(self) -> Self {
        let files = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        let part = files.map_or(usize::MAX, |files| files as usize / PART);
        let memory = rustix::system::sysinfo();
        let memory = (memory.totalram as usize).saturating_mul(memory.mem_unit as usize);
        Self {
            descriptors: self.descriptors.min(part),
            mapped: self.mapped.min(memory / 2),
            handles: self.handles.min(memory / 4 / HANDLE_BYTES),
            ..self
        }
    }

    fn of(&self, resource: Resource) -> usize {
        match resource {
            Resource::Session => self.sessions,
            Resource::Lane => self.lanes,
            Resource::Silent => self.silent,
            Resource::Handle => self.handles,
            Resource::Message => self.messages,
            Resource::Lock => self.locks,
            Resource::Names => self.names,
            Resource::Map => self.maps,
            Resource::Mapped => self.mapped,
            Resource::Descriptor => self.descriptors,
            Resource::Shelf => self.shelves,
            Resource::ShelfPage => self.shelf_pages,
            Resource::Kept => self.kept,
        }
    }
}

/// A handle with its description, its file and its inode, as measured, rounded up.
const HANDLE_BYTES: usize = 1024;

/// What is shared.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Resource {
    Session,
    Lane,
    Silent,
    Handle,
    Message,
    Lock,
    Names,
    Map,
    Mapped,
    Descriptor,
    Shelf,
    ShelfPage,
    Kept,
}

const RESOURCES: usize = Resource::Kept as usize + 1;

impl Resource {
    /// Descriptors that one costs: a connection has its socket, and one that came with a message; a shelf has its
    /// memory's, to write and to read.
    fn descriptors(self) -> usize {
        match self {
            Self::Session | Self::Silent | Self::Shelf => 2,
            Self::Lane | Self::Map => 1,
            _ => 0,
        }
    }

    /// The errno for a user who already has his whole share of this resource.
    fn refused(self) -> Errno {
        match self {
            Self::Session | Self::Lane | Self::Silent | Self::Shelf => Errno::MFILE,
            Self::Handle | Self::Message | Self::Map | Self::Descriptor => Errno::NFILE,
            Self::Names | Self::Mapped | Self::ShelfPage | Self::Kept => Errno::NOMEM,
            // The only one that programs know here (fcntl(2)).
            Self::Lock => Errno::NOLCK,
        }
    }
}

/// What all users have.
#[derive(Debug)]
pub(crate) struct Shares {
    pub limits: Limits,
    users: Mutex<HashMap<u32, Weak<User>>>,
}

/// One user, as long as anything is his.
#[derive(Debug)]
pub(crate) struct User {
    pub uid: u32,
    shares: Arc<Shares>,
    /// In the order of [`Resource`].
    taken: [AtomicUsize; RESOURCES],
}

impl Shares {
    pub fn new(limits: Limits) -> Arc<Self> {
        Arc::new(Self { limits, users: Mutex::default() })
    }

    /// The user with an id.
    pub fn user(self: &Arc<Self>, uid: u32) -> Arc<User> {
        let mut users = self.users.lock();
        if let Some(user) = users.get(&uid).and_then(Weak::upgrade) {
            return user;
        }
        let user = Arc::new(User { uid, shares: Arc::clone(self), taken: Default::default() });
        users.insert(uid, Arc::downgrade(&user));
        user
    }

    /// What all users have of a resource.
    pub fn all(&self, resource: Resource) -> usize {
        let users: Vec<_> = self.users.lock().values().filter_map(Weak::upgrade).collect();
        users.iter().map(|user| user.has(resource)).sum()
    }
}

impl Drop for User {
    fn drop(&mut self) {
        let mut users = self.shares.users.lock();
        // He may have come back meanwhile.
        if users.get(&self.uid).is_some_and(|user| user.strong_count() == 0) {
            users.remove(&self.uid);
        }
    }
}

impl User {
    fn has(&self, resource: Resource) -> usize {
        self.taken[resource as usize].load(Ordering::Relaxed)
    }

    /// None of a resource yet.
    pub fn none(self: &Arc<Self>, resource: Resource) -> Share {
        Share { user: Arc::clone(self), resource, count: 0 }
    }

    /// One more of a resource, until the answer is dropped.
    ///
    /// # Errors
    /// [`Resource::refused`] when he has his share.
    pub fn take(self: &Arc<Self>, resource: Resource) -> Result<Share, Errno> {
        let mut share = self.none(resource);
        share.grow(1).map(|()| share)
    }

    fn add(&self, resource: Resource, count: usize) -> Result<(), Errno> {
        let most = self.shares.limits.of(resource);
        let fits = |had: usize| had.checked_add(count).filter(|now| *now <= most);
        let taken = &self.taken[resource as usize];
        taken
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits)
            .map(drop)
            .map_err(|_| resource.refused())
    }

    fn sub(&self, resource: Resource, count: usize) {
        let before = self.taken[resource as usize].fetch_sub(count, Ordering::Relaxed);
        // Shares go while panics unwind too, and a second panic there would end the server.
        let is_his = before >= count || std::thread::panicking();
        assert!(is_his, "a user gives back {count} of {before} {resource:?}");
    }
}

/// A part of a user's share.
#[derive(Debug)]
pub(crate) struct Share {
    user: Arc<User>,
    resource: Resource,
    count: usize,
}

impl Share {
    /// So many more.
    ///
    /// # Errors
    /// As [`User::take`].
    pub fn grow(&mut self, by: usize) -> Result<(), Errno> {
        self.user.add(self.resource, by)?;
        let descriptors = by * self.resource.descriptors();
        if descriptors > 0
            && let Err(errno) = self.user.add(Resource::Descriptor, descriptors)
        {
            self.user.sub(self.resource, by);
            return Err(errno);
        }
        self.count += by;
        Ok(())
    }

    /// So many fewer.
    pub fn shrink(&mut self, by: usize) {
        assert!(by <= self.count, "a share of {} {:?} gives back {by}", self.count, self.resource);
        self.count -= by;
        self.user.sub(self.resource, by);
        let descriptors = by * self.resource.descriptors();
        if descriptors > 0 {
            self.user.sub(Resource::Descriptor, descriptors);
        }
    }

    /// So many, also more than the user may have: they are there already.
    pub fn set(&mut self, count: usize) {
        if count > self.count {
            self.user.taken[self.resource as usize].fetch_add(count - self.count, Ordering::Relaxed);
            self.count = count;
        } else {
            self.shrink(self.count - count);
        }
    }

    /// How many these are.
    pub fn count(&self) -> usize {
        self.count
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.shrink(self.count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_that_is_gone_is_forgotten() {
        let shares = Shares::new(Limits { sessions: 1, lanes: 2, ..Limits::MACHINE });
        let user = shares.user(1);
        let (session, lane) = (user.take(Resource::Session).unwrap(), user.take(Resource::Lane).unwrap());
        drop(user);
        assert_eq!(shares.user(1).take(Resource::Session).unwrap_err(), Errno::MFILE);
        let other = shares.user(2).take(Resource::Session).unwrap();
        drop(session);
        drop(shares.user(1).take(Resource::Session).unwrap());
        drop((lane, other));
        assert!(shares.users.lock().is_empty());
    }

    #[test]
    fn what_takes_descriptors_ends_where_they_do() {
        let shares = Shares::new(Limits { descriptors: 5, ..Limits::MACHINE });
        let user = shares.user(1);
        let sessions = [user.take(Resource::Session).unwrap(), user.take(Resource::Session).unwrap()];
        assert_eq!(user.take(Resource::Session).unwrap_err(), Errno::NFILE);
        let lane = user.take(Resource::Lane).unwrap();
        assert_eq!(user.take(Resource::Map).unwrap_err(), Errno::NFILE);
        assert_eq!(
            (user.has(Resource::Session), user.has(Resource::Map)),
            (2, 0),
            "what is refused is not counted"
        );
        drop((lane, sessions));
        assert_eq!(user.has(Resource::Descriptor), 0);
        user.take(Resource::Map).unwrap();
    }

    #[test]
    fn a_share_that_goes_in_a_panic_leaves_the_server_alive() {
        let shares = Shares::new(Limits::MACHINE);
        let lane = shares.user(1).take(Resource::Lane).unwrap();
        lane.user.taken[Resource::Lane as usize].store(0, Ordering::Relaxed);
        let call = std::panic::AssertUnwindSafe(move || {
            let _lane = lane;
            panic!("a call's own mistake");
        });
        let told = std::panic::catch_unwind(call).unwrap_err();
        assert_eq!(told.downcast_ref::<&str>(), Some(&"a call's own mistake"));
    }

    #[test]
    #[should_panic(expected = "a share of 0 Lane gives back 1")]
    fn a_share_that_gives_back_more_than_it_has_is_our_mistake() {
        Shares::new(Limits::MACHINE).user(1).none(Resource::Lane).shrink(1);
    }

    #[test]
    #[should_panic(expected = "a user gives back 1 of 0 Lock")]
    fn a_user_who_gives_back_what_he_has_not_is_our_mistake() {
        Shares::new(Limits::MACHINE).user(1).sub(Resource::Lock, 1);
    }
}
