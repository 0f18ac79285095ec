//! The implications for the design of a device (section IV), tried on the flash model; docs/lab.md, "Advice for a
//! device", says what each changes, and was written before the first run.

mod buffer;
mod idle;
mod parallel;
mod slc;
mod wear;

use super::hps::device;
use super::{served, synthesised};
use crate::advice::{Advice, Evidence};
use crate::duel::{Measured, Series};
use crate::error::LabError;
use crate::experiment::{Effort, Experiment, Finding, Goal};
use crate::samples::Samples;
use nvmed_flash::{ArrayProfile, Medium, Profile};
use nvmed_replay::{Simulated, Simulation};
use nvmed_trace::{Op, Request, Row};

const SEED: u64 = 1;
/// Requests of a trace, and by how much smaller blocks are, in a short run.
const QUICK_REQUESTS: usize = 300;
const QUICK_SCALE: u32 = 32;
/// Planes of Table V.
const PLANES: u32 = 8;
/// The largest of small requests, and the least that large ones are longer than: bytes.
const SMALL_BYTES: u64 = 4 << 10;
const LARGE_BYTES: u64 = 64 << 10;
/// A mean response that differs by less than this part is taken for the same.
const MATTERS: f64 = 0.1;

/// A trace of the paper, synthesised.
struct Trace {
    name: String,
    requests: Vec<Request>,
}

impl Trace {
    /// All 25, or their beginnings.
    fn all(effort: &Effort) -> Result<Vec<Self>, LabError> {
        let requests_max = if effort.quick { QUICK_REQUESTS } else { usize::MAX };
        let trace = |row: Row| {
            let requests = synthesised(&row, SEED)?.take(requests_max).collect();
            Ok(Self { name: row.name, requests })
        };
        Row::published().into_iter().map(trace).collect()
    }

    /// From the first arrival to the last finish, as recorded.
    fn duration_ns(&self) -> u64 {
        let begin = self.requests.first().map_or(0, |first| first.arrival_ns);
        let end = self.requests.iter().map(|one| one.finish_ns.unwrap_or(one.arrival_ns)).max();
        end.unwrap_or(begin) - begin
    }
}

/// A device of the case study, changed.
fn changed(
    effort: &Effort,
    name: &str,
    planes: u32,
    change: impl FnOnce(&mut ArrayProfile),
) -> Result<Profile, LabError> {
    let mut profile = device(name, planes)?;
    if let Medium::Array(array) = &mut profile.medium {
        if effort.quick {
            array.blocks.iter_mut().for_each(|kind| kind.pages /= QUICK_SCALE);
            array.capacity_bytes /= u64::from(QUICK_SCALE);
        }
        change(array);
    }
    Ok(profile)
}

/// What a device did with a trace: the requests with its times, in the order of arrival, and its counts.
struct Served {
    requests: Vec<Request>,
    simulated: Simulated,
}

fn serve(profile: &Profile, is_used: bool, requests: &[Request]) -> Result<Served, LabError> {
    let trace = || requests.iter().copied();
    let mut done = Vec::with_capacity(requests.len());
    let simulated = served(profile, is_used, trace(), trace(), |request| done.push(request))?;
    Ok(Served { requests: done, simulated })
}

/// A drive that has what requests read before they write it.
fn prepared(profile: &Profile, is_used: bool, requests: &[Request]) -> Result<Simulation, LabError> {
    let mut simulation = Simulation::new(profile, is_used)?;
    simulation.prepare(requests.iter().copied().map(Ok::<_, LabError>))?;
    Ok(simulation)
}

/// Mean response of the requests that are meant, in milliseconds; `NaN` of none.
fn mean_ms(requests: &[Request], meant: impl Fn(&Request) -> bool) -> f64 {
    let (mut sum_ns, mut count) = (0, 0_u64);
    for request in requests.iter().filter(|request| meant(request)) {
        sum_ns += request.response_ns().unwrap_or(0);
        count += 1;
    }
    sum_ns as f64 / count as f64 / 1e6
}

fn is_small_write(request: &Request) -> bool {
    request.op == Op::Write && request.bytes <= SMALL_BYTES
}

/// By how many percent the first is below the second; negative: above.
fn less_percent(ours: f64, theirs: f64) -> f64 {
    100.0 * (1.0 - ours / theirs)
}

/// The median over traces of one column over another one.
fn median_ratio(evidence: &Evidence, ours: usize, theirs: usize) -> f64 {
    ratios(evidence, ours, theirs).map(|(_, ratio)| ratio).collect::<Samples>().median()
}

/// The trace with the highest ratio of a column over another one, and that ratio.
fn largest_ratio(evidence: &Evidence, ours: usize, theirs: usize) -> (&str, f64) {
    ratios(evidence, ours, theirs).max_by(|a, b| a.1.total_cmp(&b.1)).unwrap_or(("-", f64::NAN))
}

fn ratios(evidence: &Evidence, ours: usize, theirs: usize) -> impl Iterator<Item = (&str, f64)> {
    evidence.rows.iter().filter_map(move |(name, figures)| {
        let ratio = figures[ours]? / figures[theirs]?;
        ratio.is_finite().then_some((name.as_str(), ratio))
    })
}

/// An advice, and what following it changes: the figures of the advised device and of the other one, by trace.
struct Tried {
    advice: Advice,
    /// Advised and other columns of the first table, and their unit.
    compared: (usize, usize, &'static str),
}

impl Tried {
    fn series(&self) -> Series {
        let (ours, theirs, unit) = self.compared;
        let table = &self.advice.evidence[0];
        let of = |column: usize| Measured {
            // The table's columns name the unit, as the series does.
            name: table.columns[column].trim_end_matches(unit).trim_end().to_owned(),
            runs: table.column(column).collect(),
        };
        Series {
            label: self.advice.name.clone(),
            unit: unit.to_owned(),
            ours: of(ours),
            rivals: vec![of(theirs)],
        }
    }
}

/// Tries an implication on all traces.
type Trial = fn(&Effort, &[Trace]) -> Result<Tried, LabError>;

const ALL: [Trial; 5] = [parallel::tried, idle::tried, buffer::tried, wear::tried, slc::tried];

/// Implications 1 to 5.
pub(crate) struct Implications;

const METHOD: &str = "25 traces synthesised from the rows of Tables III and IV, seed 1, on the flash model in \
    virtual time; the device is Table V's 4PS (5: HPS) with 8 planes, one command at a time, without a write \
    buffer, low-power mode and packing, and each implication changes what docs/lab.md, \"Advice for a device\", \
    says; series are medians over traces, the advised device beside the other one";

impl Experiment for Implications {
    fn id(&self) -> &'static str {
        "iiswc15.impl1_5"
    }

    fn what(&self) -> &'static str {
        "implications 1 to 5 on the flash model: the device that follows from the figures over the other one"
    }

    fn goal(&self) -> Goal {
        Goal::AtMost(1.0)
    }

    fn run(&self, effort: &Effort) -> Result<Finding, LabError> {
        self.advise(effort).map(|(finding, _)| finding)
    }

    fn advise(&self, effort: &Effort) -> Result<(Finding, Vec<Advice>), LabError> {
        let traces = &Trace::all(effort)?;
        // In virtual time, threads that run at once do not disturb each other.
        let tried: Vec<Tried> = std::thread::scope(|scope| {
            let threads = ALL.map(|one| scope.spawn(move || one(effort, traces)));
            threads.map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
        })
        .into_iter()
        .collect::<Result<_, _>>()?;
        let limits = vec![
            "the traces are like the paper's rows and no more: hits of small buffers follow from how the synthesis \
             chooses earlier places"
                .to_owned(),
            "no real card, and no flush: a write buffer that completes early loses it with the power".to_owned(),
        ];
        let series = tried.iter().map(Tried::series).collect();
        let finding = Finding { series, cells: Vec::new(), method: METHOD.to_owned(), limits };
        Ok((finding, tried.into_iter().map(|tried| tried.advice).collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::{Implications, Trace, changed, serve};
    use crate::{Advice, Effort, Outcome};
    use nvmed_trace::Row;
    use std::sync::OnceLock;

    const QUICK: Effort = Effort { quick: true };

    fn outcome() -> &'static Outcome {
        static ONCE: OnceLock<Outcome> = OnceLock::new();
        ONCE.get_or_init(|| crate::run(&Implications, &QUICK))
    }

    fn advice(number: usize) -> &'static Advice {
        &outcome().advice[number - 1]
    }

    #[test]
    fn each_implication_has_an_advice_with_figures_of_all_traces() {
        assert!(outcome().met, "{}", outcome().line());
        assert_eq!(outcome().advice.len(), 5);
        let names: Vec<String> = Row::published().into_iter().map(|row| row.name).collect();
        for one in &outcome().advice {
            assert!(!one.evidence.is_empty() && one.advice.ends_with('.'), "{}", one.name);
            for evidence in &one.evidence {
                let rows: Vec<&str> = evidence.rows.iter().map(|(name, _)| name.as_str()).collect();
                assert_eq!(rows, names, "{}", evidence.title);
                assert!(evidence.rows.iter().all(|(_, figures)| figures.len() == evidence.columns.len()));
                let columns = evidence.columns.len();
                assert!(evidence.drawn.0 < columns && evidence.medians.1 <= columns, "{}", evidence.title);
            }
            assert!(!one.text().contains("NaN"), "{}", one.text());
        }
    }

    #[test]
    fn the_page_has_every_advice_with_a_chart_and_its_figures() {
        let page = crate::page(std::slice::from_ref(outcome()));
        let evidence = || outcome().advice.iter().flat_map(|one| &one.evidence);
        let medians: usize = evidence().map(|one| one.medians.1 - one.medians.0).sum();
        assert_eq!(page.matches("all figures</summary>").count(), evidence().count());
        assert_eq!(page.matches("<svg class=\"bar\"").count(), 25 * evidence().count() + medians);
        for one in &outcome().advice {
            let text = nvmed_chart::escaped(&one.advice);
            assert_eq!(page.matches(&text).count(), 2, "in the list, and with its reasons: {text}");
        }
    }

    #[test]
    fn more_planes_and_faster_pages_are_not_slower() {
        let planes = &advice(1).evidence[0];
        for (name, figures) in &planes.rows {
            let figures: Vec<f64> = figures[..4].iter().map(|one| one.unwrap()).collect();
            assert!(figures.is_sorted_by(|fewer, more| *more <= fewer * 1.02), "{name}: {figures:?}");
        }
        let fast = &advice(5).evidence[1];
        let slower = fast.rows.iter().find(|(_, ms)| ms[2].zip(ms[0]).is_some_and(|(fast, hps)| fast > hps));
        assert_eq!(slower, None, "fast pages take longer for small writes");
    }

    #[test]
    fn a_larger_buffer_hits_no_less() {
        let hits = &advice(3).evidence[1];
        for (name, figures) in &hits.rows {
            for half in figures.chunks(6) {
                let told: Vec<f64> = half.iter().flatten().copied().collect();
                assert!(
                    told.is_sorted() && told.iter().all(|one| (0.0..=100.0).contains(one)),
                    "{name}: {told:?}"
                );
            }
        }
    }

    #[test]
    fn full_levelling_keeps_the_blocks_of_a_plane_together() {
        let wear = &advice(4).evidence[0];
        let (simple, full) = (wear.median(2), wear.median(3));
        assert!(full < simple / 2.0 && full <= 8.0, "erases differ by {full}, without it by {simple}");
    }

    #[test]
    fn a_run_is_the_same_each_time() {
        let trace = &Trace::all(&QUICK).unwrap()[0];
        let device = changed(&QUICK, "emmc", 8, |_| ()).unwrap();
        let [one, other] = [0, 1].map(|_| serve(&device, true, &trace.requests).unwrap());
        assert_eq!(one.requests, other.requests);
        assert_eq!(one.simulated, other.simulated);
    }
}
