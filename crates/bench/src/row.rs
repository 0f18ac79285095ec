//! Rows of the table: what was measured, beside whom, and whether the goal is met.

use nvmed_lab::samples::Samples;
use serde::Serialize;
use std::path::Path;

/// What a row must reach.
#[derive(Clone, Copy, Debug)]
pub enum Goal {
    /// Ours at most this multiple of the rival's.
    Ratio(f64),
    /// Ours at most this, in the row's unit.
    Figure(f64),
    /// Ours at most this multiple of the rival's, or at most the rival's second slowest round: its own spread.
    Beside(f64),
    /// Ours at most this much more than the rival's, in the row's unit.
    Excess(f64),
    /// Ours at least this multiple of the rival's.
    Times(f64),
    /// Ours at least this, in the row's unit.
    Least(f64),
}

/// A contender's name and figures.
#[derive(Clone, Debug)]
pub struct Contender {
    /// Who, on which medium.
    pub name: String,
    /// Its figures.
    pub samples: Samples,
}

/// One measured row.
#[derive(Debug)]
pub struct Row {
    /// Name, as `make bench ROW=` takes it.
    pub name: String,
    /// Unit of the figures.
    pub unit: &'static str,
    /// Ours.
    pub ours: Contender,
    /// The rival; none for an absolute goal.
    pub rival: Option<Contender>,
    /// What must be reached.
    pub goal: Goal,
    /// Device flushes an operation; a durable row with none is not met.
    pub flushes_per_op: Option<f64>,
    /// Conditions: device, size, depth, repeats.
    pub conditions: String,
}

/// The best of several rivals, by median.
#[must_use]
pub(crate) fn better(rivals: &[Contender]) -> Option<Contender> {
    rivals.iter().min_by(|a, b| a.samples.median().total_cmp(&b.samples.median())).cloned()
}

/// The second largest figure; the largest of fewer than three.
fn upper(samples: &Samples) -> f64 {
    let mut sorted = samples.figures().to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = sorted.len().saturating_sub(if sorted.len() < 3 { 1 } else { 2 });
    sorted.get(at).copied().unwrap_or(f64::NAN)
}

#[derive(Serialize)]
struct Record<'a> {
    name: &'a str,
    ours: f64,
    rival: Option<f64>,
    unit: &'a str,
    ratio: Option<f64>,
    goal: String,
    met: bool,
    runs: usize,
    spread: [f64; 2],
    machine: &'a str,
    ours_name: &'a str,
    rival_name: Option<&'a str>,
    flushes_per_op: Option<f64>,
    instructions_a_call: Option<f64>,
    conditions: &'a str,
    ours_runs: &'a [f64],
    rival_runs: Option<&'a [f64]>,
}

impl Row {
    /// Ours over the rival's: of the medians.
    #[must_use]
    pub fn ratio(&self) -> Option<f64> {
        let rival = self.rival.as_ref()?;
        Some(self.ours.samples.median() / rival.samples.median())
    }

    /// Whether the goal is reached; a durable row must also have flushed.
    #[must_use]
    pub fn met(&self) -> bool {
        let ours = self.ours.samples.median();
        let rival = self.rival.as_ref().map_or(f64::NAN, |rival| rival.samples.median());
        let reached = match self.goal {
            Goal::Ratio(most) => ours <= most * rival,
            Goal::Beside(most) => {
                let upper = self.rival.as_ref().map_or(f64::NAN, |rival| upper(&rival.samples));
                ours <= most * rival || ours <= upper
            }
            Goal::Figure(most) => ours <= most,
            Goal::Excess(most) => ours - rival <= most,
            Goal::Times(least) => ours >= least * rival,
            Goal::Least(least) => ours >= least,
        };
        reached && self.flushes_per_op.is_none_or(|flushes| flushes > 0.0)
    }

    fn goal_text(&self) -> String {
        match self.goal {
            Goal::Ratio(most) => format!("<= {most} x"),
            Goal::Beside(most) => format!("<= {most} x or the rival's spread"),
            Goal::Figure(most) => format!("<= {most} {}", self.unit),
            Goal::Excess(most) => format!("<= +{most} {}", self.unit),
            Goal::Times(least) => format!(">= {least} x"),
            Goal::Least(least) => format!(">= {least} {}", self.unit),
        }
    }

    /// The row as a line of the table.
    #[must_use]
    pub fn line(&self) -> String {
        let rival = self
            .rival
            .as_ref()
            .map_or("-".to_owned(), |rival| format!("{:.2} ({})", rival.samples.median(), rival.name));
        let ratio = self.ratio().map_or("-".to_owned(), |ratio| format!("{ratio:.3}"));
        let (low, high) = self.spread();
        let flushes = self.flushes_per_op.map_or(String::new(), |n| format!("  [{n:.2} flushes/op]"));
        let flush = self.flush().map_or(String::new(), |flush| format!("  [{flush}]"));
        format!(
            "{:<34} | {:>10.2} {} | {} | {} ({:.2}..{:.2}) | {} | {}{}{}",
            self.name,
            self.ours.samples.median(),
            self.unit,
            rival,
            ratio,
            low,
            high,
            self.goal_text(),
            if self.met() { "met" } else { "NOT MET" },
            flushes,
            flush,
        )
    }

    /// Where a flush leaves what was written, as the conditions say it: `flush=process`. What memory takes depends on
    /// it, so that each row of memory says it.
    fn flush(&self) -> Option<&str> {
        let mut words =
            self.conditions.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '=');
        let flush = words.find(|word| word.starts_with("flush="));
        assert!(flush.is_some() || !self.name.starts_with("nvm."), "{} does not say which flush=", self.name);
        flush
    }

    fn spread(&self) -> (f64, f64) {
        match &self.rival {
            Some(rival) => self.ours.samples.over(&rival.samples).range(),
            None => self.ours.samples.range(),
        }
    }

    /// Writes the row to `dir/NAME.json`, with the instructions of one of its calls where they were counted.
    ///
    /// # Errors
    /// What the host answers.
    pub fn save(&self, dir: &Path, machine: &str, instructions_a_call: Option<f64>) -> std::io::Result<()> {
        let (low, high) = self.spread();
        let record = Record {
            name: &self.name,
            ours: self.ours.samples.median(),
            rival: self.rival.as_ref().map(|rival| rival.samples.median()),
            unit: self.unit,
            ratio: self.ratio(),
            goal: self.goal_text(),
            met: self.met(),
            runs: self.ours.samples.len(),
            spread: [low, high],
            machine,
            ours_name: &self.ours.name,
            rival_name: self.rival.as_ref().map(|rival| rival.name.as_str()),
            flushes_per_op: self.flushes_per_op,
            instructions_a_call,
            conditions: &self.conditions,
            ours_runs: self.ours.samples.figures(),
            rival_runs: self.rival.as_ref().map(|rival| rival.samples.figures()),
        };
        std::fs::create_dir_all(dir)?;
        let text = serde_json::to_string_pretty(&record).map_err(std::io::Error::other)?;
        std::fs::write(dir.join(format!("{}.json", self.name)), text + "\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &str, conditions: &str) -> Row {
        Row {
            name: name.to_owned(),
            unit: "ns",
            ours: Contender { name: "ours".to_owned(), samples: [1.0].into_iter().collect() },
            rival: None,
            goal: Goal::Figure(2.0),
            flushes_per_op: None,
            conditions: conditions.to_owned(),
        }
    }

    #[test]
    fn a_row_prints_what_its_flush_is() {
        assert!(row("nvm.a", "4 KiB, flush=process, one thread").line().ends_with("met  [flush=process]"));
        assert!(row("nvm.a", "with flush=host; 9 rounds").line().ends_with("  [flush=host]"));
        assert!(row("kv.get", "one thread").line().ends_with("met"));
    }

    #[test]
    #[should_panic(expected = "nvm.a does not say which flush=")]
    fn a_row_of_memory_that_does_not_say_it_is_our_mistake() {
        let _ = row("nvm.a", "one thread").line();
    }
}
