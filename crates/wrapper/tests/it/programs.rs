//! Debian's own programs on the file system, unmodified.

use crate::support::Bench;
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

/// A tree with what trees have: depth, odd names, links, holes, empty and large files.
fn plant(root: &Path) {
    for dir in ["", "a", "a/b", "a/b/c", "with space", "empty"] {
        std::fs::create_dir_all(root.join(dir)).expect("a directory");
    }
    for (index, dir) in ["", "a", "a/b", "a/b/c", "with space"].iter().enumerate() {
        for file in 0..12usize {
            let bytes: Vec<u8> = (0..file * file * 1000 + index).map(|at| (at * 31 + file) as u8).collect();
            std::fs::write(root.join(dir).join(format!("file {file}")), bytes).expect("a file");
        }
    }
    let words: String = (0..3000).fold(String::new(), |mut text, line| {
        let _ = writeln!(text, "{} word{}", line * 7919 % 3000, line % 10);
        text
    });
    std::fs::write(root.join("a/words.txt"), words).expect("a text");
    std::os::unix::fs::symlink("../a/words.txt", root.join("with space/link")).expect("a link");
    std::os::unix::fs::symlink("nowhere", root.join("dangling")).expect("a link");
    std::fs::hard_link(root.join("a/words.txt"), root.join("a/same")).expect("a hard link");
}

/// `sha256sum` of every file below `root`, as it prints them, made without the wrapper.
fn sums(root: &Path) -> String {
    let output = Command::new("sh")
        .args(["-c", "find . -type f -exec sha256sum {} + | sort -k2"])
        .current_dir(root)
        .output()
        .expect("sh runs");
    assert!(output.status.success());
    String::from_utf8(output.stdout).expect("names are text")
}

struct Copied {
    bench: Bench,
    /// The tree on the host and below the wrapped directory.
    tree: String,
    copy: String,
}

fn copied(needs: &[&str]) -> Option<Copied> {
    let bench = Bench::new("", needs)?;
    let tree = bench.host().join("tree");
    plant(&tree);
    let (tree, copy) = (tree.display().to_string(), bench.path("copy"));
    bench.ok(&["cp", "-r", &tree, &copy]);
    Some(Copied { bench, tree, copy })
}

/// Checks sums of files below a wrapped directory.
fn verify(bench: &Bench, root: &str, sums: &str) {
    let list = bench.host().join("sums");
    let absolute: String = sums.lines().fold(String::new(), |mut text, line| {
        let (sum, name) = line.split_once("  ./").expect("a line of sha256sum");
        let _ = writeln!(text, "{sum}  {root}/{name}");
        text
    });
    std::fs::write(&list, absolute).expect("a list");
    bench.ok(&["sha256sum", "--quiet", "-c", list.to_str().unwrap()]);
}

#[test]
fn cp_r_and_sha256sum() {
    let Some(Copied { bench, tree, copy }) = copied(&["cp", "sha256sum", "diff"]) else { return };
    verify(&bench, &copy, &sums(Path::new(&tree)));
    bench.ok(&["diff", "-r", "--no-dereference", &tree, &copy]);
    // And out again, with everything kept.
    let back = bench.host().join("back").display().to_string();
    let kept = bench.path("kept");
    bench.ok(&["cp", "-a", &tree, &kept]);
    bench.ok(&["cp", "-a", &kept, &back]);
    bench.ok(&["diff", "-r", "--no-dereference", &tree, &back]);
    let listing = |root: &str| {
        let words = ["find", ".", "-printf", "%P %y %m %n %T@ %l\n"];
        let output = Command::new(words[0]).args(&words[1..]).current_dir(root).output().expect("find runs");
        let mut lines: Vec<_> = String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    assert_eq!(listing(&tree), listing(&back), "modes, times, links survive both ways");
    bench.fsck();
}

#[test]
fn ls_find_stat_and_cat() {
    let Some(Copied { bench, tree, copy }) = copied(&["ls", "find", "stat", "cat"]) else { return };
    let long = bench.ok(&["ls", "-l", &copy]);
    assert_eq!(long.lines().count(), 17, "{long}");
    assert!(long.contains("dangling -> nowhere"), "{long}");
    let names = |text: String, root: &str| {
        let mut lines: Vec<_> = text.lines().map(|line| line.replacen(root, "", 1)).collect();
        lines.sort();
        lines
    };
    let host = Command::new("find").arg(&tree).output().expect("find runs");
    let host = names(String::from_utf8(host.stdout).expect("text"), &tree);
    assert_eq!(names(bench.ok(&["find", &copy]), &copy), host);
    assert_eq!(bench.ok(&["find", &copy, "-name", "same", "-links", "1", "-printf", "%f"]), "same");
    assert_eq!(bench.ok(&["stat", "-c", "%F %s %h", &format!("{copy}/a")]), "directory 4096 3\n");
    assert_eq!(bench.ok(&["stat", "-f", "-c", "%S %l", &copy]), "4096 255\n");
    let text = std::fs::read_to_string(format!("{tree}/a/words.txt")).expect("text");
    assert_eq!(bench.ok(&["cat", &format!("{copy}/with space/link")]), text);
    bench.ok(&["ls", "-laR", "--color=always", &copy]);
    assert!(bench.ok(&["du", "-s", &copy]).starts_with(|first: char| first.is_ascii_digit()));
}

#[test]
fn df_names_the_file_system() {
    let Some(bench) = Bench::new("", &["df", "cat"]) else { return };
    let (device, ours) = (bench.host().join("disk.img").display().to_string(), bench.path(""));
    let ours = ours.trim_end_matches('/');
    let words = ["df", "--output=source,fstype,target", ours];
    for told in [bench.ok(&words), bench.ok_shared(&words), bench.ok_shared(&["df", "-T"])] {
        let lines: Vec<Vec<&str>> = told.lines().map(|line| line.split_whitespace().collect()).collect();
        let line = lines.iter().find(|line| line.contains(&ours)).unwrap_or_else(|| panic!("{told}"));
        assert_eq!((line[0], line[1]), (device.as_str(), "nvmedfs"), "{told}");
    }
    // What else is mounted stands before ours, as the kernel has it.
    let numbered = |text: String| -> Vec<String> { text.lines().map(str::to_owned).collect() };
    for list in ["/proc/mounts", "/proc/self/mountinfo"] {
        let plain = numbered(std::fs::read_to_string(list).expect("the kernel's list"));
        let told = numbered(bench.ok(&["cat", list]));
        let (line, others) = told.split_last().expect("a line of ours");
        assert_eq!(others, plain);
        assert!(line.contains(&format!("{ours} ")) && line.contains(" nvmedfs "), "{line}");
    }
    bench.fsck();
}

#[test]
fn mv_and_rm() {
    let Some(Copied { bench, tree, copy }) = copied(&["mv", "rm", "ls"]) else { return };
    let sums = sums(Path::new(&tree));
    let (moved, back) = (bench.path("moved"), bench.host().join("back").display().to_string());
    bench.ok(&["mv", &copy, &moved]);
    verify(&bench, &moved, &sums);
    bench.ok(&["mv", &moved, &back]);
    assert_eq!(self::sums(Path::new(&back)), sums, "out of the file system");
    bench.ok(&["mv", &back, &copy]);
    verify(&bench, &copy, &sums);
    bench.ok(&["mv", &format!("{copy}/a/b"), &format!("{copy}/empty/deep")]);
    bench.ok(&["mv", &format!("{copy}/a/file 3"), &format!("{copy}/a/file 4")]);
    bench.ok(&["rm", "-r", &format!("{copy}/empty")]);
    bench.ok(&["rm", "-rf", &copy, &bench.path("none")]);
    assert_eq!(bench.ok(&["ls", "-A", &bench.path("")]), "");
    bench.fsck();
}

#[test]
fn grep_sort_wc_and_their_like() {
    let needs = ["grep", "sort", "wc", "head", "tail", "awk", "sed", "cmp", "touch", "tee"];
    let Some(Copied { bench, tree, copy }) = copied(&needs) else { return };
    let (text, on_host) = (format!("{copy}/a/words.txt"), format!("{tree}/a/words.txt"));
    let plain = |words: &[&str]| {
        let output = Command::new(words[0]).args(&words[1..]).output().expect("the program runs");
        String::from_utf8(output.stdout).expect("text")
    };
    assert_eq!(bench.ok(&["grep", "-c", "word7", &text]), "300\n");
    assert_eq!(bench.ok(&["grep", "-rlw", "2999 word1", &copy]).lines().count(), 2);
    assert_eq!(bench.ok(&["sort", "-n", &text]), plain(&["sort", "-n", &on_host]));
    let sorted = bench.path("sorted");
    // A buffer so small that sort spills into temporary files of ours.
    bench.ok(&["sort", "-S", "16K", "-T", &bench.path(""), "-o", &sorted, &text]);
    assert_eq!(bench.ok(&["cat", &sorted]), plain(&["sort", &on_host]));
    assert_eq!(bench.ok(&["ls", "-A", &bench.path("")]), "copy\nsorted\n", "sort has removed its files");
    bench.ok(&["sort", "-o", &sorted, "-r", &sorted]);
    assert_eq!(
        bench.ok(&["head", "-n", "3", &sorted]),
        plain(&["sort", "-r", &on_host]).lines().take(3).fold(String::new(), |text, line| text + line + "\n")
    );
    assert_eq!(bench.ok(&["tail", "-c", "100", &text]), plain(&["tail", "-c", "100", &on_host]));
    assert!(bench.ok(&["wc", &text]).starts_with(plain(&["wc", &on_host]).split(" /").next().unwrap()));
    assert_eq!(bench.ok(&["awk", "{ sum += $1 } END { print sum }", &text]), "4498500\n");
    bench.ok(&["sed", "-i", "s/word7/seven/", &text]);
    assert_eq!(bench.ok(&["grep", "-c", "seven", &text]), "300\n");
    bench.ok(&["cmp", &format!("{copy}/a/file 9"), &format!("{tree}/a/file 9")]);
    bench.ok(&["touch", "-d", "2001-02-03 04:05:06 UTC", &text]);
    assert_eq!(bench.ok(&["stat", "-c", "%Y", &text]), "981173106\n");
    bench.fsck();
}

#[test]
fn dd_with_its_flags() {
    let Some(bench) = Bench::new("", &["dd", "cmp"]) else { return };
    let source = bench.host().join("source");
    let bytes: Vec<u8> = (0..3_000_000u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    std::fs::write(&source, bytes).expect("a file");
    let (source, copy) = (source.display().to_string(), bench.path("copy"));
    let of = format!("of={copy}");
    for flags in [
        &["bs=4096", "conv=fsync"][..],
        &["bs=1M", "conv=fdatasync"],
        &["bs=64K", "oflag=direct"],
        &["bs=64K", "oflag=sync"],
        &["bs=64K", "iflag=fullblock", "oflag=append", "conv=notrunc"],
        &["bs=4K", "conv=sparse"],
    ] {
        bench.run(&["rm", "-f", &copy]);
        let input = format!("if={source}");
        let mut words = vec!["dd", &input, &of, "status=none"];
        words.extend(flags);
        bench.ok(&words);
        bench.ok(&["cmp", &source, &copy]);
    }
    // Reading, seeking, and no truncation.
    let back = bench.host().join("back").display().to_string();
    bench.ok(&[
        "dd",
        &format!("if={copy}"),
        &format!("of={back}"),
        "bs=1000",
        "skip=7",
        "count=11",
        "status=none",
    ]);
    let part = std::fs::read(&back).expect("a file");
    assert_eq!(part, std::fs::read(&source).expect("a file")[7000..18000]);
    bench.ok(&["dd", "if=/dev/zero", &of, "bs=1", "seek=10", "count=5", "conv=notrunc", "status=none"]);
    assert_eq!(bench.ok(&["stat", "-c", "%s", &copy]), "3000000\n");
    bench.fsck();
}

#[test]
fn tar_both_ways() {
    let Some(Copied { bench, tree, copy }) = copied(&["tar"]) else { return };
    let (archive, inside) = (bench.host().join("a.tar").display().to_string(), bench.path("b.tar"));
    let sums = sums(Path::new(&tree));
    bench.ok(&["tar", "cf", &archive, "-C", &copy, "."]);
    let out = bench.host().join("out");
    std::fs::create_dir(&out).expect("a directory");
    assert!(
        Command::new("tar").arg("xf").arg(&archive).arg("-C").arg(&out).status().expect("tar runs").success()
    );
    assert_eq!(self::sums(&out), sums);
    bench.ok(&["tar", "cf", &inside, "-C", &tree, "."]);
    let unpacked = bench.path("unpacked");
    bench.ok(&["mkdir", &unpacked]);
    bench.ok(&["tar", "xpf", &inside, "-C", &unpacked]);
    verify(&bench, &unpacked, &sums);
    assert_eq!(bench.ok(&["find", &unpacked, "-name", "same", "-links", "2", "-printf", "%f"]), "same");
    assert!(bench.ok(&["tar", "tf", &inside]).contains("./a/b/c/file 11"));
    bench.fsck();
}

const FIO: [&str; 9] = [
    "--rw=randrw",
    "--bs=4k",
    "--size=8m",
    "--numjobs=2",
    "--verify=crc32c",
    "--do_verify=1",
    "--fsync=32",
    "--end_fsync=1",
    "--minimal",
];

#[test]
fn fio_verifies_what_its_threads_wrote() {
    let Some(bench) = Bench::new("", &["fio"]) else { return };
    let dir = format!("--directory={}", bench.path("").trim_end_matches('/'));
    for engine in ["psync", "vsync", "sync", "mmap"] {
        let (name, engine) = (format!("--name={engine}"), format!("--ioengine={engine}"));
        let mut words = vec!["fio", &name, &engine, "--thread", &dir];
        words.extend(FIO);
        let output = bench.run(&words);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && errors.is_empty(), "{engine}: {errors}");
    }
    bench.fsck();
}

/// Without `--thread` fio forks its jobs, and a private mount does not follow.
#[test]
fn fio_that_forks_is_told_why_it_fails() {
    let Some(bench) = Bench::new("", &["fio"]) else { return };
    let dir = format!("--directory={}", bench.path("").trim_end_matches('/'));
    let mut words = vec!["fio", "--name=forked", "--ioengine=psync", &dir];
    words.extend(FIO.iter().filter(|word| !word.starts_with("--numjobs")));
    let output = bench.run(&words);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "it cannot have worked");
    let fence: Vec<_> =
        errors.lines().filter(|line| line.contains("holds the file system in private")).collect();
    assert_eq!(fence.len(), 1, "one line of the fence: {errors}");
    assert!(fence[0].contains("--thread"), "it says what to do: {errors}");
    bench.fsck();
}
