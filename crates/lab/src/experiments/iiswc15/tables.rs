//! Tables III and IV, the six characteristics, and the combinations.

use super::real::{self, Real};
use super::{APPLICATIONS, applications, found};
use crate::cell::Cell;
use crate::duel::{Measured, Series};
use crate::error::LabError;
use crate::experiment::{Effort, Experiment, Finding, Goal};
use nvmed_trace::{Cell as Column, Characteristic, Model, Row, Verdict};

const SEED: u64 = 1;

fn method() -> String {
    let real = real::given().names();
    format!("traces synthesised from the rows, seed 1{real}; analysed in one pass by the paper's definitions")
}

/// A table of the paper.
pub(crate) struct Table {
    id: &'static str,
    what: &'static str,
    columns: &'static [Column],
}

/// Sizes.
pub(crate) static TABLE_3: Table = Table {
    id: "iiswc15.table3",
    what: "size statistics of 25 synthesised traces, each cell beside the paper's",
    columns: &[
        Column::Data,
        Column::Requests,
        Column::Max,
        Column::Mean,
        Column::MeanRead,
        Column::MeanWrite,
        Column::WriteRequests,
        Column::WriteBytes,
    ],
};

/// Times and localities.
pub(crate) static TABLE_4: Table = Table {
    id: "iiswc15.table4",
    what: "timing statistics and localities of 25 synthesised traces, each cell beside the paper's",
    columns: &[
        Column::Duration,
        Column::Arrival,
        Column::Access,
        Column::NoWait,
        Column::Service,
        Column::Response,
        Column::Spatial,
        Column::Temporal,
    ],
};

impl Table {
    /// What is printed of a trace, and what one that it is about has.
    fn cells(&self, printed: &Row, name: &str, ours: &Row) -> Result<Vec<Cell>, LabError> {
        let torn = Model::contradictions(printed).map_err(|error| LabError::missing(error.to_string()))?;
        let cell = |&column: &Column| {
            let paper = printed.get(column)?;
            let is_torn = torn.iter().any(|(torn, ..)| *torn == column);
            let why = "the row's other cells say otherwise, beyond what rounding explains";
            let contradicted = is_torn.then(|| why.to_owned());
            let cell = Cell::new(name, column.name(), paper, ours.get(column).unwrap_or(f64::NAN));
            Some(Cell { contradicted, ..cell })
        };
        Ok(self.columns.iter().filter_map(cell).collect())
    }

    /// The paper's own traces beside its rows, among the cells; of others the values, in lines.
    fn real(&self, real: &Real) -> Result<(Vec<Cell>, Vec<String>), LabError> {
        let (mut cells, mut lines) = (Vec::new(), Vec::new());
        for trace in &real.traces {
            match trace.printed() {
                Some(printed) => {
                    cells.extend(self.cells(&printed, &format!("real {}", trace.row.name), &trace.row)?);
                }
                None => lines.push(trace.line(&format!("{} (not judged)", trace.values(self.columns)))),
            }
        }
        lines.extend(real.notes.iter().cloned());
        Ok((cells, lines))
    }
}

impl Experiment for Table {
    fn id(&self) -> &'static str {
        self.id
    }

    fn what(&self) -> &'static str {
        self.what
    }

    fn goal(&self) -> Goal {
        Goal::Within(2.0)
    }

    fn run(&self, _effort: &Effort) -> Result<Finding, LabError> {
        let mut cells = Vec::new();
        for (row, ours) in Row::published().iter().zip(found(usize::MAX, SEED)?) {
            cells.extend(self.cells(row, &row.name, &ours)?);
        }
        let (real, lines) = self.real(real::given())?;
        cells.extend(real);
        let mut limits = vec![
            "the paper's traces are not public as a set; what a synthesised trace is like beyond its row is ours"
                .to_owned(),
            "requests of a combination: data by mean size, since the column repeats those of other traces".to_owned(),
        ];
        limits.extend(lines);
        Ok(Finding { series: Vec::new(), cells, method: method(), limits })
    }
}

/// The six characteristics.
pub(crate) struct CharacteristicsHold;

impl Experiment for CharacteristicsHold {
    fn id(&self) -> &'static str {
        "iiswc15.char1_6"
    }

    fn what(&self) -> &'static str {
        "characteristics 1 to 6 as claims: of how many of 18 applications each is so, in the printed tables and in \
         traces like them"
    }

    /// Of 9 and more traces, one that stands at a limit may be on its other side.
    fn goal(&self) -> Goal {
        Goal::Within(12.0)
    }

    fn run(&self, _effort: &Effort) -> Result<Finding, LabError> {
        let printed = applications();
        let (of_paper, ours) =
            (Characteristic::all(&printed), Characteristic::all(&found(APPLICATIONS, SEED)?));
        let (mut cells, mut limits) = (Vec::new(), Vec::new());
        for (paper, ours) in of_paper.iter().zip(&ours) {
            let name = format!("characteristic {}", paper.number);
            for (paper, ours) in paper.claims.iter().zip(&ours.claims) {
                if paper.told == 0 {
                    // Figures say it, which are not printed as numbers.
                    limits.push(format!(
                        "{name}, {}: {} of {} here; the paper {}",
                        ours.says, ours.found, ours.told, ours.said_of_18
                    ));
                    continue;
                }
                // Printed numbers are rounded: what stands at the limit itself may be on either side.
                let contradicted = (!paper.at_limit.is_empty())
                    .then(|| format!("{} stands at the limit itself", paper.at_limit.join(", ")));
                let cell = Cell::new(&name, paper.says, paper.found as f64, ours.found as f64);
                cells.push(Cell { contradicted, ..cell });
                if paper.verdict != Verdict::Holds {
                    limits.push(format!(
                        "{name}, {}: the text says {} of 18, the tables have {} of {}; not: {}",
                        paper.says,
                        paper.said_of_18,
                        paper.found,
                        paper.told,
                        paper.exceptions.join(", ")
                    ));
                }
            }
            limits.extend(paper.remarks.iter().map(|remark| format!("{name}: {remark}")));
        }
        limits.extend(real::given().verdicts());
        Ok(Finding { series: Vec::new(), cells, method: method(), limits })
    }
}

/// How many requests have one page.
pub(crate) struct SinglePages;

impl Experiment for SinglePages {
    fn id(&self) -> &'static str {
        "iiswc15.char2.single_page_share"
    }

    fn what(&self) -> &'static str {
        "share of requests of 4 KiB, in the 15 applications that have most of them; of synthesised traces, which have \
         the paper's range by construction: this checks our generator, and says nothing of a phone"
    }

    fn goal(&self) -> Goal {
        Goal::Within(2.0)
    }

    fn run(&self, _effort: &Effort) -> Result<Finding, LabError> {
        let rows = found(APPLICATIONS, SEED)?;
        let mut shares: Vec<f64> = rows.iter().filter_map(|row| row.get(Column::SinglePage)).collect();
        shares.sort_by(|a, b| b.total_cmp(a));
        shares.truncate(15);
        let (most, least) = (shares.first().copied(), shares.last().copied());
        let cell = |column, paper, ours: Option<f64>| {
            Cell::new("15 synthesised applications", column, paper, ours.unwrap_or(f64::NAN))
        };
        let cells = vec![cell("least share %", 44.9, least), cell("largest share %", 57.4, most)];
        let mut limits = vec![
            "the rows do not print the shares of single traces: the synthesis draws these from the printed range, so \
             that they are in it confirms nothing of the paper"
                .to_owned(),
        ];
        limits.extend(real::given().lines(|row| {
            let share = row.get(Column::SinglePage)?;
            let is_in = if (44.9..=57.4).contains(&share) { "in" } else { "not in" };
            Some(format!("{share:.1} % are of 4 KiB, {is_in} the paper's range of 15 applications"))
        }));
        Ok(Finding { series: Vec::new(), cells, method: method(), limits })
    }
}

/// Two applications at once.
pub(crate) struct Combinations;

/// What the combinations' names abbreviate.
const SHORT: [(&str, &str); 3] = [("WB", "WebBrowsing"), ("FB", "Facebook"), ("Msg", "Messaging")];

impl Experiment for Combinations {
    fn id(&self) -> &'static str {
        "iiswc15.fig7.combos"
    }

    fn what(&self) -> &'static str {
        "arrival rate of two applications at once over the sum of both alone; of synthesised traces, which have the \
         printed rates by construction: this checks our generator and the printed tables, and says nothing of a phone"
    }

    fn goal(&self) -> Goal {
        Goal::AtLeast(1.0)
    }

    fn run(&self, _effort: &Effort) -> Result<Finding, LabError> {
        let rows = found(usize::MAX, SEED)?;
        let rate = |name: &str| {
            let name = SHORT.iter().find(|(short, _)| *short == name).map_or(name, |(_, long)| *long);
            rows.iter()
                .find(|row| row.name == name)
                .and_then(|row| row.get(Column::Arrival))
                .unwrap_or(f64::NAN)
        };
        let series = |row: &Row| {
            let (first, second) = row.name.split_once('/')?;
            let of = |name: &str, figure: f64| Measured {
                name: name.to_owned(),
                runs: [figure].into_iter().collect(),
            };
            Some(Series {
                label: format!("synthesised {}", row.name),
                unit: "requests/s".to_owned(),
                ours: of("both at once", rate(&row.name)),
                rivals: vec![of("the sum of both alone", rate(first) + rate(second))],
            })
        };
        let series = rows[APPLICATIONS..].iter().filter_map(series).collect();
        let mut limits = vec![
            "the rates are the printed ones, which the synthesis keeps; no trace here is of two applications that \
             were recorded at once"
                .to_owned(),
        ];
        limits.extend(real::given().lines(|row| {
            let rate = row.get(Column::Arrival)?;
            Some(format!(
                "{rate:.2} requests/s, alone: there is no recording with another one to compare it with"
            ))
        }));
        Ok(Finding { series, cells: Vec::new(), method: method(), limits })
    }
}

#[cfg(test)]
mod tests {
    use super::super::real::{Real, RealTrace};
    use super::{Column, TABLE_3};
    use nvmed_trace::Row;

    #[test]
    fn the_papers_own_traces_are_judged_and_others_are_shown() {
        let printed = Row::published_as("Messaging").unwrap();
        let requests = printed.get(Column::Requests).unwrap();
        let mut cells: Vec<_> =
            Column::ALL.into_iter().filter_map(|cell| Some((cell, printed.get(cell)?))).collect();
        let own = RealTrace::having("log106_Messaging.txt", "biotracer", &cells);
        cells.retain(|(cell, _)| *cell != Column::MeanRead);
        cells.iter_mut().filter(|(cell, _)| *cell == Column::Max).for_each(|(_, kib)| *kib *= 2.0);
        let changed = RealTrace::having("Messaging.txt", "biotracer", &cells);
        let other =
            RealTrace::having("Messaging.head48.txt", "biotracer", &[(Column::Requests, requests / 2.0)]);
        let all = Real { traces: vec![own, changed, other], notes: vec!["a note".to_owned()] };
        let (judged, lines) = TABLE_3.real(&all).unwrap();
        let named = |name: &str| judged.iter().filter(|cell| cell.row == name).collect::<Vec<_>>();
        let (own, changed) = (named("real log106_Messaging.txt"), named("real Messaging.txt"));
        assert_eq!((own.len(), changed.len(), judged.len()), (8, 8, 16));
        assert!(own.iter().all(|cell| cell.ratio() == 1.0));
        let missed: Vec<&str> =
            changed.iter().filter(|cell| cell.ratio() != 1.0).map(|cell| cell.column.as_str()).collect();
        assert_eq!(missed, ["max_kib", "mean_read_kib"], "a trace without a cell misses it");
        assert!(
            lines[0].starts_with("real trace Messaging.head48.txt, 3 requests: data KiB -, requests 2851, ")
        );
        assert_eq!((lines.len(), lines[1].as_str()), (2, "a note"));
    }
}
