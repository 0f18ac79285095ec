//! Real traces, where a directory of them is given: they are shown beside the synthesised ones, and not judged.

use nvmed_trace::{Analysis, Options, Row, Source, TraceError};
use std::path::{Path, PathBuf};

/// The variable that names their directory.
const TRACES: &str = "NVMED_TRACES";
/// Files of the directory that are read, the first ones by name.
const FILES_MAX: usize = 64;

/// The directory that is given.
pub(super) fn directory() -> Option<PathBuf> {
    std::env::var_os(TRACES).map(PathBuf::from)
}

/// Each real trace in a line, with its name, what it has and what `of` says of its row; what is no trace of requests
/// is named, and so is that there is none.
pub(super) fn lines(directory: Option<&Path>, of: &dyn Fn(&Row) -> Option<String>) -> Vec<String> {
    let Some(directory) = directory else {
        return vec![format!("SKIPPED: real traces: {TRACES} names no directory of them")];
    };
    let entries = match std::fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) => {
            return vec![format!("SKIPPED: real traces: {TRACES} names {}: {error}", directory.display())];
        }
    };
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.retain(|path| path.is_file());
    paths.sort();
    let left_out = paths.len().saturating_sub(FILES_MAX);
    paths.truncate(FILES_MAX);
    let (mut lines, mut others) = (Vec::new(), Vec::new());
    for path in &paths {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        match analysed(path) {
            Ok((count, row)) => {
                let says = of(&row).unwrap_or_else(|| "too few of them to say".to_owned());
                lines.push(format!("real trace {name}, {count} requests: {says}"));
            }
            Err(_) => others.push(name.into_owned()),
        }
    }
    if lines.is_empty() {
        lines.push(format!("SKIPPED: real traces: {} holds none", directory.display()));
    }
    if !others.is_empty() {
        lines.push(format!("no traces of requests: {}", others.join(", ")));
    }
    if left_out > 0 {
        lines.push(format!("{left_out} more files in {} were not read", directory.display()));
    }
    lines
}

/// A trace in one pass: its requests and its row.
fn analysed(path: &Path) -> Result<(u64, Row), TraceError> {
    let mut source = Source::open(path, &Options::default())?;
    let (mut analysis, mut count) = (Analysis::default(), 0);
    while let Some(request) = source.next()? {
        analysis.push(&request);
        count += 1;
    }
    Ok((count, analysis.finish().all.row))
}

#[cfg(test)]
mod tests {
    use super::lines;
    use nvmed_trace::Cell;

    #[test]
    fn real_traces_are_named_with_what_they_have_and_what_is_none_too() {
        let directory = std::env::temp_dir().join(format!("nvmed-lab-real-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let share = |row: &nvmed_trace::Row| Some(format!("{:.1} %", row.get(Cell::SinglePage)?));
        let none = lines(Some(&directory), &share);
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
        let found = lines(Some(&directory), &share);
        let wanted = ["real trace a.txt, 3 requests: 66.7 %", "no traces of requests: b.md"];
        std::fs::remove_dir_all(&directory).unwrap();
        assert_eq!(found, wanted);
        assert!(lines(Some(&directory), &share)[0].contains("No such file"));
        assert!(lines(None, &share)[0].contains("NVMED_TRACES names no directory"));
    }
}
