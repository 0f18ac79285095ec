//! Memory for a large table of words, in huge pages where the host gives them.

use crate::mapping::{Mapping, Pages};
use rustix::io::Errno;
use std::ops::{Deref, DerefMut};

/// Words of this process alone, zero at first.
pub struct Words {
    memory: Mapping,
    len: usize,
}

impl Words {
    /// So many words.
    ///
    /// # Errors
    /// The host has no memory for them.
    pub fn new(len: usize) -> Result<Self, Errno> {
        let bytes = len.checked_mul(4).ok_or(Errno::NOMEM)?;
        Ok(Self { memory: Mapping::anonymous(bytes.max(1), Pages::Huge)?, len })
    }
}

impl Deref for Words {
    type Target = [u32];

    #[inline]
    fn deref(&self) -> &[u32] {
        // SAFETY: the mapping is private memory of at least `len` words, readable, zeroed by the kernel (so
        // initialized) and aligned to a page. It is never given out, so nobody but this value reaches it, and it lives
        // as long. A shared borrow of the value keeps [`DerefMut`] away.
        unsafe { std::slice::from_raw_parts(self.memory.address().cast(), self.len) }
    }
}

impl DerefMut for Words {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u32] {
        // SAFETY: as in `deref`; the memory is writable, and the unique borrow of the value keeps all others away.
        unsafe { std::slice::from_raw_parts_mut(self.memory.address().cast(), self.len) }
    }
}

impl std::fmt::Debug for Words {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} words", self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::Words;

    #[test]
    fn words_are_zero_and_keep_what_is_written() {
        let mut words = Words::new(1_000_000).unwrap();
        assert!(words.iter().all(|&word| word == 0));
        words[999_999] = 7;
        words[0] = 5;
        assert_eq!((words.len(), words[0], words[999_999]), (1_000_000, 5, 7));
        assert!(Words::new(0).unwrap().is_empty());
        assert!(Words::new(usize::MAX).is_err());
    }
}
