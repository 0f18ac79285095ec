//! `nvmed-bench [ROW]`: measures the rows whose name begins with ROW, or all. `nvmed-bench --instructions` prints the
//! instructions of a call of each kind, and measures nothing else.

use nvmed_bench::row::Row;
use nvmed_bench::{
    driver, everyday, files, flash, instructions, kept, kv, mounting, mqsim, names, nvm, nvm_buffer,
    nvm_files, nvm_maps, nvm_views, pair, policy, programs, recording, replay, requests, shared, sqlite,
    steps, sweep, trace, urgent,
};
use nvmed_lab::{machine::machine, undo};
use std::path::Path;

/// A group of rows measured together, under the names that `ROW=` takes.
struct Group {
    names: &'static [&'static str],
    measure: Measure,
}

/// How a group is measured.
enum Measure {
    /// All of it, whichever row was asked for.
    Whole(fn() -> Result<Vec<Row>, String>),
    /// The rows that were asked for. Theirs may have longer names than the group's.
    Part(fn(&str) -> Result<Vec<Row>, String>),
}

use Measure::{Part, Whole};

impl Group {
    /// Whether a row of it was asked for.
    fn has(&self, wanted: &str) -> bool {
        let longer = |name: &str| matches!(self.measure, Part(_)) && wanted.starts_with(name);
        self.names.iter().any(|name| name.starts_with(wanted) || longer(name))
    }
}

const GROUPS: &[Group] = &[
    Group { names: &["wrapper.pread_1m"], measure: Whole(files::pread_1m) },
    Group {
        names: &["wrapper.pread_1g.base", "wrapper.pread_1g.huge", "wrapper.pread_1g.huge_rival"],
        measure: Whole(files::pread_1g),
    },
    Group { names: &["wrapper.pwrite_1g"], measure: Whole(files::pwrite_1g) },
    Group {
        names: &["sqlite.insert_delete.kernel", "sqlite.insert_delete.tmpfs"],
        measure: Whole(sqlite::delete),
    },
    Group { names: &["sqlite.insert_wal.kernel", "sqlite.insert_wal.tmpfs"], measure: Whole(sqlite::wal) },
    Group { names: &["fs.create_fsync.kernel", "fs.create_fsync.tmpfs"], measure: Whole(files::create) },
    Group { names: &["driver.randread_4k"], measure: Whole(driver::randread) },
    Group { names: &["driver.command_without_copy"], measure: Whole(driver::nocopy) },
    Group { names: &["nvm.randread_4k", "nvm.randwrite_4k", "nvm.flush"], measure: Whole(nvm::copies) },
    Group { names: &["nvm.commit_4k"], measure: Whole(nvm::commit) },
    Group { names: &["nvm.write_log"], measure: Whole(nvm_buffer::write_log) },
    Group { names: &["nvm.pin_8k", "nvm.pinned_read_8k"], measure: Whole(nvm_buffer::pins) },
    Group { names: &nvm_files::NAMES, measure: Part(nvm_files::read) },
    Group { names: &[nvm_maps::NAME], measure: Whole(nvm_maps::touches) },
    Group { names: &nvm_views::NAMES, measure: Whole(nvm_views::measure) },
    Group { names: &["io.randread_4k.inline.1"], measure: Whole(requests::inline) },
    Group {
        names: &["io.randread_4k.threaded.1", "io.randread_4k.threaded.4", "io.randread_4k.threaded.32"],
        measure: Whole(requests::threaded),
    },
    Group { names: &["io.randread_512.core"], measure: Whole(requests::small) },
    Group { names: &["io.handle_over_pair"], measure: Whole(requests::handle_over_pair) },
    Group { names: &["io.seq_128k_over_memcpy"], measure: Whole(requests::sequential) },
    Group { names: &["io.hybrid.cpu_200us", "io.hybrid.latency_200us"], measure: Whole(policy::hybrid_real) },
    Group {
        names: &["io.hybrid.cpu_50us_virtual", "io.hybrid.latency_50us_virtual"],
        measure: Whole(policy::hybrid_virtual),
    },
    Group { names: &["io.thread.idle_cpu"], measure: Whole(policy::thread_idle) },
    Group { names: &["io.interrupt.wait_cpu"], measure: Whole(policy::interrupt) },
    Group { names: &recording::NAMES, measure: Whole(recording::measure) },
    Group { names: &["fs.mount_blocks.1k", "fs.mount_blocks.1m"], measure: Whole(mounting::blocks) },
    Group { names: &["fs.stat_depth10"], measure: Whole(names::stat) },
    Group { names: &["fs.readdir_100k"], measure: Whole(names::readdir) },
    Group {
        names: &["fs.rename_below", "fs.rename_above", "fs.rename_hundred"],
        measure: Whole(names::renames),
    },
    Group { names: &["fs.metadata_bytes"], measure: Whole(names::space) },
    Group { names: &["fs.create_fsync_8t"], measure: Whole(names::create_many) },
    Group { names: &["kv.get", "kv.put"], measure: Whole(kv::against_peers) },
    Group {
        names: &["wrapper.foreign.lseek", "wrapper.foreign.read", "wrapper.foreign.close"],
        measure: Whole(files::foreign),
    },
    Group { names: &urgent::NAMES, measure: Part(urgent::measure) },
    Group { names: &["programs.rocksdb_fillsync"], measure: Whole(programs::rocksdb::fillsync) },
    Group {
        names: &["programs.rocksdb_readrandom", "programs.rocksdb_readrandom.calls"],
        measure: Whole(programs::rocksdb::readrandom),
    },
    Group { names: &["programs.git_clone", "programs.run_true"], measure: Whole(programs::git::clone) },
    Group {
        names: &["programs.pgbench", "programs.pgbench.gain"],
        measure: Whole(programs::postgresql::pgbench),
    },
    Group { names: &flash::SIMULATOR, measure: Whole(flash::simulator) },
    Group { names: &flash::AMPLIFICATION, measure: Part(flash::amplification) },
    Group { names: &pair::NAMES, measure: Whole(pair::measure) },
    Group { names: &[mqsim::NAME], measure: Whole(mqsim::measure) },
    Group { names: &flash::PRECONDITION, measure: Whole(flash::precondition) },
    Group { names: &kept::NAMES, measure: Whole(kept::measure) },
    Group { names: &trace::ANALYSE, measure: Whole(trace::analyse) },
    Group { names: &[trace::BLKTRACE], measure: Whole(trace::blkparse_btt) },
    Group { names: &trace::SIMULATE, measure: Whole(trace::simulate) },
    Group { names: &[trace::MEMORY], measure: Part(trace::memory) },
    Group { names: &[sweep::NAME], measure: Whole(sweep::measure) },
    Group { names: &replay::NAMES, measure: Whole(replay::measure) },
    Group { names: &["wrapper.start"], measure: Whole(files::start) },
    Group { names: &["shared.pread_1m", "shared.pread_1g"], measure: Whole(shared::pread) },
    Group {
        names: &["shared.round_trip_running", "shared.round_trip_parked"],
        measure: Whole(shared::round_trip),
    },
    Group { names: &everyday::calls::NAMES, measure: Part(everyday::calls::measure) },
    Group { names: &everyday::jobs::NAMES, measure: Part(everyday::jobs::measure) },
    Group { names: &[everyday::trips::NAME], measure: Part(everyday::trips::measure) },
    Group { names: &[everyday::cold::NAME], measure: Part(everyday::cold::measure) },
    Group { names: &[everyday::small::NAME], measure: Part(everyday::small::measure) },
    Group { names: &everyday::readers::NAMES, measure: Whole(everyday::readers::measure) },
    Group { names: &["everyday.pair.write", "everyday.pair.read"], measure: Whole(everyday::pair::measure) },
    Group {
        names: &["everyday.start.run", "everyday.start.preload", "everyday.start.exec"],
        measure: Whole(everyday::start::measure),
    },
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
    if let [first, image, seed] = &std::env::args().skip(1).collect::<Vec<_>>()[..]
        && first == kept::ARGUMENT
    {
        return kept::be_killed(image, seed).unwrap_or_else(|message| {
            eprintln!("nvmed-bench: {image}: {message}");
            std::process::exit(1);
        });
    }
    if let [first, kind, dir, calls] = &std::env::args().skip(1).collect::<Vec<_>>()[..]
        && first == steps::INSIDE
    {
        return steps::count_inside(kind, dir, calls).unwrap_or_else(|message| {
            eprintln!("nvmed-bench: {message}");
            std::process::exit(1);
        });
    }
    let chosen: Vec<&Group> = GROUPS.iter().filter(|group| group.has(&wanted)).collect();
    if chosen.is_empty() {
        eprintln!("nvmed-bench: no row begins with `{wanted}`; `nvmed-bench --list` names them");
        std::process::exit(2);
    }
    match undo::supervise() {
        Ok(Some(status)) => std::process::exit(status),
        Ok(None) => std::process::exit(i32::from(!measure(&chosen, &wanted))),
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
fn measure(groups: &[&Group], wanted: &str) -> bool {
    let machine = machine();
    let dir = std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
    let dir = Path::new(&dir).join("bench");
    println!("{machine}\nname | ours | rival | ratio (spread over rounds) | goal | met");
    let mut whole = true;
    for group in groups {
        let rows = match group.measure {
            Whole(measure) => measure(),
            Part(measure) => measure(wanted),
        };
        match rows {
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
