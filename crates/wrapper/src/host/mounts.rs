//! The kernel's lists of what is mounted (proc(5)), with ours at the end: `df`, `findmnt` and other readers find the
//! file system's name, type and directory there. A program that opens such a list to read gets a copy of that moment.

use crate::edge::given::NO_MEMORY;
use crate::edge::{Answer, host};
use crate::find::backend::Node;
use crate::find::mount;
use crate::find::setting::{self, Setting};
use core::ffi::{CStr, c_char, c_int};
use std::fmt::Write as _;

/// What the kind of the file system is called.
const KIND: &str = "nvmedfs";
/// Number of our line: the kernel counts up from 1, and never came so far.
const NUMBER: u32 = 1 << 30;
/// Read at a time.
const CHUNK_BYTES: usize = 16 << 10;
/// Flags with which a list may be opened to be read; those that matter are kept for the copy.
const PLAIN: c_int = libc::O_CLOEXEC | libc::O_NOCTTY | libc::O_NONBLOCK | crate::raw::O_LARGEFILE;

/// How a list is written.
#[derive(Clone, Copy)]
enum Form {
    Mountinfo,
    Mtab,
}

fn form(path: &[u8]) -> Option<Form> {
    match path {
        b"/proc/self/mountinfo" | b"/proc/thread-self/mountinfo" => Some(Form::Mountinfo),
        b"/proc/self/mounts" | b"/proc/thread-self/mounts" | b"/proc/mounts" => Some(Form::Mtab),
        b"/etc/mtab" if is_link_to_proc(c"/etc/mtab") => Some(Form::Mtab),
        _ => None,
    }
}

/// Whether it is what a system without a file of its own there has.
fn is_link_to_proc(path: &CStr) -> bool {
    let mut target = [0u8; 32];
    let len = sys!(SYS_readlink, path.as_ptr(), target.as_mut_ptr(), target.len());
    usize::try_from(len)
        .is_ok_and(|len| target[..len].ends_with(b"proc/self/mounts") || target[..len] == *b"/proc/mounts")
}

/// The descriptor of a copy with our line, if this is a list and to be read. Where the host has no memory for one, or
/// forbids it, the list is the kernel's.
///
/// # Safety
/// A C string, unless it is null or no memory: as [`Route::Host`] has it wherever there is a setting.
///
/// [`Route::Host`]: crate::find::route::Route::Host
#[inline]
pub(crate) unsafe fn opened(path: *const c_char, flags: c_int) -> Option<c_int> {
    if flags & !PLAIN != libc::O_RDONLY || path.is_null() || path == NO_MEMORY {
        return None;
    }
    // SAFETY: the caller's contract; a string has a byte behind one that is not its end.
    let may_be = STARTS.iter().any(|start| unsafe { begins(path, start) });
    // SAFETY: as above.
    if may_be { unsafe { list(path, flags) } } else { None }
}

/// How the names of lists begin, as far as it takes to tell them from most others.
const STARTS: [&[u8]; 2] = [b"/pr", b"/etc/m"];

/// # Safety
/// A C string.
#[inline(always)]
unsafe fn begins(path: *const c_char, start: &[u8]) -> bool {
    // SAFETY: the caller's contract; a string has a byte behind one that is not its end.
    start.iter().enumerate().all(|(index, &byte)| unsafe { *path.add(index) } as u8 == byte)
}

/// # Safety
/// A C string.
#[cold]
unsafe fn list(path: *const c_char, flags: c_int) -> Option<c_int> {
    let setting = setting::setting().filter(|setting| setting.hosted.is_none())?;
    // SAFETY: the caller's contract.
    let path = unsafe { CStr::from_ptr(path) };
    form(path.to_bytes()).and_then(|form| copy(setting, path, flags, form).ok())
}

fn copy(setting: &Setting, path: &CStr, flags: c_int, form: Form) -> Answer<c_int> {
    let list = host(sys!(SYS_openat, libc::AT_FDCWD, path.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC))?;
    let mut text = Vec::new();
    let read = read_all(list as c_int, &mut text);
    sys!(SYS_close, list);
    read?;
    text.extend_from_slice(line(setting, form, &text).as_bytes());
    let cloexec = if flags & libc::O_CLOEXEC != 0 { libc::MFD_CLOEXEC } else { 0 };
    let fd = host(sys!(SYS_memfd_create, c"mounts".as_ptr(), cloexec))?;
    let written = host(sys!(SYS_pwrite64, fd, text.as_ptr(), text.len(), 0usize));
    written.map(|_| fd as c_int).inspect_err(|_| {
        sys!(SYS_close, fd);
    })
}

fn read_all(fd: c_int, text: &mut Vec<u8>) -> Answer<()> {
    loop {
        let len = text.len();
        text.resize(len + CHUNK_BYTES, 0);
        let read = host(sys!(SYS_read, fd, text[len..].as_mut_ptr(), CHUNK_BYTES));
        text.truncate(len + *read.as_ref().unwrap_or(&0) as usize);
        if read? == 0 {
            return Ok(());
        }
    }
}

/// What the kernel would write if ours was mounted.
fn line(setting: &Setting, form: Form, others: &[u8]) -> String {
    let (source, directory) = (escaped(setting.device_name().as_bytes()), setting.prefix.real_text());
    let (kind, at) = (KIND, escaped(directory));
    match form {
        Form::Mtab => format!("{source} {at} {kind} rw,relatime 0 0\n"),
        Form::Mountinfo => {
            let (major, minor) = device();
            let above = above(others, directory);
            format!("{NUMBER} {above} {major}:{minor} / {at} rw,relatime - {kind} {source} rw\n")
        }
    }
}

/// The device number that `stat` tells; 0:0 before this process has touched the file system.
fn device() -> (u32, u32) {
    let root = if mount::is_mounted() { mount::files().ok().map(|files| files.root()) } else { None };
    let dev = root.as_ref().map(Node::stat).and_then(Result::ok).map_or(0, |stat| stat.dev);
    (libc::major(dev), libc::minor(dev))
}

/// The number of the mount that `directory` lies in: of the lines whose mount point leads to it, the last of the
/// longest.
fn above<'a>(mountinfo: &'a [u8], directory: &[u8]) -> &'a str {
    let at = escaped(directory);
    let mut best = ("1", 0);
    for line in mountinfo.split(|&byte| byte == b'\n').filter_map(|line| core::str::from_utf8(line).ok()) {
        let mut words = line.split(' ');
        let (Some(number), Some(point)) = (words.next(), words.nth(3)) else { continue };
        let rest = at.strip_prefix(point.trim_end_matches('/'));
        if rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/')) && point.len() >= best.1 {
            best = (number, point.len());
        }
    }
    best.0
}

/// As the kernel writes names: what would end a word is its octal number.
fn escaped(name: &[u8]) -> String {
    let mut text = String::with_capacity(name.len());
    for char in String::from_utf8_lossy(name).chars() {
        match char {
            ' ' | '\t' | '\n' | '\\' => {
                // A string takes whatever is written.
                let _ = write!(text, "\\{:03o}", char as u32);
            }
            char => text.push(char),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::{above, escaped};

    #[test]
    fn names_are_words_and_lie_in_a_mount() {
        assert_eq!(escaped(b"/a b\\c\td"), "/a\\040b\\134c\\011d");
        let list = b"21 1 8:1 / / rw - ext4 /dev/sda1 rw\n30 21 0:5 / /home rw - tmpfs tmpfs rw\n31 30 0:6 / /home rw \
         - x y rw\n";
        assert_eq!(above(list, b"/home/me"), "31");
        assert_eq!(above(list, b"/homes"), "21");
        assert_eq!(above(b"", b"/x"), "1");
    }
}
