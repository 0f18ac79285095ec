//! When and where a trace's requests are: counts in bins of time and offset, to be drawn.
//!
//! Neither the trace's duration nor the end of its offsets is known before it has been read. So the bins begin narrow,
//! and whenever there would be too many of them, neighbours become one. The memory is the same for every trace, but for
//! the ends of requests under way, up to a limit.

mod course;

pub use course::{DepthBin, DepthCourse};

use crate::{Op, Request};

/// Bins of time at most; more than half of them are in use once there were too many.
const COLUMNS: usize = 192;
/// Bins of offset at most, in the same way.
const ROWS: usize = 64;
/// The first width of a bin of time: 2^10 ns.
const COLUMN_NS: u64 = 1 << 10;
/// The first width of a bin of offset.
const ROW_BYTES: u64 = 4096;
/// Devices whose offsets and depths are counted, the first that have requests: each takes 102 KiB.
const MAPS_MAX: usize = 16;

/// Reads and writes in a bin of time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rate {
    /// How many reads.
    pub reads: u64,
    /// Their bytes.
    pub read_bytes: u64,
    /// How many writes.
    pub writes: u64,
    /// Their bytes.
    pub write_bytes: u64,
}

/// Requests of a trace in bins.
#[derive(Clone, Debug)]
pub struct Timeline {
    /// The first arrival.
    begin_ns: Option<u64>,
    column_ns: u64,
    rates: Vec<Rate>,
    maps: Vec<OffsetMap>,
    courses: Vec<DepthCourse>,
    room: course::Room,
}

/// Where the requests of a device begin, in bins of time and offset.
#[derive(Clone, Debug)]
pub struct OffsetMap {
    device: u32,
    requests: u64,
    row_bytes: u64,
    /// Offset of the lowest row, in rows.
    first_row: u64,
    /// The lowest and the highest row with a request, likewise.
    used: (u64, u64),
    /// Column by column.
    counts: Vec<u64>,
}

impl Default for Timeline {
    fn default() -> Self {
        Self {
            begin_ns: None,
            column_ns: COLUMN_NS,
            rates: Vec::new(),
            maps: Vec::new(),
            courses: Vec::new(),
            room: course::Room::default(),
        }
    }
}

impl Rate {
    fn add(&mut self, other: Self) {
        self.reads += other.reads;
        self.read_bytes += other.read_bytes;
        self.writes += other.writes;
        self.write_bytes += other.write_bytes;
    }
}

impl Timeline {
    /// Counts a request: of a discard or a flush, only that the device has it. One that arrives before the first counts
    /// as if it arrived with it.
    pub fn push(&mut self, request: &Request) {
        let begin_ns = *self.begin_ns.get_or_insert(request.arrival_ns);
        self.queue(begin_ns, request);
        let rate = match request.op {
            Op::Read => Rate { reads: 1, read_bytes: request.bytes, ..Rate::default() },
            Op::Write => Rate { writes: 1, write_bytes: request.bytes, ..Rate::default() },
            Op::Discard | Op::Flush => return,
        };
        let since_ns = request.arrival_ns.saturating_sub(begin_ns);
        while since_ns / self.column_ns >= COLUMNS as u64 {
            self.halve_columns();
        }
        let column = (since_ns / self.column_ns) as usize;
        if self.rates.len() <= column {
            self.rates.resize(column + 1, Rate::default());
        }
        self.rates[column].add(rate);
        if let Some(map) = self.map_of(request) {
            map.push(column, request.offset);
        }
    }

    /// Counts a request in its device's queue, if that has or can have a course.
    fn queue(&mut self, begin_ns: u64, request: &Request) {
        let known = self.courses.iter().position(|course| course.device() == request.device);
        let index = known.unwrap_or(self.courses.len());
        if index == MAPS_MAX {
            return;
        }
        if known.is_none() {
            self.courses.push(DepthCourse::new(request.device));
        }
        self.courses[index].push(begin_ns, request, &mut self.room);
    }

    /// The map of a request's device, if it has or can have one.
    fn map_of(&mut self, request: &Request) -> Option<&mut OffsetMap> {
        let known = self.maps.iter().position(|map| map.device == request.device);
        let index = known.or_else(|| {
            (self.maps.len() < MAPS_MAX)
                .then(|| self.maps.push(OffsetMap::new(request.device, request.offset)))?;
            Some(self.maps.len() - 1)
        })?;
        self.maps.get_mut(index)
    }

    fn halve_columns(&mut self) {
        self.column_ns *= 2;
        for column in 0..self.rates.len().div_ceil(2) {
            let mut sum = self.rates[2 * column];
            sum.add(self.rates.get(2 * column + 1).copied().unwrap_or_default());
            self.rates[column] = sum;
        }
        self.rates.truncate(self.rates.len().div_ceil(2));
        self.maps.iter_mut().for_each(OffsetMap::halve_columns);
    }

    /// Width of a bin of time.
    #[must_use]
    pub fn bin_ns(&self) -> u64 {
        self.column_ns
    }

    /// What was in each bin of time, from the first arrival on to the last.
    #[must_use]
    pub fn rates(&self) -> &[Rate] {
        &self.rates
    }

    /// Queue depths of the first 16 devices whose requests tell when they finish, from the one with most requests on.
    #[must_use]
    pub fn depths(&self) -> Vec<DepthCourse> {
        let mut depths: Vec<DepthCourse> = self.courses.iter().filter_map(DepthCourse::finished).collect();
        depths.sort_by_key(|course| std::cmp::Reverse(course.requests()));
        depths
    }

    /// The map of the device with most requests, among the first 16 of them.
    #[must_use]
    pub fn busiest(&self) -> Option<&OffsetMap> {
        self.maps.iter().max_by_key(|map| map.requests)
    }
}

impl OffsetMap {
    fn new(device: u32, offset: u64) -> Self {
        let row = offset / ROW_BYTES;
        let counts = vec![0; COLUMNS * ROWS];
        Self { device, requests: 0, row_bytes: ROW_BYTES, first_row: row, used: (row, row), counts }
    }

    fn push(&mut self, column: usize, offset: u64) {
        let row = loop {
            let row = offset / self.row_bytes;
            let used = (self.used.0.min(row), self.used.1.max(row));
            if used.1 - used.0 < ROWS as u64 {
                self.used = used;
                break row;
            }
            self.halve_rows();
        };
        if row < self.first_row || row - self.first_row >= ROWS as u64 {
            self.move_rows();
        }
        self.requests += 1;
        self.counts[column * ROWS + (row - self.first_row) as usize] += 1;
    }

    /// Moves the rows so that the lowest is one that is used.
    fn move_rows(&mut self) {
        let first_row = self.used.0;
        for rows in self.counts.chunks_exact_mut(ROWS) {
            match first_row <= self.first_row {
                true => rows.rotate_right((self.first_row - first_row) as usize),
                false => rows.rotate_left((first_row - self.first_row) as usize),
            }
        }
        self.first_row = first_row;
    }

    fn halve_rows(&mut self) {
        let first_row = self.first_row / 2;
        for rows in self.counts.chunks_exact_mut(ROWS) {
            let mut halved = [0; ROWS];
            for (row, count) in rows.iter().enumerate() {
                halved[((self.first_row + row as u64) / 2 - first_row) as usize] += count;
            }
            rows.copy_from_slice(&halved);
        }
        self.first_row = first_row;
        self.row_bytes *= 2;
        self.used = (self.used.0 / 2, self.used.1 / 2);
    }

    fn halve_columns(&mut self) {
        for column in 0..COLUMNS / 2 {
            for row in 0..ROWS {
                self.counts[column * ROWS + row] =
                    self.counts[2 * column * ROWS + row] + self.counts[(2 * column + 1) * ROWS + row];
            }
        }
        self.counts[COLUMNS / 2 * ROWS..].fill(0);
    }

    /// The device's number.
    #[must_use]
    pub fn device(&self) -> u32 {
        self.device
    }

    /// From where to where its rows reach, in bytes.
    #[must_use]
    pub fn offsets(&self) -> (u64, u64) {
        (self.used.0 * self.row_bytes, (self.used.1 + 1) * self.row_bytes)
    }

    /// How many requests begin in each row, from the lowest on, in a bin of time.
    #[must_use]
    pub fn column(&self, column: usize) -> &[u64] {
        let first = (self.used.0 - self.first_row) as usize;
        let rows = (self.used.1 - self.used.0) as usize + 1;
        &self.counts[column * ROWS..][first..first + rows]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvmed_dice::Dice;

    /// The bins of a trace, counted anew with the widths that were found.
    fn compare(requests: &[Request]) -> Timeline {
        let mut timeline = Timeline::default();
        requests.iter().for_each(|request| timeline.push(request));
        let begin_ns = requests[0].arrival_ns;
        let column = |request: &Request| (request.arrival_ns - begin_ns) / timeline.bin_ns();
        for (index, rate) in timeline.rates().iter().enumerate() {
            let here = || requests.iter().filter(|request| column(request) == index as u64);
            let of = |op| here().filter(move |request| request.op == op);
            let bytes = |op| of(op).map(|request| request.bytes).sum::<u64>();
            let want = (of(Op::Read).count(), bytes(Op::Read), of(Op::Write).count(), bytes(Op::Write));
            assert_eq!((rate.reads as usize, rate.read_bytes, rate.writes as usize, rate.write_bytes), want);
            for map in &timeline.maps {
                let (low, high) = map.offsets();
                let rows = map.column(index);
                let width = (high - low) / rows.len() as u64;
                let mut want = vec![0; rows.len()];
                let own = here().filter(|request| request.device == map.device());
                own.for_each(|request| want[((request.offset - low) / width) as usize] += 1);
                assert_eq!(rows, want, "device {} in column {index}", map.device());
            }
        }
        timeline
    }

    #[test]
    fn the_bins_are_those_of_a_second_count() {
        for seed in 0..30 {
            let mut dice = Dice::new(seed);
            let (gap_ns, space) = (1u64 << dice.roll(33), 4096u64 << dice.roll(30));
            let from = dice.roll(1 << 40);
            let mut arrival_ns = dice.roll(1 << 50);
            let requests: Vec<Request> = (0..500)
                .map(|_| {
                    arrival_ns += dice.roll(gap_ns);
                    let op = if dice.roll(2) == 0 { Op::Read } else { Op::Write };
                    let offset = from + dice.roll(space);
                    Request { device: dice.roll(3) as u32, ..Request::new(op, offset, 4096, arrival_ns) }
                })
                .collect();
            compare(&requests);
        }
    }

    #[test]
    fn offsets_that_fall_are_followed_and_the_furthest_are_no_matter() {
        let falling: Vec<Request> =
            (0..300).map(|i| Request::new(Op::Read, (300 - i) << 20, 512, i << 30)).collect();
        let timeline = compare(&falling);
        assert!(timeline.rates().len() > COLUMNS / 2);
        assert_eq!(timeline.busiest().map(OffsetMap::offsets), Some((0, 304 << 20)));
        let ends =
            [Request::new(Op::Read, 0, 512, 0), Request::new(Op::Write, (1 << 56) - 512, 512, u64::MAX)];
        let far = compare(&ends);
        assert_eq!(far.busiest().map(OffsetMap::offsets), Some((0, 1 << 56)));
    }

    #[test]
    fn more_devices_than_maps_are_counted_all_the_same() {
        let request = |device| Request { device, ..Request::new(Op::Read, 0, 512, 7) };
        let requests: Vec<Request> = (0..40).chain([3]).map(request).collect();
        let timeline = compare(&requests);
        assert_eq!((timeline.maps.len(), timeline.rates()[0].reads), (MAPS_MAX, 41));
        assert_eq!(timeline.busiest().map(OffsetMap::device), Some(3));
        assert!(Timeline::default().busiest().is_none() && Timeline::default().rates().is_empty());
    }
}
