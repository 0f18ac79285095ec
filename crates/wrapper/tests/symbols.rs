//! The library's symbols against libc's: each of ours exists there, and each file call of libc's is either
//! ours or in the list below with a reason. A new libc that brings a new call fails here.

mod support;

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use support::library;

/// Beginnings of the names of calls that take a path, a descriptor or a stream's descriptor.
const FILE_CALLS: &[&str] = &[
    "open",
    "creat",
    "close",
    "dup",
    "read",
    "pread",
    "write",
    "pwrite",
    "lseek",
    "llseek",
    "stat",
    "lstat",
    "fstat",
    "xstat",
    "lxstat",
    "fxstat",
    "xmknod",
    "access",
    "eaccess",
    "euidaccess",
    "faccess",
    "sync",
    "fsync",
    "fdatasync",
    "truncate",
    "ftruncate",
    "fallocate",
    "posix_fa",
    "rename",
    "link",
    "symlink",
    "unlink",
    "remove",
    "rmdir",
    "mkdir",
    "mknod",
    "mkfifo",
    "mkstemp",
    "mkostemp",
    "mkdtemp",
    "mktemp",
    "chmod",
    "fchmod",
    "lchmod",
    "chown",
    "fchown",
    "lchown",
    "utime",
    "futime",
    "lutime",
    "getxattr",
    "setxattr",
    "listxattr",
    "removexattr",
    "lgetxattr",
    "lsetxattr",
    "llistxattr",
    "lremovexattr",
    "fgetxattr",
    "fsetxattr",
    "flistxattr",
    "fremovexattr",
    "fcntl",
    "flock",
    "lockf",
    "ioctl",
    "isatty",
    "tcgetattr",
    "fdopen",
    "fopen",
    "freopen",
    "seekdir",
    "telldir",
    "rewinddir",
    "dirfd",
    "scandir",
    "getdents",
    "getdirentries",
    "ftw",
    "nftw",
    "fts",
    "glob",
    "realpath",
    "canonical",
    "getcwd",
    "getwd",
    "get_current",
    "chdir",
    "fchdir",
    "mmap",
    "munmap",
    "mremap",
    "msync",
    "mprotect",
    "copy_file",
    "sendfile",
    "splice",
    "tee",
    "vmsplice",
    "select",
    "pselect",
    "poll",
    "ppoll",
    "epoll_ctl",
    "vfork",
    "exec",
    "fexecve",
    "posix_spawn",
    "umask",
    "name_to_handle",
    "inotify_add",
    "syscall",
    "daemon",
    "pathconf",
    "fpathconf",
    "ftok",
    "perror",
    "tempnam",
    "tmpfile",
    "aio",
    "lio",
    "_exit",
    "_Exit",
    "sigaction",
    "signal",
    "bsd_signal",
    "sysv_signal",
    "setuid",
    "setgid",
    "seteuid",
    "setegid",
    "setre",
    "setgroups",
    "initgroups",
    "setfs",
    "ustat",
    "quotactl",
    "mount",
    "umount",
    "chroot",
    "acct",
    "swapon",
    "uselib",
    "fanotify_mark",
    "dlopen",
    "dlmopen",
    "catopen",
    "popen",
    "system",
    "statfs",
    "fstatfs",
    "statvfs",
    "fstatvfs",
    "closedir",
    "fmemopen",
    "ttyname",
];

/// Calls of libc's that are not ours, by their beginning, and why.
const NOT_OURS: &[(&str, &str)] = &[
    ("open_catalog", "GLIBC_PRIVATE"),
    ("open_memstream", "a stream in memory"),
    ("open_wmemstream", "a stream in memory"),
    ("fopencookie", "a stream of the program's own functions"),
    ("fmemopen", "a stream in memory"),
    ("openlog", "the system log"),
    ("closelog", "the system log"),
    ("openpty", "terminals"),
    ("open_by_handle_at", "handles of ours do not exist: EOPNOTSUPP when one is asked for"),
    ("open_tree", "moving mounts"),
    ("fts", "its descriptors are opened below every hook: fails with ENOENT on our paths"),
    ("glob_pattern_p", "looks at text only"),
    ("globfree", "memory only"),
    ("tempnam", "makes a name only; looks for existing files on the host"),
    ("tmpfile", "a file without a name, on the host"),
    ("aio", "POSIX AIO reads and writes below every hook: EBADF on our descriptors"),
    ("lio", "as aio"),
    ("setfsent", "/etc/fstab"),
    ("setfsuid", "for file servers; permissions here follow the effective ids"),
    ("setfsgid", "as setfsuid"),
    ("ustat", "obsolete"),
    ("quotactl", "no quotas here"),
    ("mount", "of the kernel's file systems"),
    ("umount", "of the kernel's file systems"),
    ("chroot", "a host directory"),
    ("acct", "a host file"),
    ("swapon", "a host file"),
    ("uselib", "obsolete"),
    ("fanotify_mark", "of the kernel's file systems"),
    ("dlopen", "libraries do not load from here: the host says that there is none"),
    ("dlmopen", "as dlopen"),
    ("duplocale", "locales"),
    ("create_module", "obsolete"),
    ("signalfd", "a descriptor of the kernel's"),
    ("bindtextdomain", "message catalogues of the host"),
    ("bind_textdomain", "message catalogues of the host"),
    ("bindresvport", "network addresses"),
    ("flockfile", "a stream's lock, in memory"),
    ("catopen", "message catalogues of the host"),
    ("popen", "a shell, which is a new process"),
    ("system", "a shell, which is a new process"),
    ("ttyname", "files are no terminals: EBADF"),
    (
        "posix_spawn_file_actions",
        "all but addopen and addchdir are about descriptors, which fail in the child",
    ),
    ("posix_spawnattr", "no files"),
];

fn symbols(file: &Path) -> Option<BTreeSet<String>> {
    let output = Command::new("nm").args(["-D", "--defined-only"]).arg(file).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let name = |line: &str| {
        let mut words = line.split_whitespace().skip(1);
        let (kind, name) = (words.next()?, words.next()?);
        // Functions only.
        matches!(kind, "T" | "W" | "i").then(|| name.split('@').next().unwrap_or(name).to_owned())
    };
    Some(text.lines().filter_map(name).collect())
}

fn libc() -> Option<BTreeSet<String>> {
    let output = Command::new("cc").arg("-print-file-name=libc.so.6").output().ok()?;
    symbols(Path::new(String::from_utf8(output.stdout).ok()?.trim()))
}

#[test]
fn every_file_call_of_libc_is_ours_or_listed_with_a_reason() {
    let (Some(ours), Some(libc)) = (symbols(&library()), libc()) else {
        eprintln!("SKIPPED: nm or cc is not on this machine; install binutils and gcc to run this test");
        return;
    };
    assert!(ours.len() > 250, "{} symbols are exported: are the hooks in the library?", ours.len());
    let invented: Vec<_> = ours.iter().filter(|name| !libc.contains(*name)).collect();
    assert!(invented.is_empty(), "exported, but not functions of this libc: {invented:?}");
    let listed = |name: &str| NOT_OURS.iter().any(|(start, _)| name.starts_with(start));
    let missed: Vec<_> = libc
        .iter()
        .filter(|name| !ours.contains(*name) && !name.ends_with("nocancel"))
        .filter(|name| {
            let bare = name.trim_start_matches('_');
            FILE_CALLS.iter().any(|start| bare.starts_with(start)) && !listed(bare)
        })
        .collect();
    assert!(missed.is_empty(), "neither ours nor listed: {missed:?}");
}
