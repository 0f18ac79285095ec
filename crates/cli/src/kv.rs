//! `nvmed kv`: a key-value store in a file or on a device.

pub mod arguments;
mod bench;
mod store;
mod text;

use crate::failure::{Failure, Status};
use crate::inspect::size;
use crate::output::Output;
use arguments::{Check, Del, Form, Format, Get, KvCommand, Put, Scan, Stats};
use core::ops::{Bound, ControlFlow};
use nvmed_kv::{Barrier, Batch, Options};
use nvmed_units::BLOCK_BYTES;
use rustix::io::Errno;
use serde_json::json;
use std::ffi::{OsStr, OsString};
use std::io::{BufRead, Read};
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;
use store::{Opened, StoreSpec};
use text::{hex, line, parse};

/// Does what the arguments say.
///
/// # Errors
/// The store cannot be opened, read or written.
pub fn kv(command: &KvCommand) -> Result<ExitCode, Failure> {
    match command {
        KvCommand::Format(arguments) => format(arguments),
        KvCommand::Get(arguments) => get(arguments),
        KvCommand::Put(arguments) => put(arguments),
        KvCommand::Del(arguments) => del(arguments),
        KvCommand::Scan(arguments) => scan(arguments),
        KvCommand::Stats(arguments) => stats(arguments),
        KvCommand::Check(arguments) => return check(arguments),
        KvCommand::Bench(arguments) => bench::bench(arguments),
    }?;
    Ok(ExitCode::SUCCESS)
}

fn format(arguments: &Format) -> Result<(), Failure> {
    let place = StoreSpec::parse(&arguments.store)?;
    let log = arguments.log.map(|bytes| u32::try_from(bytes / BLOCK_BYTES as u64).unwrap_or(u32::MAX));
    let options = Options { log_blocks: log, ..Options::default() };
    place.format(arguments.size, arguments.force, &options).map(drop)
}

fn open(store: &OsStr) -> Result<Opened, Failure> {
    StoreSpec::parse(store)?.open(&Options::default())
}

fn get(arguments: &Get) -> Result<(), Failure> {
    let keys = keys(&arguments.keys, arguments.hex)?;
    let store = open(&arguments.store)?;
    let mut out = Output::new();
    let mut value = Vec::new();
    let mut missing = None;
    for key in &keys {
        if !store.told(store.get(key, &mut value))? {
            missing.get_or_insert(key);
        } else if arguments.raw {
            out.bytes(&value)?;
        } else if arguments.json {
            out.text(&line(Form::Json, key, Some(&value)))?;
        } else {
            let shown = if arguments.hex { hex(&value) } else { text::text(&value) };
            out.text(&format!("{shown}\n"))?;
        }
    }
    out.finish()?;
    if let Some(key) = missing {
        let shown = if arguments.hex { hex(key) } else { text::text(key) };
        return Err(Failure::new(Status::Failed, format!("kv: {}: no key `{shown}`", store.name())));
    }
    store.leave()
}

fn keys(given: &[OsString], hex: bool) -> Result<Vec<Vec<u8>>, Failure> {
    given.iter().map(|key| parse("key", key.as_bytes(), hex)).collect()
}

fn put(arguments: &Put) -> Result<(), Failure> {
    let place = StoreSpec::parse(&arguments.store)?;
    if arguments.batch {
        let store = place.open_or_make(&arguments.making, &Options::default())?;
        put_lines(&store, arguments)?;
        return store.close();
    }
    let key = arguments.key.as_deref().unwrap_or_default();
    let key = parse("key", key.as_bytes(), arguments.hex)?;
    let value = match (&arguments.value, &arguments.value_from) {
        (Some(value), _) => parse("value", value.as_bytes(), arguments.hex)?,
        (None, Some(from)) => content(from)?,
        (None, None) => return Err(Failure::usage("kv put: give a value, or --value-from FILE")),
    };
    let store = place.open_or_make(&arguments.making, &Options::default())?;
    let mut batch = Batch::new();
    batch.put(&key, &value);
    apply(&store, &batch)?;
    store.close()
}

fn content(from: &OsStr) -> Result<Vec<u8>, Failure> {
    let mut value = Vec::new();
    // One byte more than fits tells that it does not.
    let most = nvmed_kv::VALUE_BYTES_MAX as u64 + 1;
    let read = if from == "-" {
        std::io::stdin().lock().take(most).read_to_end(&mut value)
    } else {
        std::fs::File::open(from).and_then(|file| file.take(most).read_to_end(&mut value))
    };
    read.map_err(|error| {
        Failure::host(from.to_string_lossy(), Errno::from_io_error(&error).unwrap_or(Errno::IO))
    })?;
    Ok(value)
}

fn apply(store: &Opened, batch: &Batch) -> Result<(), Failure> {
    let sequence = store.told(store.apply(batch))?;
    store.told(store.commit(sequence, Barrier::None))
}

/// Sets a pair a line.
fn put_lines(store: &Opened, arguments: &Put) -> Result<(), Failure> {
    let mut batch = Batch::new();
    let (mut pairs, mut number) = (0, 0_u64);
    let mut line = Vec::new();
    let mut input = std::io::stdin().lock();
    loop {
        line.clear();
        let read = input.read_until(b'\n', &mut line);
        let read = read.map_err(|error| {
            Failure::host("standard input", Errno::from_io_error(&error).unwrap_or(Errno::IO))
        })?;
        let last = read == 0;
        if !last {
            number += 1;
            let pair = line.strip_suffix(b"\n").unwrap_or(&line);
            let tab = pair.iter().position(|&byte| byte == b'\t');
            let tab = tab.ok_or_else(|| {
                Failure::usage(format!(
                    "kv put: line {number} has no tab between a key and a value; lines before it are there"
                ))
            })?;
            let (key, value) = (
                parse("key", &pair[..tab], arguments.hex)?,
                parse("value", &pair[tab + 1..], arguments.hex)?,
            );
            batch.put(&key, &value);
            pairs += 1;
        }
        if pairs == arguments.atomic || (last && pairs > 0) {
            apply(store, &batch)?;
            batch.clear();
            pairs = 0;
        }
        if last {
            return Ok(());
        }
    }
}

fn del(arguments: &Del) -> Result<(), Failure> {
    let mut batch = Batch::new();
    match arguments.range.as_deref() {
        Some([from, to]) => {
            let from = parse("key", from.as_bytes(), arguments.hex)?;
            let to = parse("key", to.as_bytes(), arguments.hex)?;
            if from >= to {
                return Err(Failure::usage("kv del: --range FROM TO: FROM is not below TO"));
            }
            batch.delete_range(&from, &to);
        }
        _ => keys(&arguments.keys, arguments.hex)?.iter().for_each(|key| batch.delete(key)),
    }
    let store = open(&arguments.store)?;
    apply(&store, &batch)?;
    store.close()
}

/// The first key that does not begin with `prefix` and follows those that do; none: there is no such key.
fn after(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|&byte| byte < u8::MAX)?;
    let mut after = prefix[..=last].to_vec();
    after[last] += 1;
    Some(after)
}

fn scan(arguments: &Scan) -> Result<(), Failure> {
    let given = |key: &Option<OsString>| {
        key.as_ref()
            .map(|key| parse("key", key.as_bytes(), arguments.hex || arguments.format == Form::Hex))
            .transpose()
    };
    let (from, to) = match given(&arguments.prefix)? {
        Some(prefix) => {
            let end = after(&prefix);
            (Some(prefix), end)
        }
        None => (given(&arguments.from)?, given(&arguments.to)?),
    };
    let low = from.as_deref().map_or(Bound::Unbounded, Bound::Included);
    let high = to.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
    let store = open(&arguments.store)?;
    let mut out = Output::new();
    let mut left = arguments.limit.unwrap_or(u64::MAX);
    let (mut count, mut failed) = (0_u64, None);
    let mut visit = |key: &[u8], value: &[u8]| {
        if left == 0 {
            return ControlFlow::Break(());
        }
        left -= 1;
        count += 1;
        if !arguments.count {
            let shown = line(arguments.format, key, (!arguments.keys).then_some(value));
            failed = out.text(&shown).err();
        }
        if failed.is_none() && left > 0 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    };
    let scanned = if from.is_some() && to.is_some() && from >= to {
        Ok(())
    } else if arguments.reverse {
        store.scan_reverse(low, high, &mut visit)
    } else {
        store.scan(low, high, &mut visit)
    };
    failed.map_or(Ok(()), Err)?;
    if arguments.count && scanned.is_ok() {
        out.text(&format!("{count}\n"))?;
    }
    // What was read before a damaged block is printed.
    out.finish()?;
    store.told(scanned)?;
    store.leave()
}

fn stats(arguments: &Stats) -> Result<(), Failure> {
    let store = open(&arguments.store)?;
    let stats = store.stats();
    let block = BLOCK_BYTES as u64;
    let mut out = Output::new();
    if arguments.json {
        let facts = json!({
            "store": store.name(),
            "tree_bytes": stats.tree_blocks * block,
            "tree_bytes_used": stats.tree_blocks_used * block,
            "log_bytes": stats.log_bytes,
            "open_blocks_read": stats.mount_blocks_read,
            "batches_recovered": stats.batches_recovered,
            "sequence": store.applied().0,
        });
        out.text(&format!("{facts}\n"))?;
    } else {
        let share = (stats.tree_blocks_used * 100).div_ceil(stats.tree_blocks.max(1));
        out.text(&format!(
            "tree      {} of {} in use ({share} %)\nlog       {} not in the tree yet, {} batches found at open\n\
             open      {} blocks read\nsequence  {}\n",
            size(stats.tree_blocks_used * block),
            size(stats.tree_blocks * block),
            size(stats.log_bytes),
            stats.batches_recovered,
            stats.mount_blocks_read,
            store.applied().0,
        ))?;
    }
    out.finish()?;
    store.leave()
}

fn check(arguments: &Check) -> Result<ExitCode, Failure> {
    let store = open(&arguments.store)?;
    let verified = store.verify();
    let mut out = Output::new();
    let code = match verified {
        Ok(records) => {
            for flaw in store.flaws() {
                out.text(&format!("{}: {flaw}\n", store.name()))?;
            }
            if store.flaws().is_empty() {
                out.text(&format!("{}: clean, {records} records\n", store.name()))?;
                ExitCode::SUCCESS
            } else {
                let advice = "nothing is lost; the next command that writes writes the lost copy again";
                out.text(&format!("{}: {records} records; {advice}\n", store.name()))?;
                ExitCode::from(Status::Failed as u8)
            }
        }
        Err(error) => {
            let advice = "`nvmed kv scan` prints what can be read";
            out.text(&format!("{}: {error}; {advice}\n", store.name()))?;
            ExitCode::from(Status::Failed as u8)
        }
    };
    out.finish()?;
    store.leave()?;
    Ok(code)
}

#[cfg(test)]
mod tests {
    use super::after;

    #[test]
    fn a_prefix_ends_where_the_next_one_begins() {
        assert_eq!(after(b"ab"), Some(b"ac".to_vec()));
        assert_eq!(after(b"a\xff\xff"), Some(b"b".to_vec()));
        assert_eq!(after(b"\xff"), None);
        assert_eq!(after(b""), None);
    }
}
