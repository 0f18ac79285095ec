//! POSIX asynchronous I/O: libc's threads read and write below every hook, so a request on a descriptor of
//! ours is carried out when it is submitted, and its control block says so as libc's would: `aio_error`,
//! `aio_return`, `aio_suspend` and `aio_cancel` are libc's own. Notices are libc's too.

use crate::calls::vector;
use crate::edge::{Answer, caught, errno_of, fail, offset};
use crate::find::table;
use crate::raw;
use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicI32, Ordering};
use libc::{iovec, off_t, sigevent, size_t, ssize_t};

/// `struct aiocb` of glibc (aio.h), the same for both offset sizes on x86-64.
#[repr(C)]
pub(crate) struct Control {
    fd: c_int,
    opcode: c_int,
    priority: c_int,
    buffer: *mut c_void,
    bytes: size_t,
    notice: sigevent,
    next: *mut Control,
    absolute_priority: c_int,
    policy: c_int,
    error: AtomicI32,
    answer: ssize_t,
    offset: off_t,
    reserved: [u8; 32],
}

const _: () = assert!(size_of::<Control>() == size_of::<libc::aiocb>());

/// What a control block asks for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Operation {
    Read,
    Write,
    Sync,
    DataSync,
}

fn run(control: &Control, operation: Operation) -> Answer {
    let pinned = table::pin(control.fd)?;
    let file = pinned.file()?;
    let one = iovec { iov_base: control.buffer, iov_len: control.bytes };
    match operation {
        Operation::Read => {
            offset(control.offset)?;
            // SAFETY: the buffer is valid until the request is done (aio_read(3)).
            unsafe { vector::read_with(&pinned, &raw const one, 1, control.offset, 0) }
        }
        Operation::Write => {
            offset(control.offset)?;
            // SAFETY: as above.
            unsafe { vector::write_with(&pinned, &raw const one, 1, control.offset, 0) }
        }
        // Requests before are done.
        Operation::Sync => Ok(file.fsync().map(|()| 0)?),
        Operation::DataSync => Ok(file.fdatasync().map(|()| 0)?),
    }
}

/// Carries out a request and writes its end into the control block; whether it succeeded.
unsafe fn carry_out(control: *mut Control, operation: Operation) -> bool {
    // SAFETY: the program's control block, which it leaves alone until the request is done.
    let control = unsafe { &mut *control };
    let answer = caught(|| run(control, operation));
    let (answer, error) = match answer {
        Ok(count) => (count, 0),
        Err(failure) => (-1, errno_of(&failure)),
    };
    control.answer = answer;
    control.error.store(error, Ordering::Release);
    error == 0
}

/// Tells the program as it asked: libc's list call without requests does nothing else.
unsafe fn tell(notice: *mut sigevent) {
    let none: *const *mut Control = core::ptr::null();
    // SAFETY: the program's notice, and no request.
    unsafe { libc_lio_listio(libc::LIO_NOWAIT, none, 0, notice) };
}

unsafe fn single(control: *mut Control, operation: Operation) -> c_int {
    // SAFETY: the program's control block.
    unsafe {
        carry_out(control, operation);
        tell(&raw mut (*control).notice);
    }
    0
}

unsafe fn is_ours(control: *const Control) -> bool {
    // SAFETY: null or the program's control block.
    !control.is_null() && table::is_ours(unsafe { (*control).fd })
}

hook! {
    /// aio_read(3)
    fn aio_read(control: *mut Control) -> c_int, next libc_aio_read {
        if is_ours(control) {
            return single(control, Operation::Read);
        }
        libc_aio_read(control)
    }
}

hook! {
    /// aio_write(3)
    fn aio_write(control: *mut Control) -> c_int, next libc_aio_write {
        if is_ours(control) {
            return single(control, Operation::Write);
        }
        libc_aio_write(control)
    }
}

hook! {
    /// aio_fsync(3)
    fn aio_fsync(how: c_int, control: *mut Control) -> c_int, next libc_aio_fsync {
        if !is_ours(control) {
            return libc_aio_fsync(how, control);
        }
        match how {
            libc::O_SYNC => single(control, Operation::Sync),
            libc::O_DSYNC => single(control, Operation::DataSync),
            _ => crate::edge::finish(fail(libc::EINVAL)),
        }
    }
}

hook! {
    /// lio_listio(3): ours at once, the others by libc, which also tells of the end of all
    fn lio_listio(mode: c_int, list: *const *mut Control, count: c_int, notice: *mut sigevent)
        -> c_int, next libc_lio_listio {
        let all = match usize::try_from(count) {
            Ok(count) if !list.is_null() => core::slice::from_raw_parts(list, count),
            _ => &[],
        };
        let known = mode == libc::LIO_WAIT || mode == libc::LIO_NOWAIT;
        if !known || !all.iter().any(|&control| is_ours(control)) {
            return libc_lio_listio(mode, list, count, notice);
        }
        let mut hosts = all.to_vec();
        let mut whole = true;
        for entry in hosts.iter_mut().filter(|entry| is_ours(**entry)) {
            let control = core::mem::replace(entry, core::ptr::null_mut());
            let operation = match (*control).opcode {
                libc::LIO_READ => Operation::Read,
                libc::LIO_WRITE => Operation::Write,
                _ => continue,
            };
            whole &= carry_out(control, operation);
            tell(&raw mut (*control).notice);
        }
        let answer = libc_lio_listio(mode, hosts.as_ptr(), count, notice);
        if answer == 0 && !whole && mode == libc::LIO_WAIT {
            raw::set_errno(libc::EIO);
            return -1;
        }
        answer
    }
}
