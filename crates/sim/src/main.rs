//! The command: `nvmed-sim crash`.
#![forbid(unsafe_code)]

use clap::Parser;
use nvmed_mutant::Mutant;
use nvmed_sim::mutants::{SEEDS, catch, median};
use nvmed_sim::{Campaign, MEMORY, Plan, Report};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Instant;

/// Cuts the power of a simulated device after every write of generated workloads, and checks what survives.
#[derive(Parser)]
#[command(name = "nvmed-sim")]
struct Arguments {
    /// What the device is: blocks behind a queue of commands, or memory that is stored to.
    #[arg(long, value_enum, default_value_t = Medium::Blocks)]
    medium: Medium,
    /// Crash states to examine.
    #[arg(long, default_value_t = 200_000)]
    states: u64,
    /// The first seed.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Workloads at most.
    #[arg(long, default_value_t = u64::MAX)]
    seeds: u64,
    /// Processes that share the work; 0: one for each processor.
    #[arg(long, default_value_t = 0)]
    workers: u64,
    /// Be this one of them, and print a report for the others' parent.
    #[arg(long, hide = true)]
    worker: Option<u64>,
    /// Outcomes of each cut.
    #[arg(long, default_value_t = 3)]
    outcomes: u64,
    /// Cut after every n-th write only.
    #[arg(long, default_value_t = 1)]
    stride: u64,
    /// Examine one state again: SEED:CUT:OUTCOME, as a failure prints it.
    #[arg(long)]
    replay: Option<String>,
    /// Damage blocks of so many workloads, and cut nothing.
    #[arg(long)]
    damages: Option<u64>,
    /// Make this deliberate mistake; with `--mutants`, these.
    #[arg(long, value_delimiter = ',')]
    mutant: Vec<String>,
    /// Measure after how many states each deliberate mistake is noticed: from so many of five seeds as `--seeds` says,
    /// `--states` from each at most.
    #[arg(long)]
    mutants: bool,
}

/// What a simulated device is.
#[derive(Clone, Copy, clap::ValueEnum)]
enum Medium {
    Blocks,
    Nvm,
}

impl Medium {
    /// The first of its seeds.
    fn first_seed(self) -> u64 {
        match self {
            Self::Blocks => 0,
            Self::Nvm => MEMORY,
        }
    }
}

/// Has processes of their own do the parts of a campaign: in one, every page that a thread unmaps would interrupt the
/// others.
///
/// # Errors
/// A worker could not be started, or died.
fn shared_out(workers: u64) -> Result<Report, String> {
    let begin = Instant::now();
    let program = std::env::current_exe().map_err(|error| format!("cannot find itself: {error}"))?;
    let start = |worker: u64| {
        let mut command = Command::new(&program);
        command.args(std::env::args_os().skip(1)).arg(format!("--worker={worker}")).stdout(Stdio::piped());
        command.spawn().map_err(|error| format!("cannot start worker {worker}: {error}"))
    };
    let started: Vec<Child> = (0..workers).map(start).collect::<Result<_, _>>()?;
    // All of them, before one that died is told of.
    let ended: Vec<_> = started.into_iter().map(Child::wait_with_output).collect();
    let mut report = Report::default();
    for (worker, ended) in ended.into_iter().enumerate() {
        let ended = ended.map_err(|error| format!("worker {worker}: {error}"))?;
        let part = serde_json::from_slice(&ended.stdout);
        report.add(part.map_err(|_| format!("worker {worker} ended without a report: {}", ended.status))?);
    }
    report.seconds = begin.elapsed().as_secs_f64();
    Ok(report)
}

/// Damages blocks of `count` workloads.
fn damages(first: u64, count: u64) -> ExitCode {
    let (mut states, mut failures) = (0, 0);
    for seed in first..first.saturating_add(count) {
        let tally = nvmed_sim::damages(seed);
        tally.failures.iter().for_each(|failure| println!("FAILED: {failure}"));
        states += tally.damaged;
        failures += tally.failures.len();
    }
    println!("{states} damaged images of {count} workloads: {failures} failures");
    if failures == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The mistakes that are to be noticed on a medium.
fn known(medium: Medium) -> Vec<Mutant> {
    match medium {
        Medium::Blocks => Mutant::ALL.to_vec(),
        Medium::Nvm => Mutant::STORED.into_iter().chain(Mutant::ALL).collect(),
    }
}

/// The deliberate mistakes: whether there is one called `only`, and with `all` whether each was noticed.
fn mutants(arguments: &Arguments, threads: u64) -> Option<ExitCode> {
    let is_asked = arguments.mutants || !arguments.mutant.is_empty();
    if is_asked && !nvmed_mutant::ARE_MADE {
        eprintln!("nvmed-sim: a release makes no mistakes; build without --release");
        return Some(ExitCode::from(2));
    }
    let only = |mutant: &Mutant| arguments.mutant.contains(&format!("{mutant:?}"));
    let all = arguments.mutant.is_empty();
    let known = known(arguments.medium);
    let named: Vec<Mutant> = known.iter().copied().filter(|mutant| all || only(mutant)).collect();
    if named.is_empty() {
        eprintln!("nvmed-sim: --mutant knows {known:?}");
        return Some(ExitCode::from(2));
    }
    if !arguments.mutants {
        nvmed_mutant::set(named.first().copied().filter(|_| !all));
        return None;
    }
    let seeds = &SEEDS[..arguments.seeds.min(SEEDS.len() as u64) as usize];
    let seeds: Vec<u64> = seeds.iter().map(|seed| seed + arguments.medium.first_seed()).collect();
    let mut noticed = true;
    println!("| mistake | median | from each seed |\n|---|---|---|");
    for mutant in named {
        let caught = catch(mutant, &seeds, arguments.states, threads as usize);
        let text = |states: Option<u64>| states.map_or("–".to_owned(), |states| states.to_string());
        let each: Vec<String> =
            caught.iter().map(|caught| text(caught.as_ref().map(|caught| caught.states))).collect();
        println!("| {mutant:?} | {} | {} |", text(median(&caught)), each.join(", "));
        if !all {
            caught.iter().flatten().for_each(|caught| println!("{}", caught.why));
        }
        noticed &= median(&caught).is_some();
    }
    Some(if noticed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    std::panic::set_hook(Box::new(|_| {}));
    if matches!(arguments.medium, Medium::Nvm) && !cfg!(debug_assertions) {
        eprintln!("nvmed-sim: a release does not record what is stored; build with --profile points");
        return ExitCode::from(2);
    }
    let first = arguments.medium.first_seed();
    let mut campaign = Campaign {
        states: arguments.states,
        seed: first + arguments.seed,
        seeds: arguments.seeds,
        every: 1,
        threads: 1,
        plan: Plan { outcomes: arguments.outcomes, stride: arguments.stride.max(1), only: None },
        stop_at_failure: false,
    };
    let workers = match arguments.workers {
        0 => std::thread::available_parallelism().map_or(1, |count| count.get() as u64),
        workers => workers,
    };
    if let Some(code) = mutants(&arguments, workers) {
        return code;
    }
    if let Some(count) = arguments.damages {
        return damages(campaign.seed, count);
    }
    if let Some(replay) = &arguments.replay {
        let numbers: Vec<u64> = replay.split(':').filter_map(|number| number.parse().ok()).collect();
        let [seed, cut, outcome] = numbers[..] else {
            eprintln!("nvmed-sim: --replay wants SEED:CUT:OUTCOME, three numbers, and got `{replay}`");
            return ExitCode::from(2);
        };
        let seed = first + seed;
        (campaign.seed, campaign.seeds) = (seed, 1);
        campaign.plan.only = Some((cut, outcome));
        campaign.plan.stride = 1;
        println!("{}", nvmed_sim::describe(seed, outcome));
    }
    if let Some(worker) = arguments.worker {
        campaign.states = campaign.states.div_ceil(workers);
        (campaign.seed, campaign.every) = (campaign.seed + worker, workers);
        campaign.seeds = campaign.seeds.saturating_sub(worker);
        println!("{}", serde_json::to_string(&campaign.run()).expect("a report is text"));
        return ExitCode::SUCCESS;
    }
    let is_shared = arguments.replay.is_none() && workers > 1;
    let report = match if is_shared { shared_out(workers) } else { Ok(campaign.run()) } {
        Ok(report) => report,
        Err(why) => {
            eprintln!("nvmed-sim: {why}");
            return ExitCode::from(2);
        }
    };
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
