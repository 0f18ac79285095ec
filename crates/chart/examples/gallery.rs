//! One chart of each kind on a page: `cargo run -p nvmed-chart --example gallery > gallery.html`.

use nvmed_chart::{
    Axis, Columns, Grid, Line, Point, Points, Row, Scale, Shape, Unit, columns, document, heat, lines, rows,
    scatter, short, table,
};

fn main() {
    print!("{}", page());
}

/// The page. Its names are such as must be escaped.
pub fn page() -> String {
    let charts = [
        throughput(),
        sizes(),
        latencies(),
        rate(),
        offsets(),
        percentiles(),
        parts(),
        shares(),
        rivals(),
        drives(),
    ];
    let wide: Vec<String> = (0..24).map(|column| format!("column {column}")).collect();
    let wide: Vec<&str> = wide.iter().map(String::as_str).collect();
    let cells = wide.iter().map(|name| (*name).to_owned()).collect();
    let body =
        format!("<div class=\"charts\">{}</div>{}", charts.concat(), table(&wide, std::iter::once(cells)));
    document("<script>alert(\"'&\")</script>", &body)
}

fn throughput() -> String {
    let series = |name, scale: f64| Line {
        name,
        points: (2..=14)
            .map(|power| f64::from(1 << power) * 1024.0)
            .map(|size| (size, size.sqrt() * scale))
            .collect(),
        shape: Shape::Line,
    };
    let (x, y) = (Axis::log("request size", Unit::Bytes), Axis::log("throughput", Unit::BytesPerSecond));
    lines("Throughput by size", x, y, &[series("reads", 4e5), series("writes <&>", 1e5)])
}

fn sizes() -> String {
    let slots: Vec<String> =
        (2..=9).map(|power| (1 << power).to_string()).chain(["more".to_owned()]).collect();
    let series =
        |name, first: f64| Columns { name, values: (0..9).map(|slot| first * 0.6f64.powi(slot)).collect() };
    let names = ["Messaging", "a trace with quite a long name", "Movie", "<b>", "5th", "6th", "7th", "8th"];
    let series: Vec<Columns<'_>> = (0..8).map(|at| series(names[at], 30.0 + 3.0 * at as f64)).collect();
    columns("Request sizes", "KiB", &slots, Axis::linear("requests", Unit::Percent), &series)
}

fn latencies() -> String {
    let line = |name, step: f64| Line {
        name,
        points: (0..=200).map(|at| (1e6 * step.powi(at), 100.0 * (1.0 - 0.97f64.powi(at)))).collect(),
        shape: Shape::Steps,
    };
    let series: Vec<Line<'_>> = [("one", 1.018), ("other", 1.02)].map(|(name, step)| line(name, step)).into();
    lines(
        "Response times",
        Axis::log("at most", Unit::Time),
        Axis::linear("requests", Unit::Percent),
        &series,
    )
}

fn rate() -> String {
    let at = |second: u32| f64::from(second) * 1e9;
    let points = |sign: f64, step: f64| {
        (0..300).map(|second| (at(second), sign * (1.0 + (f64::from(second) / step).sin()) * 500.0)).collect()
    };
    let up = Line { name: "reads", points: points(1.0, 9.0), shape: Shape::Area };
    let down = Line { name: "writes", points: points(-1.0, 5.0), shape: Shape::Area };
    let y = Axis {
        scale: Scale::Mirrored,
        ..Axis::linear("requests a second: reads up, writes down", Unit::Count)
    };
    lines("Rate", Axis::linear("time", Unit::Time), y, &[up, down])
}

fn offsets() -> String {
    let count =
        |column: u64, row: u64| if (column * 7 + row * 13) % 11 < 5 { (column * row) % 97 } else { 0 };
    let columns = (0..96).map(|column| (0..48).map(|row| count(column, row)).collect()).collect();
    let grid = Grid { x: (0.0, 3e11), y: (0.0, 16e9), columns };
    heat("Offsets over time", Axis::linear("time", Unit::Time), Axis::linear("offset", Unit::Bytes), &grid)
}

fn percentiles() -> String {
    let points =
        (0..=80).map(|step| f64::from(step) / 20.0).map(|nines| (nines, 500.0 * 4f64.powf(nines))).collect();
    let line = Line { name: "latency", points, shape: Shape::Line };
    lines(
        "Latency by percentile",
        Axis::linear("percentile", Unit::Nines),
        Axis::log("latency", Unit::Time),
        &[line],
    )
}

fn parts() -> String {
    let row = |index: u32| {
        let service = 1.0 + f64::from(index % 5);
        Row::new(&format!("trace {index} of a phone"), vec![service, service * f64::from(index % 3)])
    };
    let all: Vec<Row> = (0..12).map(row).collect();
    rows("Service and waiting", &|value| format!("{} ms", short(value)), &["service", "waiting"], &all)
}

fn shares() -> String {
    let slots: Vec<String> =
        (2..=9).map(|power| format!("up to {} KiB", 1 << power)).chain(["more".to_owned()]).collect();
    let slots: Vec<&str> = slots.iter().map(String::as_str).collect();
    let row = |index: usize| {
        let share = |slot: usize| f64::from((slot * 7 + index * 5) as u32 % 11 + 1);
        let whole: f64 = (0..9).map(share).sum();
        Row::new(&format!("trace {index}"), (0..9).map(|slot| share(slot) * 100.0 / whole).collect())
    };
    let all: Vec<Row> = (0..10).map(row).collect();
    rows("Request sizes of many traces", &|value| Unit::Percent.text(value), &slots, &all)
}

fn rivals() -> String {
    let row = |name: &str, value: f64, muted| Row {
        range: Some((value * 0.9, value * 1.2)),
        muted,
        ..Row::new(name, vec![value])
    };
    let all = [row("ours", 3e6, false), row("io_uring with registered buffers, single issuer", 1.2e6, true)];
    rows("IOPS: median, smallest to largest round", &short, &[], &all)
}

fn drives() -> String {
    let kind = |name, first: f64| Points {
        name,
        points: (0..9)
            .map(|at| f64::from(at % 7))
            .map(|at| Point {
                name: format!("{name}, <{at}>"),
                at: (60.0 + first + 3.0 * at, 1e6 * (1.0 + at / first)),
            })
            .collect(),
    };
    let (x, y) =
        (Axis::linear("space utilisation", Unit::Percent), Axis::linear("mean response", Unit::Time));
    let front = [(61.0, 1e6), (70.0, 1.2e6), (80.0, 3e6)];
    let kinds = [kind("4 KiB", 1.0), kind("both & more", 9.0)];
    scatter("Drives", (x, y), &kinds, ("Pareto front", &front))
}
