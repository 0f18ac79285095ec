//! A write cache that is lost with the process: a power cut is a SIGKILL.

use crate::media::{Media, PAGE_BYTES};
use nvmed_nvme::Status;
use nvmed_sys::{Mapping, Pages};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The unit that a power cut keeps or loses.
const SECTOR_BYTES: u64 = 512;
const PAGE: usize = PAGE_BYTES as usize;

/// A page with the sectors of it that were written since the last flush.
#[derive(Debug)]
struct Page {
    bytes: Box<[u8; PAGE]>,
    sectors: u8,
}

/// Everything since the last Flush or FUA, over an inner medium.
#[derive(Debug)]
pub(crate) struct Volatile {
    inner: Media,
    dirty: Mutex<Dirty>,
}

#[derive(Debug)]
struct Dirty {
    pages: BTreeMap<u64, Page>,
    /// A page on its way to the inner medium.
    stage: Mapping,
}

impl Volatile {
    pub fn new(inner: Media) -> Self {
        let stage = Mapping::anonymous(PAGE, Pages::Base).expect("a page of memory can be had");
        Self { inner, dirty: Mutex::new(Dirty { pages: BTreeMap::new(), stage }) }
    }

    pub fn bytes(&self) -> u64 {
        self.inner.bytes()
    }

    fn dirty(&self) -> MutexGuard<'_, Dirty> {
        self.dirty.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn read(&self, offset: u64, to: &Mapping, to_offset: usize, len: usize) -> Result<(), Status> {
        let dirty = self.dirty();
        self.inner.read(offset, to, to_offset, len)?;
        for (at, part) in sectors(offset, len as u64) {
            let Some(page) = dirty.pages.get(&(at / PAGE_BYTES)) else { continue };
            if page.sectors & bit(at) != 0 {
                let within = (at % PAGE_BYTES) as usize;
                to.write(to_offset + (at - offset) as usize, &page.bytes[within..within + part]);
            }
        }
        Ok(())
    }

    pub fn write(&self, offset: u64, from: &Mapping, from_offset: usize, len: usize) -> Result<(), Status> {
        let mut dirty = self.dirty();
        for (at, part) in sectors(offset, len as u64) {
            let source = from_offset + (at - offset) as usize;
            dirty.put(at, part, |into| from.read(source, into));
        }
        Ok(())
    }

    pub fn zero(&self, offset: u64, len: u64) -> Result<(), Status> {
        let mut dirty = self.dirty();
        for (at, part) in sectors(offset, len) {
            dirty.put(at, part, |into| into.fill(0));
        }
        Ok(())
    }

    pub fn flush(&self) -> Result<(), Status> {
        let mut dirty = self.dirty();
        let pages: Vec<u64> = dirty.pages.keys().copied().collect();
        for page in pages {
            dirty.drain(&self.inner, page, u8::MAX)?;
        }
        self.inner.flush()
    }

    pub fn flush_range(&self, offset: u64, len: u64) -> Result<(), Status> {
        let mut dirty = self.dirty();
        for (at, _) in sectors(offset, len) {
            dirty.drain(&self.inner, at / PAGE_BYTES, bit(at))?;
        }
        self.inner.flush_range(offset, len)
    }
}

impl Dirty {
    fn put(&mut self, at: u64, part: usize, fill: impl FnOnce(&mut [u8])) {
        let page = self
            .pages
            .entry(at / PAGE_BYTES)
            .or_insert_with(|| Page { bytes: Box::new([0; PAGE]), sectors: 0 });
        let within = (at % PAGE_BYTES) as usize;
        fill(&mut page.bytes[within..within + part]);
        page.sectors |= bit(at);
    }

    /// Moves the written sectors among `sectors` of a page to the inner medium.
    fn drain(&mut self, inner: &Media, number: u64, sectors: u8) -> Result<(), Status> {
        let Some(page) = self.pages.get_mut(&number) else { return Ok(()) };
        self.stage.write(0, &page.bytes[..]);
        for sector in 0..8u64 {
            if page.sectors & sectors & (1 << sector) != 0 {
                let within = sector * SECTOR_BYTES;
                inner.write(number * PAGE_BYTES + within, &self.stage, within as usize, SECTOR_BYTES as usize)?;
                page.sectors &= !(1 << sector);
            }
        }
        if page.sectors == 0 {
            self.pages.remove(&number);
        }
        Ok(())
    }
}

fn bit(at: u64) -> u8 {
    1 << (at % PAGE_BYTES / SECTOR_BYTES)
}

/// The sectors of a range of whole sectors: (offset, length).
fn sectors(offset: u64, len: u64) -> impl Iterator<Item = (u64, usize)> {
    debug_assert!(offset.is_multiple_of(SECTOR_BYTES) && len.is_multiple_of(SECTOR_BYTES), "whole sectors");
    (0..len / SECTOR_BYTES).map(move |index| (offset + index * SECTOR_BYTES, SECTOR_BYTES as usize))
}
