//! Two processes on one file: one writes, one reads.

use crate::files::MIB;
use crate::mounted::{KernelFs, Ours};
use crate::programs::{Mount, Seat, rounds};
use crate::row::{Contender, Goal, Row};
use nvmed_lab::samples::Samples;
use nvmed_lab::shell::run;

/// Slices of a round, whose median is the round's figure, and how long each lasts.
const SLICES: &str = "7";
const SLICE_MS: &str = "100";

/// Writes and reads of 4 KiB, as many as both do in a second, beside ext4 on zram.
pub fn measure() -> Result<Vec<Row>, String> {
    let ours = Ours::new(1 << 30, 256 * MIB, "huge")?;
    let probe = ours.probe();
    let seats = [Seat::Ours(ours, Mount::Shared), Seat::kernel(KernelFs::Ext4)?];
    let mut figures: [[Samples; 2]; 2] = Default::default();
    for _ in 0..rounds() {
        for (seat, figures) in seats.iter().zip(&mut figures) {
            let mut command = seat.command(probe.get_program())?;
            command.arg("pair").arg(seat.dir().join("pair.dat")).args([SLICES, SLICE_MS]);
            let text = run(&mut command)?;
            for (column, samples) in figures.iter_mut().enumerate() {
                let figure = |line: &str| line.split(' ').nth(column)?.parse::<f64>().ok();
                samples.push(text.lines().filter_map(figure).collect::<Samples>().median());
            }
        }
    }
    let row = |(column, name): (usize, &str)| {
        let contender =
            |at: usize| Contender { name: seats[at].name(), samples: figures[at][column].clone() };
        Row {
            name: name.to_owned(),
            unit: "calls/s",
            ours: contender(0),
            rival: Some(contender(1)),
            goal: Goal::Times(1.0),
            flushes_per_op: None,
            conditions: format!(
                "two processes on one file of 1 MiB, one writing 4 KiB at random, one reading, both at once; {} \
                 rounds, median of {SLICES} slices of {SLICE_MS} ms",
                rounds()
            ),
        }
    };
    Ok([(0, "everyday.pair.write"), (1, "everyday.pair.read")].map(row).into())
}
