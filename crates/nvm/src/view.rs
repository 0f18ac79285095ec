//! Ranges of a buffered medium at addresses of the process, for those who must have addresses.

use crate::buffer::Views;
use crate::error::NvmError;
use crate::memory::Memory;
use core::mem;
use nvmed_image::Span;
use nvmed_nvme::Status;
use nvmed_sys::sync::{Arc, Weak};
use nvmed_sys::{Addresses, Mapping, Userfault};
use rustix::io::Errno;
use rustix::process::{Pid, getpid};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The kernel's page.
const PAGE_BYTES: u64 = 4096;

/// How a range of a medium is mapped.
#[derive(Debug)]
pub struct ViewOptions {
    /// It can be stored to.
    pub stores: bool,
    /// Bytes that one touch brings, as far as the range goes: a power of two, 64 KiB to 2 MiB. A small buffer brings
    /// less, one with larger frames as much as a frame has.
    pub fill_bytes: u64,
    /// Where it is to lie; `None`: where the kernel likes.
    pub addresses: Option<Addresses>,
}

/// A range of a buffered medium at addresses of this process, until it is dropped.
///
/// What is touched comes, and who touches waits for it, in system calls too. What is stored is seen by every reader of
/// the medium at once, and is on its way when [`Memory::settle_mapped`] has returned, or the view is dropped; until
/// then a death of the process loses it. A page that the medium cannot give is SIGBUS. A forked child does not have
/// the range: its touch is SIGSEGV.
#[derive(Debug)]
pub struct View {
    owner: Arc<Memory>,
    /// Until it is given up.
    memory: Option<Arc<Mapping>>,
    span: Span,
    stores: bool,
    process: Pid,
}

impl View {
    /// The memory; its first byte is that of the range.
    #[must_use]
    pub fn memory(&self) -> &Mapping {
        self.memory.as_ref().expect("a view has memory until it goes")
    }

    /// As a drop, where the caller is about to unmap the addresses or to map something else there. What other threads
    /// store there meanwhile may be lost.
    pub fn abandon(mut self) {
        self.go(true);
    }

    fn go(&mut self, abandoned: bool) {
        let Some(memory) = self.memory.take() else { return };
        if getpid() != self.process {
            // Of a forked child: what is at these addresses now is its own.
            mem::forget(memory);
            return;
        }
        if let Some(buffer) = &self.owner.buffer {
            buffer.withdraw(memory, abandoned);
        }
        if self.stores {
            // What cannot be written home stays, and the next fence says so.
            let _ = self.owner.settle_mapped(self.span.offset, self.span.bytes);
        }
    }
}

impl Drop for View {
    fn drop(&mut self) {
        self.go(false);
    }
}

impl Memory {
    /// Maps a range of a medium with a buffer. A touch brings no more than this range: whoever maps the extents of a
    /// file one by one has fills that end where they end, to a frame.
    ///
    /// # Errors
    /// [`NvmError::View`]: the medium has no buffer, or one with too few frames; this host or user has no userfaultfd;
    /// too much is mapped; the host has no room for what will be stored.
    ///
    /// # Panics
    /// When the range or `fill_bytes` is not as described, or does not begin and end on pages (or with the medium).
    pub fn map(self: &Arc<Self>, at: u64, bytes: usize, how: ViewOptions) -> Result<View, NvmError> {
        let span = self.inside(at, bytes);
        let on_pages = at.is_multiple_of(PAGE_BYTES)
            && (span.end().is_multiple_of(PAGE_BYTES) || span.end() == self.bytes());
        assert!(on_pages && bytes > 0, "{bytes} bytes at {at} are no pages");
        let fill = how.fill_bytes;
        assert!(fill.is_power_of_two() && (64 << 10..=2 << 20).contains(&fill), "fills of {fill} bytes");
        let fail = |what| move |errno| NvmError::View { what, errno };
        let Some(buffer) = self.buffer.as_deref() else {
            return Err(fail("it has no buffer; map its file")(Errno::INVAL));
        };
        if how.stores {
            let full = "the host has no room for what will be stored";
            self.medium.allocate(span).map_err(|_| fail(full)(Errno::NOSPC))?;
        }
        let views = buffer.views(|| {
            let memory = Arc::downgrade(self);
            Views::start(move |userfault| answer(&memory, userfault))
        });
        let views = views.map_err(|errno| match errno {
            Errno::NOMEM => fail("the buffer has fewer than 16 frames; give more by buffer=")(errno),
            Errno::AGAIN => fail("the host has no room for a thread")(errno),
            _ => fail(
                "userfaultfd is not to be had; it takes Linux 5.14, and /dev/userfaultfd or CAP_SYS_PTRACE",
            )(errno),
        })?;
        let stores = how.stores;
        let memory = buffer.map(views, span, how).map_err(fail("too much is mapped, or at a wrong place"))?;
        Ok(View { owner: Arc::clone(self), memory: Some(memory), span, stores, process: getpid() })
    }

    /// What was stored to a range through views is on its way: as [`Memory::settle`] for what was stored by calls.
    ///
    /// # Errors
    /// The medium below cannot take it: it stays in the buffer, and the next fence tries again.
    pub fn settle_mapped(&self, at: u64, bytes: u64) -> Result<(), Status> {
        let span = self.inside(at, usize::try_from(bytes).expect("a range of memory has a length of memory"));
        match &self.buffer {
            Some(buffer) if bytes > 0 => {
                buffer.settle_mapped(&self.medium, &|what| self.note(what), span)?;
                self.settle();
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

/// Answers touches of views, until there is no medium, or the views end.
fn answer(memory: &Weak<Memory>, userfault: &Userfault) {
    let mut touched = [0; Userfault::TOUCHES_MAX];
    let answered = catch_unwind(AssertUnwindSafe(|| {
        loop {
            let count = userfault.wait(&mut touched).expect("poll and read of a descriptor of ours");
            let memory = if count > 0 { memory.upgrade() } else { None };
            let Some(memory) = memory else { return };
            if let Some(buffer) = &memory.buffer {
                buffer.answer((&memory.medium, &|what| memory.note(what)), &touched[..count]);
            }
        }
    }));
    if answered.is_err() {
        // The threads of the program that touch a view would wait for ever.
        std::process::abort();
    }
}
