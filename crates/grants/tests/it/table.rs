//! The administrator's table: what is believed, what is refused, and how it is replaced.

use nvmed_grants::{GrantError, PartitionGrant, Size, Table, TreeGrant};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("nvmed-grants-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o755)).unwrap();
        Self(dir)
    }

    fn table(&self) -> PathBuf {
        self.0.join("grants.toml")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

const TEXT: &str = r#"
[[tree]]
name = "alice"
path = "/home/alice"
users = [1000]
write = true
urgent = true
capacity = "10G"
inodes = 100000

[[tree]]
name = "shared"
path = "/shared"
groups = [100, 101]

[[partition]]
name = "p1"
first = "64G"
size = 4294967296
user = 1001
queues = 2
rate = "100M"
"#;

fn parse(text: &str) -> Result<Table, GrantError> {
    Table::parse(text, Path::new("grants.toml"))
}

#[test]
fn a_table_is_read_as_it_is_written() {
    let table = parse(TEXT).unwrap();
    let alice = TreeGrant {
        name: "alice".to_owned(),
        path: "/home/alice".to_owned(),
        users: vec![1000],
        groups: vec![],
        write: true,
        urgent: true,
        capacity: Some(Size(10 << 30)),
        inodes: Some(100_000),
    };
    assert_eq!(table.trees[0], alice);
    assert!(!table.trees[1].write, "who is not said to write reads");
    assert!(!table.trees[1].urgent, "who is not said to be urgent is as all others");
    let part = PartitionGrant {
        name: "p1".to_owned(),
        first: Size(64 << 30),
        size: Size(4 << 30),
        user: 1001,
        group: None,
        write: true,
        queues: 2,
        rate: Some(Size(100 << 20)),
    };
    assert_eq!(table.partitions, [part]);
    let scratch = Scratch::new("text");
    table.store(&scratch.table()).unwrap();
    assert_eq!(Table::load(&scratch.table()).unwrap(), table);
    let mode = std::fs::metadata(scratch.table()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert_eq!(std::fs::read_dir(&scratch.0).unwrap().count(), 1, "nothing else is left");
    assert_eq!(Table::load(&scratch.0.join("absent")).unwrap(), Table::default());
}

#[test]
fn what_makes_no_sense_is_refused_whole() {
    let tree = |more: &str| format!("[[tree]]\nname = \"t\"\npath = \"/t\"\nusers = [1]\n{more}\n");
    let part = |name: &str, first: u64, size: u64| {
        format!("[[partition]]\nname = \"{name}\"\nfirst = {first}\nsize = {size}\nuser = 1\n")
    };
    assert!(parse(&tree("")).is_ok());
    let wrong = [
        // Torn, or mistyped.
        TEXT[..TEXT.len() / 2].to_owned(),
        tree("wirte = true"),
        tree("capacity = \"much\""),
        tree("urgent = \"yes\""),
        tree("urgent = 1"),
        part("p", 0, 4096) + "urgent = true\n",
        tree("capacity = -1"),
        tree("capacity = 100"),
        "[[tree]]\nname = \"t\"\npath = \"/t\"".to_owned(),
        tree("").replace("\"/t\"", "\"t\""),
        tree("").replace("\"/t\"", "\"/t/../u\""),
        tree("").replace("\"t\"", "\"../t\""),
        tree("").replace("\"t\"", "\"a/b\""),
        tree("").replace("\"t\"", "\".hidden\""),
        tree("").replace("\"t\"", "\"\""),
        tree("") + &tree(""),
        tree("") + &part("t", 0, 4096),
        // Counted twice.
        tree("capacity = \"1G\"")
            + &tree("capacity = \"1G\"").replace("\"t\"", "\"u\"").replace("/t", "/t/u"),
        tree("capacity = \"1G\"") + &tree("inodes = 5").replace("\"t\"", "\"u\""),
        part("p", 0, 0),
        part("p", 1, 4096),
        part("p", 0, 4097),
        part("p", u64::MAX >> 1 & !4095, 4096) + &part("q", (u64::MAX >> 1 & !4095) - 4096, 8192),
        part("p", 0, 8192) + &part("q", 4096, 4096),
        part("p", 0, 8192) + "queues = 0",
        part("p", 0, 8192) + "rate = 5",
    ];
    for text in wrong {
        assert!(parse(&text).is_err(), "accepted:\n{text}");
    }
    let said = parse(&tree("urgent = 1")).unwrap_err().to_string();
    let names_it = said.contains("grants.toml") && said.contains("urgent = 1");
    assert!(names_it && !said.contains('\n'), "{said}");
    let beside =
        tree("capacity = \"1G\"") + &tree("capacity = \"1G\"").replace("\"t\"", "\"u\"").replace("/t", "/tt");
    assert!(parse(&beside).is_ok(), "/tt is not below /t");
    let twice = tree("capacity = \"1G\"") + &tree("").replace("\"t\"", "\"u\"");
    assert!(parse(&twice).is_ok(), "a second way in, to read only");
    let table = parse(&part("p", 1 << 20, 1 << 20)).unwrap();
    assert!(table.check_device(1 << 20, 2 << 20).is_ok());
    assert!(table.check_device((1 << 20) + 4096, 2 << 20).is_err(), "the file system is there");
    assert!(table.check_device(1 << 20, (2 << 20) - 4096).is_err(), "the device ends before");
}

#[test]
fn what_others_could_have_written_is_not_read() {
    let scratch = Scratch::new("trust");
    let table = parse(TEXT).unwrap();
    let file = scratch.table();
    table.store(&file).unwrap();
    let chmod =
        |path: &Path, mode| std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    let untrusted = |what: &str| {
        let loaded = Table::load(&file);
        assert!(matches!(loaded, Err(GrantError::Untrusted { .. })), "{what}: {loaded:?}");
    };
    for mode in [0o620, 0o602, 0o666] {
        chmod(&file, mode);
        untrusted("the file's mode");
    }
    chmod(&file, 0o644);
    assert!(Table::load(&file).is_ok());
    chmod(&scratch.0, 0o777);
    untrusted("the directory's mode");
    assert!(table.store(&file).is_err(), "nor written where others could exchange it");
    chmod(&scratch.0, 0o755);
    let elsewhere = scratch.0.join("real.toml");
    std::fs::rename(&file, &elsewhere).unwrap();
    symlink(&elsewhere, &file).unwrap();
    untrusted("a symbolic link");
    std::fs::remove_file(&file).unwrap();
    std::fs::create_dir(&file).unwrap();
    untrusted("a directory");
    std::fs::remove_dir(&file).unwrap();
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: a table of another user needs root to make");
        return;
    }
    std::fs::rename(&elsewhere, &file).unwrap();
    std::os::unix::fs::chown(&file, Some(65_534), None).unwrap();
    untrusted("another user's");
    std::os::unix::fs::chown(&file, Some(0), None).unwrap();
    std::os::unix::fs::chown(&scratch.0, Some(65_534), None).unwrap();
    untrusted("in another user's directory");
}
