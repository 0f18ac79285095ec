//! The command: `nvmed-sim crash`.
#![forbid(unsafe_code)]

use clap::Parser;
use nvmed_sim::{Campaign, Plan};
use std::process::ExitCode;

/// Cuts the power of a simulated device after every write of generated workloads, and checks what survives.
#[derive(Parser)]
#[command(name = "nvmed-sim")]
struct Arguments {
    /// Crash states to examine.
    #[arg(long, default_value_t = 200_000)]
    states: u64,
    /// The first seed.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Workloads at most.
    #[arg(long, default_value_t = u64::MAX)]
    seeds: u64,
    /// Threads; 0: one for each processor.
    #[arg(long, default_value_t = 0)]
    threads: usize,
    /// Outcomes of each cut.
    #[arg(long, default_value_t = 3)]
    outcomes: u64,
    /// Cut after every n-th write only.
    #[arg(long, default_value_t = 1)]
    stride: u64,
    /// Examine one state again: SEED:CUT:OUTCOME, as a failure prints it.
    #[arg(long)]
    replay: Option<String>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    std::panic::set_hook(Box::new(|_| {}));
    let mut campaign = Campaign {
        states: arguments.states,
        seed: arguments.seed,
        seeds: arguments.seeds,
        threads: match arguments.threads {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            threads => threads,
        },
        plan: Plan { outcomes: arguments.outcomes, stride: arguments.stride.max(1), only: None },
        stop_at_failure: false,
    };
    if let Some(replay) = &arguments.replay {
        let numbers: Vec<u64> = replay.split(':').filter_map(|number| number.parse().ok()).collect();
        let [seed, cut, outcome] = numbers[..] else {
            eprintln!("nvmed-sim: --replay wants SEED:CUT:OUTCOME, three numbers, and got `{replay}`");
            return ExitCode::from(2);
        };
        (campaign.seed, campaign.seeds, campaign.threads) = (seed, 1, 1);
        campaign.plan.only = Some((cut, outcome));
        campaign.plan.stride = 1;
        println!("{}", nvmed_sim::describe(seed));
    }
    let report = campaign.run();
    for failure in &report.tally.failures {
        println!("FAILED: {failure}");
    }
    if arguments.replay.is_none() {
        println!("{}", report.coverage().table());
        println!("empty cells: {}", report.coverage().empty().len());
    }
    println!("{}", report.summary());
    if report.tally.failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
