//! The memory of the rings.

use crate::layout as at;
use crate::producer::Producer;
use crate::stamped::Probe;
use nvmed_sys::{Mapping, Pages, TickClock};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::MemfdFlags;
use rustix::io::Errno;
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

/// Rings in which requests are recorded.
#[derive(Debug)]
pub struct Stamps {
    memory: Mapping,
    requests: usize,
    clock: TickClock,
    probes: u64,
    /// Whether this process is of another PID namespace than the one that made the memory, or cannot tell.
    is_foreign: bool,
}

impl Stamps {
    /// Memory for these probes, whose rings hold `requests` each (rounded up to a power of two, at most
    /// [`crate::REQUESTS_MAX`]), that other processes can join by the descriptor.
    ///
    /// # Errors
    /// The host's, when it has no memory.
    pub fn create(probes: &[Probe], requests: usize) -> Result<(Self, OwnedFd), Errno> {
        let requests = requests.clamp(2, crate::REQUESTS_MAX).next_power_of_two();
        let fd = rustix::fs::memfd_create("nvmed-stamps", MemfdFlags::CLOEXEC)?;
        rustix::fs::ftruncate(&fd, at::bytes(requests) as u64)?;
        let memory = Mapping::shared(fd.as_fd(), 0, at::bytes(requests), Pages::Base)?;
        let probes = probes.iter().fold(0, |bits, probe| bits | probe.bit());
        let clock = TickClock::of_host();
        memory.u64(at::VERSION_AT).store(at::VERSION, Relaxed);
        memory.u64(at::REQUESTS_AT).store(requests as u64, Relaxed);
        memory.u64(at::CLOCK_AT).store(u64::from(clock == TickClock::Counter), Relaxed);
        memory.u64(at::PROBES_AT).store(probes, Relaxed);
        let namespace = pid_namespace();
        memory.u64(at::NAMESPACE_AT).store(namespace, Relaxed);
        memory.u64(at::MAGIC_AT).store(at::MAGIC, Release);
        Ok((Self { memory, requests, clock, probes, is_foreign: namespace == 0 }, fd))
    }

    /// Joins memory that another process has made.
    ///
    /// # Errors
    /// `EPROTO` when it is none, or another version's; the host's.
    pub fn join(fd: BorrowedFd<'_>) -> Result<Self, Errno> {
        let size = rustix::fs::fstat(fd)?.st_size;
        if size < at::ring_at(0, 0) as i64 {
            return Err(Errno::PROTO);
        }
        let head = Mapping::shared(fd, 0, at::ring_at(0, 0), Pages::Base)?;
        let word = |offset| head.u64(offset).load(Acquire);
        let requests = word(at::REQUESTS_AT) as usize;
        let is_ours = word(at::MAGIC_AT) == at::MAGIC && word(at::VERSION_AT) == at::VERSION;
        let is_sound = requests.is_power_of_two() && requests <= crate::REQUESTS_MAX;
        if !is_ours || !is_sound || size != at::bytes(requests) as i64 {
            return Err(Errno::PROTO);
        }
        let clock = if word(at::CLOCK_AT) == 0 { TickClock::Monotonic } else { TickClock::Counter };
        let probes = word(at::PROBES_AT);
        let namespace = pid_namespace();
        let is_foreign = namespace == 0 || namespace != word(at::NAMESPACE_AT);
        Ok(Self {
            memory: Mapping::shared(fd, 0, at::bytes(requests), Pages::Base)?,
            requests,
            clock,
            probes,
            is_foreign,
        })
    }

    /// Whether the requests of a probe are wanted.
    #[must_use]
    pub fn wants(&self, probe: Probe) -> bool {
        self.probes & probe.bit() != 0
    }

    /// The clock of the stamps.
    #[inline]
    #[must_use]
    pub fn clock(&self) -> TickClock {
        self.clock
    }

    /// A producer with a ring of its own; where none is left it has none, and what it is given is lost and counted.
    #[must_use]
    pub fn producer(self: &Arc<Self>, probe: Probe) -> Producer {
        let process = u64::from(rustix::process::getpid().as_raw_nonzero().get().cast_unsigned());
        let foreign = u64::from(self.is_foreign) * at::OWNER_IS_FOREIGN;
        let owner = process | (probe as u64) << at::OWNER_PROBE_SHIFT | foreign;
        let take = |ring: &usize| {
            let word = self.memory.u64(self.ring_at(*ring) + at::OWNER_AT);
            word.load(Relaxed) == 0 && word.compare_exchange(0, owner, AcqRel, Relaxed).is_ok()
        };
        let ring = (0..at::RINGS).find(take).map(|ring| self.ring_at(ring));
        if let Some(ring) = ring {
            // Here, and not by the first requests, which would take microseconds each.
            self.memory.populate(ring, at::CIRCLE_AT + self.requests * at::REQUEST_BYTES);
        }
        Producer::new(Arc::clone(self), ring)
    }

    pub(crate) fn memory(&self) -> &Mapping {
        &self.memory
    }

    /// Requests that a ring holds.
    #[must_use]
    pub fn requests(&self) -> usize {
        self.requests
    }

    pub(crate) fn ring_at(&self, ring: usize) -> usize {
        at::ring_at(ring, self.requests)
    }

    /// Requests that found no room, in their ring or since there was none for them.
    #[must_use]
    pub fn lost(&self) -> u64 {
        let of_ring = |ring| self.memory.u64(self.ring_at(ring) + at::LOST_AT).load(Relaxed);
        self.memory.u64(at::RINGLESS_AT).load(Relaxed) + (0..at::RINGS).map(of_ring).sum::<u64>()
    }
}

/// The inode of this process's PID namespace; 0 where the host does not tell.
fn pid_namespace() -> u64 {
    rustix::fs::stat("/proc/self/ns/pid").map_or(0, |stat| stat.st_ino)
}
