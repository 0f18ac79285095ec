//! Hit ratios of the eviction policies of the cache, as a table:
//! `cargo run --release -p nvmed-lab --example cache_policies -- --traces DIR`.

use std::path::PathBuf;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let (mut traces, mut quick) = (std::env::var_os("NVMED_TRACES").map(PathBuf::from), false);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--traces" => traces = arguments.next().map(PathBuf::from),
            "--quick" => quick = true,
            _ => {
                eprintln!("usage: cache_policies [--traces DIR] [--quick]");
                std::process::exit(2);
            }
        }
    }
    match nvmed_lab::cache_policies::run(traces.as_deref(), quick) {
        Ok(findings) => print!("{}", findings.to_table()),
        Err(errno) => {
            eprintln!("cache_policies: {errno}");
            std::process::exit(1);
        }
    }
}
