//! Every hooked call with good, bad and odd arguments, answered as ext4 answers it: docs/spec/answers.md.
//!
//! By default a part of the cases; `make answers` runs all. `NVMED_ANSWERS` is `all`, N for one
//! pair of N, or one case to show in all set-ups.

use crate::support::{Bench, library, nvmed};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Instant;

/// Where the number of pairs that are left out is chosen: one pair of so many is run by default.
const PAIRS_IN_THE_GATE: u32 = 1000;
/// Lines of a failure; all are in the file that it names.
const LINES_SHOWN: usize = 60;

/// Where the program runs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Setup {
    /// ext4 without the wrapper: what is right.
    Native,
    /// ext4 under the wrapper, with a mount of the program's own in use beside it.
    BesidePrivate,
    /// The same with a shared mount.
    BesideShared,
    Private,
    Shared,
}

/// What is right, then what is held against it.
const ALL: [Setup; 5] =
    [Setup::Native, Setup::BesidePrivate, Setup::BesideShared, Setup::Private, Setup::Shared];

impl Setup {
    fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::BesidePrivate => "beside-private",
            Self::BesideShared => "beside-shared",
            Self::Private => "ours-private",
            Self::Shared => "ours-shared",
        }
    }

    /// Of one length each, since lengths of names are answered and seen.
    fn directory(self) -> &'static str {
        match self {
            Self::Native => "ext4/n",
            Self::BesidePrivate => "ext4/p",
            Self::BesideShared => "ext4/s",
            Self::Private => "on/own",
            Self::Shared => "on/all",
        }
    }

    fn is_ours(self) -> bool {
        matches!(self, Self::Private | Self::Shared)
    }
}

/// What one case came to.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Outcome {
    case: String,
    answer: String,
    written: String,
    changed: String,
}

/// Which cases to run.
#[derive(Clone, Default)]
struct Choice {
    /// One pair of so many.
    pairs: u32,
    only: Option<String>,
    call: Option<String>,
}

impl Choice {
    fn from_environment() -> (Self, bool) {
        let all = Self { pairs: 1, call: std::env::var("NVMED_ANSWERS_CALL").ok(), only: None };
        match std::env::var("NVMED_ANSWERS") {
            Ok(word) if word == "all" => (all, true),
            Ok(word) if word.parse().is_ok_and(|pairs: u32| pairs > 0) => {
                (Self { pairs: word.parse().expect("it is a number"), ..all }, false)
            }
            Ok(word) if word.contains('(') => (Self { only: Some(word), ..all }, false),
            Ok(word) => {
                panic!(
                    "NVMED_ANSWERS is `all`, N for one pair of N, or a case such as `open(file, RDONLY, 640)`, not \
                     {word:?}"
                )
            }
            Err(_) => (Self { pairs: PAIRS_IN_THE_GATE, ..all }, false),
        }
    }
}

/// The program, and the directories of the host that it needs.
struct Ground {
    program: PathBuf,
    /// The words before a program's that mount ext4 for it and its children alone, so that no mount outlives them.
    on_ext4: Vec<String>,
    /// On another file system than ext4 where there is one, so that the border between the two exists natively too.
    other: PathBuf,
}

impl Ground {
    fn new(bench: &Bench) -> Self {
        let program = bench.host().join("answers");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c/answers");
        let mut command = Command::new("cc");
        command.args(["-w", "-O1", "-D_GNU_SOURCE", "-o"]).arg(&program);
        for name in ["main", "fixture", "domains", "memory", "written", "table"] {
            command.arg(source.join(name).with_extension("c"));
        }
        assert!(command.status().expect("cc runs").success(), "the program does not compile");
        let other = Path::new("/dev/shm").join(bench.host().file_name().expect("a name"));
        let other = if std::fs::create_dir(&other).is_ok() { other } else { bench.host().join("other") };
        std::fs::create_dir_all(&other).expect("a directory of the host");
        let on_ext4 = on_ext4(bench.host(), &other);
        Self { program, on_ext4, other }
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.other);
    }
}

/// How a program finds ext4 in `ext4` below `dir`: of a file in memory that is mounted there, or as it is.
fn on_ext4(dir: &Path, other: &Path) -> Vec<String> {
    const EXT4_SUPER_MAGIC: i64 = 0xEF53;
    let (image, point) = (other.join("ext4.img"), dir.join("ext4"));
    let file = std::fs::File::create(&image).expect("a file for ext4");
    file.set_len(1 << 30).expect("a sparse file");
    std::fs::create_dir(&point).expect("a mount point");
    let mount = format!("mount -o loop '{}' '{}' && exec \"$@\"", image.display(), point.display());
    let words = ["unshare", "-m", "sh", "-c", &mount, "sh"].map(str::to_owned).to_vec();
    let good = |command: &mut Command| command.output().is_ok_and(|output| output.status.success());
    if rustix::process::geteuid().is_root()
        && good(Command::new("mkfs.ext4").arg("-q").arg(&image))
        && good(Command::new(&words[0]).args(&words[1..]).arg("true"))
    {
        return words;
    }
    if rustix::fs::statfs(dir).expect("the test's directory has a file system").f_type != EXT4_SUPER_MAGIC {
        let dir = dir.display();
        eprintln!(
            "SKIPPED in part: no ext4 can be mounted and {dir} is not on one; what it is on is compared with"
        );
    }
    Vec::new()
}

/// Runs the chosen cases in a set-up.
fn outcomes(bench: &Bench, ground: &Ground, setup: Setup, choice: &Choice) -> BTreeMap<u64, Outcome> {
    let begun = Instant::now();
    let output = bench.host().join(format!("{}.out", setup.name()));
    let status = run(bench, ground, setup, choice, &output);
    let (deaths, text) = told(&output).expect("the program writes its output");
    assert!(status.success(), "{}: {status} behind {:?}", setup.name(), text.lines().last());
    let all: BTreeMap<u64, Outcome> = text.lines().filter_map(parsed).collect();
    let _ = std::fs::remove_file(&output);
    eprintln!("{}: {} cases, {deaths} processes ended, {:?}", setup.name(), all.len(), begun.elapsed());
    all
}

fn run(bench: &Bench, ground: &Ground, setup: Setup, choice: &Choice, output: &Path) -> ExitStatus {
    let active = bench.path("active");
    let path = |path: PathBuf| path.display().to_string();
    // In a directory of its own, which calls by `..` change.
    let above = ground.other.join(&setup.directory()[5..]);
    std::fs::create_dir_all(&above).expect("a directory of the host");
    let other = above.join("h");
    let mut words = vec![path(ground.program.clone()), path(output.to_path_buf())];
    words.extend([path(bench.host().join(setup.directory())), path(other)]);
    words.extend(["--pairs".into(), choice.pairs.to_string()]);
    for (option, value) in [("--only", &choice.only), ("--call", &choice.call)] {
        words.extend(value.iter().flat_map(|value| [option.to_owned(), value.clone()]));
    }
    if setup.is_ours() {
        words.extend(["--fragile".into(), "1".into()]);
    }
    if matches!(setup, Setup::BesidePrivate | Setup::BesideShared) {
        words.extend(["--active".into(), active]);
    }
    let before = match setup {
        Setup::Native => Vec::new(),
        Setup::BesideShared | Setup::Shared => {
            let run = ["run", "--shared", "--config"].map(str::to_owned);
            let config = path(bench.config());
            [path(nvmed())].into_iter().chain(run).chain([config, "--".into()]).collect()
        }
        Setup::BesidePrivate | Setup::Private => {
            let library = format!("LD_PRELOAD={}", path(library()));
            vec!["env".into(), library, format!("WRAPPER_CONFIG={}", path(bench.config()))]
        }
    };
    let mount = if setup.is_ours() { &[][..] } else { &ground.on_ext4 };
    let words: Vec<&String> = mount.iter().chain(&before).chain(&words).collect();
    let mut command = Command::new(words[0]);
    command.args(&words[1..]);
    let said = bench.host().join(format!("{}.said", setup.name()));
    command.stdin(Stdio::null()).stdout(Stdio::null());
    command.stderr(std::fs::File::create(said).expect("a file for what is said"));
    command.status().expect("the program starts")
}

/// How many processes ended before their time, and the lines of all.
fn told(output: &Path) -> Option<(u64, String)> {
    let mut file = std::fs::File::open(output).ok()?;
    let mut words = [0; 32];
    file.read_exact(&mut words).ok()?;
    let word = |at: usize| u64::from_le_bytes(words[at..at + 8].try_into().expect("8 bytes"));
    let mut text = Vec::new();
    file.take(word(0)).read_to_end(&mut text).ok()?;
    Some((word(24), String::from_utf8_lossy(&text).into_owned()))
}

fn parsed(line: &str) -> Option<(u64, Outcome)> {
    let mut fields = line.split('\t').map(str::to_owned);
    let number = fields.next()?.parse().ok()?;
    let (case, answer) = (fields.next()?, fields.next()?);
    let (written, changed) = (fields.next()?, fields.next()?);
    Some((number, Outcome { case, answer, written, changed }))
}

/// What is different, as one text; an answer goes before what was written, that before what has changed.
fn difference(right: &Outcome, seen: &Outcome) -> Option<String> {
    if right.answer != seen.answer {
        return Some(format!("{} -> {}", right.answer, seen.answer));
    }
    if right.written != seen.written {
        return Some(format!("wrote {} -> {}", or_nothing(&right.written), or_nothing(&seen.written)));
    }
    let only = |of: &str, other: &str| {
        let other: Vec<&str> = other.split("; ").collect();
        let lines: Vec<&str> = of.split("; ").filter(|line| !other.contains(line)).collect();
        or_nothing(&lines.join("; "))
    };
    (right.changed != seen.changed).then(|| {
        let (right, seen) = (only(&right.changed, &seen.changed), only(&seen.changed, &right.changed));
        format!("changed {right} -> {seen}")
    })
}

fn or_nothing(text: &str) -> String {
    if text.trim().is_empty() { "nothing".to_owned() } else { text.trim().to_owned() }
}

/// A line of the list: a pattern of `SETUP CASE: DIFFERENCE` and why that is so.
struct Entry {
    pattern: String,
    is_open: bool,
    used: bool,
}

/// What is meant to be different, then what is to be mended.
fn lists() -> Vec<Entry> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/answers");
    let mut entries = Vec::new();
    for (name, is_open) in [("reasons.list", false), ("open.list", true)] {
        let text = std::fs::read_to_string(dir.join(name)).expect("a list of differences");
        for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let (pattern, reason) = line.split_once('\t').unwrap_or((line, ""));
            assert!(!reason.trim().is_empty(), "{name} has no reason for {pattern:?}");
            entries.push(Entry { pattern: pattern.to_owned(), is_open, used: false });
        }
    }
    entries
}

/// `*` stands for any text.
fn matches(pattern: &str, text: &str) -> bool {
    let mut pieces = pattern.split('*');
    let Some(mut rest) = text.strip_prefix(pieces.next().unwrap_or_default()) else { return false };
    let mut pieces: Vec<&str> = pieces.collect();
    let Some(last) = pieces.pop() else { return rest.is_empty() };
    for piece in pieces {
        let Some(at) = rest.find(piece) else { return false };
        rest = &rest[at + piece.len()..];
    }
    rest.ends_with(last)
}

/// One difference: where, of which case.
struct Difference {
    setup: &'static str,
    case: String,
    text: String,
}

impl Difference {
    fn line(&self) -> String {
        format!("{} {}: {}", self.setup, self.case, self.text)
    }
}

/// A device with its directories, and what runs on it: one set-up after the other, beside those of the other device.
fn half(setups: &[Setup], choice: &Choice) -> Option<Vec<(Setup, BTreeMap<u64, Outcome>)>> {
    let bench = Bench::new("flush=process", &["cc"])?;
    let ground = Ground::new(&bench);
    let all = setups.iter().map(|&setup| (setup, outcomes(&bench, &ground, setup, choice))).collect();
    bench.fsck();
    Some(all)
}

/// What all set-ups answer, what is right first.
fn all_outcomes(choice: &Choice) -> Option<Vec<(Setup, BTreeMap<u64, Outcome>)>> {
    let (first, second) = ALL.split_at(4);
    std::thread::scope(|scope| {
        let second = scope.spawn(|| half(second, choice));
        let first = half(first, choice);
        let second = second.join().expect("the other half ends");
        Some(first?.into_iter().chain(second?).collect())
    })
}

fn differences(all: &[(Setup, BTreeMap<u64, Outcome>)]) -> Vec<Difference> {
    let mut differences = Vec::new();
    let right = &all[0].1;
    for (setup, seen) in &all[1..] {
        for (number, right) in right {
            let text = match seen.get(number) {
                Some(seen) => difference(right, seen),
                None => Some("no answer".to_owned()),
            };
            let setup = setup.name();
            differences.extend(text.map(|text| Difference { setup, case: right.case.clone(), text }));
        }
    }
    differences
}

/// Every call answers as ext4 does, but for what the list gives reasons for.
#[test]
fn every_call_is_answered_as_on_ext4() {
    let (choice, is_whole) = Choice::from_environment();
    let Some(outcomes) = all_outcomes(&choice) else { return };
    if let Some(case) = &choice.only {
        return show(&outcomes, case);
    }
    let mut entries = lists();
    let (cases, all) = (outcomes[0].1.len(), differences(&outcomes));
    let mut rest = Vec::new();
    let (mut reasoned, mut open) = (0, 0);
    for difference in &all {
        let line = difference.line();
        match entries.iter_mut().find(|entry| matches(&entry.pattern, &line)) {
            Some(entry) => {
                entry.used = true;
                *if entry.is_open { &mut open } else { &mut reasoned } += 1;
            }
            None => rest.push(difference),
        }
    }
    let file = library().with_file_name("answers.txt");
    let lines: String = all.iter().map(|difference| difference.line() + "\n").collect();
    std::fs::write(&file, lines).expect("the differences are written");
    let summary = format!(
        "{cases} cases in {} set-ups: {} differences, {reasoned} of them with a reason, {open} open, {} not in the \
         list",
        ALL.len(),
        all.len(),
        rest.len()
    );
    eprintln!("{summary}");
    assert!(
        choice.call.is_some() || reasoned > 0,
        "nothing was compared, or what must be seen was not: {summary}"
    );
    assert!(rest.is_empty(), "{summary} ({} has all)\n{}", file.display(), grouped(&rest));
    let unused = entries.iter().filter(|entry| is_whole && choice.call.is_none() && !entry.used);
    let unused: Vec<&str> = unused.map(|entry| entry.pattern.as_str()).collect();
    assert!(unused.is_empty(), "entries of the list that match nothing: {unused:#?}");
}

/// Differences by call and kind, with an example of each and how to see it again.
fn grouped(rest: &[&Difference]) -> String {
    let mut groups: BTreeMap<(&str, &str, &str), (usize, &str)> = BTreeMap::new();
    for difference in rest {
        let call = difference.case.split('(').next().unwrap_or_default();
        groups.entry((call, &difference.text, difference.setup)).or_insert((0, &difference.case)).0 += 1;
    }
    let mut text = String::new();
    for ((_, kind, setup), (count, case)) in groups.iter().take(LINES_SHOWN) {
        let _ = writeln!(text, "{count} × {setup} {case}: {kind}");
    }
    if let Some(((_, _, _), (_, case))) = groups.first_key_value() {
        let _ = writeln!(
            text,
            "the first in all set-ups: make answers CASE='{case}'; whole calls: NVMED_ANSWERS_CALL=NAME"
        );
    }
    text
}

/// One case in all set-ups.
fn show(all: &[(Setup, BTreeMap<u64, Outcome>)], case: &str) {
    assert!(!all[0].1.is_empty(), "there is no case {case}");
    for (setup, outcomes) in all {
        for Outcome { answer, written, changed, .. } in outcomes.values() {
            eprintln!("{:14} {answer} | {written} | {changed}", setup.name());
        }
    }
}

/// What compares and what lets through, without which the test above could pass and say nothing.
#[test]
fn a_difference_is_seen_and_only_its_own_entry_lets_it_through() {
    let line = |text: &str| parsed(text).expect("a line of a case").1;
    let right = line("7\tread(rw, good, 1)\t1\t[0+1 b]\t; +fd rw at=101");
    let seen = |text: &str| difference(&right, &line(text));
    assert_eq!(seen("7\tread(rw, good, 1)\t1\t[0+1 b]\t; +fd rw at=101"), None);
    assert_eq!(seen("7\tread(rw, good, 1)\tEIO\t\t").as_deref(), Some("1 -> EIO"));
    assert_eq!(seen("7\tread(rw, good, 1)\t1\t\t").as_deref(), Some("wrote [0+1 b] -> nothing"));
    let moved = seen("7\tread(rw, good, 1)\t1\t[0+1 b]\t; +fd rw at=100");
    assert_eq!(moved.as_deref(), Some("changed +fd rw at=101 -> +fd rw at=100"));
    for (pattern, text, wanted) in [
        ("ours-* read(*): 1 -> EIO", "ours-shared read(rw, good, 1): 1 -> EIO", true),
        ("ours-* read(*): 1 -> EIO", "beside-shared read(rw, good, 1): 1 -> EIO", false),
        ("ours-* read(*): 1 -> EIO", "ours-shared pread(rw, good, 1): 1 -> EIO", false),
        ("ours-* read(*): 1 -> EIO", "ours-shared read(rw, good, 1): 1 -> EIO or so", false),
        ("* read(*, 1): *", "ours-shared read(rw, good, 1): 1 -> EIO", true),
        ("read", "read", true),
        ("read", "reads", false),
    ] {
        assert_eq!(matches(pattern, text), wanted, "{pattern:?} and {text:?}");
    }
}
