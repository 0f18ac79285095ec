//! Whether a program can be run so that its calls reach us: found, executable, dynamically linked.

use crate::failure::{Failure, Status};
use rustix::fs::{Access, CWD, Mode, OFlags};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// What is read of a program: its headers lie within.
const HEAD_BYTES: usize = 4096;
/// Interpreters of interpreters; Linux stops at 4 (fs/exec.c, `exec_binprm`).
const INTERPRETERS_MAX: usize = 4;

/// What a program's first bytes say.
#[derive(Debug, PartialEq, Eq)]
enum Head<'a> {
    /// The dynamic loader starts it, and preloads us.
    Dynamic,
    /// The kernel starts it alone.
    Static,
    /// `#!` and the path of the program that reads it.
    Script(&'a [u8]),
    /// Nothing that we know; the kernel will judge.
    Other,
}

/// How our library comes into a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// The loader preloads it, as far as we can tell.
    Loaded,
    /// It does not: the program runs with other ids than ours.
    OwnIds,
}

/// Finds `program` as the shell does, and makes sure that its calls can be ours.
///
/// # Errors
/// It is missing, not executable, or started without the dynamic loader.
pub fn check(program: &OsStr) -> Result<Reach, Failure> {
    let shown = Path::new(program).display();
    let missing = || Failure::new(Status::NotFound, format!("run: {shown}: no such program"));
    let mut path = find(program).ok_or_else(missing)?;
    for _ in 0..INTERPRETERS_MAX {
        let head = match read_head(&path) {
            Ok(head) => head,
            Err(Errno::NOENT) => return Err(missing()),
            // Readable is more than executable; let the kernel judge.
            Err(_) if changes_ids(&path) => return Ok(Reach::OwnIds),
            Err(_) => return Ok(Reach::Loaded),
        };
        match look(&head) {
            Head::Dynamic if changes_ids(&path) => return Ok(Reach::OwnIds),
            Head::Dynamic | Head::Other => return Ok(Reach::Loaded),
            Head::Script(interpreter) => path = PathBuf::from(OsStr::from_bytes(interpreter)),
            Head::Static => {
                return Err(Failure::new(
                    Status::NotExecutable,
                    format!(
                        "run: {}: statically linked, so its file calls cannot be intercepted; \
                         copy its files with `nvmed cp`, or use a dynamically linked build",
                        path.display()
                    ),
                ));
            }
        }
    }
    Ok(Reach::Loaded)
}

/// Whether the loader will be told to be careful (AT_SECURE), so that it preloads nothing.
fn changes_ids(path: &Path) -> bool {
    let Ok(status) = rustix::fs::stat(path) else { return false };
    let mode = Mode::from_raw_mode(status.st_mode);
    let user = mode.contains(Mode::SUID) && status.st_uid != rustix::process::getuid().as_raw();
    user || mode.contains(Mode::SGID | Mode::XGRP) && status.st_gid != rustix::process::getgid().as_raw()
}

fn find(program: &OsStr) -> Option<PathBuf> {
    if program.as_bytes().contains(&b'/') {
        return Some(PathBuf::from(program));
    }
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/usr/local/bin:/usr/bin:/bin".into());
    let mut places = std::env::split_paths(&path).map(|dir| dir.join(program));
    places.find(|place| {
        place.is_file()
            && rustix::fs::accessat(CWD, place, Access::EXEC_OK, rustix::fs::AtFlags::empty()).is_ok()
    })
}

fn read_head(path: &Path) -> Result<Vec<u8>, Errno> {
    let fd = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty())?;
    let mut head = vec![0; HEAD_BYTES];
    let len = rustix::io::pread(fd, &mut head, 0)?;
    head.truncate(len);
    Ok(head)
}

fn look(head: &[u8]) -> Head<'_> {
    if let Some(line) = head.strip_prefix(b"#!") {
        let line = line.split(|&byte| byte == b'\n').next().unwrap_or(line).trim_ascii();
        let end = line.iter().position(|byte| byte.is_ascii_whitespace()).unwrap_or(line.len());
        return if end == 0 { Head::Other } else { Head::Script(&line[..end]) };
    }
    if head.starts_with(b"\x7fELF\x02\x01") { elf(head).unwrap_or(Head::Other) } else { Head::Other }
}

/// A 64-bit little-endian program is dynamic if a program header of type `PT_INTERP` (3) names its
/// loader (System V ABI, "Program Header"). `None` when the headers lie outside `head`.
fn elf(head: &[u8]) -> Option<Head<'static>> {
    let half = |at: usize| head.get(at..at + 2).map(|b| usize::from(u16::from_le_bytes([b[0], b[1]])));
    let table = usize::try_from(u64::from_le_bytes(head.get(32..40)?.try_into().ok()?)).ok()?;
    let (size, count) = (half(54)?, half(56)?);
    for index in 0..count {
        let at = table.checked_add(index.checked_mul(size)?)?;
        let kind = head.get(at..at.checked_add(4)?)?;
        if kind == 3u32.to_le_bytes() {
            return Some(Head::Dynamic);
        }
    }
    Some(Head::Static)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// An ELF header with one program header of `kind`.
    fn program(kind: u32) -> Vec<u8> {
        let mut head = vec![0; 128];
        head[..6].copy_from_slice(b"\x7fELF\x02\x01");
        head[32] = 64;
        (head[54], head[56]) = (56, 1);
        head[64..68].copy_from_slice(&kind.to_le_bytes());
        head
    }

    #[test]
    fn the_loader_decides() {
        assert_eq!(look(&program(3)), Head::Dynamic);
        assert_eq!(look(&program(1)), Head::Static);
        assert_eq!(look(b"#! /bin/sh -e\nx"), Head::Script(b"/bin/sh"));
        assert_eq!(look(b"#!\n"), Head::Other);
        assert_eq!(look(b""), Head::Other);
    }

    #[test]
    fn programs_are_found_on_the_path() {
        assert!(check(OsStr::new("sh")).is_ok());
        assert_eq!(check(OsStr::new("no-such-program-here")).unwrap_err().status, Status::NotFound);
    }

    proptest! {
        #[test]
        fn fuzz_any_head_is_judged(mut head in proptest::collection::vec(any::<u8>(), 0..200), elf in any::<bool>()) {
            if elf && head.len() >= 6 {
                head[..6].copy_from_slice(b"\x7fELF\x02\x01");
            }
            let _ = look(&head);
        }
    }
}
