//! Each kind of check, fired by memory that this test spoils: the call ends, the file system is read-only, and what was
//! written before is there after the next mount.

#[path = "../tests/it/support/mod.rs"]
pub(crate) mod support;

use crate::blocks::alloc::Run;
use crate::{Credentials, File, FileSystem, FsError, OpenFlags, Trouble};
use nvmed_units::{Block, Page};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use support::Disk;

const WHO: &Credentials<'static> = &Credentials::ROOT;

fn open(files: &FileSystem, name: &str) -> Result<Arc<File>, FsError> {
    let flags = OpenFlags::READ_WRITE.with(OpenFlags::CREATE);
    files.open(&files.root(), name.as_bytes(), flags, 0o644, WHO)
}

fn written(files: &FileSystem, name: &str) -> Arc<File> {
    let file = open(files, name).unwrap();
    file.pwrite(name.repeat(3000).as_bytes(), 0).unwrap();
    file
}

/// Makes `call`, a mistake of ours, on a written file, and looks at what is left.
pub(crate) fn fired_by(says: &str, call: impl FnOnce(Arc<File>)) {
    fired(says, |_, _| (), call);
}

/// The first block for data.
fn first_block(of: &File) -> Run {
    Run { start: Block(of.core.meta.superblock.data_first), blocks: 1 }
}

/// Has `spoil` change memory under a written file, makes `call` on it, and looks at what is left.
fn fired(says: &str, spoil: impl FnOnce(&FileSystem, &File), call: impl FnOnce(Arc<File>)) {
    let disk = Disk::new(16 << 20);
    let files = disk.format().mount();
    written(&files, "synced").fsync().unwrap();
    drop(written(&files, "waiting"));
    let victim = written(&files, "victim");
    spoil(&files, &victim);
    assert!(files.guarded(|| call(victim)).is_none(), "the call has no answer: EIO");
    match files.trouble() {
        Some(Trouble::Broken(text)) => assert!(text.contains(says), "{text}"),
        other => panic!("{other:?}"),
    }
    assert!(matches!(open(&files, "new"), Err(FsError::ReadOnly)));
    // Data that waited is saved, and nothing that was is lost; the victim's own may be.
    let _ = files.guarded(|| files.unmount());
    drop(files);
    let files = disk.mount();
    for name in ["synced", "waiting"] {
        let mut bytes = vec![0; name.len() * 3000];
        assert_eq!(open(&files, name).unwrap().pread(&mut bytes, 0).unwrap(), bytes.len(), "{name}");
        assert!(bytes == name.repeat(3000).as_bytes(), "{name}");
    }
}

#[test]
fn blocks_promised_to_nobody() {
    let spoil = |files: &FileSystem, _: &File| files.core.meta.blocks.ledger.forget_promises();
    fired("promised blocks", spoil, |victim| drop(victim.fsync()));
}

#[test]
fn pages_promised_to_nobody() {
    let spoil = |_: &FileSystem, victim: &File| victim.inode.data.purse.forget_promises();
    fired("promised pages", spoil, |victim| drop(victim.fsync()));
}

#[test]
fn closed_more_often_than_opened() {
    let spoil = |_: &FileSystem, victim: &File| victim.inode.opens.store(0, Ordering::SeqCst);
    fired("was not open", spoil, drop);
}

#[test]
fn inodes_that_were_not_counted() {
    let spoil = |files: &FileSystem, victim: &File| {
        files.core.meta.inodes.forget_count();
        assert!(victim.inode.nlink() > 0);
    };
    fired("inodes in memory", spoil, |victim| victim.core.meta.inodes.remove(victim.inode.ino));
}

#[test]
fn an_inode_that_leaves_memory_while_it_is_open() {
    fired_by("leaves memory while it is open", |victim| victim.core.forget(&victim.inode));
}

#[test]
fn an_inode_that_is_removed_while_it_can_be_found() {
    fired_by("is removed and can be opened", |victim| {
        let _ = victim.core.remove_in_steps(&victim.inode);
    });
}

#[test]
fn a_new_directory_that_has_names() {
    fired_by("a new directory has 1 names", |victim| {
        let root = victim.core.root();
        let mut names = root.directory().unwrap().names_mut();
        names.clear();
        names.set_absent(b"name");
        names.begin_complete();
    });
}

#[test]
fn an_inode_of_another_type() {
    fired_by("an inode became one of another type", |victim| {
        let mut state = victim.inode.lock();
        let mut record = state.record().clone();
        record.mode = victim.core.root().mode();
        victim.inode.publish(&mut state, record);
    });
}

#[test]
fn a_change_that_leaves_edits_behind() {
    fired_by("the last change left the bitmap half changed", |victim| {
        let run = first_block(&victim);
        let mut change = victim.core.meta.change();
        change.use_run(run).unwrap();
        change.abandon();
        drop(victim.core.meta.change());
    });
}

#[test]
fn more_blocks_than_a_run_has() {
    fired_by("2 blocks of a run of 1 become used", |victim| {
        let run = first_block(&victim);
        let _ = victim.core.meta.change().use_some_of(run, 2);
    });
}

#[test]
fn a_mapping_that_was_not_counted() {
    use crate::bytes::Placement;
    fired_by("was not counted as mapped to be written", |victim| {
        let _held = victim.map(true).unwrap();
        victim.core.placed.pages().maps_written().store(0, Ordering::SeqCst);
        let _ = victim.unmap(true);
    });
}

#[test]
fn a_page_with_two_blocks() {
    use crate::extent::Extents;
    use nvmed_layout::record::Extent;
    fired_by("has a block already", |_| {
        let mut extents = Extents::default();
        let extent = Extent { logical: Page(3), physical: Block(100), blocks: 4, flags: 0 };
        extents.insert(extent);
        extents.insert(Extent { logical: Page(5), ..extent });
    });
}

#[test]
#[should_panic(expected = "a file has the blocks of its extents")]
fn a_file_with_more_blocks_than_it_counts() {
    use crate::extent::Extents;
    let mut extents = Extents::default();
    extents.insert(nvmed_layout::record::Extent {
        logical: Page(0),
        physical: Block(100),
        blocks: 4,
        flags: 0,
    });
    extents.forget_count();
    extents.cut(Page(0)..Page(4), drop);
}
