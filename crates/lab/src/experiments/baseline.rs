//! Raw I/O beside the kernel's: TCE'17 figure 5, and NVMeDirect 2.0's virtual device.

use crate::duel::{Team, device, our_team, series};
use crate::error::LabError;
use crate::experiment::{Effort, Experiment, Finding, Goal};
use crate::load::{Load, Pattern};
use crate::machine::cores;
use crate::medium::{LoopDisk, MemoryFile, Zram};

/// A load on our virtual device and on the kernel's memory disks.
pub(crate) struct Baseline {
    id: &'static str,
    what: &'static str,
    patterns: &'static [Pattern],
    block_bytes: u32,
    depth: u16,
    threads: u64,
    goal: Goal,
}

pub(crate) static SEQUENTIAL: Baseline = Baseline {
    id: "tce17.fig5a.seq",
    what: "128 KiB sequential read and write, one thread, depth 1: MB/s over the kernel's best path",
    patterns: &[Pattern::READ, Pattern::WRITE],
    block_bytes: 128 << 10,
    depth: 1,
    threads: 1,
    goal: Goal::AtLeast(1.0),
};

pub(crate) static RANDREAD_1T: Baseline = Baseline {
    id: "tce17.fig5b.randread_1t",
    what: "4 KiB random read, depth 32, one thread: IOPS over the kernel's best path",
    patterns: &[Pattern::RANDREAD],
    block_bytes: 4096,
    depth: 32,
    threads: 1,
    goal: Goal::AtLeast(1.23),
};

pub(crate) static RANDWRITE_1T: Baseline = Baseline {
    id: "tce17.fig5b.randwrite_1t",
    what: "4 KiB random write, depth 32, one thread: IOPS over the kernel's best path",
    patterns: &[Pattern::RANDWRITE],
    block_bytes: 4096,
    depth: 32,
    threads: 1,
    goal: Goal::AtLeast(1.05),
};

pub(crate) static RANDREAD_4T: Baseline = Baseline {
    id: "tce17.fig5b.randread_4t",
    what: "4 KiB random read, depth 32, four threads: IOPS over the kernel's best path",
    threads: 4,
    goal: Goal::AtLeast(1.0),
    ..RANDREAD_1T
};

pub(crate) static RANDWRITE_4T: Baseline = Baseline {
    id: "tce17.fig5b.randwrite_4t",
    what: "4 KiB random write, depth 32, four threads: IOPS over the kernel's best path",
    threads: 4,
    goal: Goal::AtLeast(1.0),
    ..RANDWRITE_1T
};

pub(crate) static VIRTUAL_NVME: Baseline = Baseline {
    id: "fms17.vnvme.randread",
    what: "4 KiB random read on a DRAM virtual device, 8 threads, depth 4: IOPS over the kernel's best path",
    depth: 4,
    threads: 8,
    goal: Goal::AtLeast(1.68),
    ..RANDREAD_1T
};

impl Experiment for Baseline {
    fn id(&self) -> &'static str {
        self.id
    }

    fn what(&self) -> &'static str {
        self.what
    }

    fn goal(&self) -> Goal {
        self.goal
    }

    fn run(&self, effort: &Effort) -> Result<Finding, LabError> {
        let bytes = effort.set_bytes();
        let zram = Zram::filled(bytes)?;
        let text = format!("virtual:?media=dram,size={bytes}");
        let ours = device(&text, self.threads as usize)?;
        // A loop device over tmpfs is context where there is one: its workers share the few cores.
        let loops = LoopDisk::filled(bytes).ok();
        // A file in tmpfs has no block device below it, which is less than we do: the hardest rival.
        let file = MemoryFile::filled(bytes).ok();
        let mut found = Vec::new();
        for &pattern in self.patterns {
            let load =
                Load { pattern, block_bytes: self.block_bytes, depth: self.depth, offset: 0, bytes, seed: 7 };
            let mut teams = vec![our_team(&ours, &text, &load, self.threads)?];
            teams.extend(Team::kernels(&zram.device(), "zram", &load, self.threads)?);
            if let Some(disk) = &loops {
                teams.extend(Team::kernels(disk.device(), "loop over tmpfs", &load, self.threads)?);
            }
            if let Some(file) = &file {
                // Kernels before 6.6 have no direct I/O there.
                teams.extend(
                    Team::kernels(file.path(), "a tmpfs file", &load, self.threads).unwrap_or_default(),
                );
            }
            let (unit, scale) = if pattern.sequential {
                ("MB/s", f64::from(self.block_bytes) / 1e6)
            } else {
                ("kIOPS", 1e-3)
            };
            found.push(series(pattern.name(), unit, scale, &mut teams, effort)?);
        }
        Ok(Finding {
            cells: Vec::new(),
            series: found,
            method: self.method(effort),
            limits: self.limits(effort),
        })
    }
}

impl Baseline {
    fn method(&self, effort: &Effort) -> String {
        format!(
            "{} bytes a request, depth {}, {} thread(s), {} MiB; ours: our NVMe driver and virtual controller in this \
             process, inline, DRAM in huge frames, an I/O handle a thread; kernel: pread/pwrite, libaio and io_uring, \
             all O_DIRECT, on zram with incompressible data, on a loop device over tmpfs and on a file in tmpfs; the \
             best of them by median counts; in turns, {} rounds of {} slices of {} ms, median slice; one thread: on \
             core 0, SCHED_FIFO where permitted; several: pinned, ordinary",
            self.block_bytes,
            self.depth,
            self.threads,
            effort.set_bytes() >> 20,
            effort.rounds(),
            effort.slices(),
            effort.slice_s() * 1e3,
        )
    }

    fn limits(&self, effort: &Effort) -> Vec<String> {
        let mut limits = vec![
            "no NVMe device on either side: a memory disk of the kernel beside a virtual controller, so that software \
             is all that is compared"
                .to_owned(),
        ];
        if self.patterns.iter().any(Pattern::writes) {
            let why = "zram tries to compress what is written before it stores it as it is: of writes the other two \
                       media are the rivals";
            limits.push(why.to_owned());
        }
        let cores = cores();
        if self.threads as usize > cores {
            limits.push(format!("{} threads on {cores} cores", self.threads));
        }
        if effort.quick {
            limits.push("quick: a small set that the processor's cache may hold, few rounds".to_owned());
        }
        limits
    }
}
