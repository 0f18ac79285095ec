//! Rows of files that lie on memory, through the wrapper.

use crate::files::ROUNDS;
use crate::mounted::Ours;
use crate::row::{Contender, Goal, Row};
use nvmed_lab::samples::Samples;
use nvmed_lab::shell::run;
use std::process::Command;

/// The rows.
pub const NAMES: [&str; 1] = ["nvm.file_read_8k"];

const SET_BYTES: u64 = 1 << 30;
const DEVICE_BYTES: u64 = SET_BYTES + (SET_BYTES >> 2);
/// Slices of a round, in each of which both sides have a turn.
const SLICES: usize = 15;
/// Calls of a turn.
const OPS: usize = 10_000;

/// One round: the medians of the slices, of reads and of copies.
fn round(ours: &Ours, mut probe: Command) -> Result<(f64, f64), String> {
    let file = ours.dir().join("probe.dat");
    probe.arg("beside").arg(ours.beside("disk.img")).arg(file);
    probe.args([SET_BYTES.to_string(), SLICES.to_string(), OPS.to_string()]);
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

/// Reads of 8 KiB at random of a large set, by a private mount, against copies from another mapping of the same file.
pub fn read() -> Result<Vec<Row>, String> {
    let ours = Ours::on_memory(DEVICE_BYTES)?;
    let (mut reads, mut copies) = (Samples::default(), Samples::default());
    for _ in 0..ROUNDS {
        let mut probe = ours.probe();
        ours.wrap(&mut probe);
        let (read, copied) = round(&ours, probe)?;
        reads.push(read);
        copies.push(copied);
    }
    let rival = Contender { name: "memcpy from the image's mapping".to_owned(), samples: copies };
    Ok(vec![Row {
        name: NAMES[0].to_owned(),
        unit: "ns",
        ours: Contender { name: "nvmed, a file on memory, private".to_owned(), samples: reads },
        rival: Some(rival),
        goal: Goal::Ratio(1.3),
        flushes_per_op: None,
        conditions: format!(
            "8 KiB at random of a file of {SET_BYTES} bytes on nvm: with flush=process, an image in a tmpfs, one \
             thread; in turns in one process; {ROUNDS} rounds, median of {SLICES} slices of {OPS}"
        ),
    }])
}
