//! Names for what C holds: a wrong, closed or foreign one is found out, and never followed.

use crate::error::Failure;
use nvmed_sys::sync::{Arc, Once, RwLock};
use std::sync::atomic::{AtomicBool, Ordering};

/// Above every address of a program, so that following a name by mistake faults at once: 16 bits that no x86-64 or
/// arm64 pointer has.
const MAGIC: u64 = 0x4e56;
const INDEX_BITS: u32 = 20;
const GENERATION_BITS: u32 = 24;
/// Objects of one kind at once.
const INDEX_MAX: usize = 1 << INDEX_BITS;

// A name is 16 bits of magic, 4 of kind, 24 of generation and 20 of index.
const _: () = assert!(16 + 4 + GENERATION_BITS + INDEX_BITS == 64 && size_of::<usize>() == 8);

struct Slot<T> {
    /// Counts the objects that were here; a slot whose names are used up is not used again.
    generation: u32,
    object: Option<Arc<T>>,
}

struct Slots<T> {
    slots: Vec<Slot<T>>,
    free: Vec<usize>,
}

/// All objects of one kind.
pub(crate) struct Table<T> {
    kind: u64,
    what: &'static str,
    inner: RwLock<Slots<T>>,
}

/// Set in the child of a fork: queues and memory are the parent's.
static FORKED: AtomicBool = AtomicBool::new(false);

extern "C" fn forked() {
    FORKED.store(true, Ordering::Relaxed);
}

/// Has the child of every later fork find that it owns nothing.
pub(crate) fn watch_forks() {
    static ONCE: Once = Once::new();
    // SAFETY: the handler is a function of this library, which stays loaded as long as the handler is registered (glibc
    // removes handlers of a library that is unloaded); it stores one atomic, which is allowed after fork.
    ONCE.call_once(|| unsafe {
        libc::pthread_atfork(None, None, Some(forked));
    });
}

/// Whether this process is the child of one that has devices open.
pub(crate) fn check_fork() -> Result<(), Failure> {
    if FORKED.load(Ordering::Relaxed) {
        return Err(Failure::new(
            libc::EBADF,
            "this is the child of a process with open devices, which stay the parent's; exec, or open before fork in \
             neither",
        ));
    }
    Ok(())
}

impl<T> Table<T> {
    pub(crate) const fn new(kind: u64, what: &'static str) -> Self {
        Self { kind, what, inner: RwLock::new(Slots { slots: Vec::new(), free: Vec::new() }) }
    }

    fn name(&self, generation: u32, index: usize) -> usize {
        let high = MAGIC << 4 | self.kind;
        ((high << GENERATION_BITS | u64::from(generation)) << INDEX_BITS | index as u64) as usize
    }

    /// The place that a name means, if the name can be one of this table.
    fn parse(&self, name: usize) -> Option<(u32, usize)> {
        let name = name as u64;
        let generation = (name >> INDEX_BITS) as u32 & ((1 << GENERATION_BITS) - 1);
        let index = name as usize & (INDEX_MAX - 1);
        (self.name(generation, index) as u64 == name).then_some((generation, index))
    }

    /// Gives an object a name.
    pub(crate) fn add(&self, object: Arc<T>) -> Result<usize, Failure> {
        let mut inner = self.inner.write();
        let index = match inner.free.pop() {
            Some(index) => index,
            None if inner.slots.len() == INDEX_MAX => {
                return Err(Failure::new(libc::EMFILE, format!("{INDEX_MAX} times a {} is open", self.what)));
            }
            None => {
                inner.slots.push(Slot { generation: 0, object: None });
                inner.slots.len() - 1
            }
        };
        let slot = &mut inner.slots[index];
        slot.object = Some(object);
        Ok(self.name(slot.generation, index))
    }

    /// The object of a name.
    pub(crate) fn get(&self, name: usize) -> Result<Arc<T>, Failure> {
        check_fork()?;
        let inner = self.inner.read();
        let found = self.parse(name).and_then(|(generation, index)| {
            let slot = inner.slots.get(index).filter(|slot| slot.generation == generation)?;
            slot.object.clone()
        });
        found.ok_or_else(|| self.unknown(name))
    }

    /// Every object that has a name now.
    pub(crate) fn all(&self) -> Vec<Arc<T>> {
        let inner = self.inner.read();
        inner.slots.iter().filter_map(|slot| slot.object.clone()).collect()
    }

    /// Takes a name away.
    pub(crate) fn remove(&self, name: usize) -> Result<Arc<T>, Failure> {
        check_fork()?;
        let mut inner = self.inner.write();
        let Slots { slots, free } = &mut *inner;
        let (generation, index) = self.parse(name).ok_or_else(|| self.unknown(name))?;
        let slot = slots.get_mut(index).filter(|slot| slot.generation == generation);
        let slot = slot.ok_or_else(|| self.unknown(name))?;
        let object = slot.object.take().ok_or_else(|| self.unknown(name))?;
        slot.generation += 1;
        if slot.generation < 1 << GENERATION_BITS {
            free.push(index);
        }
        Ok(object)
    }

    #[cold]
    fn unknown(&self, name: usize) -> Failure {
        Failure::new(
            libc::EBADF,
            format!("{name:#x} is no open {}: it was closed, or never was one", self.what),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_good_until_it_is_taken_away() {
        let (one, other) = (Table::new(1, "thing"), Table::<u8>::new(2, "other thing"));
        let name = one.add(Arc::new(7)).ok().unwrap();
        assert_eq!(*one.get(name).ok().unwrap(), 7);
        assert!(other.get(name).is_err(), "another kind");
        for wrong in
            [0, 1, name + 1, name + (1 << INDEX_BITS), name ^ 1 << 63, usize::MAX, &raw const one as usize]
        {
            assert!(one.get(wrong).is_err() && one.remove(wrong).is_err(), "{wrong:#x}");
        }
        assert!(one.remove(name).is_ok());
        let again = one.add(Arc::new(8)).ok().unwrap();
        assert_ne!(again, name, "the place is used again, the name is not");
        assert!(one.get(name).is_err() && one.remove(name).is_err());
        assert_eq!(*one.get(again).ok().unwrap(), 8);
    }

    #[test]
    fn a_place_whose_names_are_used_up_is_left() {
        let table = Table::new(1, "thing");
        let first = table.add(Arc::new(())).ok().unwrap();
        table.inner.write().slots[0].generation = (1 << GENERATION_BITS) - 1;
        let last = table.name((1 << GENERATION_BITS) - 1, 0);
        assert!(table.remove(last).is_ok());
        let next = table.add(Arc::new(())).ok().unwrap();
        assert_eq!(table.parse(next), Some((0, 1)));
        assert!(table.get(first).is_err());
    }
}
