//! What a load did: figures, JSON, and a page.

use crate::histogram::Histogram;
use nvmed_chart::{Axis, Line, Shape, Unit, document, escaped, lines, time};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write;

/// What happened in one interval.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Tick {
    /// Seconds since the beginning, at its end.
    pub at_s: f64,
    /// Requests a second in it.
    pub iops: f64,
    /// Bytes a second in it.
    pub bytes_per_s: f64,
    /// Median latency in it, nanoseconds; 0 where latencies are not taken.
    pub p50_ns: u64,
    /// 99th percentile.
    pub p99_ns: u64,
    /// Processors that this process kept busy in it.
    pub cores: f64,
}

/// Percentiles that are told, and their names in JSON: as those of every other output, the digits and the unit.
const PERCENTILES: [(f64, &str); 8] = [
    (1.0, "p1_ns"),
    (10.0, "p10_ns"),
    (50.0, "p50_ns"),
    (90.0, "p90_ns"),
    (95.0, "p95_ns"),
    (99.0, "p99_ns"),
    (99.9, "p999_ns"),
    (99.99, "p9999_ns"),
];

/// What a load did.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The device, as named.
    pub device: String,
    /// What was asked of it, in words.
    pub load: String,
    /// How long it ran, seconds.
    pub seconds: f64,
    /// Times are the device's, which simulates them.
    pub simulated: bool,
    /// Reads and writes done.
    pub reads: u64,
    /// See [`Report::reads`].
    pub writes: u64,
    /// Bytes of one request.
    pub block_bytes: u64,
    /// Latencies; `None` where they were not taken.
    pub latency: Option<Histogram>,
    /// What taking them cost, nanoseconds a request, as measured beforehand.
    pub stamp_ns: f64,
    /// Processor time of the threads that asked, nanoseconds.
    pub thread_cpu_ns: u64,
    /// Processor time of this process, the virtual device's and completion threads included, nanoseconds.
    pub process_cpu_ns: u64,
    /// Requests whose data was checked after the load, and by it.
    pub verified: u64,
    /// Seed of the pattern, where data was checked.
    pub seed: Option<u64>,
    /// Figures over time.
    pub ticks: Vec<Tick>,
    /// Processor, cores, kernel.
    pub machine: String,
}

impl Report {
    /// Requests done.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.reads + self.writes
    }

    /// Requests a second.
    #[must_use]
    pub fn iops(&self) -> f64 {
        self.requests() as f64 / self.seconds.max(1e-9)
    }

    /// Bytes a second.
    #[must_use]
    pub fn bytes_per_s(&self) -> f64 {
        self.iops() * self.block_bytes as f64
    }

    fn per_request(&self, ns: u64) -> f64 {
        ns as f64 / self.requests().max(1) as f64
    }

    /// The figures as text.
    #[must_use]
    pub fn text(&self) -> String {
        let mut out = format!(
            "device      {}\nload        {}\nrequests    {} reads, {} writes in {:.2} s{}\n\
             rate        {:.0} IOPS, {:.1} MB/s\n",
            self.device,
            self.load,
            self.reads,
            self.writes,
            self.seconds,
            if self.simulated { " of the device's simulated time" } else { "" },
            self.iops(),
            self.bytes_per_s() / 1e6
        );
        match &self.latency {
            Some(latency) => {
                let _ = write!(out, "latency     mean {}", time(latency.mean_ns() as f64));
                for (percent, _) in PERCENTILES {
                    let _ = write!(out, ", p{percent} {}", time(latency.percentile_ns(percent) as f64));
                }
                let _ = write!(out, ", longest {}\n            ", time(latency.max_ns() as f64));
                let _ = match self.simulated {
                    true => writeln!(
                        out,
                        "of simulated time, of which each look at the clock takes some (docs/spec/vdev.md); \
                         --no-latency does without"
                    ),
                    false => writeln!(
                        out,
                        "taking it cost about {:.0} ns a request; --no-latency does without",
                        self.stamp_ns
                    ),
                };
            }
            None => out += "latency     not taken\n",
        }
        let _ = write!(
            out,
            "CPU         {} a request in the asking threads, {} in the whole process",
            time(self.per_request(self.thread_cpu_ns)),
            time(self.per_request(self.process_cpu_ns))
        );
        let cores = self.process_cpu_ns as f64 / 1e9 / self.seconds.max(1e-9);
        let _ = if self.simulated { writeln!(out) } else { writeln!(out, "; {cores:.2} cores busy") };
        if let Some(seed) = self.seed {
            let _ =
                writeln!(out, "verified    {} requests against the pattern of seed {seed}", self.verified);
        }
        out
    }

    /// The figures as one JSON object in a line.
    #[must_use]
    pub fn json(&self) -> String {
        let mut value = serde_json::json!({
            "device": self.device,
            "load": self.load,
            "machine": self.machine,
            "seconds": self.seconds,
            "simulated": self.simulated,
            "reads": self.reads,
            "writes": self.writes,
            "block_bytes": self.block_bytes,
            "iops": self.iops(),
            "bytes_per_s": self.bytes_per_s(),
            "cpu_thread_ns_per_request": self.per_request(self.thread_cpu_ns),
            "cpu_process_ns_per_request": self.per_request(self.process_cpu_ns),
            "requests_per_cpu_s": self.requests() as f64 * 1e9 / self.process_cpu_ns.max(1) as f64,
            "ticks": self.ticks,
        });
        if let Some(latency) = &self.latency {
            value["latency"] = serde_json::json!({
                "mean_ns": latency.mean_ns(),
                "max_ns": latency.max_ns(),
                "stamp_cost_ns": self.stamp_ns,
            });
            for (percent, name) in PERCENTILES {
                value["latency"][name] = latency.percentile_ns(percent).into();
            }
        }
        if let Some(seed) = self.seed {
            value["verify"] = serde_json::json!({ "seed": seed, "requests": self.verified });
        }
        format!("{value}\n")
    }

    /// A page of its own with the figures and their charts.
    #[must_use]
    pub fn html(&self) -> String {
        let mut body = format!(
            "<p class=\"note\">{}</p>\n<pre>{}</pre>\n",
            escaped(&self.machine),
            escaped(&self.text())
        );
        let points = self.ticks.iter().map(|tick| (tick.at_s * 1e9, tick.iops)).collect();
        let (at, rate) = (Axis::linear("time", Unit::Time), Axis::linear("IOPS", Unit::Count));
        body += &curve("Requests a second over time", at, rate, points, Shape::Line);
        if let Some(latency) = &self.latency {
            body += &latency_charts(latency);
        }
        document(&format!("nvmed bench: {}", self.device), &body)
    }
}

/// A chart of one line.
fn curve(title: &str, x: Axis<'_>, y: Axis<'_>, points: Vec<(f64, f64)>, shape: Shape) -> String {
    lines(title, x, y, &[Line { name: y.name, points, shape }])
}

/// The histogram, coarse enough to read, and the percentiles.
fn latency_charts(latency: &Histogram) -> String {
    let axis = Axis::log("latency", Unit::Time);
    // Eighths of a doubling: an eighth of the counted resolution is plenty for the eye.
    let mut coarse: BTreeMap<i64, u64> = BTreeMap::new();
    for (ns, count) in latency.buckets() {
        *coarse.entry(((ns.max(1) as f64).log2() * 8.0).round() as i64).or_default() += count;
    }
    let (first, last) = (coarse.keys().next().copied(), coarse.keys().next_back().copied());
    let bins = first.unwrap_or(0) - 1..=last.unwrap_or(0) + 1;
    let height = |bin: i64| coarse.get(&bin).copied().unwrap_or(0) as f64;
    let coarse = bins.map(|bin| ((bin as f64 / 8.0).exp2(), height(bin))).collect();
    let histogram = curve("Latency histogram", axis, Axis::log("requests", Unit::Count), coarse, Shape::Area);
    // Nines: 0 is all, 1 is p90, 2 is p99, 4 is p99.99.
    let nines = (0..=80)
        .map(|step| f64::from(step) / 20.0)
        .map(|nines| (nines, latency.percentile_ns(100.0 * (1.0 - 10f64.powf(-nines))).max(1) as f64))
        .collect();
    histogram
        + &curve("Latency by percentile", Axis::linear("percentile", Unit::Nines), axis, nines, Shape::Line)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::histogram::Counters;

    fn report() -> Report {
        let (counters, mut latency) = (Counters::default(), Histogram::default());
        (0..100_000u64).for_each(|i| counters.note(400 + i % 97 + if i % 1000 == 0 { 50_000 } else { 0 }));
        counters.load(&mut latency);
        let tick = |i: u32| Tick {
            at_s: f64::from(i),
            iops: 1e6 + f64::from(i) * 1e4,
            bytes_per_s: 4e9,
            p50_ns: 450,
            p99_ns: 500,
            cores: 1.0,
        };
        Report {
            device: "virtual:?media=dram".to_owned(),
            load: "randread <4096>".to_owned(),
            seconds: 2.0,
            reads: 100_000,
            block_bytes: 4096,
            latency: Some(latency),
            process_cpu_ns: 2_000_000_000,
            thread_cpu_ns: 1_000_000_000,
            ticks: (1..9).map(tick).collect(),
            seed: Some(3),
            ..Report::default()
        }
    }

    #[test]
    fn the_same_figures_everywhere() {
        let report = report();
        let value: serde_json::Value = serde_json::from_str(&report.json()).unwrap();
        assert_eq!(value["iops"].as_f64(), Some(50_000.0));
        assert_eq!(value["cpu_thread_ns_per_request"].as_f64(), Some(10_000.0));
        assert!(report.text().contains("50000 IOPS, 204.8 MB/s"), "{}", report.text());
        assert!(report.text().contains("p99.99 50."), "{}", report.text());
    }

    #[test]
    fn the_page_is_whole_and_holds_three_charts() {
        let page = report().html();
        assert_eq!(page.matches("<svg").count(), 3);
        assert!(page.contains("&lt;4096&gt;") && !page.contains("NaN") && !page.contains("http"));
        let empty = Report::default().html();
        assert!(empty.contains("</html>") && !empty.contains("NaN"), "{empty}");
    }
}
