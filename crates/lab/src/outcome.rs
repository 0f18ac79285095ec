//! Results: one of each experiment, as JSON, and what misses its goal.

use crate::advice::Advice;
use crate::cell::{Cell, furthest, judged, summary};
use crate::duel::Series;
use crate::error::LabError;
use crate::experiment::{Effort, Experiment, Goal};
use crate::machine::{load_average, machine};
use crate::paper::{Paper, paper};
use nvmed_trace::OutputFile;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// More series than these are no reading for a line: it has so many, and the one that decides.
const LISTED_MAX: usize = 6;

/// What became of an experiment.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Outcome {
    /// Its name.
    pub id: String,
    /// What is measured.
    pub what: String,
    /// What the paper prints.
    pub paper: Option<Paper>,
    /// What was measured; empty when it was not run.
    pub measured: Vec<Series>,
    /// The cells of a table, where the paper has one.
    #[serde(default)]
    pub cells: Vec<Cell>,
    /// What the designer of a device can do with it.
    #[serde(default)]
    pub advice: Vec<Advice>,
    /// Ours over the best rival's: of the series furthest from the goal.
    pub ratio: Option<f64>,
    /// Smallest and largest ratio of a round of that series.
    pub spread: Option<(f64, f64)>,
    /// What must be reached.
    pub goal: Goal,
    /// The goal in words.
    pub goal_text: String,
    /// Whether it is reached.
    pub met: bool,
    /// Why it was not run, or what failed.
    pub skipped: Option<String>,
    /// How it was measured.
    pub method: String,
    /// What the figures do not say.
    pub limits: Vec<String>,
    /// Processor, cores, kernel.
    pub machine: String,
    /// Load average before it began: what else ran.
    pub load_average: Option<f64>,
    /// Whether only a short run was asked for.
    pub quick: bool,
}

/// Runs an experiment. What this machine cannot run, or what fails, is an outcome too.
#[must_use]
pub fn run(experiment: &dyn Experiment, effort: &Effort) -> Outcome {
    let before = load_average();
    let goal = experiment.goal();
    let mut outcome = Outcome {
        id: experiment.id().to_owned(),
        what: experiment.what().to_owned(),
        paper: paper(experiment.id()),
        measured: Vec::new(),
        cells: Vec::new(),
        advice: Vec::new(),
        ratio: None,
        spread: None,
        goal,
        goal_text: goal.text(),
        met: false,
        skipped: None,
        method: String::new(),
        limits: Vec::new(),
        machine: machine(),
        load_average: before.is_finite().then_some(before),
        quick: effort.quick,
    };
    match experiment.advise(effort) {
        Ok((finding, advice)) => {
            outcome.advice = advice;
            outcome.method = finding.method;
            outcome.limits = finding.limits;
            outcome.measured = finding.series;
            debug_assert!(
                finding.cells.iter().all(|cell| cell.goal.is_none()),
                "cell_goal gives cells their goals"
            );
            outcome.cells = finding.cells;
            outcome.set_goals(experiment);
            outcome.judge();
        }
        Err(error @ LabError::Missing { .. }) => outcome.skipped = Some(error.to_string()),
        Err(error) => outcome.skipped = Some(format!("failed: {error}")),
    }
    outcome
}

impl Outcome {
    /// Gives the cells the goals of the experiment.
    fn set_goals(&mut self, experiment: &dyn Experiment) {
        (self.goal, self.goal_text) = (experiment.goal(), experiment.goal().text());
        self.cells.iter_mut().for_each(|cell| cell.goal = experiment.cell_goal(cell));
    }

    /// Takes what is furthest from the goal: a series, or a cell where there are no series. All series and all cells
    /// that are judged must reach their goals.
    fn judge(&mut self) {
        let mut cells = judged(&self.cells, self.goal);
        let cells_met = cells.all(|(cell, goal)| goal.met(cell.ratio()));
        if let Some(worst) = self.worst() {
            let (ratio, spread) = (worst.ratio(), worst.spread());
            self.met = cells_met && self.measured.iter().all(|series| self.goal.met(series.ratio()));
            self.ratio = ratio.is_finite().then_some(ratio);
            self.spread = (spread.0.is_finite() && spread.1.is_finite()).then_some(spread);
        } else {
            self.ratio = furthest(&self.cells, self.goal).map(Cell::ratio);
            self.met = self.ratio.is_some() && cells_met;
        }
    }

    /// The series furthest from the goal; none where cells alone are judged.
    fn worst(&self) -> Option<&Series> {
        let beyond = |series: &&Series| self.goal.beyond(series.ratio());
        let series = (!matches!(self.goal, Goal::Within(_))).then_some(&self.measured)?;
        series.iter().max_by(|a, b| beyond(a).total_cmp(&beyond(b)))
    }

    /// What was measured, a text for each part: of many series the first ones and the one that decides.
    pub(crate) fn parts(&self) -> Vec<String> {
        let is_long = self.measured.len() > LISTED_MAX;
        let shown = if is_long { LISTED_MAX - 1 } else { self.measured.len() };
        let mut parts: Vec<String> = self.measured[..shown].iter().map(sides).collect();
        if is_long && let Some(worst) = self.worst() {
            let more = self.measured.len() - shown;
            parts.push(format!("and {more} more; of all, furthest from the goal is {}", sides(worst)));
        }
        parts.extend((!self.cells.is_empty()).then(|| summary(&self.cells, self.goal)));
        parts
    }

    /// Paper, measured and ratio in a line.
    #[must_use]
    pub fn line(&self) -> String {
        let paper = self.paper.as_ref().map_or("-", |paper| paper.printed.as_str());
        if let Some(reason) = &self.skipped {
            return format!("{:<28} | {paper} | SKIPPED: {reason}", self.id);
        }
        let ratio = self.ratio.map_or("-".to_owned(), |ratio| format!("{ratio:.2} x"));
        let spread = self.spread.map_or(String::new(), |(low, high)| format!(" ({low:.2}..{high:.2})"));
        format!(
            "{:<28} | {paper} | {} | {ratio}{spread} | {} | {}",
            self.id,
            self.parts().join("; "),
            self.goal_text,
            if self.met { "met" } else { "NOT MET" },
        )
    }

    /// Writes it to `dir/ID.json`.
    ///
    /// # Errors
    /// The host refuses.
    pub fn save(&self, dir: &Path) -> Result<(), LabError> {
        let text = serde_json::to_string_pretty(self)
            .map_err(|error| LabError::Results { path: self.id.clone(), reason: error.to_string() })?;
        let path = dir.join(format!("{}.json", self.id));
        std::fs::create_dir_all(dir)
            .and_then(|()| OutputFile::write(&path, (text + "\n").as_bytes()))
            .map_err(|error| LabError::program(path.display(), &error))
    }
}

/// Ours and the best rival's medians.
pub(crate) fn sides(series: &Series) -> String {
    let rival = series.best_rival();
    let rival = rival.map_or(String::new(), |rival| format!(", {} {:.1}", rival.name, rival.runs.median()));
    let (ours, unit) = (&series.ours, &series.unit);
    format!("{}: {} {:.1} {unit}{rival}", series.label, ours.name, ours.runs.median())
}

/// The results that lie in a directory, by name.
///
/// # Errors
/// It cannot be read, holds none, or one of its files is no result.
pub fn read_outcomes(dir: &Path) -> Result<Vec<Outcome>, LabError> {
    let wrong = |path: &Path, reason: String| LabError::Results { path: path.display().to_string(), reason };
    let entries = std::fs::read_dir(dir).map_err(|error| wrong(dir, error.to_string()))?;
    let mut paths: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
    paths.sort();
    let read = |path: &std::path::PathBuf| {
        let text = std::fs::read_to_string(path).map_err(|error| wrong(path, error.to_string()))?;
        serde_json::from_str(&text).map_err(|error| wrong(path, format!("no result of the lab: {error}")))
    };
    let outcomes = paths.iter().map(read).collect::<Result<Vec<Outcome>, _>>()?;
    if outcomes.is_empty() {
        return Err(wrong(dir, "holds no results; `nvmed lab run all --out DIR` writes them".to_owned()));
    }
    Ok(outcomes)
}

/// What misses its goal, a line each; what was skipped misses it. The goal is judged again from the figures and
/// the goal of this program, so that a file cannot say of itself that it is met.
#[must_use]
pub fn check(outcomes: &[Outcome], experiments: &[&dyn Experiment]) -> Vec<String> {
    let mut missed = Vec::new();
    for outcome in outcomes {
        let known = experiments.iter().find(|one| one.id() == outcome.id);
        let mut again = Outcome { met: false, ratio: None, ..outcome.clone() };
        if let Some(known) = known {
            again.set_goals(*known);
        }
        again.judge();
        if !again.met || again.skipped.is_some() {
            missed.push(again.line());
        }
    }
    missed
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake_experiment::FakeExperiment;

    #[test]
    fn the_series_furthest_from_its_goal_decides_against_the_best_rival() {
        let effort = Effort::default();
        let good = run(&FakeExperiment { ours: 3.0, rival: 2.0, missing: false }, &effort);
        assert!(good.met && good.ratio.is_some_and(|ratio| (ratio - 1.5).abs() < 1e-9), "{good:?}");
        let bad = run(&FakeExperiment { ours: 2.9, rival: 2.0, missing: false }, &effort);
        assert!(!bad.met, "{bad:?}");
        assert_eq!(check(&[good.clone(), bad.clone()], &[]).len(), 1);
        let boast = Outcome { met: true, ..bad };
        assert_eq!(check(&[boast], &[]).len(), 1, "a file that says of itself that it is met");
        let blank = Outcome { measured: Vec::new(), ..good };
        assert_eq!(check(&[blank], &[]).len(), 1, "a result without figures");
    }

    #[test]
    fn a_table_is_judged_cell_by_cell() {
        let judged = |ours: [f64; 2], contradicted: Option<String>| {
            let cell = |at: usize| Cell::new("Idle", ["mean KiB", "writes %"][at], 50.0, ours[at]);
            let cells = vec![cell(0), Cell { contradicted, ..cell(1) }];
            let given = run(&FakeExperiment { ours: 3.0, rival: 2.0, missing: false }, &Effort::default());
            let mut outcome = Outcome { goal: Goal::Within(2.0), cells, measured: Vec::new(), ..given };
            outcome.judge();
            (outcome.met, outcome.line())
        };
        assert!(judged([50.9, 49.1], None).0);
        let (met, line) = judged([50.9, 48.9], None);
        assert!(
            !met && line.contains("2 cells judged, furthest off Idle writes %: 48.90 for 50.00"),
            "{line}"
        );
        let (met, line) = judged([50.9, 48.9], Some("Table IV says otherwise".to_owned()));
        assert!(
            met && line.contains("1 cells judged, furthest off Idle mean KiB: 50.90 for 50.00; 1 that"),
            "{line}"
        );
        assert!(!judged([50.0, f64::NAN], None).0);
    }

    #[test]
    fn a_cell_with_a_goal_of_its_own_is_judged_beside_the_series() {
        let judged = |ours: f64, goal: Option<Goal>| {
            let mut outcome =
                run(&FakeExperiment { ours: 3.0, rival: 2.0, missing: false }, &Effort::default());
            outcome.cells = vec![Cell { goal, ..Cell::new("Idle", "gain %", 50.0, ours) }];
            outcome.judge();
            (outcome.met, outcome.line())
        };
        let most = Some(Goal::AtMost(1.0));
        assert!(judged(50.0, most).0);
        let (met, line) = judged(50.1, most);
        assert!(!met && line.contains("1 cells judged, furthest off Idle gain %: 50.10 for 50.00"), "{line}");
        assert!(!judged(f64::NAN, most).0);
        let (met, line) = judged(90.0, None);
        assert!(met && line.contains("; 1 cells shown and not judged"), "{line}");
    }

    #[test]
    fn a_line_has_the_first_of_many_series_and_the_one_that_decides() {
        let mut outcome = run(&FakeExperiment { ours: 3.0, rival: 2.0, missing: false }, &Effort::default());
        let (easy, hard) = (outcome.measured[0].clone(), outcome.measured[1].clone());
        outcome.measured = vec![easy; 8];
        outcome.measured.push(hard);
        let line = outcome.line();
        assert_eq!(line.matches("easy: ours 30.0 kIOPS, fast <path> 2.0").count(), 5, "{line}");
        assert!(
            line.contains("and 4 more; of all, furthest from the goal is hard: ours 3.0 kIOPS"),
            "{line}"
        );
    }

    #[test]
    fn what_is_skipped_says_so_and_misses_its_goal() {
        let skipped = run(&FakeExperiment { ours: 3.0, rival: 2.0, missing: true }, &Effort::default());
        assert!(skipped.line().contains("SKIPPED: no such machine"));
        assert_eq!(check(&[skipped], &[]).len(), 1);
    }

    #[test]
    fn results_survive_the_disk() {
        let dir = std::env::temp_dir().join(format!("nvmed-lab-test-{}", std::process::id()));
        let outcome = run(&FakeExperiment { ours: 3.0, rival: 2.0, missing: false }, &Effort { quick: true });
        outcome.save(&dir).unwrap();
        let read = read_outcomes(&dir).unwrap();
        assert_eq!((read.len(), read[0].line()), (1, outcome.line()));
        std::fs::write(dir.join("odd.json"), "{}").unwrap();
        assert!(read_outcomes(&dir).unwrap_err().to_string().contains("odd.json"));
        std::fs::remove_dir_all(&dir).unwrap();
        assert!(read_outcomes(&dir).is_err());
    }
}
