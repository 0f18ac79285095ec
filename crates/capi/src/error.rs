//! Errors: errno, and in each thread what its last failed call has to say.

use nvmed_block::BlockError;
use nvmed_io::{DeviceError, IoError};
use nvmed_stack::StackError;
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// `struct nvmed_error`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ErrorInfo {
    /// errno.
    pub error: i32,
    /// Status code type and status code.
    pub status: u16,
    /// 0.
    pub reserved: u16,
    /// First logical block of the command that failed.
    pub lba: u64,
    /// 0.
    pub reserved2: [u64; 2],
}

/// Status code type and status code; above them are flags (Base 2.0, figure 93).
const STATUS_CODE: u16 = 0x7ff;

/// Why a call failed.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) errno: c_int,
    pub(crate) status: u16,
    pub(crate) lba: u64,
    text: String,
}

impl Failure {
    #[cold]
    pub(crate) fn new(errno: c_int, text: impl Into<String>) -> Self {
        Self { errno, status: 0, lba: 0, text: text.into() }
    }

    #[cold]
    pub(crate) fn invalid(text: impl Into<String>) -> Self {
        Self::new(libc::EINVAL, text)
    }
}

impl From<DeviceError> for Failure {
    fn from(error: DeviceError) -> Self {
        let text = error.to_string();
        Self {
            errno: error.errno().raw_os_error(),
            status: error.status.0 & STATUS_CODE,
            lba: error.lba.0,
            text,
        }
    }
}

impl From<IoError> for Failure {
    fn from(error: IoError) -> Self {
        match error {
            IoError::Device(error) => error.into(),
            _ => Self::new(error.errno().raw_os_error(), error.to_string()),
        }
    }
}

impl From<BlockError> for Failure {
    fn from(error: BlockError) -> Self {
        match error {
            BlockError::Io(error) => error.into(),
            BlockError::Holds { found } => {
                let why = "which a write would destroy; open it with NVMED_OVERWRITE to allow that";
                Self::new(error.errno().raw_os_error(), format!("the device holds {found}, {why}"))
            }
            BlockError::Unseen { error: look } => {
                let why = "open the device with NVMED_OVERWRITE to write all the same";
                let text = format!("what the device holds cannot be read ({look}); {why}");
                Self::new(error.errno().raw_os_error(), text)
            }
            _ => Self::new(error.errno().raw_os_error(), error.to_string()),
        }
    }
}

impl From<StackError> for Failure {
    fn from(error: StackError) -> Self {
        Self::new(error.errno().raw_os_error(), error.to_string())
    }
}

thread_local! {
    static LAST: RefCell<(ErrorInfo, CString)> = RefCell::default();
}

/// Sets errno, and keeps the rest for [`nvmed_last_error`].
#[cold]
fn tell(failure: Failure) {
    let Failure { errno, status, lba, text } = failure;
    // A path with a zero byte cannot come from C; should one be in a text, the text ends there.
    let text = CString::new(text).unwrap_or_else(|nul| {
        let end = nul.nul_position();
        CString::new(&nul.into_vec()[..end]).unwrap_or_default()
    });
    // A thread that is ending may have dropped its texts; errno it still has.
    let _ = LAST.try_with(|last| {
        *last.borrow_mut() = (ErrorInfo { error: errno, status, lba, ..ErrorInfo::default() }, text);
    });
    // SAFETY: the location is this thread's errno, valid and aligned as long as the thread runs.
    unsafe { *libc::__errno_location() = errno };
}

/// Runs the body of a C call: an error is told and answered by `failed`, and no panic leaves it.
pub(crate) fn call<T>(failed: T, body: impl FnOnce() -> Result<T, Failure>) -> T {
    // What a panic leaves behind is guarded by locks, which count it as whole (each says why), or is dropped.
    let failure = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(value)) => return value,
        Ok(Err(failure)) => failure,
        Err(_) => Failure::new(libc::EIO, "a defect of libnvmed; its message is on standard error"),
    };
    tell(failure);
    failed
}

/// See `nvmed.h`.
#[unsafe(no_mangle)]
pub extern "C" fn nvmed_last_error() -> *const c_char {
    let text = LAST.try_with(|last| last.borrow().1.as_ptr());
    text.unwrap_or(c"".as_ptr())
}

/// See `nvmed.h`.
///
/// # Safety
/// `info` is NULL or can be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmed_last_error_info(info: *mut ErrorInfo) -> c_int {
    let last = LAST.try_with(|last| last.borrow().0).unwrap_or_default();
    if info.is_null() || last.error == 0 {
        return -1;
    }
    // SAFETY: not NULL, and the caller vouches for the rest.
    unsafe { info.write(last) };
    0
}

/// Texts of the errnos that this library sets.
const TEXTS: [(c_int, &CStr); 16] = [
    (0, c"success"),
    (libc::EIO, c"the device did not do it"),
    (libc::EBADF, c"no open device, queue or handle"),
    (libc::EINVAL, c"an argument makes no sense"),
    (libc::ENOMEM, c"no memory"),
    (libc::EBUSY, c"in use"),
    (libc::EAGAIN, c"too much is under way; reap, then try again"),
    (libc::ENOSPC, c"past the end of the device"),
    (libc::EILSEQ, c"the device holds other bytes"),
    (libc::ENOTSUP, c"not offered by this device or this version"),
    (libc::EFAULT, c"a pointer or range outside its memory"),
    (libc::ENOENT, c"no such device or image"),
    (libc::EACCES, c"not permitted"),
    (libc::EROFS, c"write protected"),
    (libc::EMFILE, c"too many are open"),
    (libc::ENODEV, c"the device is gone"),
];

/// See `nvmed.h`.
#[unsafe(no_mangle)]
pub extern "C" fn nvmed_strerror(error: c_int) -> *const c_char {
    let known = TEXTS.iter().find(|(errno, _)| *errno == error);
    known.map_or(c"an error of the host; see errno(3)", |(_, text)| text).as_ptr()
}

/// See `nvmed.h`.
#[unsafe(no_mangle)]
pub extern "C" fn nvmed_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}
