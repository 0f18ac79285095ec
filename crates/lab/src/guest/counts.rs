//! What a guest and the plugin that watched it have said.

use std::collections::BTreeMap;

/// A region of a program, as it was counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Region {
    /// Instructions, of user and kernel, whoever's they were.
    pub instructions: u64,
    /// Of those, the kernel's.
    pub in_kernel: u64,
    /// Of those, in blocks that touched the program's buffer: one copy.
    pub copying: u64,
    /// Bytes that the program read or wrote.
    pub bytes: u64,
}

impl Region {
    /// Instructions for 4 KiB, with all copies.
    pub(crate) fn total_per_4k(&self) -> f64 {
        self.instructions as f64 * 4096.0 / self.bytes as f64
    }

    /// Of those, the kernel's.
    pub(crate) fn kernel_per_4k(&self) -> f64 {
        self.in_kernel as f64 * 4096.0 / self.bytes as f64
    }

    /// Instructions for 4 KiB without the copy between the program's buffer and the first place behind it.
    pub(crate) fn net_per_4k(&self) -> f64 {
        self.instructions.saturating_sub(self.copying) as f64 * 4096.0 / self.bytes as f64
    }
}

/// What became of a plan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// The regions that were done, by their numbers.
    pub regions: BTreeMap<u64, Region>,
    /// Contenders that ended early, and why: `CONTENDER: REASON`.
    pub skipped: Vec<String>,
    /// The guest's kernel.
    pub kernel: String,
}

/// Reads what the plugin wrote and what the guest said.
///
/// # Errors
/// What is wrong with it: a region that never ended, a line that is none, a plan that was not done to its end.
pub(crate) fn parse(plugin: &str, guest: &str) -> Result<Counts, String> {
    let counted = counted(plugin)?;
    let (mut counts, mut is_done) = (Counts::default(), false);
    for line in guest.lines() {
        match line.split_once(' ').unwrap_or((line, "")) {
            ("did", rest) => {
                let [id, bytes, _calls] = numbers(rest).ok_or_else(|| odd("the guest", line))?;
                let &[instructions, in_kernel, copying] =
                    counted.get(&id).ok_or_else(|| format!("region {id} was done and not counted"))?;
                if bytes == 0 || copying > instructions || in_kernel > instructions {
                    return Err(format!(
                        "region {id} has counts that cannot be: {line}, {instructions} instructions"
                    ));
                }
                counts.regions.insert(id, Region { instructions, in_kernel, copying, bytes });
            }
            ("skipped", reason) => counts.skipped.push(reason.to_owned()),
            ("kernel", version) => version.clone_into(&mut counts.kernel),
            ("done", "") => is_done = true,
            _ => return Err(odd("the guest", line)),
        }
    }
    if is_done { Ok(counts) } else { Err("the guest ended before its plan was done".to_owned()) }
}

/// The regions of the plugin's output: instructions, the kernel's, and those that copy.
fn counted(plugin: &str) -> Result<BTreeMap<u64, [u64; 3]>, String> {
    let (mut regions, mut open) = (BTreeMap::new(), None);
    for line in plugin.lines() {
        let odd = || odd("the plugin", line);
        match line.split_once(' ').ok_or_else(odd)? {
            ("begin", rest) => {
                let [id] = numbers(rest).ok_or_else(odd)?;
                if let Some(open) = open.replace(id) {
                    return Err(never_ended(open));
                }
            }
            ("region", rest) => {
                let [id, counts @ ..] = numbers::<4>(rest).ok_or_else(odd)?;
                if open.take() != Some(id) || regions.insert(id, counts).is_some() {
                    return Err(odd());
                }
            }
            _ => return Err(odd()),
        }
    }
    open.map_or(Ok(regions), |open| Err(never_ended(open)))
}

fn never_ended(id: u64) -> String {
    format!("region {id} began and never ended: its program was killed, or the guest was")
}

fn odd(who: &str, line: &str) -> String {
    format!("{who} said {line:?}, which is no line of its output")
}

fn numbers<const N: usize>(text: &str) -> Option<[u64; N]> {
    let numbers: Result<Vec<u64>, _> = text.split(' ').map(str::parse).collect();
    numbers.ok()?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GUEST: &str = "kernel 6.1.0\ndid 0 8192 1\nskipped btrfs, brd: no module btrfs\ndone\n";

    #[test]
    fn regions_and_what_was_skipped_are_read() {
        let counts = parse("begin 0\nregion 0 3000 2500 1030\n", GUEST).unwrap();
        assert_eq!(counts.kernel, "6.1.0");
        assert_eq!(counts.skipped, ["btrfs, brd: no module btrfs"]);
        let region = counts.regions[&0];
        assert_eq!(region, Region { instructions: 3000, in_kernel: 2500, copying: 1030, bytes: 8192 });
        assert_eq!((region.total_per_4k(), region.net_per_4k()), (1500.0, 985.0));
    }

    #[test]
    fn a_region_that_failed_in_the_guest_is_left_out() {
        let text = "begin 0\nregion 0 3000 2500 1030\nbegin 1\nregion 1 9 9 9\n";
        assert_eq!(parse(text, GUEST).unwrap().regions.len(), 1);
    }

    #[test]
    fn what_was_not_counted_whole_is_an_error() {
        for (plugin, guest, words) in [
            ("begin 0\n", GUEST, "region 0 began and never ended"),
            ("begin 0\nbegin 1\nregion 1 1 1 1\n", GUEST, "region 0 began and never ended"),
            ("", GUEST, "region 0 was done and not counted"),
            ("begin 0\nregion 1 3000 2500 1030\n", GUEST, "the plugin said \"region 1 3000"),
            ("region 0 3000 2500 1030\n", GUEST, "the plugin said \"region 0"),
            ("begin 0\nregion 0 3000 2500\n", GUEST, "the plugin said"),
            ("begin 0\nregion 0 3000 2500 x\n", GUEST, "the plugin said"),
            ("begin 0\nregion 0 30 25 1030\n", GUEST, "counts that cannot be"),
            ("\n", GUEST, "the plugin said"),
            ("begin 0\nregion 0 3 2 1\n", "did 0 0 1\ndone\n", "counts that cannot be"),
            ("begin 0\nregion 0 3 2 1\n", "did 0 8192\ndone\n", "the guest said \"did 0 8192\""),
            ("begin 0\nregion 0 3 2 1\n", "did 0 8192 1\n", "before its plan was done"),
            ("", "Kernel panic\n", "the guest said \"Kernel panic\""),
        ] {
            let error = parse(plugin, guest).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
    }
}
