//! Names and files that no call has asked for yet, on shelves: those that follow one that was asked for, where a
//! program goes through a directory (docs/spec/shelf.md, "What follows").

use crate::answer::Asker;
use crate::service::Service;
use crate::session::{ClassShelf, Session};
use crate::shelf::{Brings, Question};
use crate::shown::Offer;
use crate::walk::Asked;
use nvmed_fs::versions::{Trail, Version};
use nvmed_fs::{self as fs, Credentials, FileType, Follow, FsError, Node, OpenFlags};
use nvmed_sys::sync::Arc;
use std::time::{Duration, Instant};

/// How long a call brings files before it is answered.
const BRINGS_BEFORE: Duration = Duration::from_micros(60);
/// Names that one call brings at most.
const NAMES_AT_ONCE: usize = 32;
/// Names that lie between two steps of a walk at most: others may have been answered without a call.
const NAMES_PASSED_MAX: usize = 8;
/// Files that one call brings with their bytes are at most so large; larger ones are worth calls of their own.
const FILE_BYTES_MAX: u64 = 32 << 10;
/// Who may list and search, as access(2) has it.
const LISTS: u32 = 4 | 1;

impl Service {
    /// A call has asked for the name at the end of a path, whose directory has the version `listed`, or has opened it:
    /// where that is a step of a walk through the directory, what follows there is put on the shelf next, while the
    /// process is at what it was answered.
    pub(crate) fn show_what_follows(
        &self,
        asker: &Asker<'_>,
        shelf: &Arc<ClassShelf>,
        last: &Question<'_>,
        listed: Option<Version>,
        opens: bool,
    ) {
        let Some(listed) = listed.filter(|_| self.spared.ahead) else { return };
        let (files, who, directory) = (asker.session.files(), asker.who(), last.at);
        // The shelf is the class's to read: it tells no names that the class may not list.
        let may_list = || files.access(fs::Object::Held(directory), LISTS, &who).is_ok();
        let asked = shelf.lock().walk(opens).asks(listed);
        let is_step = match &asked {
            Asked::Elsewhere => shelf.lock().walk(opens).goes_on(),
            Asked::Behind(before) => {
                let passed = || files.names_after(directory, before, NAMES_PASSED_MAX).unwrap_or_default();
                let is_step = **before < *last.path && passed().iter().any(|name| name == last.path);
                shelf.lock().walk(opens).was_step(is_step);
                is_step
            }
        };
        shelf.lock().walk(opens).is_at(listed, last.path);
        if is_step && may_list() {
            let names = files.names_after(directory, last.path, NAMES_AT_ONCE).unwrap_or_default();
            let (shelf, directory) = (Arc::clone(shelf), directory.clone());
            let (names, follow) = (names.into_iter(), last.follow);
            let brings = Brings { shelf, directory, listed, follow, names, opens };
            let before = asker.session.brings.lock().replace(brings);
            drop(before);
            // Names take little. Of files some come before the answer: then the process is at these while others come.
            let begun = Instant::now();
            while (!opens || begun.elapsed() < BRINGS_BEFORE) && self.bring_one(asker.session) {}
        }
    }

    /// Puts the next name on the shelf of those that follow where a session's process is; whether there may be more.
    pub(crate) fn bring_one(&self, session: &Session) -> bool {
        // Whoever has it is at the same.
        let Some(mut brings) = session.brings.try_lock() else { return false };
        let Some(last) = brings.as_mut() else { return false };
        let peer = session.peer();
        let asker = Asker { session, peer: &peer };
        let goes_on = last.shelf.is_of(&peer) && self.bring_next(&asker, last);
        if !goes_on {
            // A directory that is held no more may be the last of its inode.
            let done = brings.take();
            drop(brings);
            drop(done);
        }
        goes_on
    }

    /// Up to the first name that is there, and of files that are opened up to the first that may be already.
    fn bring_next(&self, asker: &Asker<'_>, brings: &mut Brings<Session>) -> bool {
        let Brings { shelf, directory, listed, follow, names, opens } = brings;
        let Some(path) = names.next() else { return false };
        if !*opens && shelf.lock().shelf.has_name((directory.ino(), &path), *follow) {
            return false;
        }
        let mut trail = Trail::default();
        let found = asker.session.files().trace(directory, &path, *follow, &asker.who(), &mut trail);
        let offer = match &found {
            _ if !*opens => Some(Offer::Status),
            Ok(node) if node.kind() == FileType::File => {
                if shelf.lock().keeps(node.ino()) {
                    return false;
                }
                Some(Offer::Open(self.whole(asker, shelf, node)))
            }
            _ => None,
        };
        if let Some(offer) = offer {
            let question = Question { at: directory, path: &path, follow: *follow };
            self.show(asker, shelf, &question, (&found, &trail), &offer);
        }
        shelf.lock().walk(*opens).is_at(*listed, &path);
        true
    }

    /// The bytes of a small file for the shelf, and its count before they were read; none for what is being changed, or
    /// is there. No program has read them: it is no access.
    pub(crate) fn whole(
        &self,
        asker: &Asker<'_>,
        shelf: &ClassShelf,
        node: &Node,
    ) -> Option<(Vec<u8>, Version)> {
        let size = node.stat().size;
        let is_small = node.kind() == FileType::File && size <= FILE_BYTES_MAX;
        if !self.spared.ahead || !is_small || node.version().is_none() {
            return None;
        }
        let version = self.bytes_to_show(node.ino())?;
        if shelf.lock().shelf.has_page(node.ino(), (version, size), 0) {
            return None;
        }
        // Whether the class may read it is looked at when it is put on the shelf.
        let who = Credentials::permitted(asker.peer.uid, asker.peer.gid);
        let flags = OpenFlags::READ.with(OpenFlags::NOATIME);
        let file = asker.session.files().open_node(node, flags, &who).ok()?;
        let mut bytes = vec![0; size as usize];
        let read = file.pread(&mut bytes, 0).ok()?;
        let is_same = read == bytes.len() && self.board.bytes_version(node.ino()) == Some(version);
        is_same.then_some((bytes, version))
    }

    /// The directory in which the last name in question is, and that name. How the path leads there, and what the name
    /// stands for there, is on the shelf then: clients look a path up in these two parts too.
    pub(crate) fn show_parts<'a>(
        &self,
        asker: &Asker<'_>,
        shelf: &Arc<ClassShelf>,
        question: &Question<'a>,
    ) -> Option<(Node, &'a [u8])> {
        let Question { at, path, follow } = *question;
        let Some(cut) = path.iter().rposition(|byte| *byte == b'/') else {
            return Some((at.clone(), path));
        };
        let (path, name) = (&path[..cut], &path[cut + 1..]);
        if path.is_empty() || name.is_empty() {
            return None;
        }
        let (mut above, mut trail) = (Trail::default(), Trail::default());
        let (files, who) = (asker.session.files(), asker.who());
        let directory = files.trace(at, path, Follow::Yes, &who, &mut above);
        put_name(shelf, &Question { at, path, follow: Follow::Yes }, &directory, &above);
        let directory = directory.ok()?;
        let last = Question { at: &directory, path: name, follow };
        put_name(shelf, &last, &files.trace(&directory, name, follow, &who, &mut trail), &trail);
        Some((directory, name))
    }
}

/// Puts on a shelf what was found at a path.
pub(crate) fn put_name(
    shelf: &ClassShelf,
    question: &Question<'_>,
    found: &Result<Node, FsError>,
    trail: &Trail,
) {
    let ino = match found {
        Ok(node) => Some(node.ino()),
        Err(FsError::NotFound) => None,
        Err(_) => return,
    };
    if let Some(versions) = trail.versions() {
        let asked = (question.at.ino(), question.path);
        let due = shelf.lock().shelf.put_name(asked, question.follow, ino, versions);
        if let Some(huge_page) = due {
            huge_page.gather();
        }
    }
}
