//! `nvmed trace analyse` and `synthesise`: from a row of the paper to a trace and back.

use crate::scratch::Scratch;
use serde_json::Value;

#[test]
fn a_row_becomes_a_trace_and_a_row_again() {
    let scratch = Scratch::new();
    let ran = scratch.run(["trace", "synthesise", "Facebook", "--seed", "3", "-o", "a"]);
    assert_eq!((ran.status, ran.err.as_str()), (0, "nvmed: a: 3897 requests like Facebook\n"));
    let ran =
        scratch.run(["trace", "synthesise", "--like", "a", "-o", "b", "--to", "csv", "--footprint", "0.5"]);
    assert_eq!((ran.status, ran.err.as_str()), (0, "nvmed: b: 3897 requests like a\n"));
    let found: Value = serde_json::from_str(&scratch.ok(["trace", "analyse", "a", "b", "--json", "--reuse"]))
        .expect("it is JSON");
    for (at, name) in ["a", "b"].into_iter().enumerate() {
        let trace = &found["traces"][at];
        assert_eq!((&trace["all"]["name"], &trace["all"]["requests"]), (&name.into(), &3897.0.into()));
        let response = trace["all"]["mean_response_ms"].as_f64().expect("it is told");
        assert!((response / 4.08 - 1.0).abs() < 0.02, "{response}");
        assert_eq!(trace["reuse"]["sampled_pct"], 100.0);
    }
    assert_eq!(found["characteristics"][2]["claims"][0]["found"], 2);
    assert_eq!(found["schema"], 2);
    // Of one device all is told, as in the table.
    let all = &found["traces"][0]["all"];
    assert!(all["working_set"]["distinct_kib"].as_u64() > Some(0), "{all}");
    assert_eq!(all["burstiness"], found["traces"][0]["devices"][0]["burstiness"]);
    scratch.file("dir/a", std::fs::read(scratch.path("a")).unwrap());
    let found: Value =
        serde_json::from_str(&scratch.ok(["trace", "analyse", "dir/a", "b", "--json"])).unwrap();
    assert_eq!(
        (&found["traces"][0]["all"]["name"], &found["traces"][1]["all"]["name"]),
        (&"a".into(), &"b".into())
    );
    let found: Value =
        serde_json::from_str(&scratch.ok(["trace", "analyse", "./a", "dir/a", "--json"])).unwrap();
    assert_eq!(found["traces"][1]["all"]["name"], "dir/a");
    let table = scratch.ok(["trace", "analyse", "a", "b"]);
    assert_eq!(
        table.lines().next().map(|line| line.split_whitespace().collect::<Vec<_>>()),
        Some(vec!["a", "b"])
    );
    let line = table.lines().find(|line| line.starts_with("requests "));
    assert_eq!(
        line.map(|line| line.split_whitespace().collect::<Vec<_>>()),
        Some(vec!["requests", "3897", "3897"])
    );
    assert!(table.contains("; 6 holds\n") && !table.contains("Characteristic 6"), "{table}");
    let table = scratch.ok(["trace", "analyse", "a", "b", "--characteristics"]);
    assert!(table.contains("\nCharacteristic 6, times between arrivals are long: holds\n"), "{table}");
}

/// A trace of a device that serves three requests at once, as CSV.
fn of_a_server() -> String {
    let mut text = String::from("arrival_ns,start_ns,finish_ns,op,offset_bytes,size_bytes\n");
    let mut free_ns = [0; 3];
    for number in 0..3_000u64 {
        let (arrival_ns, server) = (number * 40_000 + number * number % 30_011, (number % 3) as usize);
        let start_ns = arrival_ns.max(free_ns[server]);
        free_ns[server] = start_ns + 60_000 + number * 7_919 % 100_003;
        let (op, offset) =
            (["read", "write"][usize::from(number % 4 == 0)], number * number % 1_009 * 16_384);
        let size = 4096 * (1 + number % 3);
        text += &format!("{arrival_ns},{start_ns},{},{op},{offset},{size}\n", free_ns[server]);
    }
    text
}

#[test]
fn a_server_is_synthesised_by_what_it_is_like() {
    let scratch = Scratch::new();
    std::fs::write(scratch.path("a"), of_a_server()).unwrap();
    let ran = scratch.run(["trace", "synthesise", "--like", "a", "-o", "b"]);
    // The working set may be missed here, which is told: what is small is tried at old places first.
    assert!(ran.status == 0 && ran.err.starts_with("nvmed: b: 3000 requests like a\n"), "{}", ran.err);
    let found: Value =
        serde_json::from_str(&scratch.ok(["trace", "analyse", "a", "b", "--json"])).expect("it is JSON");
    let cell = |at: usize, path: &str| {
        found["traces"][at]["devices"][0].pointer(path).and_then(Value::as_f64).expect("it is told")
    };
    assert!(cell(0, "/waiting/mean_in_service") > 2.0);
    let busy_pct = cell(0, "/depth/utilisation_pct");
    assert!((50.0..=100.0).contains(&busy_pct), "{busy_pct}");
    let cells =
        ["/nowait_pct", "/mean_service_ms", "/mean_response_ms", "/duration_s", "/waiting/mean_in_system"];
    for path in cells.into_iter().chain(["/temporal_locality_pct"]) {
        let (told, found) = (cell(0, path), cell(1, path));
        assert!((found / told - 1.0).abs() < 0.02, "{path}: {found}, not {told}");
    }
}

/// The server, a second device that begins later and writes in order, and one that is flushed only.
fn of_two_devices() -> String {
    let mut text = String::from("arrival_ns,start_ns,finish_ns,op,offset_bytes,size_bytes,device\n");
    of_a_server().lines().skip(1).for_each(|line| text += &format!("{line},sda\n"));
    for number in 0..400u64 {
        let at = 200_000_000 + number * 1_000_000;
        text += &format!("{at},{at},{},write,{},8192,sdb\n", at + 90_000, number * 8192);
    }
    text + "240000000,240000000,240001000,flush,0,0,sdc\n"
}

#[test]
fn each_device_is_synthesised_by_what_it_is_like() {
    let scratch = Scratch::new();
    scratch.file("a", of_two_devices());
    let ran = scratch.run(["trace", "synthesise", "--like", "a", "-o", "b"]);
    let told = "nvmed: a: 1 device left out; device sdc of a: requests is not told, or is 0\n\
                nvmed: b: 3400 requests of 2 devices like a\n";
    assert!(ran.status == 0 && ran.err.starts_with(told), "{}", ran.err);
    let found: Value =
        serde_json::from_str(&scratch.ok(["trace", "analyse", "a", "b", "--json"])).expect("it is JSON");
    for (device, name) in ["sda", "sdb"].into_iter().enumerate() {
        let cell = |trace: usize, path: &str| &found["traces"][trace]["devices"][device][path];
        assert_eq!(cell(1, "name"), name);
        for path in ["requests", "duration_s", "mean_response_ms", "nowait_pct", "data_kib"] {
            let (told, made) = (cell(0, path).as_f64().unwrap(), cell(1, path).as_f64().unwrap());
            assert!((made / told - 1.0).abs() < 0.02, "{name}: {path}: {made}, not {told}");
        }
    }
    let shown = scratch.ok(["trace", "show", "b", "--device", "sdb", "--rows", "1"]);
    let arrival = shown.lines().nth(1).and_then(|line| line.split('\t').next());
    assert_eq!(arrival, Some("0.200000000"), "{shown}");
    let ran = scratch.run(["trace", "synthesise", "--like", "a", "-o", "c", "--device", "sdb"]);
    assert_eq!((ran.status, ran.err.as_str()), (0, "nvmed: c: 400 requests like a\n"));
    let ran = scratch.run(["trace", "synthesise", "--like", "a", "-o", "d", "--device", "sdc"]);
    assert!(ran.status == 1 && ran.err.ends_with("a: requests is not told, or is 0\n"), "{}", ran.err);
}

/// What is read, and what another process has locked, is still there after each command that writes.
#[test]
fn no_command_writes_over_what_it_reads() {
    let scratch = Scratch::new();
    scratch.file("a", of_a_server());
    let profile = concat!(env!("CARGO_MANIFEST_DIR"), "/../stack/profiles/emmc.toml");
    scratch.file("p.toml", std::fs::read(profile).unwrap());
    scratch.file("s.toml", "base = \"./p.toml\"\n[[axis]]\nfield = \"geometry.channels\"\nvalues = [1]\n");
    std::os::unix::fs::symlink("a", scratch.path("link")).unwrap();
    std::fs::hard_link(scratch.path("a"), scratch.path("hard")).unwrap();
    let before = ["a", "p.toml", "s.toml"].map(|name| std::fs::read(scratch.path(name)).unwrap());
    for (arguments, what) in [
        (&["analyse", "a", "--html", "link"][..], "--html would write link over the trace"),
        (&["convert", "a", "hard", "--to", "csv"], "OUT would write hard over the trace"),
        (&["synthesise", "--like", "a", "-o", "./a"], "-o would write ./a over the trace"),
        (&["simulate", "a", "--profile", "emmc", "-o", "link"], "-o would write link over the trace"),
        (&["simulate", "a", "--profile", "./p.toml", "--html", "p.toml"], "over a profile"),
        (&["simulate", "a", "--profile", "emmc", "-o", "x", "--html", "./x"], "over the file of -o"),
        (&["sweep", "s.toml", "a", "--html", "s.toml"], "over the file of the sweep"),
        (&["sweep", "s.toml", "a", "--html", "a"], "over the trace"),
        (&["sweep", "s.toml", "a", "-o", "r", "--html", "r"], "over the results"),
    ] {
        scratch.fails([&["trace"], arguments].concat(), 2, what);
    }
    let locked = std::fs::File::create(scratch.path("other")).unwrap();
    locked.lock().unwrap();
    scratch.fails(["trace", "convert", "a", "other"], 3, "another process has other open");
    let after = ["a", "p.toml", "s.toml"].map(|name| std::fs::read(scratch.path(name)).unwrap());
    assert!(before == after && std::fs::read(scratch.path("other")).unwrap().is_empty());
    let of_blktrace = scratch.run(["trace", "convert", "a", "b.blktrace.7", "--to", "blktrace"]);
    assert_eq!(of_blktrace.status, 0, "{}", of_blktrace.err);
    scratch.fails(
        ["trace", "convert", "b", "b.blktrace.7"],
        2,
        "OUT would write b.blktrace.7 over the trace",
    );
    let plain = scratch.run(["trace", "analyse", "a", "--html", "/dev/null"]);
    assert_eq!(plain.status, 0, "{}", plain.err);
}

#[test]
fn a_hostile_trace_is_not_synthesised() {
    let scratch = Scratch::new();
    let head = "arrival_ns,op,offset_bytes,size_bytes\n";
    let (high, old) = ((1u64 << 56) - 4096, (1u64 << 63) - 1);
    for (what, lines, said) in [
        ("nothing", String::new(), ""),
        ("a head", head.to_owned(), ""),
        ("no bytes", format!("{head}0,read,0,0\n5,read,0,0\n"), ""),
        (
            "far",
            format!("{head}0,read,0,4096\n5,read,{high},4096\n"),
            "beyond 2^56 bytes: a smaller footprint",
        ),
        ("old", format!("{head}0,read,0,4096\n{old},read,4096,4096\n"), "more than 2^62 ns: a higher rate"),
    ] {
        std::fs::write(scratch.path("a"), lines).unwrap();
        let ran = scratch.run(["trace", "synthesise", "--like", "a", "-o", "b"]);
        assert!(ran.status == 1 && ran.err.contains(said), "{what}: {} {}", ran.status, ran.err);
        assert!(!ran.err.contains("panicked") && !scratch.path("b").exists(), "{what}: {}", ran.err);
    }
    std::fs::write(scratch.path("a"), format!("{head}5,write,512,512\n")).unwrap();
    scratch.ok(["trace", "synthesise", "--like", "a", "-o", "b"]);
    for factor in ["0", "-1", "1e9", "NaN", "inf"] {
        for option in ["--rate", "--footprint"] {
            let option = format!("{option}={factor}");
            let ran = scratch.run(["trace", "synthesise", "--like", "a", "-o", "c", &option]);
            assert!(ran.status == 2 && ran.err.contains("from 0.000001 to 1000000"), "{option}: {}", ran.err);
        }
    }
}

#[test]
fn what_cannot_be_synthesised_leaves_no_file() {
    let scratch = Scratch::new();
    let ran = scratch.run(["trace", "synthesise", "Chess", "-o", "a"]);
    assert!(
        ran.status == 2 && ran.err.contains("no row is called Chess; there are Idle, CallIn"),
        "{}",
        ran.err
    );
    let ran = scratch.run(["trace", "synthesise", "Movie", "-o", "a", "--rate", "1000"]);
    assert!(ran.status == 1 && ran.err.contains("Movie: services take 10.18"), "{}", ran.err);
    let ran = scratch.run(["trace", "synthesise", "Movie", "-o", "a", "--footprint", "0.00001"]);
    assert!(ran.status == 1 && ran.err.contains("a larger footprint"), "{}", ran.err);
    let ran = scratch.run(["trace", "synthesise", "Movie", "-o", "a", "--rate", "-1"]);
    assert_eq!(ran.status, 2, "{}", ran.err);
    let ran = scratch.run(["trace", "analyse", "a"]);
    assert_eq!((ran.status, ran.err.lines().count()), (1, 1), "{}", ran.err);
    assert!(!scratch.path("a").exists());
}

#[test]
fn a_trace_is_shown_on_a_page_and_given_to_drives() {
    let scratch = Scratch::new();
    scratch.ok(["trace", "synthesise", "Messaging", "-o", "a"]);
    scratch.ok(["trace", "analyse", "a", "--html", "a.html"]);
    let page = std::fs::read_to_string(scratch.path("a.html")).unwrap();
    assert!(page.contains("<title>Trace: a</title>") && page.contains("</html>") && !page.contains("http"));
    scratch.fails(["trace", "analyse", "a", "--html", "none/a.html"], 1, "none/a.html: No such file");
    // What is no plain file is written to, and not replaced.
    let pipe = scratch.path("pipe");
    let rights = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, rights, 0).unwrap();
    let reader = std::thread::spawn({
        let pipe = pipe.clone();
        move || std::fs::read(pipe).unwrap()
    });
    scratch.ok(["trace", "analyse", "a", "--html", "pipe"]);
    assert!(std::os::unix::fs::FileTypeExt::is_fifo(&pipe.metadata().unwrap().file_type()));
    assert_eq!(reader.join().unwrap(), page.as_bytes());
    let drives = ["--profile", "emmc", "--profile", "emmc-8ps", "--profile", "emmc-hps"];
    let simulate = |more: &[&str]| scratch.ok([&["trace", "simulate", "a"], &drives[..], more].concat());
    let found: Value = serde_json::from_str(&simulate(&["--json"])).expect("it is JSON");
    let of = |drive: usize, what: &str| found["drives"][drive][what].as_f64().expect("it is told");
    assert!((0..3).all(|drive| of(drive, "requests") > 5000.0 && of(drive, "erases") == 0.0));
    // Pages of 8 KiB that are half filled take room; with small ones beside them, none is.
    assert!(of(1, "space_utilisation_pct") < 85.0 && of(2, "space_utilisation_pct") > 99.9);
    assert!(of(2, "programs") < of(0, "programs") && of(2, "programs") == of(1, "programs"));
    assert_eq!(simulate(&["--json"]), simulate(&["--json"]), "it is the same each time");
    simulate(&["--html", "drives.html"]);
    let page = std::fs::read_to_string(scratch.path("drives.html")).unwrap();
    let responses =
        page.split("<figcaption>Response times</figcaption>").nth(1).expect("it has their distribution");
    let keys = responses.split("class=\"frame\"").next().unwrap_or_default();
    assert!(
        ["emmc", "emmc-8ps", "emmc-hps"].iter().all(|name| keys.contains(&format!(">{name}</span>"))),
        "{keys}"
    );
    assert!(page.ends_with("</html>\n") && !page.contains("http"));
    scratch.fails(
        ["trace", "simulate", "a", "--profile", "emmc", "--html", "none/a.html"],
        1,
        "none/a.html: No such file",
    );
    // The requests with the times of a drive are a trace again.
    scratch.ok(["trace", "simulate", "a", "--profile", "emmc-hps", "-o", "b", "--to", "blkparse"]);
    let again: Value = serde_json::from_str(&scratch.ok(["trace", "analyse", "b", "--json"])).expect("JSON");
    let response = again["traces"][0]["all"]["mean_response_ms"].as_f64().expect("it is told");
    assert!((response - of(2, "mean_response_ms")).abs() < 1e-6, "{response}");
    scratch.fails(["trace", "simulate", "a", "--profile", "chess"], 2, "no profile is called `chess`");
}

/// Two devices at the same offsets, whose requests overlap in time, and a malformed line.
const DEVICES: &str = "arrival_ns,op,offset_bytes,size_bytes,device\n1,read,0,4096,sda\n2,read,0,4096,sdb\nx\n\
                       100000000,write,4096,4096,sdb\n";

#[test]
fn a_trace_of_several_devices_is_simulated_as_one_which_is_said() {
    let scratch = Scratch::new();
    scratch.file("a.csv", DEVICES);
    let all = ["trace", "simulate", "a.csv", "--profile", "emmc", "--profile", "emmc-hps", "--json"];
    let ran = scratch.run(all);
    // Once, though there are two drives.
    assert_eq!(
        ran.err,
        "nvmed: a.csv: 1 line malformed, of 5:\n  4: it has no value for each column: x\nnvmed: a.csv: its 2 devices \
         become one; --device NAME takes one of them\n"
    );
    let found: Value = serde_json::from_str(&ran.out).expect("it is JSON");
    // The second read waits for the first one, which was another device's.
    let nowait = found["drives"][0]["nowait_pct"].as_f64().expect("it is told");
    assert!((nowait - 200.0 / 3.0).abs() < 1e-6, "{nowait}");
    let one = ["trace", "simulate", "a.csv", "--profile", "emmc", "-o", "b.csv", "--to", "csv"];
    scratch.ok(one);
    let written = std::fs::read_to_string(scratch.path("b.csv")).unwrap();
    assert!(!written.contains("sd"), "{written}");
    let ran = scratch.run([&one[..], &["--device", "sdb"]].concat());
    assert!(ran.status == 0 && !ran.err.contains("become one"), "{}", ran.err);
    let written = std::fs::read_to_string(scratch.path("b.csv")).unwrap();
    assert_eq!(written.matches(",sdb,").count(), 2, "{written}");
}

#[test]
fn flash_that_a_small_size_leaves_is_said() {
    let scratch = Scratch::new();
    scratch.file("a.csv", DEVICES);
    let simulate = |profile, size| {
        scratch
            .run(["trace", "simulate", "a.csv", "--device", "sda", "--profile", profile, "--size", size])
            .err
    };
    // 32 GiB of blocks, of which a host sees 1 GiB.
    let said = simulate("emmc", "1G");
    assert!(said.contains("nvmed: emmc: --size leaves its flash as it is, 97 % of it spare: "), "{said}");
    // The blocks of this profile follow the size.
    assert!(!simulate("tlc", "1G").contains("spare"));
    let usual = scratch.run(["trace", "simulate", "a.csv", "--profile", "emmc"]).err;
    assert!(!usual.contains("spare"), "{usual}");
}

#[test]
fn a_discard_of_any_length_is_simulated() {
    let scratch = Scratch::new();
    let columns = "arrival_ns,op,offset_bytes,size_bytes\n";
    scratch.file("a.csv", format!("{columns}1,write,0,8192\n5,discard,0,1000000000000000\n6,read,0,4096\n"));
    for profile in ["emmc", "xpoint"] {
        let mut command = scratch.nvmed(["trace", "simulate", "a.csv", "--profile", profile, "--json"]);
        let ran = command.output().unwrap();
        assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
        let found: Value = serde_json::from_slice(&ran.stdout).expect("it is JSON");
        assert_eq!(found["drives"][0]["requests"], 3);
    }
}
