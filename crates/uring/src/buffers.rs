//! Memory that requests may name, and where it is registered.

use nvmed_dma::MapError;
use nvmed_sys::Mapping;
use nvmed_sys::sync::{Arc, Mutex, MutexGuard};
use nvmed_units::DeviceAddress;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::ring::{BUFFERS_MAX, Ring};

/// Bits of offset in an address: 1 TiB a mapping.
const OFFSET_BITS: u32 = 40;
/// Bits that number the place in the table; those above count its uses, so that an old address does not name its
/// successor.
const INDEX_BITS: u32 = 10;
const _: () = assert!(BUFFERS_MAX == 1 << INDEX_BITS);
/// Uses that the rest of an address can count before they repeat; the last one never occurs, so that
/// no address is 0 or wraps.
const USES: u64 = (1 << (64 - OFFSET_BITS - INDEX_BITS)) - 1;

/// Longest range that the kernel registers (`io_buffer_validate`).
const REGISTER_BYTES_MAX: usize = 1 << 30;

/// One mapped range.
pub(crate) struct Buffer {
    pub(crate) memory: Arc<Mapping>,
    /// Its place in the table, the same in every ring.
    pub(crate) index: usize,
    /// Which use of that place it is, counted over all places; never 0.
    pub(crate) serial: u64,
    /// Its address without the offset.
    base: u64,
}

/// All mapped ranges at one moment.
pub(crate) type Table = Vec<Option<Arc<Buffer>>>;

struct State {
    table: Arc<Table>,
    /// Uses of each place.
    uses: Vec<u64>,
    serial: u64,
}

/// The ranges of one engine. Queues keep the table that they saw last and compare its version.
pub(crate) struct Buffers {
    state: Mutex<State>,
    version: AtomicU64,
}

impl Default for Buffers {
    fn default() -> Self {
        let state = State { table: Arc::default(), uses: Vec::new(), serial: 0 };
        Self { state: Mutex::new(state), version: AtomicU64::new(0) }
    }
}

impl Buffers {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Gives `memory` an address.
    ///
    /// # Errors
    /// [`MapError::Full`].
    pub(crate) fn map(&self, memory: Arc<Mapping>) -> Result<DeviceAddress, MapError> {
        let mut state = self.state();
        let mut table = Table::clone(&state.table);
        let index = match table.iter().position(Option::is_none) {
            Some(free) => free,
            None if table.len() < BUFFERS_MAX => {
                table.push(None);
                state.uses.push(0);
                table.len() - 1
            }
            None => return Err(MapError::Full { limit: BUFFERS_MAX }),
        };
        let uses = state.uses[index] % USES;
        state.uses[index] += 1;
        state.serial += 1;
        // The use counts from 1, so that address 0 is never mapped.
        let base = ((uses + 1) << INDEX_BITS | index as u64) << OFFSET_BITS;
        table[index] = Some(Arc::new(Buffer { memory, index, serial: state.serial, base }));
        self.publish(&mut state, table);
        Ok(DeviceAddress(base))
    }

    /// Withdraws an address. Requests that still use it keep the memory alive.
    pub(crate) fn unmap(&self, address: DeviceAddress) {
        let mut state = self.state();
        let index = index_of(address);
        let named = state.table.get(index).and_then(Option::as_ref);
        if named.is_some_and(|buffer| buffer.base == address.0) {
            let mut table = Table::clone(&state.table);
            table[index] = None;
            self.publish(&mut state, table);
        }
    }

    fn publish(&self, state: &mut State, table: Table) {
        state.table = Arc::new(table);
        // Release: pairs with `version`; a queue that sees the number finds the table.
        self.version.fetch_add(1, Ordering::Release);
    }

    /// A number that changes with the table.
    #[inline]
    pub(crate) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// The table, and the version that it has at least.
    pub(crate) fn table(&self) -> (Arc<Table>, u64) {
        let state = self.state();
        (Arc::clone(&state.table), self.version())
    }
}

#[inline]
fn index_of(address: DeviceAddress) -> usize {
    (address.0 >> OFFSET_BITS) as usize & (BUFFERS_MAX - 1)
}

/// The buffer and offset behind `bytes` at `address`; `None` when any byte is not mapped.
#[inline]
pub(crate) fn resolve(table: &Table, address: DeviceAddress, bytes: usize) -> Option<(&Arc<Buffer>, usize)> {
    let buffer = table.get(index_of(address))?.as_ref()?;
    let offset = usize::try_from(address.0.checked_sub(buffer.base)?).ok()?;
    let inside = offset.checked_add(bytes).is_some_and(|end| end <= buffer.memory.len());
    inside.then_some((buffer, offset))
}

/// What the kernel knows of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    /// Nothing yet; so many bytes were moved by its address.
    Moved(usize),
    /// Its pages, by its place in the table.
    Pinned,
    /// It was not taken (no right to lock so much memory, a file's pages): it goes by its address.
    Refused,
}

/// A place of the table, as one ring knows it.
#[derive(Clone, Copy, Debug)]
struct Registration {
    /// The buffer's.
    serial: u64,
    known: Known,
}

/// The table as one ring knows it.
///
/// A buffer is registered once as many bytes were moved through it as it has: registering finds and pins each page,
/// which costs about what finding it for one request does. A cache of which little is used is not brought into memory
/// whole.
pub(crate) struct Registered {
    table: Arc<Table>,
    version: u64,
    registrations: Vec<Registration>,
    /// Whether the kernel has a table at all.
    offered: bool,
}

impl Registered {
    /// Nothing yet; the first use looks.
    pub(crate) fn new(ring: &Ring) -> Self {
        let offered = ring.register_table().is_ok();
        Self { table: Arc::default(), version: 0, registrations: Vec::new(), offered }
    }

    /// The table as it is now.
    #[inline]
    pub(crate) fn table(&mut self, buffers: &Buffers, ring: &Ring) -> &Arc<Table> {
        if buffers.version() != self.version {
            self.refresh(buffers, ring);
        }
        &self.table
    }

    /// Lets go of what went.
    #[cold]
    fn refresh(&mut self, buffers: &Buffers, ring: &Ring) {
        (self.table, self.version) = buffers.table();
        self.registrations.resize(self.table.len(), Registration { serial: 0, known: Known::Refused });
        for (index, (registration, buffer)) in
            self.registrations.iter_mut().zip(self.table.iter()).enumerate()
        {
            let serial = buffer.as_ref().map_or(0, |buffer| buffer.serial);
            if registration.serial == serial {
                continue;
            }
            if registration.known == Known::Pinned {
                // A kernel that took it takes nothing in its place.
                let _ = ring.register_buffer(index, None);
            }
            let fits =
                self.offered && buffer.as_ref().is_some_and(|it| it.memory.len() <= REGISTER_BYTES_MAX);
            *registration =
                Registration { serial, known: if fits { Known::Moved(0) } else { Known::Refused } };
        }
    }

    /// A command moves so many bytes through a buffer of the table.
    #[inline]
    pub(crate) fn count(&mut self, buffer: &Buffer, bytes: u64, ring: &Ring) {
        if let Some(Registration { serial, known: Known::Moved(moved) }) =
            self.registrations.get_mut(buffer.index)
            && *serial == buffer.serial
        {
            *moved = moved.saturating_add(usize::try_from(bytes).unwrap_or(usize::MAX));
            if *moved >= buffer.memory.len() {
                self.register(buffer, ring);
            }
        }
    }

    #[cold]
    fn register(&mut self, buffer: &Buffer, ring: &Ring) {
        let taken = ring.register_buffer(buffer.index, Some(&buffer.memory)).is_ok();
        self.registrations[buffer.index].known = if taken { Known::Pinned } else { Known::Refused };
    }

    /// Whether the kernel knows the buffer by its number.
    #[inline]
    pub(crate) fn has(&self, buffer: &Buffer) -> bool {
        let registration = self.registrations.get(buffer.index);
        registration.is_some_and(|registration| {
            registration.serial == buffer.serial && registration.known == Known::Pinned
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ring::RingSetup;
    use nvmed_sys::Pages;

    #[test]
    fn places_are_used_again_and_old_addresses_are_not() {
        let buffers = Buffers::default();
        let memory = Arc::new(Mapping::anonymous(8192, Pages::Base).unwrap());
        let mut old = Vec::new();
        for _ in 0..5000 {
            let address = buffers.map(Arc::clone(&memory)).unwrap();
            let (table, _) = buffers.table();
            assert!(address.0 != 0 && address.0 % 4096 == 0);
            assert_eq!(resolve(&table, address.plus(4096), 4096).unwrap().1, 4096);
            assert!(resolve(&table, address.plus(4097), 4096).is_none());
            buffers.unmap(address);
            old.push(address);
        }
        let now = buffers.map(memory).unwrap();
        let (table, _) = buffers.table();
        assert!(old.iter().all(|&address| resolve(&table, address, 1).is_none()));
        for address in [0, 1, u64::MAX, now.0 - 1] {
            assert!(resolve(&table, DeviceAddress(address), 1).is_none(), "{address:#x}");
        }
        assert!(resolve(&table, now, usize::MAX).is_none());
    }

    #[test]
    fn a_buffer_is_registered_once_as_much_was_moved_as_it_has() {
        let Ok(ring) = Ring::new(1, RingSetup::default()) else {
            eprintln!("SKIPPED: the host has no io_uring");
            return;
        };
        let buffers = Buffers::default();
        let memory = Arc::new(Mapping::anonymous(8192, Pages::Base).unwrap());
        let mut registered = Registered::new(&ring);
        let mapped = |registered: &mut Registered| {
            let address = buffers.map(Arc::clone(&memory)).unwrap();
            let buffer = Arc::clone(resolve(registered.table(&buffers, &ring), address, 1).unwrap().0);
            (address, buffer)
        };
        let (address, old) = mapped(&mut registered);
        registered.count(&old, 8191, &ring);
        assert!(!registered.has(&old));
        registered.count(&old, 1, &ring);
        if !registered.has(&old) {
            eprintln!("SKIPPED: the host registers no memory for this process");
            return;
        }
        buffers.unmap(address);
        let (_, new) = mapped(&mut registered);
        assert_eq!(new.index, old.index);
        registered.count(&old, 8192, &ring);
        assert!(
            !registered.has(&old) && !registered.has(&new),
            "what was moved through the old one is no matter"
        );
        registered.count(&new, 8192, &ring);
        assert!(registered.has(&new));
    }

    #[test]
    fn a_full_table_says_so() {
        let buffers = Buffers::default();
        let memory = Arc::new(Mapping::anonymous(4096, Pages::Base).unwrap());
        for _ in 0..BUFFERS_MAX {
            buffers.map(Arc::clone(&memory)).unwrap();
        }
        assert!(matches!(buffers.map(memory), Err(MapError::Full { limit: BUFFERS_MAX })));
    }
}
