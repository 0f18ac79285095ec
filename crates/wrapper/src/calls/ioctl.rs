//! ioctl.

use crate::edge::{Answer, fail, given, guard, host, reply};
use crate::find::table::{self, Body};
use core::ffi::{c_int, c_ulong, c_void};
use nvmed_fs::{FileType, OpenFlags};

// asm-generic/ioctls.h and linux/fs.h.
const FIONREAD: c_ulong = 0x541b;
const FIONBIO: c_ulong = 0x5421;
const FIOASYNC: c_ulong = 0x5452;
const FIONCLEX: c_ulong = 0x5450;
const FIOCLEX: c_ulong = 0x5451;
const FIOQSIZE: c_ulong = 0x5460;
const FIGETBSZ: c_ulong = 2;
const FICLONE: c_ulong = 0x4004_9409;
const FICLONERANGE: c_ulong = 0x4020_940d;
const FIDEDUPERANGE: c_ulong = 0xc018_9436;
const FS_IOC_FIEMAP: c_ulong = 0xc020_660b;

hook! {
    /// ioctl(2)
    fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
        // The kernel takes 32 bits of it.
        let request = c_ulong::from(request as u32);
        if table::is_ours(fd) {
            return guard(|| match request {
                FIOCLEX | FIONCLEX => {
                    table::pin_unfenced(fd)?.file()?;
                    let flag = if request == FIOCLEX { libc::FD_CLOEXEC } else { 0 };
                    host(sys!(SYS_fcntl, fd, libc::F_SETFD, flag))
                }
                _ => on_ours(&*table::pin(fd)?, request, argument.cast()),
            });
        }
        // A copy from a file of ours into one of the host's.
        let source = match request {
            FICLONE => Some(argument as usize as c_int),
            // What is not there the kernel tells.
            FICLONERANGE => given::get(argument.cast::<i64>().cast_const()).ok().map(|fd| fd as c_int),
            _ => None,
        };
        if source.is_some_and(table::is_ours) {
            return crate::edge::finish(fail(libc::EXDEV));
        }
        reply(sys!(SYS_ioctl, fd, request, argument))
    }
}

/// A copy of another file that shares its blocks, which ours does not do; what is wrong with the files is told first.
fn clone(target: &Body, source: c_int) -> Answer {
    if !table::is_ours(source) {
        let flags = host(sys!(SYS_fcntl, source, libc::F_GETFL))? as c_int;
        return fail(if flags & libc::O_PATH != 0 { libc::EBADF } else { libc::EXDEV });
    }
    let source = table::pin(source)?;
    let (from, to) = (source.file()?.flags(), target.file()?.flags());
    match (source.node.kind(), target.node.kind()) {
        (FileType::Directory, _) | (_, FileType::Directory) => fail(libc::EISDIR),
        _ if !from.reads() || !to.writes() || to.has(OpenFlags::APPEND) => fail(libc::EBADF),
        _ => fail(libc::EOPNOTSUPP),
    }
}

fn on_ours(body: &Body, request: c_ulong, argument: *mut c_int) -> Answer {
    let number = |value: i64| {
        // The kernel puts a number whole or not at all.
        given::get(argument)?;
        // SAFETY: these requests take the address of an int, under `edge`'s contract.
        unsafe { given::put(argument, &(value.clamp(0, i64::from(c_int::MAX)) as c_int)) }?;
        Ok(0)
    };
    let file = body.file()?;
    match request {
        FIONREAD if body.node.kind() != FileType::File => fail(libc::ENOTTY),
        FIONREAD => number((file.stat()?.size as i64).saturating_sub(file.position()? as i64)),
        FIGETBSZ => number(i64::from(crate::find::mount::status(&body.node)?.block_bytes)),
        FIOQSIZE => {
            let bytes = crate::find::mount::status(&body.node)?.size as i64;
            // SAFETY: this request takes the address of a 64-bit number.
            unsafe { given::put(argument.cast(), &bytes) }?;
            Ok(0)
        }
        FIONBIO => {
            let on = given::get(argument)? != 0;
            let bit = OpenFlags::NONBLOCK.0;
            let now = file.present_flags()?.0;
            let flags = if on { now | bit } else { now & !bit };
            file.set_flags(OpenFlags(flags))?;
            Ok(0)
        }
        // Nobody is told of what is ready to be read and written all the time.
        FIOASYNC if given::get(argument)? == 0 => Ok(0),
        FICLONE => clone(body, argument as usize as c_int),
        FICLONERANGE | FIDEDUPERANGE | FS_IOC_FIEMAP => fail(libc::EOPNOTSUPP),
        _ => fail(libc::ENOTTY),
    }
}
