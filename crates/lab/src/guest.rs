//! A guest whose instructions are counted: a plan of file loads, done in an emulated machine with Debian's kernel.
//!
//! In: a plan, lines of calls of the functions of `guest/in-guest.sh`. Out: the instructions of each region, user and
//! kernel, and of those the ones that copy from or to the program's buffer. The guest is made by `tools/vm`; QEMU is
//! watched by a plugin, which is C like the program that does the loads: both are built when they are needed, so the
//! default build needs no compiler for them.

mod counts;

pub(crate) use counts::{Counts, Region};

use crate::error::LabError;
use crate::shell::{nvmed, run};
use crate::undo::{self, HostResource};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const VM: &str = include_str!("../../../tools/vm");
const FUNCTIONS: &str = include_str!("guest/in-guest.sh");
const SOURCES: [(&str, &str); 3] = [
    ("count.c", include_str!("guest/count.c")),
    ("file-load.c", include_str!("guest/file-load.c")),
    ("places.h", include_str!("guest/places.h")),
];
/// Programs that are run, and the Debian package of each.
const PROGRAMS: [(&str, &str); 9] = [
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("busybox", "busybox-static"),
    ("depmod", "kmod"),
    ("cpio", "cpio"),
    ("setpriv", "util-linux"),
    ("mkfs.ext4", "e2fsprogs"),
    ("mkfs.xfs", "xfsprogs"),
    ("mkfs.btrfs", "btrfs-progs"),
    ("cc", "gcc libc6-dev"),
];
/// Directories of the host that the guest does not see, since it has its own there.
const HIDDEN: [&str; 5] = ["/dev", "/run", "/proc", "/sys", "/lib/modules"];

/// A guest, and how long it may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Guest<'a> {
    /// Its memory.
    pub memory_mib: u32,
    /// More of its kernel's command line.
    pub kernel_arguments: &'a str,
    /// It is ended after this long.
    pub timeout_s: u32,
}

impl Guest<'_> {
    /// Boots it and does `plan` in it.
    ///
    /// # Errors
    /// [`LabError::Missing`] where this machine cannot have such a guest; otherwise what failed.
    pub(crate) fn run(&self, plan: &str) -> Result<Counts, LabError> {
        needed()?;
        let nvmed = nvmed()?;
        let dir = Dir::made()?;
        for hidden in [nvmed.as_path(), dir.0.as_path()] {
            visible(hidden)?;
        }
        dir.write("vm", VM)?;
        dir.write("plan", &format!("{FUNCTIONS}\n{plan}\necho done\n"))?;
        built(&dir, &[])?;
        let counts = dir.0.join("counts");
        let qemu = format!("-plugin {},out={}", dir.0.join("count.so").display(), counts.display());
        let mut command = Command::new("bash");
        // A clock that counts instructions, so that a tick of the timer is as rare whatever else this machine does.
        command.arg(dir.0.join("vm")).args(["--icount", "--qemu", &qemu]);
        command.args(["--memory", &self.memory_mib.to_string(), "--timeout", &self.timeout_s.to_string()]);
        command.args(["--append", self.kernel_arguments, "--", "sh"]);
        command.arg(dir.0.join("plan")).arg(nvmed).arg(dir.0.join("file-load"));
        // Below our own directory, so that nothing is left of it when all of this is killed.
        let said = ended(command.env("VM_TMP", &dir.0))?;
        let text =
            std::fs::read_to_string(&counts).map_err(|error| LabError::program(counts.display(), &error))?;
        counts::parse(&text, &said).map_err(|reason| LabError::Results {
            path: "what the guest and QEMU's plugin said".to_owned(),
            reason,
        })
    }
}

/// Says what is missing for a guest, and how to get it.
fn needed() -> Result<(), LabError> {
    if !cfg!(target_arch = "x86_64") {
        return Err(LabError::missing("a guest is made on x86-64 only"));
    }
    let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin";
    let is_there = |program: &str| std::env::split_paths(&path).any(|dir| dir.join(program).exists());
    let missing: Vec<_> = PROGRAMS.iter().filter(|(program, _)| !is_there(program)).collect();
    if let [(program, _), ..] = missing[..] {
        let packages: Vec<&str> = missing.iter().map(|(_, package)| *package).collect();
        let packages = packages.join(" ");
        return Err(LabError::missing(format!(
            "a guest needs {program}, which is not there: apt-get install --no-install-recommends {packages}"
        )));
    }
    if !run(Command::new(PROGRAMS[0].0).arg("-help"))?.contains("\n-plugin ") {
        return Err(LabError::missing(
            "this QEMU takes no plugins, which count instructions: apt-get install --no-install-recommends \
             qemu-system-x86 (7.2 or later, as Debian builds it)",
        ));
    }
    if !rustix::process::geteuid().is_root() {
        return Err(LabError::missing("a guest needs root, so that it may read this machine's files"));
    }
    Ok(())
}

/// Whether the guest sees what lies here.
fn visible(path: &Path) -> Result<(), LabError> {
    let shown = path.display().to_string();
    let is_hidden = HIDDEN.iter().any(|hidden| path.starts_with(hidden));
    if is_hidden || shown.contains([' ', ',', '\t', '\n']) {
        return Err(LabError::missing(format!(
            "{shown} cannot be used by a guest: have it (TMPDIR, the program nvmed) elsewhere than below {}, without \
             blanks and commas",
            HIDDEN.join(", ")
        )));
    }
    Ok(())
}

/// Builds the plugin and the program; `words` are more of what the compiler takes.
fn built(dir: &Dir, words: &[&str]) -> Result<(), LabError> {
    let compile = |arguments: &[&str]| {
        run(Command::new("cc").current_dir(&dir.0).arg("-O2").args(words).args(arguments)).map(|_| ())
    };
    SOURCES.iter().try_for_each(|(name, text)| dir.write(name, text))?;
    compile(&["-shared", "-fPIC", "-fvisibility=hidden", "-o", "count.so", "count.c"])?;
    // Bound when it is loaded, so that no region has the search for a symbol in it.
    compile(&["-Wl,-z,now", "-o", "file-load", "file-load.c"])
}

/// Runs the guest; answers what it said.
fn ended(command: &mut Command) -> Result<String, LabError> {
    let output =
        command.stdin(Stdio::null()).output().map_err(|error| LabError::program("a guest", &error))?;
    let (said, complained) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if output.status.success() {
        return Ok(said.into_owned());
    }
    let last: Vec<&str> = complained.lines().rev().take(3).collect();
    Err(LabError::Program {
        shown: "a guest".to_owned(),
        reason: format!("{}: {}", output.status, last.join(" / ")),
    })
}

/// A directory for what a guest needs, removed when dropped.
struct Dir(PathBuf);

impl Dir {
    fn made() -> Result<Self, LabError> {
        let dir = std::env::temp_dir().join(format!("nvmed-lab-{}-guest", std::process::id()));
        undo::made(&HostResource::Directory(dir.clone()));
        std::fs::create_dir(&dir).map_err(|error| LabError::program(dir.display(), &error))?;
        Ok(Self(dir))
    }

    fn write(&self, name: &str, text: &str) -> Result<(), LabError> {
        let path = self.0.join(name);
        std::fs::write(&path, text).map_err(|error| LabError::program(path.display(), &error))
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        undo::undo(&HostResource::Directory(self.0.clone()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is built on a user's machine only would else be seen to be wrong there.
    #[test]
    fn the_plugin_and_the_program_are_built_without_a_warning() {
        let dir = Dir::made().unwrap();
        built(&dir, &["-Wall", "-Wextra", "-Werror"]).unwrap();
        let ran = run(Command::new(dir.0.join("file-load")).args(["read", "1", "/dev/zero", "1", "0"]));
        let error = ran.unwrap_err().to_string();
        assert!(error.contains("file-load: arguments: Invalid argument"), "{error}");
    }

    #[test]
    fn what_the_guest_would_not_see_is_refused_with_a_reason() {
        for path in ["/dev/shm/nvmed", "/run/x/nvmed", "/tmp/a b/nvmed", "/tmp/a,b"] {
            let error = visible(Path::new(path)).unwrap_err().to_string();
            assert!(error.starts_with(path) && error.contains("TMPDIR"), "{error}");
        }
        visible(Path::new("/usr/bin/nvmed")).unwrap();
    }
}
