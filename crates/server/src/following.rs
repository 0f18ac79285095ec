//! Names that no call has asked for yet, on shelves: those that follow one that was asked for, where a program goes
//! through a directory (docs/spec/shelf.md, "What follows").

use crate::answer::Asker;
use crate::service::Service;
use crate::shelf::{ClassShelf, Question};
use nvmed_fs::versions::Trail;
use nvmed_fs::{self as fs, Follow, Node};
use nvmed_sys::sync::Arc;

/// Names that one call brings besides: what that takes is a small part of the calls that they spare, and little where
/// nobody asks for them.
const NAMES_AT_ONCE: usize = 32;
/// Who may list and search, as access(2) has it.
const LISTS: u32 = 4 | 1;

impl Service {
    /// Puts the names that follow the one in question on the shelf, up to the first that is there.
    pub(crate) fn show_following(&self, asker: &Asker<'_>, shelf: &Arc<ClassShelf>, question: &Question<'_>) {
        let Some((directory, name)) = self.directory_of(asker, shelf, question) else { return };
        let (files, who, follow) = (asker.session.files(), asker.who(), question.follow);
        // The shelf is the class's to read: it tells no names that the class may not list.
        if files.access(fs::Object::Held(&directory), LISTS, &who).is_err() {
            return;
        }
        for path in files.names_after(&directory, name, NAMES_AT_ONCE).unwrap_or_default() {
            if shelf.lock().shelf.has_name((directory.ino(), &path), follow) {
                return;
            }
            let mut trail = Trail::default();
            let found = files.trace(&directory, &path, follow, &who, &mut trail);
            let question = Question { at: &directory, path: &path, follow };
            self.show(asker, shelf, &question, (&found, &trail), false);
        }
    }

    /// The directory in which the last name in question is, and that name. How a path leads there is on the shelf then:
    /// clients look a path up in two parts too.
    fn directory_of<'a>(
        &self,
        asker: &Asker<'_>,
        shelf: &Arc<ClassShelf>,
        question: &Question<'a>,
    ) -> Option<(Node, &'a [u8])> {
        let Question { at, path, .. } = *question;
        let Some(cut) = path.iter().rposition(|byte| *byte == b'/') else {
            return Some((at.clone(), path));
        };
        let (path, name) = (&path[..cut], &path[cut + 1..]);
        if path.is_empty() || name.is_empty() {
            return None;
        }
        let mut trail = Trail::default();
        let found = asker.session.files().trace(at, path, Follow::Yes, &asker.who(), &mut trail);
        self.show(asker, shelf, &Question { at, path, follow: Follow::Yes }, (&found, &trail), false);
        Some((found.ok()?, name))
    }
}
