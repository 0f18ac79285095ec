//! What the records of files do not tell yet: which files have something to write, oldest first, and sizes that are
//! newer than their records, in the memory that outlives the process.
//!
//! Whatever holds the bytes of files has one of these: it lists what changed, and says what is recorded.

use crate::inode::Inode;
use crate::memory::{Memory, Slots};
use crate::metadata::Metadata;
use core::sync::atomic::Ordering;
use nvmed_layout::record::Extent;
use nvmed_sys::sync::{Arc, Mutex, MutexGuard};
use nvmed_units::ByteOffset;
use std::collections::VecDeque;

/// Entries of the list between two looks for inodes that are clean again.
const LIST_SLACK: usize = 4096;

/// Files that have something to write, and sizes that no record has.
pub(crate) struct Unrecorded {
    meta: Arc<Metadata>,
    slots: Slots,
    list: Mutex<List>,
}

#[derive(Default)]
struct List {
    inodes: VecDeque<Listed>,
    /// Taken off it by who writes them back at this moment.
    in_hands: Vec<(u64, Arc<Inode>)>,
    /// The number that the next one listed gets.
    next: u64,
    purge_at: usize,
}

/// An inode that has something to write, in the hands of who writes it.
pub(crate) struct Listed {
    pub(crate) inode: Arc<Inode>,
    since_ns: i64,
    /// Those listed before have lower ones.
    number: u64,
}

impl Unrecorded {
    /// Nothing yet, with the slots of a mount's memory.
    pub(crate) fn new(meta: &Arc<Metadata>, memory: &Memory) -> Self {
        Self { meta: Arc::clone(meta), slots: Slots::new(memory), list: Mutex::default() }
    }

    /// Whether nothing of the inode waits to be written.
    pub(crate) fn is_clean(&self, inode: &Inode) -> bool {
        let data = &inode.data;
        !data.listed.load(Ordering::SeqCst) && !self.has(inode) && !data.mapped.load(Ordering::SeqCst)
    }

    /// Whether the device lacks pages of the inode, or its record the size.
    #[inline]
    pub(crate) fn has(&self, inode: &Inode) -> bool {
        let data = &inode.data;
        data.object.dirty_pages() > 0 || data.exposed.load(Ordering::SeqCst) || data.slot.lock().tells()
    }
}

/// Sizes.
impl Unrecorded {
    /// Makes a file end at `end`, in the memory that outlives the process too, with where its `fresh` blocks are.
    #[inline]
    pub(crate) fn set_size(&self, inode: &Arc<Inode>, end: ByteOffset, fresh: Option<&Extent>) {
        let (data, size) = (&inode.data, end.0);
        let mtime = inode.times_ns()[1];
        let shift = fresh.map(|fresh| fresh.physical.0.wrapping_sub(fresh.logical.0));
        let mut slot = data.slot.lock();
        let is_told = self.slots.tell(&mut slot, inode.ino, size, mtime, shift);
        inode.counted(|| inode.size.store(size, Ordering::Release));
        if !is_told {
            data.exposed.store(true, Ordering::SeqCst);
        }
        drop(slot);
        self.list(inode);
    }

    /// Makes a file end at `end`, as its record says already.
    pub(crate) fn set_recorded_size(&self, inode: &Inode, end: ByteOffset) {
        let mut slot = inode.data.slot.lock();
        inode.counted(|| inode.size.store(end.0, Ordering::Release));
        self.slots.hush(&mut slot, false);
        inode.data.exposed.store(false, Ordering::SeqCst);
    }

    /// The record has the size `recorded`: if that is the size, the memory need not keep it.
    pub(crate) fn size_recorded(&self, inode: &Inode, recorded: u64) {
        let mut slot = inode.data.slot.lock();
        if inode.size.load(Ordering::Acquire) == recorded {
            // Who appends and syncs will do it again.
            let keep = inode.synced.load(Ordering::Relaxed) && inode.opens.load(Ordering::SeqCst) > 0;
            self.slots.hush(&mut slot, keep);
            inode.data.exposed.store(false, Ordering::SeqCst);
        }
    }

    /// The inode leaves memory, or the device: nobody asks for its size any more.
    pub(crate) fn forget(&self, inode: &Inode) {
        self.slots.hush(&mut inode.data.slot.lock(), false);
        inode.data.exposed.store(false, Ordering::SeqCst);
    }

    /// The last description of the file is being closed: it keeps no slot.
    pub(crate) fn closing(&self, inode: &Inode) {
        let mut slot = inode.data.slot.lock();
        if !slot.tells() {
            self.slots.hush(&mut slot, false);
        }
    }
}

/// The list.
impl Unrecorded {
    fn lock(&self) -> MutexGuard<'_, List> {
        self.list.lock()
    }

    /// Nobody has an inode in hands, as a mistake of ours would leave it.
    #[cfg(test)]
    pub(crate) fn forget_hands(&self) {
        self.lock().in_hands.clear();
    }

    /// How many inodes are listed.
    pub(crate) fn len(&self) -> usize {
        self.lock().inodes.len()
    }

    /// The number that the next inode listed gets.
    pub(crate) fn next(&self) -> u64 {
        self.lock().next
    }

    /// Inodes with a lower number that are still listed, or in somebody's hands.
    pub(crate) fn left_of(&self, number: u64) -> Vec<Arc<Inode>> {
        let list = self.lock();
        let listed = list.inodes.iter().map(|listed| (listed.number, &listed.inode));
        let in_hands = list.in_hands.iter().map(|(number, inode)| (*number, inode));
        let left = listed.chain(in_hands).filter(|(own, _)| *own < number);
        left.map(|(_, inode)| Arc::clone(inode)).collect()
    }

    /// An inode has something to write.
    #[inline]
    pub(crate) fn list(&self, inode: &Arc<Inode>) {
        if !inode.data.listed.swap(true, Ordering::SeqCst) {
            self.list_new(inode);
        }
    }

    fn list_new(&self, inode: &Arc<Inode>) {
        let since_ns = self.meta.now_ns();
        let mut list = self.lock();
        let number = list.next;
        list.next += 1;
        list.inodes.push_back(Listed { inode: Arc::clone(inode), since_ns, number });
        if list.inodes.len() > list.purge_at + LIST_SLACK {
            let purged = self.purge(&mut list);
            drop(list);
            // Outside: the last reference to an inode may go with it.
            drop(purged);
        }
    }

    /// Takes inodes that were synced meanwhile off the list.
    fn purge(&self, list: &mut List) -> Vec<Listed> {
        let all = core::mem::take(&mut list.inodes);
        let mut clean = Vec::new();
        for listed in all {
            if self.stays_listed(&listed.inode) {
                list.inodes.push_back(listed);
            } else {
                clean.push(listed);
            }
        }
        list.purge_at = list.inodes.len();
        clean
    }

    /// Whether an inode that counts as listed has something to write; else it does not count as listed any more.
    fn stays_listed(&self, inode: &Inode) -> bool {
        self.has(inode) || {
            // One that becomes dirty from here on lists itself anew.
            inode.data.listed.store(false, Ordering::SeqCst);
            self.has(inode) && !inode.data.listed.swap(true, Ordering::SeqCst)
        }
    }

    /// The first listed inode, if it was listed in a time that `due` accepts; it counts as listed until
    /// [`Unrecorded::relist`].
    pub(crate) fn unlist(&self, due: &dyn Fn(i64) -> bool) -> Option<Listed> {
        self.unlist_at(|list| list.inodes.front().is_some_and(|listed| due(listed.since_ns)).then_some(0))
    }

    /// As [`Unrecorded::unlist`], for a writer who needs room: what urgent callers make durable themselves comes when
    /// there is nothing else, since they would wait for who is at it.
    pub(crate) fn unlist_unspared(&self, or_spared: bool) -> Option<Listed> {
        let spared = |listed: &Listed| listed.inode.data.spared.load(Ordering::Relaxed);
        let last = or_spared.then_some(0);
        self.unlist_at(|list| list.inodes.iter().position(|listed| !spared(listed)).or(last))
    }

    fn unlist_at(&self, place: impl Fn(&List) -> Option<usize>) -> Option<Listed> {
        let mut list = self.lock();
        let at = place(&list)?;
        let listed = list.inodes.remove(at)?;
        let inode = &listed.inode;
        assert!(inode.data.listed.load(Ordering::SeqCst), "inode {} is listed and says no", inode.ino);
        list.in_hands.push((listed.number, Arc::clone(&listed.inode)));
        Some(listed)
    }

    /// Lets go of an inode, and puts it back if it has more to write: in front with `first`, else at the end.
    pub(crate) fn relist(&self, listed: Listed, first: bool) {
        let mut list = self.lock();
        let in_hands = list.in_hands.len();
        list.in_hands.retain(|(number, _)| *number != listed.number);
        assert_eq!(list.in_hands.len() + 1, in_hands, "inode {} is put back once", listed.inode.ino);
        if self.stays_listed(&listed.inode) {
            if first { list.inodes.push_front(listed) } else { list.inodes.push_back(listed) }
        } else {
            drop(list);
            // Outside: it may be the last reference.
            drop(listed);
        }
    }
}
