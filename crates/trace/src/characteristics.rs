//! The six characteristics of smartphone applications, as claims that a set of rows bears out or not.
//!
//! Source: IISWC'15, section III. Each claim is of the paper's 18 applications; of another number of traces it asks for
//! the same share of them.

use crate::row::{Cell, Row};
use serde::Serialize;

/// The traces that the paper speaks of.
const OF: usize = 18;
/// Requests a second below which the paper takes a device for one that saves power between them.
const SLOW_PER_S: f64 = 1.0;

/// What the rows say of a claim or of a characteristic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// It is so.
    Holds,
    /// It depends on a row that stands exactly at the limit: printed numbers are rounded.
    Open,
    /// Some of its claims are so, and others are not.
    HoldsInPart,
    /// It is not so.
    Fails,
    /// The rows do not have what it is about.
    NotTold,
}

impl Verdict {
    /// What it says to people.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Self::Holds => "holds",
            Self::Open => "open, by rounding",
            Self::HoldsInPart => "holds in part",
            Self::Fails => "fails",
            Self::NotTold => "not told",
        }
    }
}

/// One number of a characteristic, and what the rows have.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Claim {
    /// What it says of a trace.
    pub says: &'static str,
    /// Of how many of 18 traces the paper says it.
    pub said_of_18: usize,
    /// How many traces there are that tell.
    pub told: usize,
    /// Of how many it is so.
    pub found: usize,
    /// Of which it is not.
    pub exceptions: Vec<String>,
    /// Which of the exceptions stand at the limit itself.
    pub at_limit: Vec<String>,
    /// The smallest and the largest number among those of which it is so.
    pub range: Option<(f64, f64)>,
    /// Whether it is so of enough.
    pub verdict: Verdict,
}

/// A characteristic.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Characteristic {
    /// Its number in the paper.
    pub number: u32,
    /// What it says.
    pub says: &'static str,
    /// All claims together.
    pub verdict: Verdict,
    /// Its claims.
    pub claims: Vec<Claim>,
    /// What qualifies it.
    pub remarks: Vec<String>,
}

impl Characteristic {
    /// The six, judged by a set of rows. One without reads and writes is none of which anything could be said.
    #[must_use]
    pub fn all(rows: &[Row]) -> Vec<Self> {
        let has_requests = |row: &&Row| row.get(Cell::Requests) != Some(0.0);
        let rows: Vec<Row> = rows.iter().filter(has_requests).cloned().collect();
        let rows = rows.as_slice();
        vec![writes(rows), small(rows), no_wait(rows), low_power(rows), locality(rows), gaps(rows)]
    }

    /// A characteristic of these claims: those that no row tells do not count.
    fn new(number: u32, says: &'static str, claims: Vec<Claim>) -> Self {
        let told: Vec<Verdict> =
            claims.iter().map(|claim| claim.verdict).filter(|&verdict| verdict != Verdict::NotTold).collect();
        let all = |of: &[Verdict]| told.iter().all(|verdict| of.contains(verdict));
        let verdict = match told.as_slice() {
            [] => Verdict::NotTold,
            _ if all(&[Verdict::Holds]) => Verdict::Holds,
            _ if all(&[Verdict::Holds, Verdict::Open]) => Verdict::Open,
            _ if all(&[Verdict::Fails]) => Verdict::Fails,
            _ => Verdict::HoldsInPart,
        };
        Self { number, says, verdict, claims, remarks: Vec::new() }
    }
}

impl Claim {
    /// A claim that a value is on the right side of a limit. `value` is how far it is beyond: 0 is at the limit, which
    /// counts when `including`.
    fn new(
        says: &'static str,
        said_of_18: usize,
        rows: &[Row],
        including: bool,
        value: impl Fn(&Row) -> Option<(f64, f64)>,
    ) -> Self {
        let (mut told, mut exceptions, mut at_limit) = (0, Vec::new(), Vec::new());
        let mut range: Option<(f64, f64)> = None;
        for row in rows {
            let Some((number, beyond)) = value(row) else { continue };
            told += 1;
            if beyond > 0.0 || (including && beyond >= 0.0) {
                let (least, most) = range.unwrap_or((number, number));
                range = Some((least.min(number), most.max(number)));
                continue;
            }
            exceptions.push(row.name.clone());
            if beyond >= 0.0 {
                at_limit.push(row.name.clone());
            }
        }
        let found = told - exceptions.len();
        let enough = |found: usize| found * OF >= said_of_18 * told;
        let verdict = match () {
            () if told == 0 => Verdict::NotTold,
            () if enough(found) => Verdict::Holds,
            () if enough(found + at_limit.len()) => Verdict::Open,
            () => Verdict::Fails,
        };
        Self { says, said_of_18, told, found, exceptions, at_limit, range, verdict }
    }

    /// A cell is at least so much.
    fn at_least(says: &'static str, said_of_18: usize, rows: &[Row], cell: Cell, limit: f64) -> Self {
        Self::new(says, said_of_18, rows, true, |row| row.get(cell).map(|value| (value, value - limit)))
    }

    /// A cell is more than so much.
    fn above(says: &'static str, said_of_18: usize, rows: &[Row], cell: Cell, limit: f64) -> Self {
        Self::new(says, said_of_18, rows, false, |row| row.get(cell).map(|value| (value, value - limit)))
    }

    /// A cell is less than so much.
    fn below(says: &'static str, said_of_18: usize, rows: &[Row], cell: Cell, limit: f64) -> Self {
        Self::new(says, said_of_18, rows, false, |row| row.get(cell).map(|value| (value, limit - value)))
    }
}

/// Names in a remark.
fn names<'a>(rows: impl Iterator<Item = &'a Row>) -> String {
    rows.map(|row| row.name.as_str()).collect::<Vec<_>>().join(", ")
}

/// Characteristic 1.
fn writes(rows: &[Row]) -> Characteristic {
    let claims = vec![
        Claim::at_least("at least 52.8 % of the requests are writes", 15, rows, Cell::WriteRequests, 52.8),
        Claim::above("more than 90 % of the requests are writes", 6, rows, Cell::WriteRequests, 90.0),
    ];
    let mut found = Characteristic::new(1, "most applications are write-dominant", claims);
    let sides = |row: &&Row| Some((row.get(Cell::WriteRequests)? > 50.0, row.get(Cell::WriteBytes)? > 50.0));
    for (requests, bytes) in [(true, false), (false, true)] {
        let names = names(rows.iter().filter(|row| sides(row) == Some((requests, bytes))));
        if !names.is_empty() {
            let (by_requests, by_bytes) = if requests { ("writes", "reads") } else { ("reads", "writes") };
            found
                .remarks
                .push(format!("mostly {by_requests} by requests, mostly {by_bytes} by bytes: {names}"));
        }
    }
    found
}

/// Characteristic 2.
fn small(rows: &[Row]) -> Characteristic {
    let says = "at least 44.9 % of the requests have at most 4 KiB";
    let claims = vec![Claim::at_least(says, 15, rows, Cell::SinglePage, 44.9)];
    let mut found = Characteristic::new(2, "small requests are the majority in most applications", claims);
    let fewer = rows
        .iter()
        .filter(|row| row.get(Cell::SinglePage).is_some_and(|share| (44.9..=50.0).contains(&share)));
    let names = names(fewer);
    if !names.is_empty() {
        found.remarks.push(format!("what the paper calls a majority is at most half in {names}"));
    }
    found
}

/// Characteristic 3.
fn no_wait(rows: &[Row]) -> Characteristic {
    let claims = vec![
        Claim::at_least("at least 63 % of the requests need not wait", 15, rows, Cell::NoWait, 63.0),
        Claim::above("more than 80 % of the requests need not wait", 10, rows, Cell::NoWait, 80.0),
    ];
    Characteristic::new(3, "most requests are served once they arrive", claims)
}

/// Characteristic 4. The paper takes the mean times of the applications with few requests for a sign of a device that
/// wakes up: they are above those of the others. Here the others' median is what they are above.
fn low_power(rows: &[Row]) -> Characteristic {
    let slow = |row: &Row| row.get(Cell::Arrival).is_some_and(|rate| rate < SLOW_PER_S);
    let (few, many): (Vec<Row>, Vec<Row>) =
        rows.iter().filter(|row| row.get(Cell::Arrival).is_some()).cloned().partition(slow);
    let beside_median = |says, cell| {
        let median = median(many.iter().filter_map(|row| row.get(cell)));
        Claim::new(says, OF, &few, false, |row| {
            let value = row.get(cell)?;
            Some((value, value - median?))
        })
    };
    let claims = vec![
        beside_median("below 1 request/s the mean service time is above the others' median", Cell::Service),
        beside_median("below 1 request/s the mean response time is above the others' median", Cell::Response),
    ];
    let mut found = Characteristic::new(4, "requests after long gaps find a device that saves power", claims);
    for (cell, what) in [(Cell::Service, "service"), (Cell::Response, "response")] {
        let least = few.iter().filter_map(|row| row.get(cell)).reduce(f64::min);
        let as_long =
            many.iter().filter(|row| row.get(cell).zip(least).is_some_and(|(value, least)| value >= least));
        let names = names(as_long);
        if !names.is_empty() {
            found.remarks.push(format!("with more requests, and mean {what} times as long: {names}"));
        }
    }
    found
}

/// The middle of some numbers.
fn median(numbers: impl Iterator<Item = f64>) -> Option<f64> {
    let mut numbers: Vec<f64> = numbers.collect();
    numbers.sort_by(f64::total_cmp);
    let (low, high) = (numbers.len().checked_sub(1)? / 2, numbers.len() / 2);
    Some((numbers[low] + numbers[high]) / 2.0)
}

/// Characteristic 5.
fn locality(rows: &[Row]) -> Characteristic {
    let lower = |row: &Row| {
        let (spatial, temporal) = (row.get(Cell::Spatial)?, row.get(Cell::Temporal)?);
        Some((spatial, temporal - spatial))
    };
    let claims = vec![
        Claim::below("spatial locality is below 30 %", 16, rows, Cell::Spatial, 30.0),
        Claim::below("spatial locality is below 48 %", 18, rows, Cell::Spatial, 48.0),
        Claim::below("temporal locality is below 40 %", 14, rows, Cell::Temporal, 40.0),
        Claim::new("spatial locality is below temporal locality", 18, rows, false, lower),
    ];
    Characteristic::new(5, "localities are weak, and spatial locality is below temporal locality", claims)
}

/// Characteristic 6.
fn gaps(rows: &[Row]) -> Characteristic {
    let mean_ms = |row: &Row| {
        let mean_ms = 1000.0 / row.get(Cell::Arrival)?;
        Some((mean_ms, mean_ms - 200.0))
    };
    let claims = vec![
        Claim::new("the mean time between arrivals is at least 200 ms", 13, rows, true, mean_ms),
        Claim::above(
            "more than 20 % of the times between arrivals exceed 16 ms",
            10,
            rows,
            Cell::LongGaps,
            20.0,
        ),
    ];
    Characteristic::new(6, "times between arrivals are long", claims)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn applications() -> Vec<Row> {
        Row::published().into_iter().take(OF).collect()
    }

    fn verdicts(rows: &[Row]) -> Vec<Verdict> {
        Characteristic::all(rows).iter().map(|found| found.verdict).collect()
    }

    #[test]
    fn the_paper_is_judged_by_its_own_tables() {
        use Verdict::{Holds, HoldsInPart, NotTold, Open};
        let found = Characteristic::all(&applications());
        let verdicts: Vec<Verdict> = found.iter().map(|found| found.verdict).collect();
        assert_eq!(verdicts, [Holds, NotTold, Open, Holds, HoldsInPart, Holds]);
        let counts =
            |number: usize| found[number - 1].claims.iter().map(|claim| claim.found).collect::<Vec<_>>();
        assert_eq!((counts(1), counts(3), counts(5)), (vec![15, 6], vec![15, 9], vec![16, 18, 14, 13]));
        assert_eq!(found[0].claims[0].range, Some((52.8, 99.93)));
        assert_eq!(found[2].claims[1].at_limit, ["Installing"]);
        assert_eq!(
            found[4].claims[3].exceptions,
            ["Booting", "Movie", "AngryBirds", "CameraVideo", "YouTube"]
        );
        assert!(found[0].remarks[0].ends_with("mostly reads by bytes: Music"), "{:?}", found[0].remarks);
        assert!(
            found[0].remarks[1].ends_with("mostly writes by bytes: CameraVideo"),
            "{:?}",
            found[0].remarks
        );
        assert!(found[3].remarks[0].contains("CameraVideo"), "{:?}", found[3].remarks);
        assert_eq!((found[5].claims[0].found, found[5].claims[1].verdict), (13, NotTold));
    }

    #[test]
    fn each_characteristic_has_a_set_that_fails_it() {
        // Each claim of the number fails when this cell has this value in every row.
        let sets = [
            (1, vec![(Cell::WriteRequests, 10.0)]),
            (2, vec![(Cell::SinglePage, 44.0)]),
            (3, vec![(Cell::NoWait, 60.0)]),
            (5, vec![(Cell::Spatial, 90.0), (Cell::Temporal, 50.0)]),
            (6, vec![(Cell::Arrival, 5.1), (Cell::LongGaps, 20.0)]),
        ];
        for (number, cells) in sets {
            let mut rows = applications();
            for row in &mut rows {
                cells.iter().for_each(|&(cell, value)| row.set(cell, Some(value)));
            }
            let found = &Characteristic::all(&rows)[number - 1];
            let failed = found.claims.iter().filter(|claim| claim.verdict == Verdict::Fails).count();
            let at_limit = found.claims.iter().filter(|claim| claim.verdict == Verdict::Open).count();
            assert_eq!(failed + at_limit, found.claims.len(), "{found:?}");
            assert!(failed > 0 && found.verdict != Verdict::Holds, "{found:?}");
        }
        // A device that never sleeps: where requests are few they are served as fast as anywhere.
        let mut rows = applications();
        for row in rows.iter_mut().filter(|row| row.get(Cell::Arrival).is_some_and(|rate| rate < SLOW_PER_S))
        {
            row.set(Cell::Service, Some(0.5));
            row.set(Cell::Response, Some(0.7));
        }
        assert_eq!(verdicts(&rows)[3], Verdict::Fails);
    }

    #[test]
    fn a_trace_of_discards_alone_is_not_judged() {
        let mut analysis = crate::Analysis::default();
        for number in 0..4 {
            let discard =
                crate::Request::new(crate::Op::Discard, number << 20, 1 << 20, number * 1_000_000_000);
            analysis.push(&discard);
        }
        let row = analysis.finish().all.row;
        assert_eq!(verdicts(std::slice::from_ref(&row)), [Verdict::NotTold; 6]);
        // Nor does it take away from what others say.
        let beside: Vec<Row> = applications().into_iter().chain([row]).collect();
        assert_eq!(Characteristic::all(&beside), Characteristic::all(&applications()));
    }

    #[test]
    fn a_set_that_tells_nothing_is_not_judged() {
        assert_eq!(verdicts(&[]), [Verdict::NotTold; 6]);
        assert_eq!(verdicts(&[Row::new("empty")]), [Verdict::NotTold; 6]);
        let mut row = Row::new("small");
        row.set(Cell::SinglePage, Some(47.0));
        let found = Characteristic::all(&[row]).swap_remove(1);
        assert_eq!((found.verdict, found.remarks.len()), (Verdict::Holds, 1));
    }
}
