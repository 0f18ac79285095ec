//! Working sets: distinct units of 4 KiB that are touched, in all and in windows of time.
//!
//! Source: Denning, "The working set model for program behavior", CACM 11(5), 1968.

use super::bursts::end_behind;
use super::units::{Leaves, Units};
use nvmed_units::BLOCK_BYTES;
use serde::Serialize;

/// Widths of the windows: an hour and a minute. Each is a multiple of the next, so that a unit in the open window of
/// one is in those before it.
const WIDTHS_NS: [u64; 2] = [3_600_000_000_000, 60_000_000_000];
/// Most leaves, of all devices together: 4 TiB where they are touched, 400 MiB of memory.
const LEAVES_MAX: u32 = 1 << 18;

/// What the working sets of all devices may still take.
#[derive(Debug)]
pub(super) struct Room(Leaves);

impl Default for Room {
    fn default() -> Self {
        Self(Leaves(LEAVES_MAX))
    }
}

/// Which units of a device are touched: the first set is that of all time, the others those of the open windows.
#[derive(Debug)]
pub(super) struct Working {
    units: Units<3>,
    distinct: u64,
    lost: u64,
    windows: [Window; WIDTHS_NS.len()],
}

/// Windows of one width, the first of which begins with the first arrival.
#[derive(Debug)]
struct Window {
    width_ns: u64,
    end_ns: u64,
    /// Units in this one.
    now: u64,
    most: u64,
    sum: u64,
    /// Leaves that have units of this one.
    leaves: Vec<u64>,
}

/// The working set of windows of one width.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct WindowSet {
    /// The width.
    pub window_s: u64,
    /// The mean over all windows of the trace, empty ones among them, in KiB.
    pub mean_kib: f64,
    /// The largest, in KiB.
    pub max_kib: u64,
}

/// The working sets of a device.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WorkingSet {
    /// Distinct units of 4 KiB, in KiB.
    pub distinct_kib: u64,
    /// KiB that were touched where no units are counted: beyond 16 TiB, or when too many places were touched. Where it
    /// is not 0, the sets are at least as large as they say.
    pub not_counted_kib: u64,
    /// By windows of time.
    pub windows: Vec<WindowSet>,
}

impl Working {
    /// Nothing is touched; the first request arrives now.
    pub fn new(arrival_ns: u64) -> Self {
        let windows = WIDTHS_NS.map(|width_ns| Window {
            width_ns,
            end_ns: arrival_ns.saturating_add(width_ns),
            now: 0,
            most: 0,
            sum: 0,
            leaves: Vec::new(),
        });
        Self { units: Units::default(), distinct: 0, lost: 0, windows }
    }

    /// A request touches the bytes from `offset` up to `end`.
    #[inline]
    pub fn touch(&mut self, arrival_ns: u64, (offset, end): (u64, u64), room: &mut Room) {
        // The narrowest window ends first.
        if arrival_ns >= self.windows[WIDTHS_NS.len() - 1].end_ns {
            self.close_until(arrival_ns);
        }
        let range = (offset / BLOCK_BYTES as u64, end.div_ceil(BLOCK_BYTES as u64));
        let (distinct, windows) = (&mut self.distinct, &mut self.windows);
        self.lost += self.units.insert_all(range, &mut room.0, |leaf, [ever, new @ ..]| {
            *distinct += ever.new;
            for (window, gain) in windows.iter_mut().zip(new) {
                window.now += gain.new;
                if gain.first {
                    window.leaves.push(leaf);
                }
            }
        });
    }

    /// Closes the windows that have ended when something arrives.
    fn close_until(&mut self, arrival_ns: u64) {
        for (number, window) in self.windows.iter_mut().enumerate() {
            if arrival_ns >= window.end_ns {
                window.close();
                window.leaves.drain(..).for_each(|leaf| self.units.clear(number + 1, leaf));
                window.end_ns = end_behind(arrival_ns, window.end_ns, window.width_ns);
            }
        }
    }

    /// The working sets of what took so long.
    pub fn finish(mut self, span_ns: u64) -> WorkingSet {
        let kib = BLOCK_BYTES as u64 / 1024;
        let sets = self.windows.iter_mut().map(|window| {
            window.close();
            let number = span_ns / window.width_ns + 1;
            WindowSet {
                window_s: window.width_ns / 1_000_000_000,
                mean_kib: (window.sum * kib) as f64 / number as f64,
                max_kib: window.most * kib,
            }
        });
        WorkingSet {
            windows: sets.collect(),
            distinct_kib: self.distinct * kib,
            not_counted_kib: self.lost * kib,
        }
    }
}

impl Window {
    /// The open window has ended.
    fn close(&mut self) {
        self.sum += self.now;
        self.most = self.most.max(self.now);
        self.now = 0;
    }
}
