//! Open files on their way between processes in messages (SCM_RIGHTS): a token holds each, until no process has the
//! token any more.

use crate::hold::{HeldThing, Thing};
use crate::session::Session;
use crate::share::{Resource, Share};
use nvmed_fs::FsError;
use nvmed_sys::sync::{Arc, Mutex};
use nvmed_wire::Token;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Tokens that one session may have on their way; the kernel bounds descriptors in messages much lower
/// (`RLIMIT_NOFILE`).
const TOKENS_MAX: usize = 4096;

struct Sent {
    held: HeldThing,
    /// What the session that sent it has on its way.
    _by: Counted,
    /// Of its user's.
    _share: Share,
}

/// One of what a session has on its way.
struct Counted(Arc<AtomicUsize>);

impl Counted {
    fn new(session: &Session) -> Result<Self, Errno> {
        let counted = Self(Arc::clone(&session.sent));
        let before = counted.0.fetch_add(1, Ordering::Relaxed);
        if before < TOKENS_MAX { Ok(counted) } else { Err(Errno::TOOMANYREFS) }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let before = self.0.fetch_sub(1, Ordering::Relaxed);
        // A second panic while one unwinds would end the server.
        assert!(before > 0 || std::thread::panicking(), "a message arrives that was not counted");
    }
}

/// All tokens on their way.
#[derive(Default)]
pub(crate) struct Tokens(Mutex<HashMap<Token, Sent>>);

impl Tokens {
    /// A token for `thing`, sent by a session: its descriptor, which the session gets.
    ///
    /// # Errors
    /// `ETOOMANYREFS` past the session's limit, as the kernel answers, `ENFILE` past its user's; the host has no
    /// descriptor left.
    pub fn send(&self, thing: Thing, session: &Session) -> Result<OwnedFd, FsError> {
        let (share, by) = (session.user.take(Resource::Message)?, Counted::new(session)?);
        let (token, fd) = Token::make()?;
        self.0.lock().insert(token, Sent { held: HeldThing::new(thing), _by: by, _share: share });
        Ok(fd)
    }

    /// What a token stands for. It stays until nobody has it: a message may be received more than once (MSG_PEEK), and
    /// a descriptor be sent on.
    pub fn get(&self, token: Token) -> Option<Thing> {
        self.0.lock().get(&token).map(|sent| sent.held.thing())
    }

    /// Drops what no process can receive any more. The host is asked about each while nobody waits: a token that is
    /// free stays so, since nobody has it to hand on.
    pub fn sweep(&self) {
        self.sweep_by(|token| token.is_free() == Ok(true));
    }

    fn sweep_by(&self, is_free: impl Fn(&Token) -> bool) {
        let there: Vec<Token> = self.0.lock().keys().copied().collect();
        for token in there.iter().filter(|token| is_free(token)) {
            let gone = self.0.lock().remove(token);
            // Closing may free a file's blocks: not while others wait.
            drop(gone);
        }
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.0.lock().len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hold::HeldThing;
    use crate::share::{Limits, Shares};

    #[test]
    #[should_panic(expected = "a message arrives that was not counted")]
    fn a_message_that_was_not_counted_is_our_mistake() {
        drop(Counted(Arc::default()));
    }

    #[test]
    fn who_sends_does_not_wait_for_the_sweep() {
        let (tokens, user) = (Tokens::default(), Shares::new(Limits::MACHINE).user(1));
        let thing = Thing::Inode(crate::toy_tests::mount().root());
        for inode in 0..3 {
            let by = Counted(Arc::new(AtomicUsize::new(1)));
            let sent = Sent {
                held: HeldThing::new(thing.clone()),
                _by: by,
                _share: user.take(Resource::Message).unwrap(),
            };
            tokens.0.lock().insert(Token { number: 7, inode }, sent);
        }
        // While the sweep asks the host about a token, it does not hold the lock of the list.
        tokens.sweep_by(|token| tokens.0.try_lock().is_some() && token.inode != 1);
        assert_eq!(tokens.count(), 1);
        assert!(tokens.get(Token { number: 7, inode: 1 }).is_some());
    }
}
