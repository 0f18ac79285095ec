//! What the asserts of pages say when a caller holds another file's lock, or asks for what nobody does.

use crate::broken_tests::fired_by;
use crate::bytes::{Bytes, Data, Placement};
use crate::inode::Inode;
use crate::map::Mappings;
use crate::pages::Pages;
use nvmed_sys::sync::Arc;
use nvmed_units::{ByteOffset, Page};

/// Makes `call` on the pages of a written file that is open once, with another inode at hand.
fn says(text: &str, call: impl FnOnce(&Pages, &Arc<Inode>, &Inode)) {
    fired_by(text, |victim| call(victim.core.placed.pages(), &victim.inode, &victim.core.root()));
}

#[test]
fn the_lock_of_another_file_is_no_right_to_grow() {
    says("is written under another's lock", |pages, inode, other| {
        let _ = pages.write_growing(&other.data.grow(), inode, b"bytes", ByteOffset::FIRST);
    });
    says("is zeroed under another's lock", |pages, inode, other| {
        let _ = pages.zero_tail(&other.data.grow(), inode, ByteOffset(100));
    });
    says("shrinks under another's lock", |pages, inode, other| {
        let _ = pages.cut(&other.data.grow(), inode, ByteOffset(100));
    });
    says("are gathered under another's lock", |pages, inode, other| {
        let _ = pages.gather(&other.data.grow(), inode, ByteOffset(0)..ByteOffset(100));
    });
}

#[test]
fn the_lock_of_another_file_is_no_right_to_its_blocks() {
    says("are forgotten under another's lock", |pages, inode, other| {
        let _ = pages.forget_clean(&other.data.io(), inode, Page(0)..Page(1));
    });
    says("is written back under another's lock", |pages, inode, other| {
        let _ = pages.write_back_some(&other.data.quiet(), inode, Page(0)..Page(1), 1, Data::Cached);
    });
}

#[test]
fn sizes_change_the_way_that_was_asked_for() {
    says("bytes grows to 1", |pages, inode, _| pages.grown(inode, ByteOffset(1)));
    says("bytes grows to", |pages, inode, _| pages.grown(inode, ByteOffset(crate::FILE_BYTES_MAX + 1)));
    says("is cut to 1000000", |pages, inode, _| {
        let _ = pages.cut(&inode.data.grow(), inode, ByteOffset(1_000_000));
    });
    says("no byte of 7..7 is missing", |pages, inode, _| {
        let _ = pages.bring(inode, None, ByteOffset(7)..ByteOffset(7));
    });
}

#[test]
fn a_frame_begins_where_a_block_fits() {
    says("a frame at offset 512", |pages, _, _| _ = pages.segment(512));
}

#[test]
fn an_inode_is_put_back_by_whoever_took_it() {
    says("is put back once", |pages, _, _| {
        let listed = pages.unrecorded.unlist(&|_| true).expect("a written file is listed");
        pages.unrecorded.forget_hands();
        pages.unrecorded.relist(listed, false);
    });
    says("is listed and says no", |pages, inode, _| {
        for listed in core::iter::from_fn(|| pages.unrecorded.unlist(&|_| true)).collect::<Vec<_>>() {
            pages.unrecorded.relist(listed, false);
        }
        inode.data.listed.store(false, core::sync::atomic::Ordering::SeqCst);
        while let Some(listed) = pages.unrecorded.unlist(&|_| true) {
            drop(listed);
        }
    });
}
