//! Recordings of strangers: whatever they say, no call leaves the directory, and none panics.

#[cfg(test)]
mod tests {
    use super::super::replay::{Replay, ReplayOptions};
    use nvmed_trace::{CallOptions, Tolerance};
    use proptest::prelude::*;
    use std::path::Path;
    use std::sync::atomic::{AtomicU32, Ordering};

    static COUNT: AtomicU32 = AtomicU32::new(0);

    /// A path of few names, so that they meet.
    fn path() -> impl Strategy<Value = String> {
        let name = prop::sample::select(vec!["a", "b", "c", "..", "."]);
        let start = prop::sample::select(vec!["/s/", "#1/", "#2/", "/s/a/", "/"]);
        (start, prop::collection::vec(name, 0..4)).prop_map(|(start, names)| match start.strip_prefix('#') {
            Some(number) => format!("#{number}\"{}\"", names.join("/")),
            None => format!("\"{start}{}\"", names.join("/")),
        })
    }

    /// The text of a symbolic link: much of it leads out.
    fn target() -> impl Strategy<Value = String> {
        prop::sample::select(vec![
            "a",
            "..",
            "../..",
            "../../outside",
            "b/../..",
            "OUTSIDE",
            "/s",
            "/s/a/..",
            "c",
        ])
        .prop_map(|text| format!("\"{text}\""))
    }

    fn line() -> impl Strategy<Value = String> {
        let open = (
            1..4u32,
            path(),
            prop::sample::select(vec!["0x0", "0x42", "0x241", "0xc2", "0x10000", "0x442", "-"]),
        )
            .prop_map(|(file, path, flags)| {
                format!("open\t#{file}\t{path}\t-\t-\t3\t5\t{flags}\t0o700\t-\t-")
            });
        let names = (prop::sample::select(vec!["rename", "link"]), path(), path(), 0..3u32).prop_map(
            |(call, from, to, flags)| format!("{call}\t-\t{from}\t-\t-\t0\t5\t{flags:#x}\t-\t{to}\t-"),
        );
        let link = (path(), target())
            .prop_map(|(path, to)| format!("symlink\t-\t{path}\t-\t-\t0\t5\t-\t-\t{to}\t-"));
        let calls =
            vec!["mkdir", "rmdir", "unlink", "stat", "chmod", "utimens", "readdir", "mknod", "truncate"];
        let one = (prop::sample::select(calls), path())
            .prop_map(|(call, path)| format!("{call}\t-\t{path}\t-\t9\t0\t5\t-\t0o755\t-\t-"));
        let data = (
            prop::sample::select(vec!["read", "write", "pwrite", "close", "fsync", "readdir"]),
            1..4u32,
            0..20u32,
        )
            .prop_map(|(call, file, at)| format!("{call}\t#{file}\t-\t{at}\t9\t9\t5\t-\t-\t-\t-"));
        prop_oneof![3 => open, 3 => names, 2 => link, 3 => one, 2 => data]
    }

    /// Everything below a directory that is not below `but`, with contents.
    fn below(dir: &Path, but: &Path, found: &mut Vec<(String, Vec<u8>)>) {
        let mut entries: Vec<_> =
            std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
        entries.sort();
        for path in entries.into_iter().filter(|path| path != but) {
            let status = path.symlink_metadata().unwrap();
            let bytes = if status.is_file() { std::fs::read(&path).unwrap() } else { Vec::new() };
            found.push((format!("{} {:?}", path.display(), status.permissions()), bytes));
            if status.is_dir() {
                below(&path, but, found);
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

        #[test]
        fn no_recording_leads_out_of_its_directory(lines in prop::collection::vec(line(), 1..40)) {
            let name = format!("nvmed-lab-hostile-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
            let dir = std::env::temp_dir().join(name);
            let outside = dir.join("outside");
            std::fs::create_dir_all(outside.join("a/b")).unwrap();
            for file in ["a/c", "b", "a/b/a"] {
                std::fs::write(outside.join(file), "kept").unwrap();
            }
            let mut text = "# nvmed calls 2: x\n# below \"/s\"\n".to_owned();
            for (number, line) in lines.iter().enumerate() {
                text += &format!("{number}0\t1\t{}\t{line}\n", 1 + number % 2);
            }
            std::fs::write(dir.join("trace"), text.replace("OUTSIDE", &outside.display().to_string())).unwrap();
            let within = dir.join("within/0");
            let options = CallOptions { tolerance: Tolerance::Lines(u64::MAX), ..CallOptions::default() };
            if let Ok(replay) = Replay::load(&dir.join("trace"), &options) {
                let (mut before, mut after) = (Vec::new(), Vec::new());
                std::fs::create_dir_all(&within).unwrap();
                below(&dir, &within, &mut before);
                // What was there may contradict itself.
                let _ = replay.prepare(&within);
                let _ = replay.run(&within, &ReplayOptions::default());
                below(&dir, &within, &mut after);
                prop_assert_eq!(before, after);
            }
            std::fs::remove_dir_all(&dir).unwrap();
        }
    }
}
