//! How unevenly requests arrive.
//!
//! Source: Cox and Lewis, "The Statistical Analysis of Series of Events", 1966: the index of dispersion of counts.

use serde::Serialize;

/// Widths of the windows: from 10 ms to 100 s. Each is a multiple of the one before, so that where a window ends, those
/// in it have ended.
const WIDTHS_NS: [u64; 5] = [10_000_000, 100_000_000, 1_000_000_000, 10_000_000_000, 100_000_000_000];

/// Arrivals that are counted in windows of several widths.
#[derive(Debug)]
pub(super) struct Bursts([Windows; WIDTHS_NS.len()]);

/// Windows of one width, the first of which begins with the first arrival.
#[derive(Debug)]
struct Windows {
    width_ns: u64,
    end_ns: u64,
    /// Arrivals in this one, but for those in the narrower window that is still open.
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
        // The narrowest window ends first.
        if arrival_ns >= self.0[0].end_ns {
            self.close_until(arrival_ns);
        }
        self.0[0].now += 1;
    }

    /// Closes the windows that have ended when something arrives, and counts in each what those in it have counted.
    fn close_until(&mut self, arrival_ns: u64) {
        let mut more = 0;
        for windows in &mut self.0 {
            windows.now += more;
            if arrival_ns < windows.end_ns {
                return;
            }
            more = windows.close();
            windows.end_ns = end_behind(arrival_ns, windows.end_ns, windows.width_ns);
        }
    }

    /// What the windows say of so many arrivals that took so long. A width of which there are fewer than two windows
    /// says nothing, and neither do no arrivals.
    pub fn finish(mut self, arrivals: u64, span_ns: u64) -> Vec<Burstiness> {
        let mut more = 0;
        let said = self.0.iter_mut().filter_map(|windows| {
            windows.now += more;
            more = windows.close();
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
    /// The open window has ended; how many arrivals it had.
    fn close(&mut self) -> u64 {
        let arrivals = std::mem::take(&mut self.now);
        self.squares += u128::from(arrivals) * u128::from(arrivals);
        self.most = self.most.max(arrivals);
        arrivals
    }
}

/// The end of the window in which something arrives, when an earlier one of that width has ended at `end_ns`.
#[inline]
pub(super) fn end_behind(arrival_ns: u64, end_ns: u64, width_ns: u64) -> u64 {
    let beyond_ns = arrival_ns - end_ns;
    // Mostly it is the next window, and a division takes as long as all else here.
    let into_ns = if beyond_ns < width_ns { beyond_ns } else { beyond_ns % width_ns };
    arrival_ns.saturating_add(width_ns - into_ns)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wide_windows_count_what_narrow_ones_in_them_have() {
        // Each width as if it were alone, on gaps from nothing to hours.
        let mut dice = nvmed_dice::Dice::new(6);
        let (mut bursts, mut at, first) = (Bursts::new(5), 5, 5);
        let mut counts = WIDTHS_NS.map(|_| std::collections::HashMap::<u64, u64>::new());
        let mut arrivals = 0;
        for _ in 0..20_000 {
            bursts.push(at);
            arrivals += 1;
            for (counts, width_ns) in counts.iter_mut().zip(WIDTHS_NS) {
                *counts.entry((at - first) / width_ns).or_default() += 1;
            }
            at += dice.next() >> 20 >> dice.roll(44);
        }
        let span_ns = at - first;
        let said = bursts.finish(arrivals, span_ns);
        assert_eq!(said.len(), WIDTHS_NS.len());
        for ((said, counts), width_ns) in said.iter().zip(&counts).zip(WIDTHS_NS) {
            let mean = arrivals as f64 / (span_ns / width_ns + 1) as f64;
            let squares: u64 = counts.values().map(|count| count * count).sum();
            let variance = squares as f64 / (span_ns / width_ns + 1) as f64 - mean * mean;
            assert!((said.dispersion / (variance / mean) - 1.0).abs() < 1e-9, "{said:?}");
            let most = *counts.values().max().expect("there are arrivals");
            assert!((said.peak_to_mean / (most as f64 / mean) - 1.0).abs() < 1e-9, "{said:?}");
        }
    }

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
