//! A write cache that is lost with the process: a power cut is a SIGKILL.

use crate::media::Media;
use nvmed_image::Identity;
use nvmed_image::MediaError;
use nvmed_image::{PAGE_BYTES, Span};
use nvmed_nvme::Status;
use nvmed_sys::sync::Mutex;
use nvmed_sys::{Mapping, Pages};
use std::collections::BTreeMap;
use std::ops::Range;

/// The unit that a power cut keeps or loses.
const SECTOR: usize = 512;
const PAGE: usize = PAGE_BYTES as usize;
const SECTORS: usize = PAGE / SECTOR;

/// A page with the sectors of it that were written since the last flush.
#[derive(Debug)]
struct Page {
    /// `None` when all of these sectors are zeroes, so that discarding a whole device costs no memory of its size.
    bytes: Option<Box<[u8; PAGE]>>,
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

    pub fn identity(&self) -> Identity {
        self.inner.identity()
    }

    pub fn bytes(&self) -> u64 {
        self.inner.bytes()
    }

    pub fn room(&self) -> u64 {
        self.inner.room()
    }

    /// Changes the size; what was not flushed beyond a smaller one is gone.
    pub fn resize(&self, bytes: u64) -> Result<(), MediaError> {
        let mut dirty = self.dirty.lock();
        dirty.pages.split_off(&(bytes / PAGE_BYTES));
        self.inner.resize(bytes)
    }

    /// Reads any range; what is dirty lies over the inner medium.
    pub fn read(&self, offset: u64, to: &Mapping, to_offset: usize, len: usize) -> Result<(), Status> {
        let dirty = self.dirty.lock();
        self.inner.read(offset, to, to_offset, len)?;
        for (number, within) in pages(Span::new(offset, len)) {
            let Some(page) = dirty.pages.get(&number) else { continue };
            let base = to_offset + (number * PAGE_BYTES + within.start as u64 - offset) as usize;
            for run in page.runs(u8::MAX) {
                let (begin, end) = (run.start.max(within.start), run.end.min(within.end));
                if begin >= end {
                    continue;
                }
                match &page.bytes {
                    Some(bytes) => to.write(base + begin - within.start, &bytes[begin..end]),
                    None => to.fill(base + begin - within.start, end - begin, 0),
                }
            }
        }
        Ok(())
    }

    /// Writes whole sectors.
    pub fn write(&self, offset: u64, from: &Mapping, from_offset: usize, len: usize) {
        let mut dirty = self.dirty.lock();
        for (number, within) in pages(Span::new(offset, len)) {
            let source = from_offset + (number * PAGE_BYTES + within.start as u64 - offset) as usize;
            let page = dirty.pages.entry(number).or_insert(Page { bytes: None, sectors: 0 });
            let bytes = page.bytes.get_or_insert_with(|| Box::new([0; PAGE]));
            from.read(source, &mut bytes[within.clone()]);
            page.sectors |= mask(&within);
        }
    }

    /// Zeroes whole sectors.
    pub fn zero(&self, span: Span) {
        let mut dirty = self.dirty.lock();
        for (number, within) in pages(span) {
            let page = dirty.pages.entry(number).or_insert(Page { bytes: None, sectors: 0 });
            if within.len() == PAGE {
                page.bytes = None;
            } else if let Some(bytes) = &mut page.bytes {
                bytes[within.clone()].fill(0);
            }
            page.sectors |= mask(&within);
        }
    }

    pub fn flush(&self) -> Result<(), Status> {
        let mut dirty = self.dirty.lock();
        while let Some((&number, page)) = dirty.pages.first_key_value() {
            if page.bytes.is_none() && page.sectors == u8::MAX {
                dirty.drain_zeroes(&self.inner, number)?;
            } else {
                dirty.drain(&self.inner, number, u8::MAX)?;
            }
        }
        self.inner.flush()
    }

    /// Flushes the sectors of a range, and no other.
    pub(crate) fn flush_range(&self, span: Span) -> Result<(), Status> {
        let mut dirty = self.dirty.lock();
        for (number, within) in pages(span) {
            dirty.drain(&self.inner, number, mask(&within))?;
        }
        self.inner.flush_range(span)
    }
}

impl Page {
    /// Byte ranges of the written sectors among `sectors`, neighbours together.
    fn runs(&self, sectors: u8) -> impl Iterator<Item = Range<usize>> + use<> {
        let wanted = self.sectors & sectors;
        let has = move |sector: usize| sector < SECTORS && wanted >> sector & 1 != 0;
        let mut sector = 0;
        std::iter::from_fn(move || {
            let begin = (sector..SECTORS).find(|&sector| has(sector))?;
            let end = (begin..=SECTORS).find(|&sector| !has(sector))?;
            sector = end;
            Some(begin * SECTOR..end * SECTOR)
        })
    }
}

impl Dirty {
    /// Moves the written sectors among `sectors` of a page to the inner medium.
    fn drain(&mut self, inner: &Media, number: u64, sectors: u8) -> Result<(), Status> {
        let Some(page) = self.pages.get_mut(&number) else { return Ok(()) };
        if let Some(bytes) = &page.bytes {
            self.stage.write(0, &bytes[..]);
        }
        for run in page.runs(sectors) {
            let at = number * PAGE_BYTES + run.start as u64;
            match page.bytes {
                Some(_) => inner.write(at, &self.stage, run.start, run.len())?,
                None => inner.zero(Span::new(at, run.len()), true)?,
            }
            page.sectors &= !mask(&run);
        }
        if page.sectors == 0 {
            self.pages.remove(&number);
        }
        Ok(())
    }

    /// Moves the run of wholly zero pages that begins with `first` to the inner medium, in one step.
    fn drain_zeroes(&mut self, inner: &Media, first: u64) -> Result<(), Status> {
        let zero = |page: &Page| page.bytes.is_none() && page.sectors == u8::MAX;
        let run = self.pages.range(first..).zip(first..);
        let count = run.take_while(|((at, page), expected)| *at == expected && zero(page)).count() as u64;
        inner.zero(Span { offset: first * PAGE_BYTES, bytes: count * PAGE_BYTES }, true)?;
        for number in first..first + count {
            self.pages.remove(&number);
        }
        Ok(())
    }
}

/// The sectors of a range within a page.
fn mask(within: &Range<usize>) -> u8 {
    debug_assert!(within.start.is_multiple_of(SECTOR) && within.end.is_multiple_of(SECTOR), "whole sectors");
    let bits = |sectors: usize| (1u16 << sectors) - 1;
    (bits(within.end / SECTOR) & !bits(within.start / SECTOR)) as u8
}

/// A range, page by page: page number, bytes within the page.
fn pages(span: Span) -> impl Iterator<Item = (u64, Range<usize>)> {
    let end = span.end();
    let mut at = span.offset;
    std::iter::from_fn(move || {
        let number = at / PAGE_BYTES;
        let stop = end.min((number + 1) * PAGE_BYTES);
        let within = (at % PAGE_BYTES) as usize..(stop - number * PAGE_BYTES) as usize;
        (at < end).then(|| {
            at = stop;
            (number, within)
        })
    })
}
