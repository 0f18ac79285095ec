//! Rows of a shared mount: what a call to the server costs, and a cached read that makes none.

use crate::files::{MIB, ROUNDS, round};
use crate::place::{Kind, Ours, Place};
use crate::row::{Contender, Goal, Row};
use nvmed_lab::samples::Samples;
use nvmed_lab::shell::run;

const GIB: u64 = 1 << 30;
/// Calls of a slice of the round trip: some 50 ms with both sides running, and with a pause before each.
const RUNNING: usize = 5_000;
const PARKED: usize = 200;
/// Long enough for both sides to park, many times over.
const PAUSE_US: usize = 1000;
const SLICES: usize = 7;

/// Cached 4 KiB reads of a set that fits the processor's caches, of one that does not.
pub fn pread() -> Result<Vec<Row>, String> {
    let rival = Place::new(Kind::Tmpfs)?;
    let mut rows = Vec::new();
    for (name, bytes, most) in [("shared.pread_1m", MIB, 0.4), ("shared.pread_1g", GIB, 0.7)] {
        let ours = Ours::new(3 * GIB, bytes + bytes / 4 + 16 * MIB, "huge")?;
        let (mut a, mut b) = (Samples::default(), Samples::default());
        for _ in 0..ROUNDS {
            a.push(round(&mut ours.share(&ours.probe()), "pread", &ours.dir(), bytes)?);
            b.push(round(&mut ours.probe(), "pread", &rival.dir, bytes)?);
        }
        rows.push(Row {
            name: name.to_owned(),
            unit: "ns",
            ours: Contender { name: "nvmed, shared mount".to_owned(), samples: a },
            rival: Some(Contender { name: rival.name.to_owned(), samples: b }),
            goal: Goal::Ratio(most),
            flushes_per_op: None,
            conditions: format!(
                "4 KiB random pread within {bytes} bytes, all read once before, one thread, default scheduling; {ROUNDS} rounds"
            ),
        });
    }
    Ok(rows)
}

/// fstat, which the server answers from memory: the round trip.
pub fn round_trip() -> Result<Vec<Row>, String> {
    let ours = Ours::new(GIB, 64 * MIB, "huge")?;
    let mut rows = Vec::new();
    for (name, ops, pause_us, most) in
        [("shared.round_trip_running", RUNNING, 0, 4.0), ("shared.round_trip_parked", PARKED, PAUSE_US, 15.0)]
    {
        let (mut median, mut tail) = (Samples::default(), Samples::default());
        for _ in 0..ROUNDS {
            let mut probe = ours.probe();
            let file = ours.dir().join("probe.dat");
            probe.arg("fstat").arg(file).args([SLICES, ops, pause_us].map(|number| number.to_string()));
            let text = run(&mut ours.share(&probe))?;
            let columns = |column: usize| {
                let figure = move |line: &str| line.split(' ').nth(column)?.parse::<f64>().ok();
                text.lines().skip(1).filter_map(figure).collect::<Samples>().median() / 1000.0
            };
            median.push(columns(0));
            tail.push(columns(1));
        }
        rows.push(Row {
            name: name.to_owned(),
            unit: "us",
            ours: Contender { name: "nvmed, shared mount".to_owned(), samples: median },
            rival: None,
            goal: Goal::Figure(most),
            flushes_per_op: None,
            conditions: format!(
                "fstat, one thread, default scheduling, {pause_us} us between calls; p99 {:.1} us; {ROUNDS} rounds, median of {SLICES} slices of {ops}",
                tail.median()
            ),
        });
    }
    Ok(rows)
}
