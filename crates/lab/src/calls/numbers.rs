//! Numbers of open files in the calls of a trace.

use nvmed_trace::{FileAction, FileCall, FileNumber, FileObject};
use std::collections::HashMap;

/// The open files that a call is about.
pub(super) fn mentioned(action: &FileAction) -> [Option<FileNumber>; 2] {
    use FileAction as Do;
    let object = |object: &FileObject| match object {
        FileObject::Open(file) => Some(*file),
        FileObject::Named(path) => path.from,
    };
    match action {
        Do::Open { file, path, .. } | Do::OpenDirectory { file, path } => [Some(*file), path.from],
        Do::Close(file) | Do::List(file) => [Some(*file), None],
        Do::Read { file, .. } | Do::Write { file, .. } | Do::Seek { file, .. } => [Some(*file), None],
        Do::Sync { file, .. } | Do::SyncRange { file, .. } | Do::Allocate { file, .. } => [Some(*file), None],
        Do::Resize { object: which, .. } | Do::SetMode { object: which, .. } => [object(which), None],
        Do::Look(which) | Do::Touch(which) => [object(which), None],
        Do::Copy { from, to, .. } => [from.map(|(file, _)| file), to.map(|(file, _)| file)],
        Do::Remove { path, .. } | Do::MakeDirectory { path, .. } | Do::MakeFile { path, .. } => {
            [path.from, None]
        }
        Do::Symlink { path, .. } => [path.from, None],
        Do::Rename { from, to, .. } | Do::Link { from, to } => [from.from, to.from],
        _ => [None, None],
    }
}

/// Gives each open a number of its own, where the numbers are descriptors.
pub(super) fn renumber(calls: &mut [(u64, FileCall)]) {
    use FileAction as Do;
    let (mut open, mut next): (HashMap<FileNumber, FileNumber>, FileNumber) = (HashMap::new(), 0);
    for (_, FileCall { action, .. }) in calls {
        let (opens, closes) = (matches!(action, Do::Open { .. }), matches!(action, Do::Close(_)));
        let (Do::Open { file, .. }
        | Do::Read { file, .. }
        | Do::Write { file, .. }
        | Do::Sync { file, .. }
        | Do::Close(file)
        | Do::Look(FileObject::Open(file))) = action
        else {
            continue;
        };
        let (descriptor, known) = (*file, open.get(file).copied().filter(|_| !opens));
        *file = known.unwrap_or_else(|| fresh(&mut next));
        if closes {
            open.remove(&descriptor);
        } else {
            open.insert(descriptor, *file);
        }
    }
}

fn fresh(next: &mut FileNumber) -> FileNumber {
    *next = next.wrapping_add(1);
    *next
}
