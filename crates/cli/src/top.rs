//! `nvmed top` and `nvmed stats`: what a server, or a run, is doing.

mod screen;
mod snapshot;
mod source;

use crate::arguments::{Stats, Top};
use crate::failure::{Failure, Status};
use crate::output::Output;
use nvmed_tally::{Row, Tally};
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::{DefaultTerminal, Terminal, backend::TestBackend};
use screen::View;
use serde_json::json;
use snapshot::{Order, Rates, Snapshot};
use source::Source;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// Width of the plain text.
const PLAIN_COLUMNS: u16 = 100;
/// Lines of the plain text at most: a server has at most 200 clients to show.
const PLAIN_LINES_MAX: u16 = 400;
const KEYS: &str = "q quit  c calls  b bytes  l latency  e errors  n name  arrows scroll  +/-";

/// `nvmed stats`: one snapshot.
///
/// # Errors
/// Nobody is there to ask, or does not answer.
pub fn stats(arguments: &Stats) -> Result<(), Failure> {
    let source = Source::find(arguments.server.as_deref())?;
    let mut output = Output::new();
    if arguments.json {
        output.text(&source.text()?)?;
        output.text("\n")?;
    } else {
        let now = source.snapshot()?;
        output.text(&plain(&now, &Rates::between(None, &now, Order::Calls), Order::Calls)?)?;
        if now.has_server() {
            output.text(&format!("\n{}", now.trips.text()))?;
        }
    }
    output.finish()
}

/// `nvmed top`: snapshots one after another.
///
/// # Errors
/// Nobody is there to ask, or does not answer; the terminal does not take it.
pub fn top(arguments: &Top) -> Result<(), Failure> {
    let source = Source::find(arguments.server.as_deref())?;
    let interval = Duration::from_secs_f64(arguments.interval);
    if arguments.once || !std::io::stdout().is_terminal() || !std::io::stdin().is_terminal() {
        let before = source.snapshot()?;
        std::thread::sleep(interval);
        let now = source.snapshot()?;
        let mut output = Output::new();
        output.text(&plain(&now, &Rates::between(Some(&before), &now, Order::Calls), Order::Calls)?)?;
        return output.finish();
    }
    let fail = |error: std::io::Error| Failure::new(Status::Failed, format!("the terminal: {error}"));
    // It puts the terminal back also when we panic.
    let mut terminal = ratatui::try_init().map_err(fail)?;
    let ended = Live::new(&source, interval).run(&mut terminal);
    ratatui::restore();
    ended
}

/// The counts of a run without a server, in the form of a server's statistics.
fn counts_json(tally: &Tally, pid: u32) -> String {
    let now = nvmed_tally::now_ns();
    let facts = json!({
        "version": 1,
        "pid": pid,
        "uptime_ns": now.saturating_sub(tally.start_ns()),
        "now_ns": now,
        "calls": tally.rows().iter().map(Row::json).collect::<Vec<_>>(),
    });
    facts.to_string()
}

/// A frame as text, as high as it has to be.
fn plain(now: &Snapshot, rates: &Rates, order: Order) -> Result<String, Failure> {
    let view = View { now, rates, order, skip: 0, foot: "" };
    let height = screen::lines_wanted(&view).min(PLAIN_LINES_MAX);
    let fail = |error: &dyn std::fmt::Display| Failure::new(Status::Failed, format!("no frame: {error}"));
    let mut terminal =
        Terminal::new(TestBackend::new(PLAIN_COLUMNS, height)).map_err(|error| fail(&error))?;
    terminal.draw(|frame| screen::draw(frame, &view)).map_err(|error| fail(&error))?;
    let buffer = terminal.backend().buffer();
    let line = |y| (0..PLAIN_COLUMNS).map(|x| buffer[(x, y)].symbol()).collect::<String>();
    Ok((0..height).map(|y| format!("{}\n", line(y).trim_end())).collect())
}

/// The live view.
struct Live<'a> {
    source: &'a Source,
    interval: Duration,
    order: Order,
    skip: usize,
    before: Option<Snapshot>,
    now: Snapshot,
}

/// What a key asks for.
enum Wish {
    Nothing,
    Redraw,
    Quit,
}

impl<'a> Live<'a> {
    fn new(source: &'a Source, interval: Duration) -> Self {
        Self { source, interval, order: Order::Calls, skip: 0, before: None, now: Snapshot::default() }
    }

    fn run(&mut self, terminal: &mut DefaultTerminal) -> Result<(), Failure> {
        let fail = |error: std::io::Error| Failure::new(Status::Failed, format!("the terminal: {error}"));
        loop {
            let fresh = self.source.snapshot()?;
            self.before = Some(std::mem::replace(&mut self.now, fresh)).filter(|before| before.now_ns > 0);
            self.draw(terminal).map_err(fail)?;
            let next = Instant::now() + self.interval;
            loop {
                let left = next.saturating_duration_since(Instant::now());
                if left.is_zero() || !event::poll(left).map_err(fail)? {
                    break;
                }
                match self.wish(&event::read().map_err(fail)?) {
                    Wish::Quit => return Ok(()),
                    Wish::Redraw => self.draw(terminal).map_err(fail)?,
                    Wish::Nothing => {}
                }
            }
        }
    }

    fn draw(&self, terminal: &mut DefaultTerminal) -> std::io::Result<()> {
        let rates = Rates::between(self.before.as_ref(), &self.now, self.order);
        let skip = self.skip.min(rates.clients.len().saturating_sub(1));
        let foot = format!("{KEYS} {:.1} s", self.interval.as_secs_f64());
        let view = View { now: &self.now, rates: &rates, order: self.order, skip, foot: &foot };
        terminal.draw(|frame| screen::draw(frame, &view)).map(drop)
    }

    fn wish(&mut self, event: &Event) -> Wish {
        let key = match event {
            Event::Key(key) if key.kind != KeyEventKind::Release => key,
            Event::Resize(..) => return Wish::Redraw,
            _ => return Wish::Nothing,
        };
        let order = |order| Some(order);
        let sorted = match key.code {
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return Wish::Quit,
            KeyCode::Char('q') | KeyCode::Esc => return Wish::Quit,
            KeyCode::Char('c') => order(Order::Calls),
            KeyCode::Char('b') => order(Order::Bytes),
            KeyCode::Char('l') => order(Order::Latency),
            KeyCode::Char('e') => order(Order::Errors),
            KeyCode::Char('n') => order(Order::Name),
            _ => None,
        };
        if let Some(sorted) = sorted {
            self.order = sorted;
            return Wish::Redraw;
        }
        let last = self.now.sessions.len().saturating_sub(1);
        match key.code {
            KeyCode::Down => self.skip = (self.skip + 1).min(last),
            KeyCode::Up => self.skip = self.skip.saturating_sub(1),
            KeyCode::PageDown => self.skip = (self.skip + 10).min(last),
            KeyCode::PageUp => self.skip = self.skip.saturating_sub(10),
            KeyCode::Char('+') => self.interval = (self.interval * 2).min(Duration::from_secs(60)),
            KeyCode::Char('-') => self.interval = (self.interval / 2).max(Duration::from_millis(100)),
            _ => return Wish::Nothing,
        }
        Wish::Redraw
    }
}
