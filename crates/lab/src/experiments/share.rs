//! Where the time of a 4 KiB read goes: TCE'17 figure 2.

use crate::duel::{Measured, Series, Team, alternate, device, our_team};
use crate::error::LabError;
use crate::experiment::{Effort, Experiment, Finding, Goal};
use crate::load::{Load, Pattern};
use crate::medium::Zram;
use crate::rival::{Copies, KernelInterface};
use crate::samples::Samples;

/// Share of a read that is not the medium's copy.
pub(crate) struct SoftwareShare;

const BLOCK_BYTES: u32 = 4096;

impl Experiment for SoftwareShare {
    fn id(&self) -> &'static str {
        "tce17.fig2.software_share"
    }

    fn what(&self) -> &'static str {
        "share of a 4 KiB random read at depth 1 that is software, not the medium's copy: ours over the kernel's"
    }

    /// The paper has only the kernel's share; a stack that bypasses it should halve that at least.
    fn goal(&self) -> Goal {
        Goal::AtMost(0.5)
    }

    fn run(&self, effort: &Effort) -> Result<Finding, LabError> {
        let bytes = effort.set_bytes();
        let load = Load {
            pattern: Pattern::RANDREAD,
            block_bytes: BLOCK_BYTES,
            depth: 1,
            offset: 0,
            bytes,
            seed: 7,
        };
        let zram = Zram::filled(bytes)?;
        let text = format!("virtual:?media=dram,size={bytes}");
        let ours = device(&text, 1)?;
        let mut teams = [
            Team::new("copy", vec![Box::new(Copies::new(&load)?)]),
            our_team(&ours, &text, &load, 1)?,
            Team::kernel(KernelInterface::Psync, &zram.device(), "zram", &load, 1)?,
        ];
        let measured = alternate(&mut teams, effort)?;
        let [copy, ours, kernel] = &measured[..] else {
            return Err(LabError::missing("three contenders"));
        };
        // Rates: the copy's time over the whole time is rate over rate.
        let share = |of: &Measured| Measured {
            name: of.name.clone(),
            runs: of
                .runs
                .over(&copy.runs)
                .figures()
                .iter()
                .map(|copied| 100.0 * (1.0 - copied))
                .collect::<Samples>(),
        };
        let series = Series {
            label: "software share of a 4 KiB read".to_owned(),
            unit: "%".to_owned(),
            ours: share(ours),
            rivals: vec![share(kernel)],
        };
        Ok(Finding {
            cells: Vec::new(), series: vec![series],
            method: format!(
                "whole time of a 4 KiB random read of {} MiB at depth 1 (ours: handle, driver and inline virtual \
                 controller over DRAM; kernel: pread O_DIRECT on zram, incompressible data) less that of a bare copy \
                 of a random 4 KiB block out of huge frames, over the whole; in turns, {} rounds of {} slices",
                bytes >> 20,
                effort.rounds(),
                effort.slices()
            ),
            limits: vec![
                "the paper's shares are of NVMe hardware: over 15 % of an SSD's read, about 70 % of a RAM disk's; \
                 here the medium is memory, so only the second compares"
                    .to_owned(),
            ],
        })
    }
}
