//! What of a handle can be switched while it is in use.

use crate::error::Failure;
use crate::handle::{
    HANDLE_DIRECT_IO, HANDLE_HINT_DMEM, HANDLE_INTERRUPT, HANDLE_MQ, HANDLE_SYNC_IO, Handle,
};
use crate::queue::priority;
use nvmed_io::{Completions, HandleSettings, OnReset, Rate};
use std::ffi::c_int;

pub(crate) const NVMED_PARAM_COMPLETION: c_int = 0x100;
pub(crate) const NVMED_PARAM_PRIORITY: c_int = 0x101;
pub(crate) const NVMED_PARAM_STREAM: c_int = 0x102;
pub(crate) const NVMED_PARAM_READAHEAD: c_int = 0x103;
pub(crate) const NVMED_PARAM_WEIGHT: c_int = 0x104;
pub(crate) const NVMED_PARAM_TIMEOUT_MS: c_int = 0x105;
pub(crate) const NVMED_PARAM_REPLAY: c_int = 0x106;
pub(crate) const NVMED_PARAM_RATE_IOPS: c_int = 0x107;
pub(crate) const NVMED_PARAM_RATE_KIB: c_int = 0x108;
pub(crate) const NVMED_PARAM_URGENT: c_int = 0x109;

/// In the order of their numbers in C.
pub(crate) const COMPLETIONS: [Completions; 5] = [
    Completions::Adaptive,
    Completions::Poll,
    Completions::Hybrid,
    Completions::Thread,
    Completions::Interrupt,
];

/// A number for C, which has 31 bits for it.
pub(crate) fn cut(number: u64) -> c_int {
    c_int::try_from(number).unwrap_or(c_int::MAX)
}

pub(crate) fn get(handle: &Handle, feature: c_int) -> Result<c_int, Failure> {
    let settings = handle.bytes.settings();
    let io = settings.io;
    let rate = io.rate.unwrap_or_default();
    let completion = COMPLETIONS.iter().position(|one| *one == io.completion).unwrap_or(0);
    Ok(match feature {
        HANDLE_DIRECT_IO => settings.direct.into(),
        HANDLE_SYNC_IO => settings.sync.into(),
        HANDLE_HINT_DMEM => 1,
        HANDLE_MQ => handle.mq.into(),
        HANDLE_INTERRUPT => (io.completion == Completions::Interrupt).into(),
        NVMED_PARAM_COMPLETION => completion as c_int,
        NVMED_PARAM_PRIORITY => io.priority as c_int,
        NVMED_PARAM_STREAM => io.stream.into(),
        NVMED_PARAM_READAHEAD => cut(settings.readahead_bytes),
        NVMED_PARAM_URGENT => settings.urgent.into(),
        NVMED_PARAM_WEIGHT => cut(io.weight.into()),
        NVMED_PARAM_TIMEOUT_MS => cut(io.timeout_us / 1000),
        NVMED_PARAM_REPLAY => (io.on_reset == OnReset::Replay).into(),
        NVMED_PARAM_RATE_IOPS => cut(rate.requests_per_s),
        NVMED_PARAM_RATE_KIB => cut(rate.bytes_per_s >> 10),
        _ => return Err(unknown(feature)),
    })
}

pub(crate) fn set(handle: &Handle, feature: c_int, value: c_int) -> Result<(), Failure> {
    let mut settings = handle.bytes.settings();
    let wrong = || Failure::invalid(format!("{value} makes no sense for feature {feature:#x} of a handle"));
    let count = u64::try_from(value).map_err(|_| wrong())?;
    match feature {
        HANDLE_DIRECT_IO => {
            settings.direct = value != 0;
            if !settings.direct {
                handle.queues[0].device.want_cache()?;
            }
        }
        HANDLE_SYNC_IO => settings.sync = value != 0,
        HANDLE_HINT_DMEM => {}
        HANDLE_INTERRUPT if value != 0 => settings.io.completion = Completions::Interrupt,
        HANDLE_INTERRUPT => settings.io.completion = Completions::Adaptive,
        NVMED_PARAM_READAHEAD => settings.readahead_bytes = count,
        NVMED_PARAM_URGENT => settings.urgent = value != 0,
        _ => set_io(&mut settings.io, feature, count).ok_or_else(|| match get(handle, feature) {
            Ok(_) => wrong(),
            Err(unknown) => unknown,
        })?,
    }
    Ok(handle.bytes.set(settings)?)
}

/// Changes what the queues look at; none when feature or value make no sense.
pub(crate) fn set_io(io: &mut HandleSettings, feature: c_int, count: u64) -> Option<()> {
    let mut rate = io.rate.unwrap_or_default();
    match feature {
        NVMED_PARAM_COMPLETION => io.completion = *COMPLETIONS.get(count as usize)?,
        NVMED_PARAM_PRIORITY => io.priority = priority(count as c_int).ok()?,
        NVMED_PARAM_STREAM => io.stream = u16::try_from(count).ok()?,
        NVMED_PARAM_WEIGHT => io.weight = u32::try_from(count).ok()?,
        NVMED_PARAM_TIMEOUT_MS => io.timeout_us = count * 1000,
        NVMED_PARAM_REPLAY if count != 0 => io.on_reset = OnReset::Replay,
        NVMED_PARAM_REPLAY => io.on_reset = OnReset::Fail,
        NVMED_PARAM_RATE_IOPS => rate.requests_per_s = count,
        NVMED_PARAM_RATE_KIB => rate.bytes_per_s = count << 10,
        _ => return None,
    }
    io.rate = (rate != Rate::default()).then_some(rate);
    Some(())
}

#[cold]
pub(crate) fn unknown(feature: c_int) -> Failure {
    Failure::invalid(format!("{feature:#x} is no feature of a handle, or cannot be set"))
}
