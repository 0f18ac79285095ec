//! Touches of memory whose pages come when they are asked for: userfaultfd(2) on files in memory.
//!
//! A range that [`Userfault::map`] has mapped has no page at first. Whoever touches one, a program or the kernel for
//! it, waits until the thread that is told so by [`Userfault::wait`] has seen to it that the file has the page, and
//! says so by [`Userfault::present`]. Source: Linux, `admin-guide/mm/userfaultfd.rst` and `linux/userfaultfd.h`.

use crate::ioctl::ioctl;
use crate::{Mapping, Pages, QuietFd};
use core::ptr::{self, NonNull};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use rustix::fs::{MemfdFlags, Mode, OFlags};
use rustix::io::Errno;
use rustix::ioctl::{Opcode, opcode};
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, UserfaultfdFlags};

/// The device whose permissions say who may have one (Linux 6.1).
const DEVICE: &str = "/dev/userfaultfd";
/// `UFFD_API`, also the letter of its calls.
const API: u8 = 0xAA;
/// `UFFD_FEATURE_MISSING_SHMEM`: touches of what a memory file has no page of.
const MISSING_SHMEM: u64 = 1 << 5;
/// `UFFD_FEATURE_MINOR_SHMEM`: touches of pages that it has (Linux 5.14).
const MINOR_SHMEM: u64 = 1 << 10;
/// `UFFDIO_REGISTER_MODE_MISSING | UFFDIO_REGISTER_MODE_MINOR`.
const MISSING_AND_MINOR: u64 = 1 | 1 << 2;
/// `UFFD_EVENT_PAGEFAULT`, the first byte of a message.
const PAGEFAULT: u8 = 0x12;
/// Bytes of a message; the address that was touched is its third word.
const MESSAGE_BYTES: usize = 32;

/// `USERFAULTFD_IOC_NEW`, `UFFDIO_API`, `UFFDIO_REGISTER`, `UFFDIO_WAKE` (which the kernel numbers as a call that
/// reads), `UFFDIO_CONTINUE`.
const NEW: Opcode = opcode::none(API, 0);
const HANDSHAKE: Opcode = opcode::read_write::<[u64; 3]>(API, 0x3F);
const REGISTER: Opcode = opcode::read_write::<[u64; 4]>(API, 0);
const WAKE: Opcode = opcode::read::<[u64; 2]>(API, 2);
const CONTINUE: Opcode = opcode::read_write::<[u64; 4]>(API, 7);

/// A call with a structure of words, whose number says how long it is.
fn call<const N: usize>(fd: BorrowedFd<'_>, opcode: Opcode, words: &mut [u64; N]) -> Result<(), Errno> {
    debug_assert_eq!(opcode >> 16 & 0x3FFF, size_of::<[u64; N]>() as Opcode, "the structure of another call");
    // SAFETY: `words` is ours alone during the call, plain words, and as long as the number of the call says, which is
    // as far as the kernel reads and writes. What the calls do to memory is told where they are made.
    unsafe { ioctl(fd, opcode, words.as_mut_ptr().cast()) }.map(drop)
}

/// Addresses of this process at which their owner may map memory.
#[derive(Debug)]
pub struct Addresses {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: an address is no access.
unsafe impl Send for Addresses {}

impl Addresses {
    /// `len` bytes from `base` on.
    ///
    /// # Safety
    /// Both are multiples of the page size. What lies there is the caller's to replace: nobody has a reference to it,
    /// and nobody else maps or unmaps memory there from now on.
    #[must_use]
    pub unsafe fn new(base: NonNull<u8>, len: usize) -> Self {
        Self { base, len }
    }
}

/// Answers the touches of what it has mapped.
#[derive(Debug)]
pub struct Userfault {
    fd: QuietFd,
    /// Readable from [`Userfault::end`] on.
    end: QuietFd,
}

impl Userfault {
    /// Touches that [`Userfault::wait`] tells at once, at most.
    pub const TOUCHES_MAX: usize = 16;

    /// One that has mapped nothing yet, whose memory system calls of the program may touch, too.
    ///
    /// # Errors
    /// `EPERM`: this user may have none. `ENOSYS`, `ENODEV`: the kernel has none. `EOPNOTSUPP`: it has none for memory
    /// files.
    pub fn open() -> Result<Self, Errno> {
        let flags = UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::NONBLOCK;
        // SAFETY: the new descriptor is used by this type alone, which says what it does to memory.
        let fd = by_device().or_else(|_| unsafe { rustix::mm::userfaultfd(flags) })?;
        let mut words = [API.into(), MISSING_SHMEM | MINOR_SHMEM, 0];
        call(fd.as_fd(), HANDSHAKE, &mut words).map_err(|errno| match errno {
            Errno::INVAL => Errno::OPNOTSUPP,
            other => other,
        })?;
        let end = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { fd: QuietFd::new(fd), end: QuietFd::new(end) })
    }

    /// Maps `len` bytes of a memory file from `offset` on, to be read, or to be stored to as well: where the kernel
    /// likes, or at `place`, whose length counts then. The file has to be open for writing in any case. A forked child
    /// does not have the mapping: nobody would answer its touches.
    ///
    /// # Errors
    /// What the kernel answers; nothing is mapped, also not what was at `place` before.
    pub fn map(
        &self,
        place: Option<Addresses>,
        (file, offset): (BorrowedFd<'_>, u64),
        len: usize,
        stores: bool,
    ) -> Result<Mapping, Errno> {
        let flags = MapFlags::SHARED | MapFlags::NORESERVE;
        // Nobody can touch it before touches are answered.
        let none = ProtFlags::empty();
        let (base, len) = match &place {
            // SAFETY: a null hint; the mapping touches no existing memory.
            None => (unsafe { rustix::mm::mmap(ptr::null_mut(), len, none, flags, file, offset) }?, len),
            Some(Addresses { base, len }) => {
                let flags = flags | MapFlags::FIXED;
                // SAFETY: what lies there is the caller's, who lets it be replaced (`Addresses::new`).
                (unsafe { rustix::mm::mmap(base.as_ptr().cast(), *len, none, flags, file, offset) }?, *len)
            }
        };
        let memory = Mapping::adopt(base, len, Pages::Base, Some((file, offset)));
        // Of a program that locks all that it maps: pages that cannot be taken away could not be evicted.
        // SAFETY: the range was mapped just above.
        let _ = unsafe { rustix::mm::munlock(base, len) };
        let mut words = [base.addr() as u64, len as u64, MISSING_AND_MINOR, 0];
        call(self.fd.as_fd(), REGISTER, &mut words)?;
        memory.forbid_fork()?;
        let protection =
            if stores { MprotectFlags::READ | MprotectFlags::WRITE } else { MprotectFlags::READ };
        // SAFETY: the range is ours, and nobody has a reference to it.
        unsafe { rustix::mm::mprotect(base, len, protection) }?;
        Ok(memory)
    }

    /// Waits until somebody touches what has no page, and tells at which addresses: how many. None after
    /// [`Userfault::end`].
    ///
    /// # Errors
    /// What poll(2) or read(2) answers.
    pub fn wait(&self, touched: &mut [usize; Self::TOUCHES_MAX]) -> Result<usize, Errno> {
        loop {
            let mut ready = [PollFd::new(&self.fd, PollFlags::IN), PollFd::new(&self.end, PollFlags::IN)];
            match poll(&mut ready, None) {
                Ok(_) => {}
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(errno),
            }
            if !ready[1].revents().is_empty() {
                return Ok(0);
            }
            let mut messages = [0; MESSAGE_BYTES * Self::TOUCHES_MAX];
            let bytes = match rustix::io::read(&self.fd, &mut messages) {
                Ok(bytes) => bytes,
                Err(Errno::AGAIN | Errno::INTR) => continue,
                Err(errno) => return Err(errno),
            };
            let mut count = 0;
            for message in messages[..bytes].chunks_exact(MESSAGE_BYTES) {
                if let (PAGEFAULT, Some(&address)) = (message[0], message[16..].first_chunk()) {
                    touched[count] = usize::from_ne_bytes(address);
                    count += 1;
                }
            }
            if count > 0 {
                return Ok(count);
            }
        }
    }

    /// Has [`Userfault::wait`] answer that it is over, now and from now on.
    pub fn end(&self) {
        // It is full only when it was told so more often than anybody can.
        let _ = rustix::io::write(&self.end, &1_u64.to_ne_bytes());
    }

    /// Maps the pages of a range, all of which the file has, and has those go on who wait there. False: one was mapped
    /// already, and those behind it are as they were; who waits there or behind still waits.
    ///
    /// # Errors
    /// `EFAULT`: the file has not all of them. `ENOENT`: the range is unmapped, or mapped by somebody else.
    ///
    /// # Panics
    /// When the range is not inside the mapping.
    pub fn present(&self, memory: &Mapping, offset: usize, len: usize) -> Result<bool, Errno> {
        let base = memory.at(offset, len).addr();
        let mut done = 0;
        loop {
            let mut words = [(base + done) as u64, (len - done) as u64, 0, 0];
            match call(self.fd.as_fd(), CONTINUE, &mut words) {
                Ok(()) => return Ok(true),
                Err(Errno::EXIST) => return Ok(false),
                // The last word is how far it came; what is behind says why.
                Err(Errno::AGAIN) if (1..(len - done) as u64).contains(&words[3]) => {
                    done += words[3] as usize
                }
                Err(errno) => return Err(errno),
            }
        }
    }

    /// Has those go on who wait in a range of addresses, to touch it once more.
    pub fn wake(&self, address: usize, len: usize) {
        // It fails for addresses that no process can have.
        let _ = call(self.fd.as_fd(), WAKE, &mut [address as u64, len as u64]);
    }

    /// Has whoever touches a range get SIGBUS from now on, those who wait there among them.
    ///
    /// # Errors
    /// What the kernel answers when it has no room for one more mapping: all is as it was.
    ///
    /// # Panics
    /// When the range is not inside the mapping.
    pub fn deny(&self, memory: &Mapping, offset: usize, len: usize) -> Result<(), Errno> {
        let base = memory.at(offset, len);
        let empty = rustix::fs::memfd_create("nvmed", MemfdFlags::CLOEXEC)?;
        let flags = MapFlags::SHARED | MapFlags::FIXED | MapFlags::NORESERVE;
        // SAFETY: the range is ours by `at`; only raw copies and atomics reach its bytes, and what they meet from now
        // on is what any file that was cut short has.
        unsafe { rustix::mm::mmap(base.cast(), len, ProtFlags::READ, flags, &empty, 0) }?;
        self.wake(base.addr(), len);
        Ok(())
    }
}

/// A userfaultfd by its device, which answers the touches of system calls for whoever may open it.
fn by_device() -> Result<OwnedFd, Errno> {
    let device = rustix::fs::open(DEVICE, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    let flags = OFlags::CLOEXEC | OFlags::NONBLOCK;
    // SAFETY: this call takes a number, which the kernel does not follow.
    let number = unsafe { ioctl(device.as_fd(), NEW, ptr::without_provenance_mut(flags.bits() as usize)) }?;
    // SAFETY: the kernel has just made it for us.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A page that the file has, and one that it has not: each touch is told once and waits for its answer.
    #[test]
    fn a_touch_waits_until_its_page_is_there() {
        let Ok(userfault) = Userfault::open() else {
            return println!("SKIPPED: this user may have no userfaultfd");
        };
        let file = Mapping::shareable(4 * 4096, Pages::Base).unwrap();
        let (fd, _) = file.backing().unwrap();
        let memory = userfault.map(None, (fd, 4096), 2 * 4096, true).unwrap();
        file.write(4096, b"there");
        std::thread::scope(|scope| {
            let toucher = scope.spawn(|| {
                let mut bytes = [0; 5];
                memory.read(0, &mut bytes);
                memory.write(4096 + 7, b"stored");
                bytes
            });
            let mut touched = [0; Userfault::TOUCHES_MAX];
            let base = memory.address().addr();
            assert_eq!(userfault.wait(&mut touched), Ok(1));
            assert_eq!(touched[0] & !4095, base);
            // Who waits for the first goes on.
            assert_eq!(userfault.present(&memory, 0, 2 * 4096), Err(Errno::FAULT), "the second is not there");
            assert_eq!(userfault.present(&memory, 0, 4096), Ok(false), "the first is mapped by now");
            assert_eq!(userfault.wait(&mut touched), Ok(1));
            assert_eq!(touched[0] & !4095, base + 4096);
            file.write(2 * 4096, b"at its place");
            assert_eq!(userfault.present(&memory, 4096, 4096), Ok(true));
            assert_eq!(&toucher.join().unwrap(), b"there");
        });
        let mut bytes = [0; 13];
        file.read(2 * 4096, &mut bytes);
        assert_eq!(&bytes, b"at its stored");
        userfault.end();
        assert_eq!(userfault.wait(&mut [0; Userfault::TOUCHES_MAX]), Ok(0));
    }
}
