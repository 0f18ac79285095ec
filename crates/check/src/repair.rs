//! Repairing a file system that is not mounted: a plan first, then one change of the store, or a few.
//!
//! The whole of the metadata is read into memory and put right there; what then differs from the store is written:
//! first what is new or changed, then what goes. A power cut in between leaves something that another repair puts
//! right.

use crate::blocks::BlockCopy;
use crate::data::Data;
use crate::fsck::{Opened, open};
use crate::model::Model;
use core::ops::{Bound, ControlFlow};
use nvmed_io::{Binding, Device};
use nvmed_kv::{Barrier, Batch, DeviceMedium, Medium, Store};
use nvmed_layout::{LayoutError, LostCopy, copies, region};
use nvmed_sys::host_clock;
use nvmed_units::{BLOCK_BYTES, Block};
use std::collections::BTreeMap;
use std::sync::Arc;

/// What is wrong with a file system, and what is to be done about it.
pub struct Plan {
    lines: Vec<String>,
    unreadable: Vec<String>,
    opened: Opened,
    whole: DeviceMedium,
    /// Blocks that are copied before their new places are recorded.
    copies: Vec<BlockCopy>,
    puts: Vec<(Vec<u8>, Vec<u8>)>,
    deletes: Vec<Vec<u8>>,
}

impl core::fmt::Debug for Plan {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Plan").field("lines", &self.lines).finish_non_exhaustive()
    }
}

/// Reads the file system of a device that is not mounted, and works out how to put it right. Nothing is changed. The
/// data of the files that are to be put right is read as well: not all of it may be there to be had.
///
/// # Errors
/// It is no file system of ours, the device fails, or the metadata store itself is damaged: that is beyond a repair.
pub fn plan_repair(device: &Arc<Device>) -> Result<Plan, LayoutError> {
    let opened = open(device)?;
    let mut model = Model::new(opened.superblock.clone());
    let mut load = |key: &[u8], value: &[u8]| {
        model.load(key, value);
        ControlFlow::Continue(())
    };
    opened.store.verify_visiting(&mut load)?;
    model.join();
    model.fix_names(host_clock());
    model.remove_cut_links();
    let whole =
        DeviceMedium::new(device, device.handle(Binding::Spread), Block(0)..Block(opened.superblock.blocks))?;
    let mut data = Data::new(&whole);
    let (used, copies) = model.fix_blocks(&mut |block| data.gives(block));
    model.count_links();
    let mut wanted = model.encode(&used);
    let (mut puts, mut deletes) = (Vec::new(), Vec::new());
    let mut compare = |key: &[u8], value: &[u8]| {
        match wanted.remove(key) {
            None => deletes.push(key.to_vec()),
            Some(want) if want != value => puts.push((key.to_vec(), want)),
            Some(_) => {}
        }
        ControlFlow::Continue(())
    };
    opened.store.scan(Bound::Unbounded, Bound::Unbounded, &mut compare)?;
    puts.extend(wanted);
    let mut lines = core::mem::take(&mut model.plan);
    let flaws = opened.store.flaws().iter().cloned().map(LostCopy::Store);
    let copies_lost = opened.superblock_lost.iter().cloned().chain(flaws);
    lines.splice(0..0, copies_lost.map(|lost| format!("{lost}: it is written again from the other")));
    if lines.is_empty() && puts.len() + deletes.len() > 0 {
        lines.push("bitmap or counters differ from what is counted: they are written again".to_owned());
    }
    let unreadable = data.unreadable(&model, puts.iter().map(|(key, _)| key.as_slice()), &copies);
    Ok(Plan { lines, unreadable, opened, whole, copies, puts, deletes })
}

impl Plan {
    /// What is wrong, and what becomes of it: a line each. None: nothing is wrong.
    #[must_use]
    pub fn lines(&self) -> &[String] {
        &self.lines
    }

    /// The files among those that are put right whose data the device does not give whole: a line each, which names the
    /// file and says why. All others that are put right can be copied out.
    #[must_use]
    pub fn unreadable(&self) -> &[String] {
        &self.unreadable
    }

    /// Records that are to be written, and removed.
    #[must_use]
    pub fn records(&self) -> (usize, usize) {
        (self.puts.len(), self.deletes.len())
    }

    /// Does it. What was interrupted can be planned and done again.
    ///
    /// # Errors
    /// The device's; [`nvmed_kv::KvError::Full`] when the metadata region has no room for what is new.
    pub fn carry_out(self, device: &Arc<Device>) -> Result<(), LayoutError> {
        let handle = device.handle(Binding::Spread);
        let Self { opened, whole, copies, puts, deletes, .. } = self;
        if opened.superblock_lost.is_some() {
            copies::store(device, &handle, &opened.superblock)?;
        }
        if !opened.store.flaws().is_empty() {
            opened.store.mend()?;
        }
        if !copies.is_empty() {
            let mut block = vec![0; BLOCK_BYTES];
            for copy in copies {
                region::fetch(&whole, copy.from, &mut block)?;
                whole.write(copy.to, &block, false)?;
            }
            whole.flush()?;
        }
        if puts.is_empty() && deletes.is_empty() {
            return Ok(());
        }
        let store = &opened.store;
        let changes: BTreeMap<bool, Vec<Change>> = BTreeMap::from([
            (false, puts.into_iter().map(|(key, value)| (key, Some(value))).collect()),
            (true, deletes.into_iter().map(|key| (key, None)).collect()),
        ]);
        apply(store, changes.into_values().flatten())?;
        store.close()?;
        Ok(())
    }
}

/// A key, and its new value if it has one.
type Change = (Vec<u8>, Option<Vec<u8>>);

/// Applies changes in order, in as few batches as they fit.
fn apply(store: &Store, changes: impl Iterator<Item = Change>) -> Result<(), LayoutError> {
    let mut batch = Batch::new();
    // What is repaired may be all that can be had back: it uses the room kept for deleting, too.
    batch.use_headroom();
    let most = store.batch_bytes_max() / 2;
    for (key, value) in changes {
        match value {
            Some(value) => batch.put(&key, &value),
            None => batch.delete(&key),
        }
        if batch.bytes() > most {
            store.apply(&batch)?;
            batch.clear();
            batch.use_headroom();
        }
    }
    let last = store.apply(&batch)?;
    store.commit(last, Barrier::Before)?;
    Ok(())
}
