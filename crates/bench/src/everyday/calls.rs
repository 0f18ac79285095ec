//! Single calls on small files, everything cached, in a program that makes plain libc calls (`nvmed-probe calls`).

use super::{asked, told};
use crate::mounted::{KernelFs, Ours};
use crate::programs::{Mount, Seat, rounds};
use crate::row::{Contender, Goal, Row};
use nvmed_lab::samples::Samples;
use nvmed_lab::shell::run;
use std::collections::HashMap;
use std::process::Command;

/// A kind of call: the row's name, the probe's name of it, and what it must reach.
struct Kind {
    row: &'static str,
    probe: &'static str,
    what: &'static str,
    shared: Shared,
}

/// What a call on the shared mount may take, beside the private one.
#[derive(Clone, Copy)]
enum Shared {
    Times(f64),
    More(f64),
    /// One round trip more, as measured in the same run.
    Trip,
}

const KINDS: [Kind; 9] = [
    Kind { row: "everyday.calls.stat", probe: "stat", what: "stat of a file", shared: Shared::Times(1.15) },
    Kind {
        row: "everyday.calls.access",
        probe: "access",
        what: "access of a file",
        shared: Shared::Times(1.15),
    },
    Kind {
        row: "everyday.calls.open_close",
        probe: "open_close",
        what: "open, close",
        shared: Shared::Times(1.15),
    },
    Kind {
        row: "everyday.calls.read_whole",
        probe: "read_whole",
        what: "open, fstat, read whole (17 KiB on average), close",
        shared: Shared::Times(1.15),
    },
    Kind {
        row: "everyday.calls.readdir",
        probe: "readdir",
        what: "opendir, readdir with fstatat of each of 20 entries, closedir: for an entry",
        shared: Shared::Times(1.15),
    },
    Kind {
        row: "everyday.calls.pread",
        probe: "pread",
        what: "pread of 100 B of 1 MiB",
        shared: Shared::More(15.0),
    },
    Kind {
        row: "everyday.calls.pwrite",
        probe: "pwrite",
        what: "pwrite of 100 B of 1 MiB",
        shared: Shared::More(15.0),
    },
    Kind {
        row: "everyday.calls.create",
        probe: "create",
        what: "create, 4 KiB, close",
        shared: Shared::Trip,
    },
    Kind { row: "everyday.calls.unlink", probe: "unlink", what: "unlink of 4 KiB", shared: Shared::Trip },
];

/// The rows' names.
pub const NAMES: [&str; KINDS.len()] = {
    let mut names = [""; KINDS.len()];
    let mut at = 0;
    while at < names.len() {
        names[at] = KINDS[at].row;
        at += 1;
    }
    names
};

/// A call that is made by a round trip whatever else is answered without one: what a round trip costs is what it takes
/// more on the shared mount than on the private one.
const TRIP: &str = "fchmod";
const GIB: u64 = 1 << 30;
/// More than all that the calls touch.
const CACHE_BYTES: u64 = 256 << 20;
/// Slices of a round, whose median is the round's figure: a slice takes some milliseconds.
const SLICES: &str = "21";

/// One round in a place: the probe's kinds by name, with the median slice of each in nanoseconds a call.
fn round(seat: &Seat, probe: &Command, kinds: &[&str]) -> Result<HashMap<String, f64>, String> {
    let name = seat.dir().join("calls").display().to_string();
    // The mount lasts as long as this command, so that the directory is made and removed in it.
    let line = "mkdir \"$0\" && \"$@\"; status=$?; rm -r \"$0\"; exit $status";
    let mut command = seat.command("sh")?;
    command.args(["-c", line, &name]).arg(probe.get_program()).args(["calls", &name, SLICES]).args(kinds);
    let mut slices: HashMap<String, Samples> = HashMap::new();
    for line in run(&mut command)?.lines() {
        let told = line.split_once(' ').and_then(|(kind, ns)| Some((kind, ns.parse().ok()?)));
        let (kind, ns) = told.ok_or_else(|| format!("the probe said {line:?}"))?;
        slices.entry(kind.to_owned()).or_default().push(ns);
    }
    Ok(slices.into_iter().map(|(kind, samples)| (kind, samples.median())).collect())
}

/// Everyone's figures of a kind.
struct Figures {
    tmpfs: Contender,
    ext4: Contender,
    private: Contender,
    shared: Contender,
}

/// Every kind that was asked for, on tmpfs, ext4 on zram, and ours, private and shared.
pub fn measure(wanted: &str) -> Result<Vec<Row>, String> {
    let kinds: Vec<&Kind> = KINDS.iter().filter(|kind| asked(wanted, kind.row)).collect();
    // What `create` makes, `unlink` removes: the probe does both under the one name.
    let mut probed: Vec<&str> = kinds.iter().map(|kind| kind.probe).chain([TRIP]).collect();
    probed.iter_mut().filter(|name| **name == "unlink").for_each(|name| *name = "create");
    probed.dedup();
    let ours = [Ours::new(GIB, CACHE_BYTES, "huge")?, Ours::new(GIB, CACHE_BYTES, "huge")?];
    let probe = ours[0].probe();
    let [private, shared] = ours;
    let seats = [
        Seat::kernel(KernelFs::Tmpfs)?,
        Seat::kernel(KernelFs::Ext4)?,
        Seat::Ours(private, Mount::Private),
        Seat::Ours(shared, Mount::Shared),
    ];
    let mut figures: [HashMap<String, Samples>; 4] = Default::default();
    for _ in 0..rounds() {
        for (seat, figures) in seats.iter().zip(&mut figures) {
            for (kind, ns) in round(seat, &probe, &probed)? {
                figures.entry(kind).or_default().push(ns);
            }
        }
    }
    let of = |kind: &str| -> Result<Figures, String> {
        let mut all = seats.iter().zip(&figures).map(|(seat, figures)| {
            let samples =
                figures.get(kind).cloned().ok_or_else(|| format!("the probe did not tell of {kind}"))?;
            Ok::<_, String>(Contender { name: seat.name(), samples })
        });
        let mut next = || all.next().ok_or_else(|| "four places".to_owned())?;
        Ok(Figures { tmpfs: next()?, ext4: next()?, private: next()?, shared: next()? })
    };
    let trip = of(TRIP)?;
    let trip_ns = (trip.shared.samples.median() - trip.private.samples.median()).max(0.0).round();
    let mut rows = Vec::new();
    for kind in kinds {
        rows.extend(rows_of(kind, of(kind.probe)?, trip_ns));
    }
    Ok(rows)
}

/// The rows of one kind: shared beside private, private beside tmpfs, shared beside ext4.
fn rows_of(kind: &Kind, figures: Figures, trip_ns: f64) -> [Row; 3] {
    let conditions = format!(
        "{}, in turn of 200 files in 10 directories, all cached, one thread; {}, {}, {}, {}; a running round trip \
         ({TRIP}) {trip_ns} ns; {} rounds, median of {SLICES} slices",
        kind.what,
        told("tmpfs", &figures.tmpfs.samples),
        told("ext4 on zram", &figures.ext4.samples),
        told("private", &figures.private.samples),
        told("shared", &figures.shared.samples),
        rounds()
    );
    let goal = match kind.shared {
        Shared::Times(most) => Goal::Ratio(most),
        Shared::More(ns) => Goal::Excess(ns),
        Shared::Trip => Goal::Excess(trip_ns),
    };
    let Figures { tmpfs, ext4, private, shared } = figures;
    let beside = [
        ("shared", shared.clone(), private.clone(), goal),
        ("tmpfs", private, tmpfs, Goal::Ratio(1.0)),
        ("ext4", shared, ext4, Goal::Ratio(1.0)),
    ];
    beside.map(|(word, ours, rival, goal)| Row {
        name: format!("{}.{word}", kind.row),
        unit: "ns",
        ours,
        rival: Some(rival),
        goal,
        flushes_per_op: None,
        conditions: conditions.clone(),
    })
}
