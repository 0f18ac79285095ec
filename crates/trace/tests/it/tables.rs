//! Tables III and IV by a database: the same columns from the same definitions, and none of our code between the
//! requests and the numbers.

use crate::scratch::{Scratch, rest, write};
use nvmed_dice::Dice;
use nvmed_trace::{Analysis, Catalogue, Cell, Model, Op, Options, Request, Row, Source, Synthesis};
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The query, which both databases understand.
const TABLES: &str = include_str!("tables.sql");
/// A row of `t` in SQLite, which gets them as they are in memory.
const SCHEMA: &str =
    "CREATE TABLE t (n INTEGER, device INTEGER, op TEXT, first INTEGER, bytes INTEGER, arrival INTEGER,
    start INTEGER, finish INTEGER, waited INTEGER);";
/// Rows of `t` in DuckDB, which reads the native format by itself: rows of a device are in their order there.
const FROM_PARQUET: &str = "CREATE TABLE t AS SELECT file_row_number AS n, device, op, offset_bytes AS first,
    size_bytes AS bytes, arrival_ns AS arrival, start_ns AS start, finish_ns AS finish,
    CAST(waited AS INTEGER) AS waited FROM read_parquet('PATH', file_row_number = true);";
/// DuckDB in Python, where there is no program of it.
const PYTHON: &str = "import sys, duckdb
row = duckdb.connect().execute(sys.stdin.read()).fetchone()
print('|'.join('' if value is None else repr(float(value)) for value in row))";

/// A database that takes SQL on its standard input and answers a row: its values with bars between them.
struct Engine {
    name: &'static str,
    command: fn() -> Command,
    /// The statements that make `t`.
    table: fn(&Path, &[Request]) -> String,
}

const ENGINES: [Engine; 3] = [
    Engine {
        name: "sqlite3",
        command: || {
            let mut command = Command::new("sqlite3");
            command.args(["-batch", "-bail", "-noheader", "-list", ":memory:"]);
            command
        },
        table: |_, requests| inserts(requests),
    },
    Engine {
        name: "duckdb",
        command: || {
            let mut command = Command::new("duckdb");
            command.args(["-batch", "-bail", "-noheader", "-list"]);
            command
        },
        table: from_parquet,
    },
    Engine {
        name: "duckdb of python3",
        command: || {
            let mut command = Command::new("python3");
            command.args(["-c", PYTHON]);
            command
        },
        table: from_parquet,
    },
];

fn from_parquet(path: &Path, _requests: &[Request]) -> String {
    FROM_PARQUET.replace("PATH", &path.display().to_string())
}

fn inserts(requests: &[Request]) -> String {
    let mut sql = format!("{SCHEMA}\nBEGIN;\n");
    let null = |number: Option<u64>| number.map_or("NULL".to_owned(), |number| number.to_string());
    for (number, one) in requests.iter().enumerate() {
        let (device, op, first, bytes, arrival) =
            (one.device, one.op.name(), one.offset, one.bytes, one.arrival_ns);
        let (start, finish, waited) =
            (null(one.start_ns), null(one.finish_ns), null(one.waited.map(u64::from)));
        let values = format!("{number},{device},'{op}',{first},{bytes},{arrival},{start},{finish},{waited}");
        writeln!(sql, "INSERT INTO t VALUES ({values});").unwrap();
    }
    sql + "COMMIT;\n"
}

impl Engine {
    /// Whether it is there.
    fn is_there(&self) -> bool {
        self.answer("SELECT 1, 2;").is_ok_and(|answer| !answer.is_empty())
    }

    fn answer(&self, sql: &str) -> Result<Vec<Option<f64>>, String> {
        let mut command = (self.command)();
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|error| error.to_string())?;
        // One that ends early says why.
        let _ = child.stdin.take().expect("it is piped").write_all(sql.as_bytes());
        let output = child.wait_with_output().map_err(|error| error.to_string())?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into_owned());
        }
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let values = text.trim_end().split('|').map(|value| match value {
            "" | "NULL" => Ok(None),
            value => value.parse().map(Some).map_err(|_| format!("it answers {text}")),
        });
        values.collect()
    }
}

/// Compares our tables of a trace with those of every database that is there.
fn compare(name: &str, requests: &[Request], names: &Catalogue) {
    let scratch = Scratch::new();
    let path = scratch.path("t.parquet");
    write(&path, "parquet", requests, names);
    let mut analysis = Analysis::default();
    requests.iter().for_each(|request| analysis.push(request));
    let row = analysis.finish().all.row;
    for engine in ENGINES {
        if !engine.is_there() {
            println!("SKIPPED: {name} beside {}: it is not installed", engine.name);
            continue;
        }
        let sql = (engine.table)(&path, requests) + TABLES;
        let answer = engine.answer(&sql).unwrap_or_else(|error| panic!("{}: {error}", engine.name));
        assert_eq!(answer.len(), Cell::ALL.len(), "{}: a value for each cell", engine.name);
        for (cell, theirs) in Cell::ALL.into_iter().zip(answer) {
            let ours = row.get(cell);
            let same = match (ours, theirs) {
                (Some(ours), Some(theirs)) => (ours - theirs).abs() <= 1e-9 * theirs.abs(),
                (ours, theirs) => ours == theirs,
            };
            assert!(same, "{name}, {cell:?}: {ours:?}, but {} says {theirs:?}", engine.name);
        }
        println!("{name}: {} requests as {} says", requests.len(), engine.name);
    }
}

#[test]
fn a_database_finds_the_same_tables() {
    let model = Model::of(&Row::published_as("Messaging").expect("it is published")).expect("it is a row");
    let synthesised: Vec<Request> = Synthesis::of(&model, 1).expect("it is possible").collect();
    compare("Messaging, synthesised", &synthesised, &Catalogue::default());
    // Of two devices, of all operations, some without times, and some that begin where others end or begin.
    let mut names = Catalogue::default();
    let devices = ["a", "b"].map(|name| names.devices.number(name).expect("there is room"));
    let (mut dice, mut requests, mut arrival_ns) = (Dice::new(3), Vec::new(), 0u64);
    for _ in 0..5_000 {
        let longest_ns = if dice.chance(90) { 2_000_000 } else { 40_000_000 };
        arrival_ns += dice.roll(longest_ns);
        let op = Op::ALL[dice.roll(4) as usize];
        let start_ns = dice.chance(80).then(|| arrival_ns + dice.roll(1_000_000));
        requests.push(Request {
            device: devices[dice.roll(2) as usize],
            start_ns,
            finish_ns: dice.chance(80).then(|| start_ns.unwrap_or(arrival_ns) + dice.roll(3_000_000)),
            waited: dice.chance(50).then(|| dice.chance(50)),
            ..Request::new(
                op,
                dice.roll(400) * 2048,
                if op == Op::Flush { 0 } else { 2048 * (1 + dice.roll(6)) },
                arrival_ns,
            )
        });
    }
    compare("two devices", &requests, &names);
    requests.iter_mut().for_each(|request| (request.start_ns, request.finish_ns) = (None, None));
    compare("no times", &requests, &names);
    compare("a request", &requests[..1], &names);
}

#[test]
fn a_database_finds_the_same_tables_of_real_traces() {
    let Some(directory) = std::env::var_os("NVMED_TRACES").map(PathBuf::from) else {
        println!("SKIPPED: NVMED_TRACES names no directory with real traces");
        return;
    };
    let mut compared = 0;
    for entry in std::fs::read_dir(&directory).expect("NVMED_TRACES is a directory") {
        let path = entry.expect("it is listed").path();
        // What is no trace of requests is none: a text for people, calls on files.
        let Ok(mut source) = Source::open(&path, &Options::default()) else { continue };
        let requests = rest(&mut source).unwrap_or_else(|error| panic!("{error}"));
        compare(&path.file_name().unwrap_or_default().to_string_lossy(), &requests, source.names());
        compared += 1;
    }
    assert!(compared > 0, "{}: there is no trace", directory.display());
}
