//! Raw system calls, errno, and libc's own functions below ours.
//!
//! Contract for all `unsafe` here: numbers and arguments are those that the host program passed for
//! the same call, or pointers to memory of ours that outlives the call.

use core::arch::asm;
use core::ffi::{CStr, c_int, c_long, c_void};
use core::sync::atomic::{AtomicPtr, Ordering};

// System calls of Linux 6.6 and 6.13; not in the `libc` crate for this target.
pub(crate) const SYS_FCHMODAT2: c_long = 452;
pub(crate) const SYS_SETXATTRAT: c_long = 463;
pub(crate) const SYS_GETXATTRAT: c_long = 464;
pub(crate) const SYS_LISTXATTRAT: c_long = 465;
pub(crate) const SYS_REMOVEXATTRAT: c_long = 466;

/// `O_LARGEFILE` as the kernel knows it; glibc's own constant is 0 on x86-64.
pub(crate) const O_LARGEFILE: c_int = 0o100_000;

/// The kernel's `PATH_MAX`.
pub(crate) const PATH_BYTES_MAX: usize = 4096;

/// An argument of a system call, widened as the C compiler does.
pub(crate) trait Word {
    fn word(self) -> usize;
}

macro_rules! words {
    ($($ty:ty),*) => { $(impl Word for $ty { #[inline(always)] fn word(self) -> usize { self as usize } })* };
}
words!(i32, u32, i64, u64, isize, usize, u16);

impl<T> Word for *const T {
    #[inline(always)]
    fn word(self) -> usize {
        self as usize
    }
}

impl<T> Word for *mut T {
    #[inline(always)]
    fn word(self) -> usize {
        self as usize
    }
}

/// Writes as libc itself does: what is not there is the program's fault, in a build with checks too.
///
/// # Safety
/// The program wants a `T` there.
pub(crate) unsafe fn put_unseen<T: Copy>(into: *mut T, value: &T) {
    // SAFETY: the caller's contract.
    unsafe { libc::memcpy(into.cast(), core::ptr::from_ref(value).cast(), size_of::<T>()) };
}

/// One system call; a negative answer is `-errno`.
#[inline(always)]
pub(crate) fn call<const N: usize>(number: c_long, arguments: [usize; N]) -> isize {
    let at = |index: usize| if index < N { arguments[index] } else { 0 };
    let answer: isize;
    // SAFETY: the kernel checks every argument; which memory it may write is what the caller, by the
    // module's contract, passed for that purpose. The instruction clobbers rcx and r11 only.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number as isize => answer,
            in("rdi") at(0), in("rsi") at(1), in("rdx") at(2),
            in("r10") at(3), in("r8") at(4), in("r9") at(5),
            lateout("rcx") _, lateout("r11") _,
            options(nostack)
        );
    }
    answer
}

/// `sys!(SYS_read, fd, buffer, count)`: the raw system call, `-errno` on failure.
macro_rules! sys {
    ($name:ident $(, $argument:expr)* $(,)?) => {
        $crate::raw::call(libc::$name, [$($crate::raw::Word::word($argument)),*])
    };
}

/// Sets the host program's errno.
#[inline]
pub(crate) fn set_errno(errno: c_int) {
    // SAFETY: libc answers the address of this thread's errno, valid while the thread lives.
    unsafe { *libc::__errno_location() = errno };
}

/// The host program's errno.
pub(crate) fn errno() -> c_int {
    // SAFETY: as in `set_errno`.
    unsafe { *libc::__errno_location() }
}

/// libc's own function of a name that we interpose, looked up once.
pub(crate) struct Next {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
}

impl Next {
    pub(crate) const fn new(name: &'static CStr) -> Self {
        Self { name, found: AtomicPtr::new(core::ptr::null_mut()) }
    }

    /// The function's address.
    ///
    /// # Panics
    /// When libc has no such function, which a program that calls it has just disproved.
    pub(crate) fn address(&self) -> *mut c_void {
        let known = self.found.load(Ordering::Relaxed);
        if !known.is_null() {
            return known;
        }
        let found = behind_us(self.name);
        assert!(!found.is_null(), "libc has no {:?}", self.name);
        self.found.store(found, Ordering::Relaxed);
        found
    }
}

/// The address of a function in the libraries behind this one; null if none has it.
pub(crate) fn behind_us(name: &CStr) -> *mut c_void {
    // SAFETY: a C string; RTLD_NEXT asks the libraries after this one.
    unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) }
}

/// A name of libc's with its NUL, as macros write it.
pub(crate) const fn name_of(name: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(name.as_bytes()) {
        Ok(name) => name,
        Err(_) => panic!("a name has one NUL, at its end"),
    }
}

/// `next!(fork, fn() -> pid_t)`: libc's own function of that name. `hook!` makes one of it for a hook.
macro_rules! next {
    ($name:ident, fn($($argument:ty),* $(,)?) -> $ret:ty) => {{
        static NEXT: $crate::raw::Next =
            $crate::raw::Next::new($crate::raw::name_of(concat!(stringify!($name), "\0")));
        // SAFETY: the type written at the call site is the C prototype of the named function.
        #[allow(unused_unsafe)]
        let function = unsafe {
            core::mem::transmute::<*mut core::ffi::c_void, unsafe extern "C" fn($($argument),*) -> $ret>(
                NEXT.address(),
            )
        };
        function
    }};
}

/// Room for one line of ours on stderr; longer ones are cut.
const LINE_BYTES: usize = 1024;

/// Text of bounded length on the stack: no allocation, no stdio.
pub(crate) struct Line {
    bytes: [u8; LINE_BYTES],
    len: usize,
}

impl Line {
    pub(crate) const fn new() -> Self {
        Self { bytes: [0; LINE_BYTES], len: 0 }
    }

    pub(crate) fn push(&mut self, text: &[u8]) {
        let room = LINE_BYTES - 1 - self.len;
        let take = text.len().min(room);
        self.bytes[self.len..self.len + take].copy_from_slice(&text[..take]);
        self.len += take;
    }
}

impl core::fmt::Write for Line {
    fn write_str(&mut self, text: &str) -> core::fmt::Result {
        self.push(text.as_bytes());
        Ok(())
    }
}

/// Writes `nvmed: …` and a newline to the kernel's descriptor 2, whatever stands there.
pub(crate) fn say(text: core::fmt::Arguments<'_>) {
    let mut line = Line::new();
    line.push(b"nvmed: ");
    // `Line` cuts rather than fails.
    let _ = core::fmt::Write::write_fmt(&mut line, text);
    for byte in &mut line.bytes[..line.len] {
        if *byte == b'\n' {
            *byte = b' ';
        }
    }
    line.bytes[line.len] = b'\n';
    sys!(SYS_write, 2, line.bytes.as_ptr(), line.len + 1);
}

/// The bytes of a path argument.
///
/// # Safety
/// `path` is a C string that lives for `'a`.
pub(crate) unsafe fn bytes<'a>(path: *const core::ffi::c_char) -> &'a [u8] {
    // SAFETY: the caller's contract.
    unsafe { CStr::from_ptr(path) }.to_bytes()
}

/// Offset of `_fileno` in glibc's `struct _IO_FILE` (bits/types/struct_FILE.h), the same since 2.1.
pub(crate) const FILENO_OFFSET: usize = 112;

/// The descriptor of a stream, as fileno(3) tells it without setting errno.
pub(crate) unsafe fn descriptor_of(stream: *mut libc::FILE) -> c_int {
    // SAFETY: the program's open stream.
    unsafe { stream.cast::<c_int>().byte_add(FILENO_OFFSET).read() }
}
