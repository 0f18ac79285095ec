//! Who is measured, in two guests: file systems on block devices, and on memory.

use super::plan::{Load, Plan};
use crate::error::LabError;
use crate::experiment::Effort;
use crate::guest::{Counts, Guest, Region};
use nvmed_sys::sync::Mutex;
use std::sync::Arc;

/// What one guest said.
#[derive(Debug)]
pub(super) struct Counted {
    regions: Vec<(String, Load)>,
    counts: Counts,
}

/// File systems of the first experiment.
pub(super) const FILE_SYSTEMS: [&str; 3] = ["ext2", "ext4", "btrfs"];
/// Drivers: one without a queue, and the same with one.
pub(super) const SYNCHRONOUS: &str = "null_blk bio";
pub(super) const QUEUEING: [&str; 2] = ["null_blk mq none", "null_blk mq-deadline"];
/// A check of the one without a queue.
pub(super) const CHECK: &str = "brd";
/// Ways to read or write other than the default.
pub(super) const NO_READAHEAD: &str = ", no readahead";
pub(super) const DIRECT: &str = ", O_DIRECT";
/// The first pass of a process, which has to map what it reads.
pub(super) const FIRST: &str = ", first pass";
/// What has `file-load` do the same once before, uncounted.
const AGAIN: &str = "again";
/// File systems of the second.
pub(super) const ON_MEMORY: [&str; 3] = ["ext2", "ext4", "xfs"];
/// A file system on memory, without and with a page cache.
pub(super) const DAX: &str = " DAX on pmem";
pub(super) const PMEM: &str = " on pmem";
/// The floor: a file system that has nothing below its page cache.
pub(super) const TMPFS: &str = "tmpfs";
/// Ours.
pub(super) const OURS: &str = "nvmed, memory";
pub(super) const OURS_SHARED: &str = "nvmed shared, memory";
pub(super) const OURS_BLOCK: &str = "nvmed, block";

/// Sizes of calls beyond the paper's.
pub(super) const LARGE_CALLS: [u64; 2] = [64 << 10, 1 << 20];

/// The paper's sizes of files, or the first two.
pub(super) fn sizes_mib(effort: &Effort) -> &'static [u64] {
    const ALL: [u64; 6] = [1, 32, 64, 128, 256, 512];
    if effort.quick { &ALL[..2] } else { &ALL }
}

/// The size at which what is beside the paper's is measured.
pub(super) fn beside_mib(effort: &Effort) -> u64 {
    if effort.quick { 32 } else { 64 }
}

impl Counted {
    /// Block devices, once for each effort.
    pub(super) fn on_blocks(effort: &Effort) -> Result<Arc<Self>, LabError> {
        static LAST: Mutex<Option<(bool, Arc<Counted>)>> = Mutex::new(None);
        Self::once(&LAST, effort, || {
            // All files, and once more the largest, whose overwritten blocks btrfs writes elsewhere.
            let disk_mib = if effort.quick { 256 } else { 2048 };
            let guest = Guest {
                memory_mib: if effort.quick { 1536 } else { 4096 },
                kernel_arguments: "norandmaps",
                timeout_s: if effort.quick { 1800 } else { 4 * 3600 },
            };
            Self::of(guest, blocks(effort, disk_mib))
        })
    }

    /// Memory, once for each effort.
    pub(super) fn on_memory(effort: &Effort) -> Result<Arc<Self>, LabError> {
        static LAST: Mutex<Option<(bool, Arc<Counted>)>> = Mutex::new(None);
        Self::once(&LAST, effort, || {
            // The machine has 2 GiB below the hole for devices; what is above it is the medium, but for a rest.
            let (memory_mib, set_aside) = if effort.quick { (3072, "768M") } else { (4608, "1792M") };
            let guest = Guest {
                memory_mib,
                kernel_arguments: &format!("norandmaps memmap={set_aside}!4G"),
                timeout_s: if effort.quick { 1800 } else { 2 * 3600 },
            };
            Self::of(guest, memory(effort, if effort.quick { 512 } else { 1400 }))
        })
    }

    fn once(
        last: &Mutex<Option<(bool, Arc<Self>)>>,
        effort: &Effort,
        count: impl FnOnce() -> Result<Self, LabError>,
    ) -> Result<Arc<Self>, LabError> {
        let mut last = last.lock();
        if let Some((quick, counted)) = &*last
            && *quick == effort.quick
        {
            return Ok(Arc::clone(counted));
        }
        let counted = Arc::new(count()?);
        *last = Some((effort.quick, Arc::clone(&counted)));
        Ok(counted)
    }

    fn of(guest: Guest<'_>, plan: Plan) -> Result<Self, LabError> {
        let counts = guest.run(&plan.script)?;
        Ok(Self { regions: plan.regions, counts })
    }

    /// What a contender's load took, if it was done.
    pub(super) fn region(&self, name: &str, load: Load) -> Option<&Region> {
        let is_it = |(contender, done): &(String, Load)| contender == name && *done == load;
        let id = self.regions.iter().position(is_it)?;
        self.counts.regions.get(&(id as u64))
    }

    /// Contenders that could not be had, and why.
    pub(super) fn skipped(&self) -> &[String] {
        &self.counts.skipped
    }

    /// The guest's kernel.
    pub(super) fn kernel(&self) -> &str {
        &self.counts.kernel
    }
}

fn loads(effort: &Effort) -> Vec<Load> {
    let sizes = sizes_mib(effort);
    let reads = sizes.iter().map(|&mib| Load::read(mib));
    reads.chain(sizes.iter().map(|&mib| Load::overwrite(mib))).collect()
}

fn files(effort: &Effort) -> String {
    let sizes: Vec<String> = sizes_mib(effort).iter().map(u64::to_string).collect();
    format!("files {}", sizes.join(" "))
}

fn blocks(effort: &Effort, disk_mib: u64) -> Plan {
    let mut plan = Plan::default();
    let beside = beside_mib(effort);
    for file_system in FILE_SYSTEMS {
        for driver in [SYNCHRONOUS].iter().chain(&QUEUEING).chain(&[CHECK]) {
            let name = format!("{file_system}, {driver}");
            let disk = match driver.strip_prefix("null_blk ") {
                Some(mode) => format!("null_blk {disk_mib} {}", mode.trim_start_matches("mq ")),
                None => format!("brd {disk_mib}"),
            };
            plan.group(&name, &[&disk, &format!("made {file_system}"), &files(effort)]);
            let one = [Load::read(beside), Load::overwrite(beside)];
            let all = if *driver == CHECK { one.to_vec() } else { loads(effort) };
            plan.regions(&name, AGAIN, &all);
            plan.regions(&format!("{name}{DIRECT}"), &format!("direct {AGAIN}"), &one);
            plan.lines(&["readahead 0"]);
            plan.regions(&format!("{name}{NO_READAHEAD}"), AGAIN, &one[..1]);
            plan.end();
        }
    }
    plan
}

/// Calls of other sizes, and appends.
fn others(beside_mib: u64) -> Vec<Load> {
    let mut loads: Vec<Load> =
        LARGE_CALLS.iter().map(|&call_bytes| Load { call_bytes, ..Load::read(beside_mib) }).collect();
    loads.push(Load::APPEND);
    loads
}

fn memory(effort: &Effort, image_mib: u64) -> Plan {
    let mut plan = Plan::default();
    let beside = beside_mib(effort);
    let one = [Load::read(beside), Load::overwrite(beside)];
    let all: Vec<Load> = loads(effort).into_iter().chain(others(beside)).collect();
    for file_system in ON_MEMORY {
        let name = format!("{file_system}{PMEM}");
        plan.group(&name, &["pmem", &format!("made {file_system}"), &files(effort)]);
        plan.regions(&name, AGAIN, &all);
        plan.regions(&format!("{name}{DIRECT}"), &format!("direct {AGAIN}"), &one);
        plan.lines(&["remount dax"]);
        plan.regions(&format!("{file_system}{DAX}"), AGAIN, &all);
        plan.end();
    }
    plan.group(TMPFS, &[&format!("tmpfs {image_mib}"), &files(effort)]);
    plan.regions(TMPFS, AGAIN, &all);
    plan.end();
    // Ours lies where the rivals do: on the memory that the kernel hands out by DAX.
    plan.group(OURS, &["pmem", "made ext4 dax", &format!("image {image_mib}")]);
    plan.lines(&["ours \"nvm:$disk_image?flush=dax\" private 64M", &files(effort)]);
    plan.regions(OURS, AGAIN, &all);
    plan.regions(&format!("{OURS}{FIRST}"), "", &one);
    // A cache, and as much for windows, that no file but the smallest fits: advice does not empty windows.
    plan.lines(&["ours \"nvm:$disk_image?flush=dax\" shared 8M"]);
    plan.regions(OURS_SHARED, AGAIN, &all);
    plan.lines(&["ours \"virtual:$disk_image?flush=process\" private 64M"]);
    plan.regions(OURS_BLOCK, AGAIN, &all);
    plan.end();
    plan
}

#[cfg(test)]
mod tests {
    use super::super::plan::CALL_BYTES;
    use super::*;

    #[test]
    fn every_contender_of_a_plan_has_the_papers_loads() {
        for (plan, contenders) in [
            (
                blocks(&Effort { quick: false }, 2048),
                vec!["ext4, null_blk bio", "btrfs, null_blk mq-deadline"],
            ),
            (
                memory(&Effort { quick: false }, 1400),
                vec!["ext2 DAX on pmem", TMPFS, OURS, OURS_SHARED, OURS_BLOCK],
            ),
        ] {
            for name in contenders {
                for mib in [1, 32, 64, 128, 256, 512] {
                    for load in [Load::read(mib), Load::overwrite(mib)] {
                        assert_eq!(load.call_bytes, CALL_BYTES);
                        let count =
                            plan.regions.iter().filter(|one| **one == (name.to_owned(), load)).count();
                        assert_eq!(count, 1, "{name} {load:?}");
                    }
                }
            }
        }
    }
}
