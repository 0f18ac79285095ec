//! What the programs write, so that a reader sees what is missing, there twice, or torn; and what they have said.

use std::collections::BTreeMap;

/// The files to which all append.
pub(super) const LOGS: [&str; 2] = ["a", "b"];
/// The file that all replace by renaming another one over it.
pub(super) const REPLACED: &str = "c";
/// Records of which the replaced file consists: more than a page.
const RECORDS: u64 = 150;

/// A record: whose, which of this program's in this file, and some more bytes, so that no two neighbours are as long.
pub(super) fn record(who: &str, number: u64) -> String {
    format!("{who}.{number}.{:x<1$}\n", "", (number as usize * 7) % 41)
}

/// How many records of each program a log has.
pub(super) fn count(log: &str) -> Result<BTreeMap<String, u64>, String> {
    let mut counts = BTreeMap::new();
    for line in log.split_inclusive('\n') {
        let who = line.split('.').next().unwrap_or_default();
        let count = counts.entry(who.to_owned()).or_insert(0);
        if line != record(who, *count) {
            return Err(format!("{line:?} where record {count} of {who} should be"));
        }
        *count += 1;
    }
    Ok(counts)
}

/// The replaced file, as a program writes it for the `edition`th time.
pub(super) fn edition(who: &str, edition: u64) -> String {
    (0..RECORDS).map(|number| record(who, edition + number)).collect()
}

/// Whose edition a text is, and which.
pub(super) fn edition_of(text: &str) -> Result<(&str, u64), String> {
    let mut words = text.split('.');
    let who = words.next().unwrap_or_default();
    let number = words.next().and_then(|word| word.parse().ok()).unwrap_or(0);
    if text == edition(who, number) { Ok((who, number)) } else { Err(format!("no edition: {text:?}")) }
}

/// What the programs have said: each line after the call that it tells of had returned.
#[derive(Default)]
pub(super) struct Said {
    /// Records in each log.
    done: BTreeMap<String, [u64; 2]>,
    /// Editions of the replaced file.
    editions: BTreeMap<String, u64>,
    /// How often a program was killed or stopped at a point.
    pub(super) struck: usize,
    /// Programs that were killed, or whose server was gone: of their last call nobody knows.
    ended: Vec<String>,
}

impl Said {
    /// Reads what a run has printed.
    pub(super) fn read(out: &str) -> Result<Self, String> {
        let mut said = Self::default();
        for line in out.lines().filter_map(|line| line.strip_prefix('+')) {
            let words: Vec<&str> = line.split(' ').collect();
            match words[..] {
                ["appended", who, log] => {
                    said.done.entry(who.to_owned()).or_default()
                        [log.parse::<usize>().map_err(|_| line)?] += 1;
                }
                ["replaced", who] => *said.editions.entry(who.to_owned()).or_default() += 1,
                ["struck"] => said.struck += 1,
                ["ended", who] => said.ended.push(who.to_owned()),
                _ => return Err(line.to_owned()),
            }
        }
        Ok(said)
    }

    /// How many records were acknowledged.
    pub(super) fn acknowledged(&self) -> u64 {
        self.done.values().flatten().sum()
    }

    /// Whether what is in the files is what was said: all of it, and of each program that ended one call more at most.
    pub(super) fn agrees_with(&self, logs: &[String; 2], replaced: Option<&str>) -> Result<(), String> {
        let mut more: BTreeMap<String, u64> = BTreeMap::new();
        let counts = [count(&logs[0])?, count(&logs[1])?];
        for (who, done) in &self.done {
            for (log, counts) in counts.iter().enumerate() {
                let there = counts.get(who).copied().unwrap_or(0);
                if there < done[log] {
                    return Err(format!("{there} of {} records of {who} in {}", done[log], LOGS[log]));
                }
            }
        }
        for (log, counts) in counts.iter().enumerate() {
            for (who, there) in counts {
                let done = self.done.get(who).map_or(0, |done| done[log]);
                *more.entry(who.clone()).or_default() += there - done;
            }
        }
        match replaced.filter(|text| !text.is_empty()) {
            None if self.editions.is_empty() => {}
            None => return Err("the replaced file is gone".to_owned()),
            Some(text) => {
                let (who, there) = edition_of(text)?;
                let done = self.editions.get(who).copied().unwrap_or(0);
                let further = (there + 1).checked_sub(done);
                let further = further.ok_or_else(|| format!("edition {there} of {who} after {done}"))?;
                *more.entry(who.to_owned()).or_default() += further;
            }
        }
        let allowed = |who: &String| u64::from(self.ended.contains(who));
        match more.iter().find(|(who, more)| **more > allowed(who)) {
            Some((who, more)) => Err(format!("{more} calls of {who} too many")),
            None => Ok(()),
        }
    }
}
