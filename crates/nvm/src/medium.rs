//! Where a medium's bytes are, and how they get there: a file or memory, without a record and without a buffer.

use crate::cut::Listener;
use crate::dirty::Dirty;
use crate::error::NvmError;
use crate::instructions::{self, WriteBack};
use crate::ram::Ram;
use nvmed_image::{
    FileOptions, Flush, Identity, Image, MediaError, Owed, Piece, Span, SyncCall, check_maps, check_size,
};
use nvmed_nvme::Status;
use nvmed_sys::sync::{Arc, OnceLock};
use nvmed_sys::{Mapping, QuietFd};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

/// From this length on, giving pages back is cheaper than filling them, whose memory it also frees.
const RELEASE_BYTES: u64 = 128 << 10;
/// Bytes of a granule that the host is told of.
const GRANULE_BYTES: u64 = 64 << 10;

/// Where a fence leaves what was settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlushTo {
    /// The host's stable storage: a fence also syncs what was stored since the last one.
    Host,
    /// The host's page cache: a fence makes no call. What a process stored outlives it, not the host.
    Process,
    /// The medium itself, which a DAX mapping is (`MAP_SYNC`): a fence makes no call.
    Dax,
}

/// Where the bytes are.
#[derive(Clone, Debug)]
pub enum Place {
    /// In a file, which has no header: any image of a device is one.
    File {
        /// Its path.
        path: PathBuf,
        /// Make the file, or grow it, to this many bytes; `None` takes it as it is.
        size: Option<u64>,
        /// Keep other processes out.
        lock: bool,
    },
    /// In memory that goes with its last user (a memfd).
    Ram {
        /// How many.
        bytes: u64,
    },
    /// In memory that the caller has mapped, all of it: a simulator's.
    Mapped {
        /// The memory.
        memory: Arc<Mapping>,
    },
    /// In such memory that another process made and holds: it outlives this one.
    Held {
        /// The holder's descriptor, as `/proc/PID/fd/N`.
        path: PathBuf,
        /// How many of its bytes.
        bytes: u64,
    },
}

/// How to open a medium.
#[derive(Clone, Debug)]
pub struct MemoryOptions {
    /// Where its bytes are.
    pub place: Place,
    /// Where a fence leaves them; of memory that goes with its user nothing is left anyway.
    pub flush: FlushTo,
}

/// Bytes in memory.
#[derive(Debug)]
enum Bytes {
    File(Box<Image>),
    Ram(Ram),
}

/// The bytes of a medium.
#[derive(Debug)]
pub(crate) struct Medium {
    /// For messages.
    name: String,
    bytes: Bytes,
    flush: FlushTo,
    pub(crate) write_back: WriteBack,
    /// What the host must be told of by the next fence.
    dirty: Dirty,
    /// No fence has synced the whole file yet: what an earlier process stored and never fenced is in no note.
    inherited: AtomicBool,
    /// The bytes as programs map them, to be read, and to be stored to; opened at the first use, none where that fails.
    maps: [OnceLock<Option<Arc<QuietFd>>>; 2],
    /// Whom it is told that the file was cut short.
    pub(crate) cut: Listener,
}

impl Medium {
    /// Opens or makes a medium.
    ///
    /// # Errors
    /// [`NvmError`] says what is wrong with the file, and what to do.
    pub(crate) fn open(options: MemoryOptions) -> Result<Self, NvmError> {
        let MemoryOptions { place, flush } = options;
        let write_back = WriteBack::of_processor();
        let name = match &place {
            Place::File { path, .. } | Place::Held { path, .. } => path.display().to_string(),
            Place::Ram { .. } | Place::Mapped { .. } => "memory".to_owned(),
        };
        let bytes = match place {
            Place::File { path, .. } if flush == FlushTo::Dax && !write_back.reaches_medium() => {
                return Err(NvmError::Processor { path: path.display().to_string() });
            }
            Place::File { path, size, lock } => {
                let options = FileOptions { path, size, flush: Flush::Process, lock };
                let image =
                    if flush == FlushTo::Dax { Image::open_direct(options) } else { Image::open(options) };
                Bytes::File(Box::new(image?))
            }
            Place::Ram { bytes } => Bytes::Ram(Ram::new(bytes)?),
            Place::Mapped { memory } => Bytes::Ram(Ram::mapped(memory)),
            Place::Held { path, bytes } => {
                check_size("memory", bytes)?;
                let fail = |errno| NvmError::Holder { path: path.display().to_string(), errno };
                Bytes::Ram(Ram::held(&path, bytes).map_err(fail)?)
            }
        };
        let size = match &bytes {
            Bytes::File(image) => image.bytes(),
            Bytes::Ram(ram) => ram.bytes,
        };
        let dirty =
            Dirty::new(size, GRANULE_BYTES).map_err(|errno| MediaError::Memory { bytes: size, errno })?;
        let inherited = AtomicBool::new(true);
        Ok(Self {
            name,
            bytes,
            flush,
            write_back,
            dirty,
            inherited,
            maps: Default::default(),
            cut: Listener::default(),
        })
    }

    /// What the image answers; a failure may be one of a file that was cut short.
    #[inline]
    fn told<T>(&self, image: &Image, answer: Result<T, Status>) -> Result<T, Status> {
        answer.inspect_err(|_| self.cut.failed(image, &self.name))
    }

    /// Size in bytes.
    #[must_use]
    pub(crate) fn bytes(&self) -> u64 {
        match &self.bytes {
            Bytes::File(image) => image.bytes(),
            Bytes::Ram(ram) => ram.bytes,
        }
    }

    /// Where there are bytes already: what of a file is no hole, and what somebody else has put into memory.
    pub(crate) fn filled(&self) -> Vec<Span> {
        let mut end = 0;
        let mut all = |next: &dyn Fn(u64) -> Option<Span>| {
            std::iter::from_fn(|| next(end).inspect(|data| end = data.end())).collect()
        };
        match &self.bytes {
            Bytes::File(image) => all(&|from| image.data_from(from)),
            Bytes::Ram(ram) => all(&|from| ram.data_from(from)),
        }
    }

    /// Where a fence leaves what was settled.
    #[must_use]
    pub(crate) fn flush(&self) -> FlushTo {
        self.flush
    }

    /// Whether the bytes outlive this process.
    #[must_use]
    pub(crate) fn is_file(&self) -> bool {
        matches!(self.bytes, Bytes::File(_))
    }

    /// The file that its bytes are, at the same offsets, if it has one.
    fn file(&self) -> Option<BorrowedFd<'_>> {
        match &self.bytes {
            Bytes::File(image) => Some(image.as_fd()),
            Bytes::Ram(ram) => ram.stores.backing().filter(|(_, offset)| *offset == 0).map(|(file, _)| file),
        }
    }

    /// What tells it from other media.
    pub(crate) fn identity(&self) -> Identity {
        match &self.bytes {
            Bytes::File(image) => image.identity(),
            Bytes::Ram(_) => Identity::drawn(),
        }
    }

    /// See [`crate::Memory::descriptor`].
    pub(crate) fn descriptor(&self, write: bool) -> Option<Arc<QuietFd>> {
        if matches!(&self.bytes, Bytes::File(image) if image.is_cut()) {
            return None;
        }
        let made = self.maps[usize::from(write)].get_or_init(|| {
            let again = self.open_again(write)?;
            // Nobody else opens it while a mapping is left, also of a child that outlives this process.
            nvmed_sys::hold(&again).ok()?;
            Some(Arc::new(QuietFd::new(again)))
        });
        made.clone()
    }

    /// A description of its own, which lives as long as some process has a mapping of it.
    pub(crate) fn open_again(&self, write: bool) -> Option<OwnedFd> {
        let access = if write { OFlags::RDWR } else { OFlags::RDONLY };
        let path = format!("/proc/self/fd/{}", self.file()?.as_raw_fd());
        rustix::fs::open(path, access | OFlags::CLOEXEC, Mode::empty()).ok()
    }

    /// See [`crate::Memory::check_maps`].
    pub(crate) fn check_maps(&self) -> Result<(), NvmError> {
        match &self.bytes {
            Bytes::File(image) => Ok(check_maps(image.as_fd(), &self.name)?),
            Bytes::Ram(ram) => match ram.stores.backing() {
                Some((fd, _)) => Ok(check_maps(fd, &self.name)?),
                None => Ok(()),
            },
        }
    }

    /// See [`crate::Memory::note_mapped`].
    pub(crate) fn note_mapped(&self, span: Span) {
        if self.flush != FlushTo::Process && self.is_file() {
            instructions::drain();
            self.dirty.mark(span);
        }
    }

    /// Gives a range to `take`, piece by piece, each with how much was before it; what is given twice counts as it is
    /// given last.
    ///
    /// # Errors
    /// The host cannot read it, or the file was cut short.
    #[inline]
    pub(crate) fn load(&self, span: Span, mut take: impl FnMut(usize, Piece<'_>)) -> Result<(), Status> {
        match &self.bytes {
            Bytes::File(image) => self.told(image, image.load(span, take)),
            Bytes::Ram(ram) => {
                let (at, bytes) = (span.offset as usize, span.bytes as usize);
                take(0, Piece::Memory { memory: &ram.reads, at, bytes });
                Ok(())
            }
        }
    }

    /// The memory of a range, if it can be copied from at once ([`Image::present`]).
    #[inline]
    pub(crate) fn present(&self, span: Span) -> Option<&Mapping> {
        match &self.bytes {
            Bytes::File(image) => image.present(span),
            Bytes::Ram(ram) => (span.end() <= ram.bytes).then_some(&ram.reads),
        }
    }

    /// The memory of a range, if it can be stored to at once, and nobody has to be told of it.
    #[inline]
    pub(crate) fn present_to_store(&self, span: Span) -> Option<&Mapping> {
        match &self.bytes {
            Bytes::File(_) if self.flush == FlushTo::Host => None,
            Bytes::File(image) => image.present_to_store(span),
            Bytes::Ram(ram) => Some(&ram.stores),
        }
    }

    /// Has `put` store to memory that the medium has, or `fill` give what goes by a call ([`Image::store`]).
    ///
    /// # Errors
    /// The host has no room for it or cannot write, or the file was cut short.
    #[inline]
    pub(crate) fn put(
        &self,
        span: Span,
        put: impl Fn(&Mapping, usize, usize, usize),
        fill: impl Fn(usize, &mut [u8]),
    ) -> Result<(), Status> {
        match &self.bytes {
            Bytes::File(image) => {
                self.told(image, image.store(span, put, fill))?;
                if self.flush == FlushTo::Host || image.is_cut() {
                    // A fence that takes the note before the bytes are there would leave them out, and no later one
                    // would look for them.
                    instructions::drain();
                    self.dirty.mark(span);
                }
            }
            Bytes::Ram(ram) => put(&ram.stores, span.offset as usize, 0, span.bytes as usize),
        }
        Ok(())
    }

    /// Sees that a range has room, so that what is stored to it later is not refused for that.
    ///
    /// # Errors
    /// The host has none.
    pub(crate) fn allocate(&self, span: Span) -> Result<(), Status> {
        match &self.bytes {
            Bytes::File(image) => self.told(image, image.allocate(span)),
            Bytes::Ram(_) => Ok(()),
        }
    }

    /// The memory of a range to be read, at the range's own offset.
    ///
    /// # Errors
    /// The host has no room for it, or the file was cut short.
    pub(crate) fn memory(&self, span: Span) -> Result<&Mapping, Status> {
        match &self.bytes {
            Bytes::File(image) => self.told(image, image.memory(span)),
            Bytes::Ram(ram) => Ok(&ram.reads),
        }
    }

    /// Makes a range read as zeroes; see [`crate::Memory::zero`].
    ///
    /// # Errors
    /// As [`Medium::put`].
    pub(crate) fn zero(&self, span: Span, release: bool) -> Result<(), Status> {
        let way = self.write_back;
        match &self.bytes {
            Bytes::File(image) => {
                let zeroed = image.store_zeroes(span, release, |memory, at, len| way.zero(memory, at, len));
                self.told(image, zeroed)?;
                // A hole is the host's note, also of memory that is durable itself.
                if self.flush != FlushTo::Process || image.is_cut() {
                    instructions::drain();
                    self.dirty.mark(span);
                }
            }
            Bytes::Ram(ram) => zero_memory(&ram.stores, span, way),
        }
        Ok(())
    }

    /// Makes durable what any thread has settled before.
    ///
    /// # Errors
    /// As [`crate::Memory::fence`].
    #[inline]
    pub(crate) fn fence(&self) -> Result<(), Status> {
        match &self.bytes {
            Bytes::File(image) => self.told(image, self.fence_file(image)),
            Bytes::Ram(_) => Ok(()),
        }
    }

    #[inline]
    fn fence_file(&self, image: &Image) -> Result<(), Status> {
        if self.flush == FlushTo::Process { image.check() } else { self.sync_file(image) }
    }

    fn sync_file(&self, image: &Image) -> Result<(), Status> {
        if self.flush == FlushTo::Dax {
            image.check()?;
        }
        image.sync(|| {
            let noted = self.dirty.take();
            if self.inherited.swap(false, Ordering::Relaxed) {
                return Some(Owed { end: image.bytes(), call: SyncCall::File });
            }
            let (span, whole) = noted?;
            // Each call makes the host's own notes durable, and its disk's cache: two are dearer than one for the file.
            let span = Span { bytes: span.bytes.min(image.bytes() - span.offset), ..span };
            Some(Owed { end: span.end(), call: if whole { SyncCall::Run(span) } else { SyncCall::File } })
        })
    }
}

fn zero_memory(memory: &Mapping, span: Span, way: WriteBack) {
    let (at, len) = (span.offset as usize, span.bytes as usize);
    let (begin, end) = (at.next_multiple_of(4096), (at + len) & !4095);
    if span.bytes < RELEASE_BYTES || memory.release(begin, end - begin).is_err() {
        return way.zero(memory, at, len);
    }
    way.zero(memory, at, begin - at);
    way.zero(memory, end, at + len - end);
}
