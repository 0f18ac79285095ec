//! Real traces, where a directory of them is given: what they have is shown beside the synthesised ones; the paper's
//! own traces, where they are among them, are judged.

use super::applications;
use nvmed_trace::{Analysis, Cell, Characteristic, Claim, Options, Row, Source, TraceError};
use std::path::Path;
use std::sync::OnceLock;

/// The variable that names their directory.
const TRACES: &str = "NVMED_TRACES";
/// Files of the directory that are read, the first ones by name.
const FILES_MAX: usize = 64;
/// The format in which the paper's own traces are.
const OF_PAPER: &str = "biotracer";

/// A real trace.
pub(super) struct RealTrace {
    /// What it has, under its file's name.
    pub row: Row,
    format: &'static str,
    requests: u64,
}

impl RealTrace {
    /// A trace in one pass.
    fn read(path: &Path) -> Result<Self, TraceError> {
        let mut source = Source::open(path, &Options::default())?;
        let (mut analysis, mut requests) = (Analysis::default(), 0);
        while let Some(request) = source.next()? {
            analysis.push(&request);
            requests += 1;
        }
        let mut row = analysis.finish().all.row;
        row.name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Ok(Self { row, format: source.format().name(), requests })
    }

    /// The row that the paper prints of this very trace: it is BIOtracer's, its file is called by the application, and
    /// it has as many requests. Another number is another recording, or a part of one.
    pub fn printed(&self) -> Option<Row> {
        let words = || self.row.name.split(|letter: char| !letter.is_alphanumeric());
        let is_called = |row: &Row| words().any(|word| word.eq_ignore_ascii_case(&row.name));
        let row = applications().into_iter().find(is_called).filter(|_| self.format == OF_PAPER)?;
        (row.get(Cell::Requests) == self.row.get(Cell::Requests)).then_some(row)
    }

    /// Some of its cells, for people.
    pub fn values(&self, cells: &[Cell]) -> String {
        let value = |&cell: &Cell| {
            let text =
                |value: f64| if value.fract() == 0.0 { value.to_string() } else { format!("{value:.2}") };
            let value = self.row.get(cell).map_or("-".to_owned(), text);
            format!("{} {value}", cell.title())
        };
        cells.iter().map(value).collect::<Vec<_>>().join(", ")
    }

    /// A line about it.
    pub fn line(&self, says: &str) -> String {
        format!("real trace {}, {} requests: {says}", self.row.name, self.requests)
    }
}

/// The real traces that there are.
pub(super) struct Real {
    /// Each, by name.
    pub traces: Vec<RealTrace>,
    /// What else there is to say: that there are none, or what else lies there.
    pub notes: Vec<String>,
}

/// Those of the directory that is given; read once, since several experiments look at them.
pub(super) fn given() -> &'static Real {
    static GIVEN: OnceLock<Real> = OnceLock::new();
    GIVEN.get_or_init(|| Real::read(std::env::var_os(TRACES).as_ref().map(Path::new)))
}

impl Real {
    /// Those of a directory. What is no trace of requests is named, and so is that there is none.
    fn read(directory: Option<&Path>) -> Self {
        let none =
            |why: String| Self { traces: Vec::new(), notes: vec![format!("SKIPPED: real traces: {why}")] };
        let Some(directory) = directory else { return none(format!("{TRACES} names no directory of them")) };
        let shown = directory.display();
        let entries = match std::fs::read_dir(directory) {
            Ok(entries) => entries,
            Err(error) => return none(format!("{TRACES} names {shown}: {error}")),
        };
        let mut paths: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
        paths.retain(|path| path.is_file());
        paths.sort();
        let left_out = paths.len().saturating_sub(FILES_MAX);
        paths.truncate(FILES_MAX);
        let (mut traces, mut others, mut notes) = (Vec::new(), Vec::new(), Vec::new());
        for path in &paths {
            match RealTrace::read(path) {
                Ok(trace) => traces.push(trace),
                Err(_) => others.push(path.file_name().unwrap_or_default().to_string_lossy().into_owned()),
            }
        }
        if traces.is_empty() {
            notes.push(format!("SKIPPED: real traces: {shown} holds none"));
        }
        if !others.is_empty() {
            notes.push(format!("no traces of requests: {}", others.join(", ")));
        }
        if left_out > 0 {
            notes.push(format!("{left_out} more files in {shown} were not read"));
        }
        Self { traces, notes }
    }

    /// Each trace in a line, with what `of` says of its row; and the notes.
    pub fn lines(&self, of: impl Fn(&Row) -> Option<String>) -> Vec<String> {
        let line = |trace: &RealTrace| {
            trace.line(&of(&trace.row).unwrap_or_else(|| "too few of them to say".to_owned()))
        };
        self.traces.iter().map(line).chain(self.notes.iter().cloned()).collect()
    }

    /// The six characteristics, asked of all of them together; and the notes.
    pub fn verdicts(&self) -> Vec<String> {
        let rows: Vec<Row> = self.traces.iter().map(|trace| trace.row.clone()).collect();
        let asked = if rows.is_empty() { Vec::new() } else { Characteristic::all(&rows) };
        let line = |one: &Characteristic| {
            let claim = |claim: &Claim| {
                let not = match &claim.exceptions[..] {
                    [] => String::new(),
                    some => format!(" (not {})", some.join(", ")),
                };
                format!(
                    "{}: {} of {}{not}, in the paper {} of 18",
                    claim.says, claim.found, claim.told, claim.said_of_18
                )
            };
            let claims: Vec<String> = one.claims.iter().map(claim).collect();
            format!(
                "real traces ({}), characteristic {}: {}; {}",
                rows.len(),
                one.number,
                one.verdict.words(),
                claims.join("; ")
            )
        };
        asked.iter().map(line).chain(self.notes.iter().cloned()).collect()
    }

    /// Which traces a result shows beside the synthesised ones.
    pub fn names(&self) -> String {
        let names: Vec<&str> = self.traces.iter().map(|trace| trace.row.name.as_str()).collect();
        if names.is_empty() {
            String::new()
        } else {
            format!("; beside them the real traces {}", names.join(", "))
        }
    }
}

#[cfg(test)]
impl RealTrace {
    /// A trace of three requests that has these cells.
    pub fn having(name: &str, format: &'static str, cells: &[(Cell, f64)]) -> Self {
        let mut row = Row::new(name);
        cells.iter().for_each(|&(cell, value)| row.set(cell, Some(value)));
        Self { row, format, requests: 3 }
    }
}

#[cfg(test)]
mod tests {
    use super::{Real, RealTrace};
    use nvmed_trace::{Cell, Row};

    #[test]
    fn real_traces_are_named_with_what_they_have_and_what_is_none_too() {
        let directory = std::env::temp_dir().join(format!("nvmed-lab-real-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let share = |row: &Row| Some(format!("{:.1} %", row.get(Cell::SinglePage)?));
        let none = Real::read(Some(&directory)).lines(share);
        assert!(none[0].starts_with("SKIPPED: real traces: ") && none[0].ends_with("holds none"), "{none:?}");

        // Two requests of one page and one of two, as the BIOtracer writes them.
        let request = |sector: u32, bytes: u32, second: u32| {
            format!(
                "{sector}\t\t{}\t\t{bytes}\t\t5\t\t{second}.1\t\t{second}.2\t\t{second}.3\t\t{second}.4\n",
                bytes / 512
            )
        };
        let text = request(8, 4096, 1) + &request(64, 8192, 2) + &request(800, 4096, 3);
        std::fs::write(directory.join("a.txt"), text).unwrap();
        std::fs::write(directory.join("b.md"), "# Words\n").unwrap();
        let real = Real::read(Some(&directory));
        std::fs::remove_dir_all(&directory).unwrap();
        let wanted = ["real trace a.txt, 3 requests: 66.7 %", "no traces of requests: b.md"];
        assert_eq!(real.lines(share), wanted);
        assert_eq!(real.names(), "; beside them the real traces a.txt");
        let sizes = [Cell::Data, Cell::MeanRead, Cell::Mean];
        assert_eq!(real.traces[0].values(&sizes), "data KiB 16, mean read KiB -, mean KiB 5.33");
        // All that it has are writes, so that its first characteristic is told, and it is no trace of the paper's.
        let verdicts = real.verdicts();
        assert!(verdicts[0].starts_with("real traces (1), characteristic 1: holds"), "{verdicts:?}");
        assert_eq!((verdicts.len(), verdicts[6].as_str()), (7, wanted[1]));
        assert_eq!(real.traces[0].printed(), None);
        assert!(Real::read(Some(&directory)).lines(share)[0].contains("No such file"));
        let nothing = Real::read(None);
        assert!(nothing.verdicts()[0].contains("NVMED_TRACES names no directory"));
        assert_eq!((nothing.verdicts().len(), nothing.names().as_str()), (1, ""));
    }

    #[test]
    fn a_trace_is_the_papers_own_by_format_name_and_number_of_requests() {
        let requests = Row::published_as("Messaging").unwrap().get(Cell::Requests).unwrap();
        let printed = |name: &str, format: &'static str, requests: f64| {
            RealTrace::having(name, format, &[(Cell::Requests, requests)]).printed().map(|row| row.name)
        };
        assert_eq!(printed("log106_messaging.txt", "biotracer", requests).as_deref(), Some("Messaging"));
        assert_eq!(printed("log106_messaging.head48.txt", "biotracer", 48.0), None);
        assert_eq!(printed("messaging.parquet", "parquet", requests), None);
        assert_eq!(printed("messagings.txt", "biotracer", requests), None);
        assert_eq!(printed("log106.txt", "biotracer", requests), None);
    }
}
