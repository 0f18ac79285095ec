//! Rows of files that lie on memory, through the wrapper.

use crate::files::ROUNDS;
use crate::mounted::Ours;
use crate::row::{Contender, Goal, Row};
use nvmed_lab::samples::Samples;
use nvmed_lab::shell::run;

/// The rows.
pub const NAMES: [&str; 2] = ["nvm.file_read_8k", "nvm.shared_read_8k"];

const SET_BYTES: u64 = 1 << 30;
const DEVICE_BYTES: u64 = SET_BYTES + (SET_BYTES >> 2);
/// Slices of a round, in each of which both sides have a turn.
const SLICES: usize = 15;
/// Calls of a turn.
const OPS: usize = 10_000;

/// Whose mount it is.
#[derive(Clone, Copy)]
enum Mount {
    /// The process's own.
    Private,
    /// A server's, whose direct window on the file the process reads.
    Shared,
}

/// One round: the medians of the slices, of reads and of copies.
fn round(ours: &Ours, mount: Mount) -> Result<(f64, f64), String> {
    let mut probe = ours.probe();
    probe.arg("beside").arg(ours.beside("disk.img")).arg(ours.dir().join("probe.dat"));
    probe.args([SET_BYTES.to_string(), SLICES.to_string(), OPS.to_string()]);
    match mount {
        Mount::Private => drop(ours.wrap(&mut probe)),
        Mount::Shared => probe = ours.share(&probe),
    }
    let (mut reads, mut copies) = (Samples::default(), Samples::default());
    for line in run(&mut probe)?.lines() {
        let mut figures = line.split(' ').map(|word| word.parse().map_err(|_| format!("it said {line}")));
        reads.push(figures.next().ok_or("an empty line")??);
        copies.push(figures.next().ok_or("half a line")??);
    }
    if reads.len() == SLICES {
        Ok((reads.median(), copies.median()))
    } else {
        Err("too few slices".to_owned())
    }
}

/// Reads of 8 KiB at random of a large set, by a private and a shared mount, against copies from another mapping of the
/// same file.
pub fn read(wanted: &str) -> Result<Vec<Row>, String> {
    let kinds = [
        (NAMES[0], Mount::Private, "nvmed, a file on memory, private", 1.3),
        (NAMES[1], Mount::Shared, "nvmed, a file on memory, shared", 1.4),
    ];
    let asked = kinds.into_iter().filter(|(name, ..)| name.starts_with(wanted));
    asked.map(|(name, mount, whose, goal)| row(name, mount, whose, goal)).collect()
}

fn row(name: &str, mount: Mount, whose: &str, goal: f64) -> Result<Row, String> {
    let ours = Ours::on_memory(DEVICE_BYTES)?;
    let (mut reads, mut copies) = (Samples::default(), Samples::default());
    for _ in 0..ROUNDS {
        let (read, copied) = round(&ours, mount)?;
        reads.push(read);
        copies.push(copied);
    }
    let rival = Contender { name: "memcpy from the image's mapping".to_owned(), samples: copies };
    Ok(Row {
        name: name.to_owned(),
        unit: "ns",
        ours: Contender { name: whose.to_owned(), samples: reads },
        rival: Some(rival),
        goal: Goal::Ratio(goal),
        flushes_per_op: None,
        conditions: format!(
            "8 KiB at random of a file of {SET_BYTES} bytes on nvm: with flush=process, an image in a tmpfs, one \
             thread; in turns in one process; {ROUNDS} rounds, median of {SLICES} slices of {OPS}"
        ),
    })
}
