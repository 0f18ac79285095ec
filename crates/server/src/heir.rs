//! Heirs: sessions that the server makes for a child before its parent forks, and for a program before an exec.

use crate::hold::Thing;
use crate::peer::Peer;
use crate::service::Service;
use crate::session::Session;
use nvmed_fs::{FsError, OpenFlags};
use nvmed_mutant::Point;
use nvmed_wire::{Handle, Inherited, Sender, TOLD_AT_ONCE, Welcome};
use rustix::io::Errno;
use std::sync::{Arc, Weak};

/// Descriptor numbers that an exec hands on at most: a server keeps 16 bytes for each until the program asks.
const NUMBERS_MAX: usize = 1 << 16;

/// What an heir is told when it is adopted.
pub(crate) struct Inheritance {
    /// Descriptor numbers, and what they stand for.
    pub held: Vec<(i32, Handle)>,
    /// The working directory.
    pub cwd: Option<Handle>,
    /// The session of the same process before its exec: it ends when the heir is adopted.
    pub before: Option<Weak<Session>>,
}

impl Service {
    /// A session for a process that is about to be made by `parent`'s, or executed in it: it holds what is named, and
    /// for a new process the mappings of it.
    ///
    /// # Errors
    /// [`FsError::BadDescriptor`] when the parent does not hold one of them; `EMFILE` past the limit.
    pub fn heir(
        &self,
        parent: &Arc<Session>,
        held: Vec<(i32, Handle)>,
        cwd: Option<Handle>,
        same_process: bool,
    ) -> Result<Arc<Session>, FsError> {
        // The record locks of a program that hands no descriptor on end with it.
        let owner = if same_process && !held.is_empty() {
            parent.owner.join();
            Arc::clone(&parent.owner)
        } else {
            self.owners.begin(parent.peer().pid)
        };
        let heir = self.enter(parent.peer(), parent.view().clone(), owner)?;
        let before = same_process.then(|| Arc::downgrade(parent));
        *heir.inheritance.lock() = Some(Inheritance { held: Vec::new(), cwd, before });
        let cwd = cwd.map(|handle| (-1, handle));
        Point::HeirEntered.reached();
        self.inherit_all(parent, &heir, held.into_iter().chain(cwd), same_process)?;
        *parent.last_heir.lock() = Arc::downgrade(&heir);
        Ok(heir)
    }

    /// The heir that `parent` made last holds these too.
    ///
    /// # Errors
    /// As [`Service::heir`], and then the heir has ended; [`FsError::Invalid`] when none waits to be adopted.
    pub(crate) fn heir_holds(&self, parent: &Session, held: Vec<(i32, Handle)>) -> Result<(), FsError> {
        let heir = parent.last_heir.lock().upgrade().ok_or(FsError::Invalid)?;
        let waiting = heir.inheritance.lock().as_ref().map(|left| left.before.is_some());
        let same_process = waiting.ok_or(FsError::Invalid)?;
        self.inherit_all(parent, &heir, held.into_iter(), same_process)
    }

    fn inherit_all(
        &self,
        parent: &Session,
        heir: &Arc<Session>,
        held: impl Iterator<Item = (i32, Handle)>,
        same_process: bool,
    ) -> Result<(), FsError> {
        let mut numbers = Vec::new();
        let inherited = held.into_iter().try_for_each(|(number, handle)| {
            // A forked process knows what it has; descriptors are for one that was executed.
            if number >= 0 {
                numbers.push((number, handle));
            }
            if handle == Handle::ROOT { Ok(()) } else { self.inherit(parent, heir, handle, same_process) }
        });
        let noted = inherited.and_then(|()| {
            let mut left = heir.inheritance.lock();
            let held = &mut left.as_mut().ok_or(FsError::Invalid)?.held;
            if held.len() + numbers.len() > NUMBERS_MAX {
                return Err(FsError::Host(Errno::TOOBIG));
            }
            held.append(&mut numbers);
            Ok(())
        });
        noted.inspect_err(|_| self.end(heir))
    }

    fn inherit(
        &self,
        parent: &Session,
        heir: &Session,
        handle: Handle,
        same_process: bool,
    ) -> Result<(), FsError> {
        if heir.thing(handle).is_ok() {
            return Ok(());
        }
        let (thing, maps, count) = {
            let mut holds = parent.holds();
            (holds.get(handle)?, *holds.maps(handle)?, holds.count(handle)?)
        };
        // A forked process has what its parent has as often; one that was executed is told of it once.
        heir.holds().add(handle, thing.clone(), if same_process { 1 } else { count })?;
        let Thing::Description(description) = thing else { return Ok(()) };
        self.end_grant(description.node().ino());
        if same_process {
            // Mappings do not outlive an exec.
            return Ok(());
        }
        for (count, write) in [(maps.read, false), (maps.write, true)] {
            for _ in 0..count {
                self.begin_map(&description, write, &heir.user)?;
                *heir.holds().maps(handle)?.of(write) += 1;
            }
        }
        Ok(())
    }

    /// The heir's process goes on with its session: the welcome that it gets.
    ///
    /// # Errors
    /// [`FsError::Invalid`] for a session that is no heir, or was adopted before.
    pub fn adopt(&self, heir: &Session, sender: Option<Sender>) -> Result<Welcome, FsError> {
        let inheritance = heir.inheritance.lock().take().ok_or(FsError::Invalid)?;
        Point::HeirTold.reached();
        if let Some(Sender { pid, uid, gid }) = sender {
            heir.owner.is(pid);
            // Its effective ids are those of the process that made it; if they change, it says hello again.
            heir.set_peer(Peer { pid, real: (uid, gid), ..Peer::clone(&heir.peer()) });
        }
        if let Some(before) = inheritance.before.and_then(|before| before.upgrade()) {
            self.end(&before);
        }
        let cwd = inheritance.cwd.map(|handle| inherited(heir, handle)).transpose()?;
        let inherits = u32::try_from(inheritance.held.len()).expect("no more than NUMBERS_MAX");
        *heir.untold.lock() = inheritance.held.into_iter().rev().collect();
        let held = self.tell(heir)?;
        Ok(Welcome { held, inherits, cwd, ..self.welcome(heir) })
    }

    /// The next things that the process of an adopted session inherits by descriptor number; none when it knows all.
    ///
    /// # Errors
    /// [`FsError::BadDescriptor`] for one that it has let go of meanwhile.
    pub fn tell(&self, heir: &Session) -> Result<Vec<(i32, Inherited)>, FsError> {
        let mut untold = heir.untold.lock();
        let left = untold.len().saturating_sub(TOLD_AT_ONCE);
        let next = untold.split_off(left);
        drop(untold);
        next.into_iter().rev().map(|(number, handle)| Ok((number, inherited(heir, handle)?))).collect()
    }

    /// What a process is told of its session that inherits nothing.
    #[must_use]
    pub fn welcome(&self, session: &Session) -> Welcome {
        Welcome {
            session: session.number(),
            secret: session.secret(),
            root: session.files().root().stat(),
            held: Vec::new(),
            inherits: 0,
            cwd: None,
        }
    }
}

/// Something held, as a process is told of it that did not open it. A description that the session has alone has its
/// offset there from now on.
///
/// # Errors
/// [`FsError::BadDescriptor`].
pub(crate) fn inherited(session: &Session, handle: Handle) -> Result<Inherited, FsError> {
    Ok(match session.thing(handle)? {
        Thing::Inode(node) => Inherited { handle, stat: node.stat(), flags: OpenFlags::PATH, offset: None },
        Thing::Description(description) => Inherited {
            handle,
            stat: description.stat(),
            flags: description.flags(),
            offset: (description.holders() == 1).then(|| description.position()),
        },
    })
}
