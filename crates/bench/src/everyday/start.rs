//! What beginning and ending costs: a run, the preload, and exec within a run.

use crate::mounted::{KernelFs, Ours};
use crate::programs::shell::{Shell, quoted};
use crate::programs::{Mount, Seat, quick};
use crate::row::{Contender, Goal, Row};
use nvmed_lab::samples::Samples;
use nvmed_lab::shell::time;

/// Programs that a shell starts one after the other in a round.
const EXECS: u32 = 50;

/// A run of `true`; a program that touches nothing, with the preload and without; the same started by a shell within a
/// run and outside.
pub fn measure() -> Result<Vec<Row>, String> {
    let starts: u32 = if quick() { 5 } else { 50 };
    let ours = Ours::new(1 << 30, 256 << 20, "huge")?;
    let program = ours.probe();
    let program = program.get_program();
    let (mut preloaded, mut bare) = (Samples::default(), Samples::default());
    for _ in 0..starts {
        preloaded.push(time(ours.wrap(ours.probe().arg("nothing")), None)? * 1e3);
        bare.push(time(ours.probe().arg("nothing"), None)? * 1e3);
    }
    let seat = Seat::Ours(ours, Mount::Shared);
    let mut nothing = Samples::default();
    for _ in 0..starts {
        nothing.push(time(&mut seat.command("true")?, None)? * 1e3);
    }
    let outside = Seat::kernel(KernelFs::Tmpfs)?;
    let mut shells = [Shell::start(seat.command("sh")?)?, Shell::start(outside.command("sh")?)?];
    let line = format!(
        "i=0; while [ $i -lt {EXECS} ]; do {} nothing; i=$((i + 1)); done",
        quoted(std::path::Path::new(program))
    );
    let mut execs: [Samples; 2] = Default::default();
    for _ in 0..starts.div_ceil(5) {
        for (shell, samples) in shells.iter_mut().zip(&mut execs) {
            samples.push(shell.run(&line)? * 1e3 / f64::from(EXECS));
        }
    }
    let [inside, outside] = execs;
    let row = |name: &str, ours: (&str, Samples), rival: Option<(&str, Samples)>, goal, what: String| Row {
        name: name.to_owned(),
        unit: "ms",
        ours: Contender { name: ours.0.to_owned(), samples: ours.1 },
        rival: rival.map(|(name, samples)| Contender { name: name.to_owned(), samples }),
        goal,
        flushes_per_op: None,
        conditions: what,
    };
    Ok(vec![
        row(
            "everyday.start.run",
            ("nvmed run --shared -- true", nothing),
            None,
            Goal::Figure(4.0),
            format!("holder, server, mount, true, unmount, end; {starts} runs"),
        ),
        row(
            "everyday.start.preload",
            ("with the wrapper", preloaded),
            Some(("without", bare)),
            Goal::Excess(0.2),
            format!("fork, exec, wait of a program that makes no file call; {starts} starts in turns"),
        ),
        row(
            "everyday.start.exec",
            ("within a run", inside),
            Some(("outside", outside)),
            Goal::Excess(0.3),
            format!("a shell starts a program that makes no file call; rounds of {EXECS} in turns"),
        ),
    ])
}
