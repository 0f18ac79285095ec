//! Names that no call has asked for yet, on shelves: those that follow one that was asked for, where a program goes
//! through a directory (docs/spec/shelf.md, "What follows").

use crate::answer::Asker;
use crate::service::Service;
use crate::shelf::{ClassShelf, Question};
use nvmed_fs::versions::Trail;
use nvmed_fs::{self as fs, Follow, FsError, Node};
use nvmed_sys::sync::Arc;

/// Names that one call brings besides: what that takes is a small part of the calls that they spare, and little where
/// nobody asks for them.
const NAMES_AT_ONCE: usize = 32;
/// Who may list and search, as access(2) has it.
const LISTS: u32 = 4 | 1;

impl Service {
    /// Puts the names that follow one on the shelf, up to the first that is there.
    pub(crate) fn show_following(&self, asker: &Asker<'_>, shelf: &Arc<ClassShelf>, last: &Question<'_>) {
        let Question { at: directory, path: name, follow } = *last;
        let (files, who) = (asker.session.files(), asker.who());
        // The shelf is the class's to read: it tells no names that the class may not list.
        if files.access(fs::Object::Held(directory), LISTS, &who).is_err() {
            return;
        }
        for path in files.names_after(directory, name, NAMES_AT_ONCE).unwrap_or_default() {
            if shelf.lock().shelf.has_name((directory.ino(), &path), follow) {
                return;
            }
            let mut trail = Trail::default();
            let found = files.trace(directory, &path, follow, &who, &mut trail);
            let question = Question { at: directory, path: &path, follow };
            self.show(asker, shelf, &question, (&found, &trail), false);
        }
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
        shelf.lock().shelf.put_name((question.at.ino(), question.path), question.follow, ino, versions);
    }
}
