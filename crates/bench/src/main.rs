//! `nvmed-bench [ROW]`: measures the rows whose name begins with ROW, or all. `nvmed-bench --instructions` prints the
//! instructions of a call of each kind, and measures nothing else.

use nvmed_bench::row::Row;
use nvmed_bench::{
    driver, files, instructions, kv, mounting, names, policy, programs, requests, shared, sqlite, steps,
};
use nvmed_lab::{machine::machine, undo};
use std::path::Path;

/// A group of rows measured together, under the names that `ROW=` takes.
struct Group {
    names: &'static [&'static str],
    measure: fn() -> Result<Vec<Row>, String>,
}

const GROUPS: &[Group] = &[
    Group { names: &["wrapper.pread_1m"], measure: files::pread_1m },
    Group {
        names: &["wrapper.pread_1g.base", "wrapper.pread_1g.huge", "wrapper.pread_1g.huge_rival"],
        measure: files::pread_1g,
    },
    Group { names: &["wrapper.pwrite_1g"], measure: files::pwrite_1g },
    Group { names: &["sqlite.insert_delete.kernel", "sqlite.insert_delete.tmpfs"], measure: sqlite::delete },
    Group { names: &["sqlite.insert_wal.kernel", "sqlite.insert_wal.tmpfs"], measure: sqlite::wal },
    Group { names: &["fs.create_fsync.kernel", "fs.create_fsync.tmpfs"], measure: files::create },
    Group { names: &["driver.randread_4k"], measure: driver::randread },
    Group { names: &["driver.command_without_copy"], measure: driver::nocopy },
    Group { names: &["io.randread_4k.inline.1"], measure: requests::inline },
    Group {
        names: &["io.randread_4k.threaded.1", "io.randread_4k.threaded.4", "io.randread_4k.threaded.32"],
        measure: requests::threaded,
    },
    Group { names: &["io.randread_512.core"], measure: requests::small },
    Group { names: &["io.handle_over_pair"], measure: requests::handle_over_pair },
    Group { names: &["io.seq_128k_over_memcpy"], measure: requests::sequential },
    Group { names: &["io.hybrid.cpu_200us", "io.hybrid.latency_200us"], measure: policy::hybrid_real },
    Group {
        names: &["io.hybrid.cpu_50us_virtual", "io.hybrid.latency_50us_virtual"],
        measure: policy::hybrid_virtual,
    },
    Group { names: &["io.thread.idle_cpu"], measure: policy::thread_idle },
    Group { names: &["io.interrupt.wait_cpu"], measure: policy::interrupt },
    Group { names: &["fs.mount_blocks.1k", "fs.mount_blocks.1m"], measure: mounting::blocks },
    Group { names: &["fs.stat_depth10"], measure: names::stat },
    Group { names: &["fs.readdir_100k"], measure: names::readdir },
    Group { names: &["fs.rename_below", "fs.rename_above", "fs.rename_hundred"], measure: names::renames },
    Group { names: &["fs.metadata_bytes"], measure: names::space },
    Group { names: &["fs.create_fsync_8t"], measure: names::create_many },
    Group { names: &["kv.get", "kv.put"], measure: kv::against_peers },
    Group {
        names: &["wrapper.foreign.lseek", "wrapper.foreign.read", "wrapper.foreign.close"],
        measure: files::foreign,
    },
    Group { names: &["programs.rocksdb_fillsync"], measure: programs::rocksdb::fillsync },
    Group {
        names: &["programs.rocksdb_readrandom", "programs.rocksdb_readrandom.calls"],
        measure: programs::rocksdb::readrandom,
    },
    Group { names: &["programs.git_clone", "programs.run_true"], measure: programs::git::clone },
    Group { names: &["programs.pgbench", "programs.pgbench.gain"], measure: programs::postgresql::pgbench },
    Group { names: &["wrapper.start"], measure: files::start },
    Group { names: &["shared.pread_1m", "shared.pread_1g"], measure: shared::pread },
    Group { names: &["shared.round_trip_running", "shared.round_trip_parked"], measure: shared::round_trip },
];

fn main() {
    let wanted = std::env::args().nth(1).unwrap_or_default();
    if wanted == "--list" {
        for name in GROUPS.iter().flat_map(|group| group.names) {
            println!("{name}");
        }
        return;
    }
    if wanted == "--instructions" {
        std::process::exit(i32::from(!instructions_of_all()));
    }
    let chosen: Vec<&Group> =
        GROUPS.iter().filter(|group| group.names.iter().any(|name| name.starts_with(&wanted))).collect();
    if chosen.is_empty() {
        eprintln!("nvmed-bench: no row begins with `{wanted}`; `nvmed-bench --list` names them");
        std::process::exit(2);
    }
    match undo::supervise() {
        Ok(Some(status)) => std::process::exit(status),
        Ok(None) => std::process::exit(i32::from(!measure(&chosen))),
        Err(message) => {
            eprintln!("nvmed-bench: {message}");
            std::process::exit(1);
        }
    }
}

/// Prints the instructions of one call of each kind; `false` when one could not be counted.
fn instructions_of_all() -> bool {
    let ground = steps::Ground::new();
    let below_the_wrapper = |kind: &str| ground.as_ref().map_err(Clone::clone)?.a_call(kind);
    let durable = instructions::KINDS.iter().map(|kind| (kind, instructions::a_call(kind)));
    let mut whole = true;
    for (kind, counted) in steps::KINDS.iter().map(|kind| (kind, below_the_wrapper(kind))).chain(durable) {
        match counted {
            Ok(count) => println!("{kind} {count:.1}"),
            Err(message) => {
                eprintln!("nvmed-bench: {kind}: {message}");
                whole = false;
            }
        }
    }
    whole
}

/// Measures and prints; `false` when a row could not be measured. A goal that is not met is a result.
fn measure(groups: &[&Group]) -> bool {
    let machine = machine();
    let dir = std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
    let dir = Path::new(&dir).join("bench");
    println!("{machine}\nname | ours | rival | ratio (spread over rounds) | goal | met");
    let mut whole = true;
    for group in groups {
        match (group.measure)() {
            Ok(rows) => {
                for row in rows {
                    let instructions = counted(&row.name);
                    let shown =
                        instructions.map_or(String::new(), |n| format!("  [{n:.0} instructions a call]"));
                    println!("{}{shown}", row.line());
                    if let Err(error) = row.save(&dir, &machine, instructions) {
                        eprintln!("nvmed-bench: {}: {error}", dir.display());
                        whole = false;
                    }
                }
            }
            Err(message) => {
                eprintln!("nvmed-bench: {}: SKIPPED: {message}", group.names.join(", "));
                whole = false;
            }
        }
    }
    whole
}

/// Instructions of one call of a row that is about durable calls; without valgrind it is said that they are missing.
fn counted(row: &str) -> Option<f64> {
    let kind = instructions::kind_of(row)?;
    match instructions::a_call(kind) {
        Ok(instructions) => Some(instructions),
        Err(message) => {
            eprintln!("nvmed-bench: {row}: INSTRUCTIONS A CALL ARE MISSING (install valgrind?): {message}");
            None
        }
    }
}
