//! What is on its way in messages (SCM_RIGHTS): each thing held by a token, until nobody has the token any more.

use crate::hold::{Held, Thing};
use crate::service::lock;
use nvmed_fs::FsError;
use nvmed_wire::Token;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use std::collections::HashMap;
use std::sync::Mutex;

/// Tokens that one session may have on their way; the kernel bounds descriptors in messages much lower (`RLIMIT_NOFILE`).
const TOKENS_MAX: usize = 4096;

struct Sent {
    held: Held,
    /// The session that sent it.
    by: u64,
}

/// All tokens on their way.
#[derive(Default)]
pub(crate) struct Tokens(Mutex<HashMap<Token, Sent>>);

impl Tokens {
    /// A token for `thing`, sent by session `by`: its descriptor, which the session gets.
    ///
    /// # Errors
    /// `ETOOMANYREFS` past the limit, as the kernel answers; the host has no descriptor left.
    pub fn send(&self, thing: Thing, by: u64) -> Result<OwnedFd, FsError> {
        let mut tokens = lock(&self.0);
        if tokens.values().filter(|sent| sent.by == by).count() >= TOKENS_MAX {
            return Err(FsError::Host(Errno::TOOMANYREFS));
        }
        let (token, fd) = Token::make()?;
        tokens.insert(token, Sent { held: Held::new(thing), by });
        Ok(fd)
    }

    /// What a token stands for. It stays until nobody has it: a message may be received more than once (MSG_PEEK), and a
    /// descriptor be sent on.
    pub fn get(&self, token: Token) -> Option<Thing> {
        lock(&self.0).get(&token).map(|sent| sent.held.thing())
    }

    /// Lets go of what nobody can receive any more.
    pub fn sweep(&self) {
        let mut tokens = lock(&self.0);
        let free: Vec<Token> = tokens.keys().filter(|token| token.is_free() == Ok(true)).copied().collect();
        let gone: Vec<_> = free.iter().filter_map(|token| tokens.remove(token)).collect();
        // Closing may free a file's blocks: not while others wait.
        drop(tokens);
        drop(gone);
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        lock(&self.0).len()
    }
}
