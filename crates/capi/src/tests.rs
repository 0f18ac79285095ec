//! The structures and constants of C and of Rust are the same.

use crate::{aio, calls, device, error, features, handle, passthrough, queue};
use nvmed_block::EvictionPolicy;
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

/// Lines of C that do not compile unless the header has this layout.
macro_rules! layout {
    ($out:ident, $c:expr, $rust:ty, $($field:ident $(as $name:literal)?),+ $(,)?) => {
        let (size, align) = (size_of::<$rust>(), align_of::<$rust>());
        writeln!($out, "_Static_assert(sizeof({0}) == {size} && _Alignof({0}) == {align}, \"{0}\");", $c).unwrap();
        $(
            let name = [$($name,)? stringify!($field)][0];
            let offset = core::mem::offset_of!($rust, $field);
            writeln!($out, "_Static_assert(offsetof({0}, {name}) == {offset}, \"{0}.{name}\");", $c).unwrap();
        )+
    };
}

macro_rules! constants {
    ($out:ident, $($room:ident :: $name:ident),+ $(,)?) => {
        $(writeln!($out, "_Static_assert({0} == {1}, \"{0}\");", stringify!($name), $room::$name).unwrap();)+
    };
}

fn structures() -> String {
    let mut out = String::from("#include <nvmed.h>\n#include <linux/nvme_ioctl.h>\n");
    layout!(out, "struct nvmed_error", error::ErrorInfo, error, status, reserved, lba, reserved2);
    layout!(
        out,
        "struct nvmed_info",
        device::Info,
        bytes,
        lba_bytes,
        transfer_bytes,
        queues_max,
        queue_depth_max,
        volatile_cache,
        reserved,
        serial,
        model,
        firmware
    );
    layout!(
        out,
        "struct nvmed_cache_stats",
        device::Stats,
        frames,
        hits,
        misses,
        evictions,
        dirty,
        write_backs,
        write_backs_failed,
        reserved
    );
    layout!(out, "struct nvmed_range", calls::Range, start, len);
    layout!(
        out,
        "struct nvmed_handle_stats",
        handle::Stats,
        reads,
        writes,
        flushes,
        discards,
        write_zeroes,
        compares,
        bytes_read,
        bytes_written,
        errors,
        reserved
    );
    out
}

fn commands() -> String {
    let mut out = String::new();
    for name in ["struct nvmed_passthru_cmd", "struct nvme_passthru_cmd"] {
        layout!(
            out,
            name,
            passthrough::Passthru,
            opcode,
            flags,
            rsvd1,
            nsid,
            cdw2,
            cdw3,
            metadata,
            addr,
            metadata_len,
            data_len,
            cdw10,
            cdw11,
            cdw12,
            cdw13,
            cdw14,
            cdw15,
            timeout_ms,
            result
        );
    }
    layout!(
        out, "NVMED_AIO_CTX", aio::AioCtx, handle, offset, len, buf, aio_callback, cb_userdata, private_data,
        prp_list as "prpList", status, error, result, lba, nvme_status, opcode, flags
    );
    out.push_str(
        "_Static_assert(offsetof(NVMED_AIO_CTX, start_lba) == offsetof(NVMED_AIO_CTX, offset), \"\");\n",
    );
    out
}

fn device_constants() -> String {
    let mut out = String::new();
    constants!(
        out,
        device::NVMED_NO_CACHE,
        device::NVMED_CACHE_SIZE,
        device::NVMED_CACHE_LAZY_INIT,
        device::NVMED_CREATE,
        device::NVMED_CACHE_WRITE_THROUGH,
        device::NVMED_CACHE_DIRTY_LIMIT,
        device::NVMED_CACHE_POLICY,
        queue::QUEUE_MANUAL_COMPLETION,
        queue::QUEUE_INTERRUPT
    );
    for (value, policy) in EvictionPolicy::ALL.iter().enumerate() {
        let name = policy.name().to_uppercase();
        writeln!(out, "_Static_assert(NVMED_POLICY_{name} == {value}, \"{name}\");").unwrap();
    }
    out
}

fn handle_constants() -> String {
    let mut out = String::new();
    constants!(
        out,
        handle::HANDLE_DIRECT_IO,
        handle::HANDLE_SYNC_IO,
        handle::HANDLE_HINT_DMEM,
        handle::HANDLE_MQ,
        handle::HANDLE_INTERRUPT,
        features::NVMED_PARAM_COMPLETION,
        features::NVMED_PARAM_PRIORITY,
        features::NVMED_PARAM_STREAM,
        features::NVMED_PARAM_READAHEAD,
        features::NVMED_PARAM_WEIGHT,
        features::NVMED_PARAM_TIMEOUT_MS,
        features::NVMED_PARAM_REPLAY,
        features::NVMED_PARAM_RATE_IOPS,
        features::NVMED_PARAM_RATE_KIB,
        features::NVMED_PARAM_URGENT,
        aio::AIO_PROCESS,
        aio::AIO_COMPLETE,
        aio::NVMED_AIO_ERROR,
        aio::NVMED_AIO_BUSY,
        aio::NVMED_AIO_QUEUED,
        aio::NVMED_AIO_URGENT
    );
    out
}

fn compiles(code: &str) -> bool {
    let dir = std::env::temp_dir().join(format!("nvmed-abi-{}-{:p}", std::process::id(), &raw const code));
    std::fs::create_dir_all(&dir).unwrap();
    let file = dir.join("abi.c");
    std::fs::write(&file, code).unwrap();
    let include = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../include");
    let mut cc = Command::new("cc");
    let output = cc.args(["-std=c11", "-fsyntax-only", "-I"]).arg(include).arg(&file).output().unwrap();
    std::fs::remove_dir_all(dir).unwrap();
    println!("{}", String::from_utf8_lossy(&output.stderr));
    output.status.success()
}

#[test]
fn the_header_has_the_layout_of_the_library() {
    let asserts = [structures(), commands(), device_constants(), handle_constants()].concat();
    assert!(compiles(&asserts));
    // A canary: an assertion that is wrong is seen.
    assert!(!compiles(&asserts.replacen("== 0,", "== 1,", 1)));
}
