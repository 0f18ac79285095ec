//! Entries of an open directory: read ahead, and told from here as long as this process alone has the description.

use crate::core::STRANGE;
use crate::file::File;
use core::ops::ControlFlow;
use nvmed_fs::{DirEntry, FileType, FsError, Whence};
use nvmed_wire::{Answer, Call, SHELF_BYTES_AT_ONCE, entries, entry_bytes};
use rustix::io::Errno;

/// Bytes of entries that one call brings: what has a place on the shelf comes in one.
const ENTRIES_BYTES: u32 = SHELF_BYTES_AT_ONCE as u32;
/// Cookies of `.` and `..`, which come first, whatever their names are.
const DOTS: u64 = 2;

/// Entries read ahead, in order, as the wire has them.
#[derive(Debug, Default)]
pub(crate) struct Listing {
    bytes: Vec<u8>,
    /// The cookie before the first of them; none: nothing was read ahead.
    after: Option<u64>,
    /// Where the entry after the cookie `told` is.
    at: usize,
    told: u64,
    /// Whether there are no more behind them.
    last: bool,
    /// The shelf has told them, and the server knows nothing of it.
    shown: bool,
}

impl Listing {
    fn new(bytes: Vec<u8>, after: u64, last: bool, shown: bool) -> Self {
        Self { bytes, after: Some(after), at: 0, told: after, last, shown }
    }

    /// Goes to the entry after a cookie; whether it is here, or known that there is none.
    fn go_to(&mut self, cookie: u64) -> bool {
        if self.after.is_none_or(|after| cookie < after) {
            return false;
        }
        if cookie < self.told {
            (self.at, self.told) = (0, self.after.unwrap_or(0));
        }
        while self.told < cookie
            && let Some(entry) = self.next()
        {
            let (cookie, bytes) = (entry.cookie, entry_bytes(&entry));
            self.pass(cookie, bytes);
        }
        self.last || self.next().is_some()
    }

    fn next(&self) -> Option<DirEntry<'_>> {
        entries(&self.bytes[self.at..]).next()
    }

    fn pass(&mut self, cookie: u64, bytes: usize) {
        self.told = cookie;
        self.at += bytes;
    }
}

impl File {
    /// Tells entries from the current position on until `tell` breaks; an entry at which it breaks is
    /// told again next time. `.` and `..` come first.
    ///
    /// What was read ahead is told as it was then, until a seek to 0.
    ///
    /// # Errors
    /// As [`nvmed_fs::File::read_dir`].
    pub fn read_dir(&self, tell: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>) -> Result<(), FsError> {
        if !self.flags().reads() {
            return Err(FsError::BadDescriptor);
        }
        match self.with_offset(|cookie| self.tell_here(cookie, tell)) {
            Some(told) => told,
            None => self.tell_there(tell),
        }
    }

    fn tell_here(
        &self,
        cookie: &mut u64,
        tell: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>,
    ) -> Result<(), FsError> {
        let mut listing = self.listing.lock();
        loop {
            if !listing.go_to(*cookie) {
                *listing = self.read_ahead(*cookie)?;
            } else if self.core().answered(()).is_none() {
                return Err(FsError::Host(Errno::IO));
            }
            while let Some(entry) = listing.next() {
                let (next, bytes) = (entry.cookie, entry_bytes(&entry));
                if tell(entry).is_break() {
                    return Ok(());
                }
                listing.pass(next, bytes);
                *cookie = next;
            }
            if listing.last {
                return Ok(());
            }
        }
    }

    /// The entries after a cookie: all of them from the shelf, or what one call brings.
    fn read_ahead(&self, after: u64) -> Result<Listing, FsError> {
        if after == 0
            && self.holding.kind == FileType::Directory
            && let Some(bytes) = self.core().whole_shown(self.holding.ino)
        {
            return Ok(Listing::new(bytes, after, true, true));
        }
        let (bytes, last) = self.entries_there(Some(after))?;
        Ok(Listing::new(bytes, after, last, false))
    }

    /// Entries after a cookie, or from where the description stands, and whether there are no more.
    fn entries_there(&self, after: Option<u64>) -> Result<(Vec<u8>, bool), FsError> {
        let call = Call::ReadDir { handle: self.handle()?, after, bytes: ENTRIES_BYTES };
        let reply = self.core().call(&call)?;
        match reply.answer {
            Answer::Entries { last, bytes } if last || bytes > 0 => Ok((reply.to_vec(), last)),
            _ => Err(STRANGE),
        }
    }

    /// Another process may have the description too: where it stands is the server's affair.
    fn tell_there(&self, tell: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>) -> Result<(), FsError> {
        loop {
            let (bytes, last) = self.entries_there(None)?;
            for entry in entries(&bytes) {
                // A cookie counts entries.
                let before = entry.cookie.saturating_sub(1);
                if tell(entry).is_break() {
                    // The server has told more than was taken.
                    return self.seek_there(before as i64, Whence::Set).map(drop);
                }
            }
            if last {
                return Ok(());
            }
        }
    }

    /// Makes a cookie of what the shelf has told the server's own, before another process has the description too.
    ///
    /// # Errors
    /// The server's.
    pub(crate) fn to_servers_cookie(&self, cookie: &mut u64) -> Result<(), FsError> {
        let mut listing = self.listing.lock();
        if listing.shown
            && *cookie > DOTS
            && listing.go_to(*cookie - 1)
            && let Some(last) = listing.next().map(|entry| entry.name.to_vec())
        {
            match self.cookie_of(&last) {
                Ok(theirs) => *cookie = theirs,
                // It was removed, and has nothing more to tell from wherever it stands.
                Err(error) if error.errno() == Errno::NOENT => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// The cookie of the last entry that the server tells up to a name: entries come in the order of their names.
    fn cookie_of(&self, name: &[u8]) -> Result<u64, FsError> {
        let mut cookie = 0;
        loop {
            let (bytes, last) = self.entries_there(Some(cookie))?;
            for entry in entries(&bytes) {
                if entry.cookie > DOTS && entry.name > name {
                    return Ok(cookie);
                }
                cookie = entry.cookie;
            }
            if last {
                return Ok(cookie);
            }
        }
    }
}
