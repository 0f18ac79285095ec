//! How unevenly requests arrive.
//!
//! Source: Cox and Lewis, "The Statistical Analysis of Series of Events", 1966: the index of dispersion of counts.

use serde::Serialize;

/// Widths of the windows: from 10 ms to 100 s.
const WIDTHS_NS: [u64; 5] = [10_000_000, 100_000_000, 1_000_000_000, 10_000_000_000, 100_000_000_000];

/// Arrivals that are counted in windows of several widths.
#[derive(Debug)]
pub(super) struct Bursts([Windows; WIDTHS_NS.len()]);

/// Windows of one width, the first of which begins with the first arrival.
#[derive(Debug)]
struct Windows {
    width_ns: u64,
    end_ns: u64,
    /// Arrivals in this one.
    now: u64,
    most: u64,
    squares: u128,
}

/// What the windows of one width say.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Burstiness {
    /// The width.
    pub window_ms: u64,
    /// Variance of the arrivals in a window by their mean: 1 for arrivals that know nothing of each other, more for
    /// bursts.
    pub dispersion: f64,
    /// The most arrivals in a window by the mean.
    pub peak_to_mean: f64,
}

impl Bursts {
    /// The first arrival.
    pub fn new(arrival_ns: u64) -> Self {
        Self(WIDTHS_NS.map(|width_ns| Windows {
            width_ns,
            end_ns: arrival_ns.saturating_add(width_ns),
            now: 0,
            most: 0,
            squares: 0,
        }))
    }

    /// Counts an arrival; one that is out of order counts in the window that is open.
    #[inline]
    pub fn push(&mut self, arrival_ns: u64) {
        for windows in &mut self.0 {
            if arrival_ns >= windows.end_ns {
                windows.close();
                let beyond = arrival_ns - windows.end_ns;
                windows.end_ns = arrival_ns.saturating_add(windows.width_ns - beyond % windows.width_ns);
            }
            windows.now += 1;
        }
    }

    /// What the windows say of so many arrivals that took so long. A width of which there are fewer than two windows
    /// says nothing, and neither do no arrivals.
    pub fn finish(mut self, arrivals: u64, span_ns: u64) -> Vec<Burstiness> {
        let said = self.0.iter_mut().filter_map(|windows| {
            windows.close();
            let number = span_ns / windows.width_ns + 1;
            let mean = arrivals as f64 / number as f64;
            let variance = windows.squares as f64 / number as f64 - mean * mean;
            (number > 1 && arrivals > 0).then(|| Burstiness {
                window_ms: windows.width_ns / 1_000_000,
                dispersion: variance.max(0.0) / mean,
                peak_to_mean: windows.most as f64 / mean,
            })
        });
        said.collect()
    }
}

impl Windows {
    /// The open window has ended.
    fn close(&mut self) {
        self.squares += u128::from(self.now) * u128::from(self.now);
        self.most = self.most.max(self.now);
        self.now = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_by_window_are_those_by_hand() {
        // Windows of 10 ms from 5 ms on: 3, 1, 0 and 1 arrivals.
        let arrivals = [5, 6, 14, 15, 39].map(|ms| ms * 1_000_000);
        let mut bursts = Bursts::new(arrivals[0]);
        arrivals.iter().for_each(|&arrival| bursts.push(arrival));
        let said = bursts.finish(5, arrivals[4] - arrivals[0]);
        assert_eq!(said.len(), 1);
        // The mean is 5/4, the mean of the squares 11/4.
        assert!((said[0].dispersion - (11.0 / 4.0 - 25.0 / 16.0) / 1.25).abs() < 1e-12);
        assert!((said[0].peak_to_mean - 3.0 / 1.25).abs() < 1e-12);
    }
}
