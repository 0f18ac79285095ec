//! What a server says of itself, or a run's own counts: read, and set against what was before.

use crate::trips::{Spared, Trips};
use nvmed_tally::{Row, Sum, Tally};
use serde::Deserialize;
use std::collections::BTreeMap;

/// The counters at one moment. What a server does not tell is zero.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Snapshot {
    pub pid: u32,
    /// The command line of its run, which the server does not tell.
    #[serde(skip)]
    pub command: String,
    /// The device's string.
    pub device: String,
    /// Why the file system has turned read-only, if it has.
    pub trouble: Option<String>,
    pub uptime_ns: u64,
    /// The monotonic clock.
    pub now_ns: u64,
    pub calls: Vec<Call>,
    pub cache: Cache,
    pub windows: Windows,
    #[serde(flatten)]
    pub trips: Trips,
    pub requests: Requests,
    pub lanes: Lanes,
    pub sessions: Vec<Session>,
    pub sessions_left_out: u64,
}

/// One kind of call.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Call {
    pub call: String,
    pub errors: u64,
    pub bytes: u64,
    pub ns: u64,
    pub max_ns: u64,
    pub count: u64,
    pub p50_ns: u64,
    /// Largest value in nanoseconds, and how many; none of a server that had no room for them.
    pub buckets: Vec<(u64, u64)>,
}

/// The block cache.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Cache {
    pub bytes: u64,
    pub pages_asked: u64,
    pub misses: u64,
    pub evictions: u64,
    pub dirty_bytes: u64,
}

/// The windows on cached pages.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Windows {
    pub bytes: u64,
    pub files: u64,
}

/// What the device was asked for.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Requests {
    pub reads: u64,
    pub writes: u64,
    pub flushes: u64,
    pub bytes_read: u64,
    pub bytes_written: u64,
    pub errors: u64,
    /// How many are on their way now: the queue depth.
    pub outstanding: u64,
}

/// Lanes, each of which carries one call at a time.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Lanes {
    pub open: u64,
    pub busy: u64,
}

/// One client process.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Session {
    pub session: u64,
    pub pid: u32,
    pub uid: u32,
    pub command: String,
    pub calls: u64,
    pub errors: u64,
    pub bytes_read: u64,
    pub bytes_written: u64,
    pub lanes: u64,
    pub handles: u64,
    /// Calls that it did not have to make, and bytes that it read so.
    pub spared: u64,
    pub spared_bytes: u64,
}

impl Session {
    /// Bytes that it read by calls and without. What a process says of itself may be anything.
    fn all_bytes_read(&self) -> u64 {
        self.bytes_read.wrapping_add(self.spared_bytes)
    }
}

impl Snapshot {
    /// Whether they are a server's, and not those that a run keeps itself.
    pub fn has_server(&self) -> bool {
        !self.device.is_empty() || !self.sessions.is_empty()
    }

    /// Of the counts of a run that has no server.
    pub fn of_tally(tally: &Tally, pid: u32) -> Self {
        let now_ns = nvmed_tally::now_ns();
        let call = |row: Row| Call {
            call: row.kind.name().to_owned(),
            errors: row.sum.errors,
            bytes: row.sum.bytes,
            ns: row.sum.ns,
            max_ns: row.sum.max_ns,
            count: row.sum.count(),
            p50_ns: row.sum.percentile_ns(50.0),
            buckets: row.sum.buckets().collect(),
        };
        let calls = tally.rows().into_iter().map(call).collect();
        Self { pid, now_ns, uptime_ns: now_ns.saturating_sub(tally.start_ns()), calls, ..Self::default() }
    }
}

impl Call {
    fn sum(&self) -> Sum {
        let mut sum = Sum::default();
        (sum.errors, sum.bytes, sum.ns, sum.max_ns) = (self.errors, self.bytes, self.ns, self.max_ns);
        self.buckets.iter().for_each(|&(upper, count)| sum.add_bucket(upper, count));
        if self.buckets.is_empty() {
            sum.add_bucket(self.p50_ns, self.count);
        }
        sum
    }
}

/// By what rows are sorted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    Calls,
    Bytes,
    Errors,
    Latency,
    Name,
}

/// What happened between two snapshots, a second.
#[derive(Clone, Debug, Default)]
pub struct Rates {
    pub calls: f64,
    pub errors: f64,
    pub bytes_read: f64,
    pub bytes_written: f64,
    /// Calls that were not made, by what made them needless, each with its name.
    pub spared: Vec<(&'static str, f64)>,
    /// Messages over sockets, by kind, the most frequent first.
    pub messages: Vec<(String, f64)>,
    /// Share of the pages asked for that were in the cache or in a window; none where nothing was asked for.
    pub hit_rate: Option<f64>,
    pub misses: f64,
    pub device_reads: f64,
    pub device_writes: f64,
    pub device_flushes: f64,
    pub device_bytes_read: f64,
    pub device_bytes_written: f64,
    pub kinds: Vec<KindRate>,
    pub clients: Vec<ClientRate>,
}

/// One kind of call between two snapshots.
#[derive(Clone, Debug)]
pub struct KindRate {
    pub name: String,
    pub calls: f64,
    pub errors: f64,
    pub bytes: f64,
    /// Calls of this kind under way at the same time, on average.
    pub busy: f64,
    pub p50_ns: u64,
    pub p99_ns: u64,
    pub max_ns: u64,
}

/// One client between two snapshots.
#[derive(Clone, Debug)]
pub struct ClientRate {
    pub session: Session,
    pub calls: f64,
    pub errors: f64,
    pub bytes_read: f64,
    pub bytes_written: f64,
    pub spared: f64,
}

/// Bytes of a page of the cache.
const PAGE_BYTES: u64 = 4096;

impl Rates {
    /// Between `before` and `now`; since the start if there is no `before`.
    pub fn between(before: Option<&Snapshot>, now: &Snapshot, order: Order) -> Self {
        let none = Snapshot::default();
        let past =
            before.filter(|before| before.now_ns <= now.now_ns && before.pid == now.pid).unwrap_or(&none);
        let start = if past.now_ns == 0 { now.now_ns.saturating_sub(now.uptime_ns) } else { past.now_ns };
        let seconds = (now.now_ns.saturating_sub(start) as f64 / 1e9).max(1e-9);
        let rate = |now: u64, past: u64| now.saturating_sub(past) as f64 / seconds;
        let mut rates = Self {
            spared: spared(&past.trips.spared, &now.trips.spared, &rate),
            messages: messages(&past.trips, &now.trips, &rate),
            bytes_read: rate(now.trips.spared.read_bytes(), past.trips.spared.read_bytes()),
            hit_rate: hit_rate(past, now),
            misses: rate(now.cache.misses, past.cache.misses),
            device_reads: rate(now.requests.reads, past.requests.reads),
            device_writes: rate(now.requests.writes, past.requests.writes),
            device_flushes: rate(now.requests.flushes, past.requests.flushes),
            device_bytes_read: rate(now.requests.bytes_read, past.requests.bytes_read),
            device_bytes_written: rate(now.requests.bytes_written, past.requests.bytes_written),
            kinds: kinds(past, now, seconds),
            clients: clients(past, now, &rate),
            ..Self::default()
        };
        for kind in &rates.kinds {
            rates.calls += kind.calls;
            rates.errors += kind.errors;
            match kind.name.as_str() {
                "read" | "pread" | "readv" => rates.bytes_read += kind.bytes,
                "write" | "pwrite" | "writev" => rates.bytes_written += kind.bytes,
                _ => {}
            }
        }
        rates.sort(order);
        rates
    }

    fn sort(&mut self, order: Order) {
        let down = |one: f64, other: f64| other.total_cmp(&one);
        self.kinds.sort_by(|one, other| match order {
            Order::Calls => down(one.calls, other.calls),
            Order::Bytes => down(one.bytes, other.bytes),
            Order::Errors => down(one.errors, other.errors),
            Order::Latency => other.p99_ns.cmp(&one.p99_ns),
            Order::Name => one.name.cmp(&other.name),
        });
        let bytes = |client: &ClientRate| client.bytes_read + client.bytes_written;
        self.clients.sort_by(|one, other| match order {
            Order::Calls | Order::Latency => down(one.calls + one.spared, other.calls + other.spared),
            Order::Bytes => down(bytes(one), bytes(other)),
            Order::Errors => down(one.errors, other.errors),
            Order::Name => one.session.pid.cmp(&other.session.pid),
        });
    }
}

fn hit_rate(past: &Snapshot, now: &Snapshot) -> Option<f64> {
    let spared = |of: &Snapshot| of.trips.spared.read_bytes();
    let by_clients = spared(now).saturating_sub(spared(past)).div_ceil(PAGE_BYTES);
    let asked = now.cache.pages_asked.saturating_sub(past.cache.pages_asked) + by_clients;
    let misses = now.cache.misses.saturating_sub(past.cache.misses);
    // Pages are also claimed for writes and ahead of reads.
    (asked > 0).then(|| 1.0 - (misses.min(asked) as f64 / asked as f64))
}

/// What made calls needless, in the order of the screen.
fn spared(past: &Spared, now: &Spared, rate: &dyn Fn(u64, u64) -> f64) -> Vec<(&'static str, f64)> {
    let counts = |of: &Spared| {
        [of.names, of.shelf_reads, of.window_reads, of.syncs, of.opens, of.closes, of.writes, of.changes]
    };
    let names = ["names", "shelf reads", "window reads", "syncs", "opens", "closes", "writes", "changes"];
    let rates = counts(now).into_iter().zip(counts(past)).map(|(now, past)| rate(now, past));
    names.into_iter().zip(rates).collect()
}

fn messages(past: &Trips, now: &Trips, rate: &dyn Fn(u64, u64) -> f64) -> Vec<(String, f64)> {
    let before = |kind: &String| past.messages.get(kind).copied().unwrap_or(0);
    let mut came: Vec<_> =
        now.messages.iter().map(|(kind, count)| (kind.clone(), rate(*count, before(kind)))).collect();
    came.retain(|(_, rate)| *rate > 0.0);
    came.sort_by(|one, other| other.1.total_cmp(&one.1));
    came
}

fn kinds(past: &Snapshot, now: &Snapshot, seconds: f64) -> Vec<KindRate> {
    let before: BTreeMap<&str, Sum> =
        past.calls.iter().map(|call| (call.call.as_str(), call.sum())).collect();
    let kinds = now.calls.iter().map(|call| {
        let all = call.sum();
        let since = before.get(call.call.as_str()).map_or_else(|| all.clone(), |before| all.since(before));
        KindRate {
            name: call.call.clone(),
            calls: since.count() as f64 / seconds,
            errors: since.errors as f64 / seconds,
            bytes: since.bytes as f64 / seconds,
            busy: since.ns as f64 / 1e9 / seconds,
            p50_ns: since.percentile_ns(50.0),
            p99_ns: since.percentile_ns(99.0),
            max_ns: since.buckets().last().map_or(0, |(upper, _)| upper.min(since.max_ns)),
        }
    });
    kinds.collect()
}

fn clients(past: &Snapshot, now: &Snapshot, rate: &dyn Fn(u64, u64) -> f64) -> Vec<ClientRate> {
    let before: BTreeMap<u64, &Session> = past.sessions.iter().map(|one| (one.session, one)).collect();
    let none = Session::default();
    let clients = now.sessions.iter().map(|one| {
        let past = before.get(&one.session).copied().unwrap_or(&none);
        ClientRate {
            session: one.clone(),
            calls: rate(one.calls, past.calls),
            errors: rate(one.errors, past.errors),
            bytes_read: rate(one.all_bytes_read(), past.all_bytes_read()),
            bytes_written: rate(one.bytes_written, past.bytes_written),
            spared: rate(one.spared, past.spared),
        }
    });
    clients.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server's answer two seconds later: one client made 200 calls, half of the pages were missing.
    pub fn pair() -> (Snapshot, Snapshot) {
        let text = |seconds: u64, reads: u64| {
            let calls = serde_json::json!([{
                "call": "read", "count": reads, "errors": 0, "bytes": reads * 4096, "ns": reads * 10_000,
                "max_ns": 20000, "p50_ns": 0, "buckets": [[10239, reads]],
            }]);
            let told = serde_json::json!({
                "version": 1, "pid": 7, "device": "virtual:/d", "uptime_ns": seconds * 1_000_000_000,
                "now_ns": seconds * 1_000_000_000 + 500, "calls": calls,
                "cache": { "pages_asked": reads, "misses": reads / 2 }, "requests": { "reads": reads / 2 },
                "sessions": [{ "session": 3, "pid": 9, "command": "sh", "calls": reads }], "new": true,
            });
            told.to_string()
        };
        let parse = |text: String| serde_json::from_str(&text).unwrap();
        (parse(text(10, 100)), parse(text(12, 300)))
    }

    #[test]
    fn rates_are_what_happened_in_between() {
        let (before, now) = pair();
        let rates = Rates::between(Some(&before), &now, Order::Calls);
        assert_eq!((rates.calls, rates.bytes_read, rates.device_reads), (100.0, 409_600.0, 50.0));
        assert_eq!(rates.hit_rate, Some(0.5));
        let kind = &rates.kinds[0];
        assert_eq!((kind.calls, kind.p50_ns, kind.busy), (100.0, 10_239, 0.001));
        assert_eq!((rates.clients[0].calls, rates.clients[0].session.pid), (100.0, 9));
        // Another server's counters are no past.
        let other = Snapshot { pid: 8, ..before };
        assert_eq!(Rates::between(Some(&other), &now, Order::Calls).calls, 25.0);
    }

    #[test]
    fn rows_are_sorted_as_asked() {
        let mut now = Snapshot { uptime_ns: 1_000_000_000, now_ns: 2_000_000_000, ..Snapshot::default() };
        let call = |name: &str, ns, count, bytes| Call {
            call: name.to_owned(),
            bytes,
            max_ns: ns,
            buckets: vec![(ns, count)],
            ..Call::default()
        };
        now.calls = vec![call("a", 15, 9, 1), call("b", 1023, 3, 500)];
        let first = |order| Rates::between(None, &now, order).kinds[0].name.clone();
        assert_eq!(
            [Order::Calls, Order::Bytes, Order::Latency, Order::Name].map(first),
            ["a", "b", "b", "a"]
        );
    }
}
