//! Scans: the deltas and the tree as one ordered row.

use crate::delta::Direction;
use crate::guard::read;
use crate::{KvError, Store};
use core::ops::{Bound, ControlFlow};

/// What a scan hands each key and its value to; a break ends the scan.
pub type Visit<'a> = dyn FnMut(&[u8], &[u8]) -> ControlFlow<()> + 'a;

impl Store {
    /// Calls `visit` for every key between the bounds in ascending byte order until it breaks.
    ///
    /// No lock is held during `visit`: it may call the store. Changes made meanwhile may or may not be seen.
    ///
    /// # Errors
    /// A damaged block, or the medium's.
    pub fn scan(&self, from: Bound<&[u8]>, to: Bound<&[u8]>, visit: &mut Visit<'_>) -> Result<(), KvError> {
        let mut all = Vec::new();
        {
            let state = read(&self.state);
            let mut at = state.active.seek(from, Direction::Ascending);
            while let Some((key, value)) = state.active.entry(at) {
                let inside = match to {
                    Bound::Included(to) => key <= to,
                    Bound::Excluded(to) => key < to,
                    Bound::Unbounded => true,
                };
                if !inside {
                    break;
                }
                if let Some(value) = value {
                    all.push((key.to_vec(), value.to_vec()));
                }
                at = state.active.step(at, Direction::Ascending);
            }
        }
        for (key, value) in &all {
            if visit(key, value).is_break() {
                break;
            }
        }
        Ok(())
    }

    /// As [`Store::scan`], from `to` down to `from`.
    ///
    /// # Errors
    /// A damaged block, or the medium's.
    pub fn scan_reverse(
        &self,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        visit: &mut Visit<'_>,
    ) -> Result<(), KvError> {
        let mut all = Vec::new();
        self.scan(from, to, &mut |key, value| {
            all.push((key.to_vec(), value.to_vec()));
            ControlFlow::Continue(())
        })?;
        for (key, value) in all.iter().rev() {
            if visit(key, value).is_break() {
                break;
            }
        }
        Ok(())
    }
}
