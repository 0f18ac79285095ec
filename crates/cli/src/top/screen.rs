//! One frame: totals above, kinds of calls, clients.

use super::snapshot::{ClientRate, KindRate, Order, Rates, Snapshot};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style, Stylize};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Paragraph, Row, Table};

/// What the frame shows.
pub struct View<'a> {
    pub now: &'a Snapshot,
    pub rates: &'a Rates,
    pub order: Order,
    /// Rows of clients that are scrolled past.
    pub skip: usize,
    /// The last line: what the keys do, or what went wrong.
    pub foot: &'a str,
}

/// Lines of totals.
const HEAD_LINES: u16 = 4;
/// Of a server there are more.
const SERVER_LINES: u16 = 4;
/// Of what spares calls, the first ones are answers; the others are posts.
const SPARED_HERE: usize = 4;
/// Kinds of calls shown at most where there are clients to show too.
const KINDS_MAX: u16 = 8;

fn head_lines(now: &Snapshot) -> u16 {
    let of_server = if now.has_server() { SERVER_LINES } else { 0 };
    HEAD_LINES + of_server + u16::from(now.trouble.is_some())
}

/// Lines that show everything.
pub fn lines_wanted(view: &View<'_>) -> u16 {
    let rows = |count: usize| u16::try_from(count).unwrap_or(u16::MAX / 4);
    let clients = if view.now.sessions.is_empty() { 0 } else { rows(view.rates.clients.len()) + 2 };
    head_lines(view.now) + 1 + rows(view.rates.kinds.len()) + clients
}

/// Draws the frame in the whole terminal.
pub fn draw(frame: &mut Frame<'_>, view: &View<'_>) {
    let kinds = u16::try_from(view.rates.kinds.len()).unwrap_or(u16::MAX).saturating_add(1);
    let foot = u16::from(!view.foot.is_empty());
    let body = frame.area().height.saturating_sub(head_lines(view.now) + foot);
    let clients = u16::try_from(view.rates.clients.len()).unwrap_or(u16::MAX).saturating_add(2);
    let kinds = if view.now.sessions.is_empty() {
        body
    } else {
        // The kinds give way to the clients, but not altogether.
        kinds.min(body.saturating_sub(clients).max(KINDS_MAX + 1)).min(body)
    };
    let parts = [
        Constraint::Length(head_lines(view.now)),
        Constraint::Length(kinds),
        Constraint::Min(0),
        Constraint::Length(foot),
    ];
    let [head, calls, sessions, last] = Layout::vertical(parts).areas(frame.area());
    frame.render_widget(Paragraph::new(totals(view)), head);
    frame.render_widget(kinds_table(view), calls);
    if !view.now.sessions.is_empty() {
        let inner = Rect { y: sessions.y + 1, height: sessions.height.saturating_sub(1), ..sessions };
        frame.render_widget(clients_table(view), inner);
    }
    frame.render_widget(Paragraph::new(view.foot).reversed(), last);
}

fn totals<'a>(view: &View<'_>) -> Vec<Line<'a>> {
    let (now, rates) = (view.now, view.rates);
    let device = if now.device.is_empty() { String::new() } else { format!("  {}", now.device) };
    let more = if now.sessions_left_out > 0 {
        format!(" of {}", now.sessions_left_out + now.sessions.len() as u64)
    } else {
        String::new()
    };
    let clients = if now.sessions.is_empty() {
        String::new()
    } else {
        format!("  {}{more} clients", now.sessions.len())
    };
    // Not `sum`, which begins with a zero that prints a sign.
    let busy = rates.kinds.iter().fold(0.0, |sum, kind| sum + kind.busy);
    let run = if now.command.is_empty() { String::new() } else { format!(" ({})", now.command) };
    let title = format!(" process {}{run}  up {}{clients}{device}", now.pid, clock(now.uptime_ns));
    let calls = format!(
        " {}/s  read {}/s  written {}/s  errors {}/s  busy {busy:.2}  lanes {} of {}",
        short(rates.calls),
        bytes(rates.bytes_read),
        bytes(rates.bytes_written),
        short(rates.errors),
        now.lanes.busy,
        now.lanes.open,
    );
    let mut lines = vec![labelled("nvmed top", title), labelled("calls ", calls)];
    if now.has_server() {
        lines.extend(of_server(view));
    } else {
        let why = " not known: this run has no server; its file calls are counted".to_owned();
        lines.push(labelled("cache, device", why));
    }
    if let Some(why) = &now.trouble {
        lines.insert(1, labelled("read-only", format!(" {why}")).reversed());
    }
    lines
}

fn labelled<'a>(label: &'static str, text: String) -> Line<'a> {
    Line::from(vec![Span::from(label).bold(), Span::from(text)])
}

/// What is told of a server only.
fn of_server<'a>(view: &View<'_>) -> [Line<'a>; 5] {
    let (now, rates) = (view.now, view.rates);
    let (here, posted) = rates.spared.split_at(rates.spared.len().min(SPARED_HERE));
    let messages = rates.messages.iter().map(|(kind, rate)| (kind.as_str(), *rate));
    let hit = rates.hit_rate.map_or("-".to_owned(), |share| format!("{:.1} %", share * 100.0));
    let cache = format!(
        " {}  hits {hit}  misses {}/s  dirty {}  windows {} of {} files",
        bytes(now.cache.bytes as f64),
        short(rates.misses),
        bytes(now.cache.dirty_bytes as f64),
        bytes(now.windows.bytes as f64),
        now.windows.files,
    );
    let device = format!(
        " {} reads/s {}/s  {} writes/s {}/s  {} flushes/s  depth {}  errors {}",
        short(rates.device_reads),
        bytes(rates.device_bytes_read),
        short(rates.device_writes),
        bytes(rates.device_bytes_written),
        short(rates.device_flushes),
        now.requests.outstanding,
        now.requests.errors,
    );
    [
        labelled("spared", named_rates(here.iter().copied())),
        labelled("posted", named_rates(posted.iter().copied())),
        labelled("socket", named_rates(messages)),
        labelled("cache ", cache),
        labelled("device", device),
    ]
}

/// Each name with its rate, as many as a line shows.
fn named_rates<'a>(rates: impl Iterator<Item = (&'a str, f64)>) -> String {
    let shown: Vec<_> = rates.map(|(name, rate)| format!(" {name} {}/s", short(rate))).collect();
    if shown.is_empty() { " -".to_owned() } else { shown.join(" ") }
}

/// A table's heading, with the column by which it is sorted marked.
fn heading<'a, const N: usize>(names: [(&'static str, Option<Order>); N], order: Order) -> Row<'a> {
    let cell = |(name, by): (&'static str, Option<Order>)| {
        let style = if by == Some(order) { Modifier::UNDERLINED } else { Modifier::empty() };
        Cell::from(Line::from(name).right_aligned()).style(Style::new().add_modifier(style))
    };
    let mut cells: Vec<Cell<'a>> = names.into_iter().map(cell).collect();
    let (name, by) = names[0];
    let first = if by == Some(order) { Modifier::UNDERLINED } else { Modifier::empty() };
    cells[0] = Cell::from(name).style(Style::new().add_modifier(first));
    Row::new(cells).bold()
}

fn numbers<'a>(first: String, rest: impl IntoIterator<Item = String>) -> Row<'a> {
    let rest = rest.into_iter().map(|text| Cell::from(Line::from(text).right_aligned()));
    Row::new(std::iter::once(Cell::from(first)).chain(rest))
}

fn kinds_table<'a>(view: &View<'_>) -> Table<'a> {
    let names = [
        ("CALL", Some(Order::Name)),
        ("CALLS/s", Some(Order::Calls)),
        ("BYTES/s", Some(Order::Bytes)),
        ("ERRORS/s", Some(Order::Errors)),
        ("BUSY", None),
        ("P50", None),
        ("P99", Some(Order::Latency)),
        ("MAX", None),
    ];
    let row = |kind: &KindRate| {
        let times = [kind.p50_ns, kind.p99_ns, kind.max_ns].map(time);
        let rest = [short(kind.calls), bytes(kind.bytes), short(kind.errors), format!("{:.2}", kind.busy)];
        numbers(kind.name.clone(), rest.into_iter().chain(times))
    };
    let widths = [16, 9, 9, 9, 6, 8, 8, 8].map(Constraint::Length);
    Table::new(view.rates.kinds.iter().map(row), widths).header(heading(names, view.order)).column_spacing(0)
}

fn clients_table<'a>(view: &View<'_>) -> Table<'a> {
    let names = [
        ("PID", Some(Order::Name)),
        ("COMMAND", None),
        ("CALLS/s", Some(Order::Calls)),
        ("READ/s", Some(Order::Bytes)),
        ("WRITE/s", Some(Order::Bytes)),
        ("SPARED/s", None),
        ("ERRORS/s", Some(Order::Errors)),
        ("FILES", None),
        ("LANES", None),
    ];
    let row = |client: &ClientRate| {
        let session = &client.session;
        let rest = [
            // What a program calls itself may hold anything.
            session.command.chars().filter(|letter| !letter.is_control()).collect(),
            short(client.calls),
            bytes(client.bytes_read),
            bytes(client.bytes_written),
            short(client.spared),
            short(client.errors),
            session.handles.to_string(),
            session.lanes.to_string(),
        ];
        numbers(session.pid.to_string(), rest)
    };
    let widths = [8, 16, 8, 8, 8, 9, 9, 8, 6].map(Constraint::Length);
    let rows = view.rates.clients.iter().skip(view.skip).map(row);
    Table::new(rows, widths).header(heading(names, view.order)).column_spacing(0)
}

/// Three figures and a letter: 12.3k.
pub fn short(value: f64) -> String {
    let (scaled, letter) = match value {
        value if value >= 1e9 => (value / 1e9, "G"),
        value if value >= 1e6 => (value / 1e6, "M"),
        value if value >= 1e4 => (value / 1e3, "k"),
        value => (value, ""),
    };
    figures(scaled, letter, letter.is_empty() && scaled >= 100.0)
}

/// Three figures and a unit of 1,024: 4.2M.
pub fn bytes(value: f64) -> String {
    let units = ["B", "K", "M", "G", "T"];
    let power = (0..units.len() - 1).find(|&power| value < 1000.0 * 1024f64.powi(power as i32)).unwrap_or(4);
    let scaled = value / 1024f64.powi(power as i32);
    figures(scaled, units[power], power == 0)
}

fn figures(value: f64, unit: &str, whole: bool) -> String {
    match value {
        value if whole || value == 0.0 => format!("{value:.0}{unit}"),
        value if value < 9.995 => format!("{value:.2}{unit}"),
        value if value < 99.95 => format!("{value:.1}{unit}"),
        value => format!("{value:.0}{unit}"),
    }
}

/// A time in its unit: 812n, 14.2u, 3.1m, 2.0s.
pub fn time(ns: u64) -> String {
    match ns {
        0 => "-".to_owned(),
        1..1_000 => format!("{ns}n"),
        1_000..1_000_000 => figures(ns as f64 / 1e3, "u", false),
        1_000_000..1_000_000_000 => figures(ns as f64 / 1e6, "m", false),
        _ => figures(ns as f64 / 1e9, "s", false),
    }
}

fn clock(ns: u64) -> String {
    let seconds = ns / 1_000_000_000;
    format!("{}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

#[cfg(test)]
mod tests {
    use super::super::snapshot::{Cache, Call, Lanes, Requests, Session, Windows};
    use super::*;
    use crate::trips::{Spared, Trips};
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    fn busy_server(clients: usize) -> Snapshot {
        let call = |name: &str, count: u64| Call {
            call: name.to_owned(),
            bytes: count * 4096,
            ns: count * 3_000,
            max_ns: 123_456_789,
            buckets: vec![(3_071, count), (123_456_789, 1)],
            ..Call::default()
        };
        let names = [
            "read", "write", "open", "close", "stat", "fsync", "rename", "unlink", "lock", "readdir", "mkdir",
        ];
        let session = |index: usize| Session {
            session: index as u64,
            pid: 4_000_000 + index as u32,
            command: "postgres: check".to_owned(),
            calls: 12_345_678 * (index as u64 + 1),
            bytes_read: 1 << 40,
            bytes_written: 1 << 33,
            handles: 1_048_576,
            lanes: 64,
            spared: 1 << 30,
            ..Session::default()
        };
        Snapshot {
            pid: 1234,
            device: "virtual:/var/lib/nvmed/disk.img?flush=process".to_owned(),
            uptime_ns: 3_723_000_000_000,
            now_ns: 4_000_000_000_000,
            calls: names.iter().enumerate().map(|(index, name)| call(name, 1_000_000 >> index)).collect(),
            cache: Cache {
                bytes: 64 << 20,
                pages_asked: 1000,
                misses: 13,
                dirty_bytes: 1 << 20,
                ..Cache::default()
            },
            windows: Windows { bytes: 12 << 20, files: 3 },
            requests: Requests { outstanding: 7, reads: 5, ..Requests::default() },
            trips: Trips {
                messages: [("lane".to_owned(), 3_723), ("heir".to_owned(), 3 * 3_723)].into(),
                spared: Spared { names: 45_969_881, writes: 2 * 3_723, ..Spared::default() },
                ..Trips::default()
            },
            lanes: Lanes { open: 8, busy: 3 },
            sessions: (0..clients).map(session).collect(),
            ..Snapshot::default()
        }
    }

    fn frame(now: &Snapshot, width: u16, height: u16) -> Vec<String> {
        let rates = Rates::between(None, now, Order::Calls);
        let view = View { now, rates: &rates, order: Order::Calls, skip: 0, foot: "q quits" };
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, &view)).unwrap();
        let buffer = terminal.backend().buffer();
        let cell = |x, y| buffer[(x, y)].symbol();
        (0..height)
            .map(|y| (0..width).map(|x| cell(x, y)).collect::<String>().trim_end().to_owned())
            .collect()
    }

    #[test]
    fn a_busy_server_fits_a_terminal_of_80_by_24() {
        let lines = frame(&busy_server(30), 80, 24);
        let text = lines.join("\n");
        assert!(lines[0].starts_with("nvmed top process 1234") && lines[0].contains("30 clients"), "{text}");
        assert!(lines[5].contains("hits 98.7 %") && lines[6].contains("depth 7"), "{text}");
        let heads: Vec<_> = lines.iter().filter(|line| line.contains("CALLS/s")).collect();
        assert_eq!(heads.len(), 2, "{text}");
        // The busiest kind and the busiest client come first, with all their columns.
        assert!(lines[9].starts_with("read ") && lines[9].ends_with("123m"), "{text}");
        assert_eq!(lines[2], "spared names 12.3k/s  shelf reads 0/s  window reads 0/s  syncs 0/s", "{text}");
        assert_eq!(lines[3], "posted opens 0/s  closes 0/s  writes 2.00/s  changes 0/s", "{text}");
        assert_eq!(lines[4], "socket heir 3.00/s  lane 1.00/s", "{text}");
        let client = lines.iter().position(|line| line.contains("COMMAND")).unwrap() + 1;
        assert!(lines[client].starts_with("4000029") && lines[client].ends_with(" 1048576    64"), "{text}");
        assert!(lines[client].contains("postgres: check "), "{text}");
        assert_eq!(lines[23], "q quits", "{text}");
    }

    #[test]
    fn a_file_system_that_turned_read_only_is_shown_with_the_reason() {
        let healthy = busy_server(30);
        let now = Snapshot { trouble: Some("its disk burns".to_owned()), ..healthy.clone() };
        let (before, lines) = (frame(&healthy, 80, 24), frame(&now, 80, 24));
        assert_eq!(lines[1], "read-only its disk burns");
        // Nothing else gives way to it but one of the clients.
        assert_eq!((&lines[0], &lines[2..23]), (&before[0], &before[1..22]));
    }

    #[test]
    fn a_run_without_a_server_shows_its_calls_alone_and_no_size_is_too_small() {
        let counts = Snapshot { sessions: Vec::new(), device: String::new(), ..busy_server(0) };
        let text = frame(&counts, 80, 24).join("\n");
        assert!(
            text.contains("has no server") && text.contains("mkdir") && !text.contains("COMMAND"),
            "{text}"
        );
        let idle = Snapshot { calls: Vec::new(), ..busy_server(0) };
        let text = frame(&idle, 80, 24).join("\n");
        assert!(text.contains("busy 0.00"), "{text}");
        for (width, height) in [(1, 1), (10, 3), (40, 7), (300, 100)] {
            frame(&busy_server(3), width, height);
        }
    }

    #[test]
    fn numbers_are_short() {
        assert_eq!(
            [0.0, 0.5, 12.34, 999.0, 12_345.0, 2e9].map(short),
            ["0", "0.50", "12.3", "999", "12.3k", "2.00G"]
        );
        assert_eq!([0.0, 999.0, 1024.0, 5e6, 1e15].map(bytes), ["0B", "999B", "1.00K", "4.77M", "909T"]);
        assert_eq!(
            [0, 812, 14_200, 3_100_000, 2_000_000_000].map(time),
            ["-", "812n", "14.2u", "3.10m", "2.00s"]
        );
    }
}
