//! A tracing instance of our own, so that nobody else's tracing is disturbed: events of the block layer, a ring buffer
//! for each processor, read by a thread each into a file.
//!
//! (Documentation/trace/ftrace.rst and ring-buffer-design.rst.)

use super::failed;
use crate::failure::Failure;
use nvmed_trace::{KernelEvent, KernelLayout};
use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};
use std::fs::{self, File};
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Where tracefs is, where it is mounted at all.
const TRACEFS: &str = "/sys/kernel/tracing";
/// How the names of our instances begin.
const NAME: &str = "nvmed-";
/// Instances of processes of one number, which are in containers of their own.
const NAMES_MAX: u32 = 64;
/// How long a thread waits for more when a ring buffer is empty.
const PAUSE: Duration = Duration::from_millis(20);

/// Events that were lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Lost {
    /// How many.
    pub(super) events: u64,
    /// The pages do not tell where some of them were.
    pub(super) is_elsewhere: bool,
}

impl Lost {
    /// Adds what a processor's `stats` say.
    fn count(&mut self, stats: &str) {
        for (name, count) in stats.lines().filter_map(|line| line.split_once(':')) {
            let count: u64 = count.trim().parse().unwrap_or(0);
            // Overwritten; or no room was made, of which no page tells.
            match name {
                "overrun" => self.events += count,
                "commit overrun" | "dropped events" => {
                    self.events += count;
                    self.is_elsewhere |= count > 0;
                }
                _ => {}
            }
        }
    }
}

/// A tracing instance, which is gone with this.
pub(super) struct Instance {
    tracefs: Tracefs,
    place: PathBuf,
    /// As long as it is locked, it is not swept away.
    lock: Option<File>,
    pub(super) layout: KernelLayout,
    pub(super) page_bytes: usize,
    processors: Vec<PathBuf>,
}

impl Drop for Instance {
    fn drop(&mut self) {
        remove(&self.place);
        drop(self.lock.take());
    }
}

/// Removes an instance. Nobody can be told of a failure; who records next tries again.
fn remove(place: &Path) {
    let _ = fs::write(place.join("tracing_on"), "0");
    let _ = fs::remove_dir(place);
}

/// tracefs, wherever it is.
struct Tracefs {
    root: PathBuf,
    /// Our own mount, which has no place among the others and is gone with the process, however it ends.
    _mount: Option<OwnedFd>,
}

impl Tracefs {
    fn open() -> Result<Self, Failure> {
        let root = PathBuf::from(TRACEFS);
        if root.join("instances").exists() {
            return Ok(Self { root, _mount: None });
        }
        let mount = || {
            let kind = fsopen("tracefs", FsOpenFlags::FSOPEN_CLOEXEC)?;
            fsconfig_create(&kind)?;
            let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID
                | MountAttrFlags::MOUNT_ATTR_NODEV
                | MountAttrFlags::MOUNT_ATTR_NOEXEC;
            fsmount(&kind, FsMountFlags::FSMOUNT_CLOEXEC, attributes)
        };
        let mount = mount().map_err(|errno: Errno| refused(TRACEFS, &errno.into()))?;
        let root = PathBuf::from(format!("/proc/self/fd/{}", mount.as_raw_fd()));
        Ok(Self { root, _mount: Some(mount) })
    }

    /// A failure at a place in it.
    fn refused(&self, place: &Path, error: &io::Error) -> Failure {
        let place = place.strip_prefix(&self.root).unwrap_or(place);
        refused(&format!("tracefs: {}", place.display()), error)
    }

    /// Removes instances of ours whose process was killed.
    fn sweep(&self) {
        for entry in fs::read_dir(self.root.join("instances")).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let number = name
                .to_str()
                .and_then(|name| name.strip_prefix(NAME)?.split('.').next()?.parse::<u32>().ok());
            let Some(process) = number else { continue };
            let is_there =
                process != std::process::id() && Path::new("/proc").join(process.to_string()).exists();
            if is_there {
                continue;
            }
            // The process may be one of another container, whose numbers are not ours.
            let is_free = |dir: &File| flock(dir, FlockOperation::NonBlockingLockExclusive).is_ok();
            if File::open(entry.path()).is_ok_and(|dir| is_free(&dir)) {
                remove(&entry.path());
            }
        }
    }

    /// Makes an instance, and locks it.
    fn instance(&self) -> Result<(PathBuf, File), Failure> {
        for number in 0..NAMES_MAX {
            let name = format!("{NAME}{}.{number}", std::process::id());
            let place = self.root.join("instances").join(name);
            match fs::create_dir(&place) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                made => made.map_err(|error| self.refused(&place, &error))?,
            }
            let lock = File::open(&place).and_then(|dir| {
                flock(&dir, FlockOperation::NonBlockingLockExclusive)?;
                Ok(dir)
            });
            return match lock {
                Ok(lock) => Ok((place, lock)),
                Err(error) => {
                    remove(&place);
                    Err(self.refused(&place, &error))
                }
            };
        }
        Err(failed(format!("tracefs: instances: {NAMES_MAX} of {NAME}{}.* are in use", std::process::id())))
    }
}

/// The failure of a host that does not let us trace, or of something else.
fn refused(place: &str, error: &io::Error) -> Failure {
    let needs = match Errno::from_io_error(error) {
        Some(Errno::PERM | Errno::ACCESS | Errno::NODEV | Errno::NOSYS) => {
            "; recording the kernel's block layer needs root and tracefs (CONFIG_FTRACE)"
        }
        _ => "",
    };
    failed(format!("{place}: {error}{needs}"))
}

impl Instance {
    /// An instance that traces a disk, or all of them, into buffers of so many bytes a processor.
    pub(super) fn begin(device: Option<u64>, buffer_bytes: u64) -> Result<Self, Failure> {
        let tracefs = Tracefs::open()?;
        tracefs.sweep();
        let (place, lock) = tracefs.instance()?;
        let mut instance = Self {
            tracefs,
            place,
            lock: Some(lock),
            layout: KernelLayout::default(),
            page_bytes: 4096,
            processors: Vec::new(),
        };
        // Times that steps of the clock do not change. What is oldest is overwritten: only then do the pages tell where
        // events were lost.
        instance.set("trace_clock", "mono")?;
        instance.set("options/overwrite", "1")?;
        let kib = buffer_bytes.div_ceil(1024);
        instance.set("buffer_size_kb", &kib.to_string()).map_err(|failure| {
            failed(format!("--buffer of {kib} KiB for each processor: {}", failure.message))
        })?;
        if let Ok(text) = fs::read_to_string(instance.place.join("buffer_subbuf_size_kb")) {
            instance.page_bytes = text.trim().parse::<usize>().map_or(4096, |kib| kib << 10);
        }
        for (event, name) in KernelEvent::ALL {
            instance.enable(event, &format!("events/block/{name}"), device)?;
        }
        let processors = instance.place.join("per_cpu");
        let entries = fs::read_dir(&processors);
        let entries = entries.map_err(|error| instance.tracefs.refused(&processors, &error))?;
        instance.processors = entries.flatten().map(|entry| entry.path()).collect();
        instance.processors.sort();
        Ok(instance)
    }

    fn set(&self, name: &str, value: &str) -> Result<(), Failure> {
        let place = self.place.join(name);
        fs::write(&place, value).map_err(|error| self.tracefs.refused(&place, &error))
    }

    fn enable(&mut self, event: KernelEvent, place: &str, device: Option<u64>) -> Result<(), Failure> {
        let format = self.place.join(place).join("format");
        let text = fs::read_to_string(&format).map_err(|error| self.tracefs.refused(&format, &error))?;
        self.layout.add(event, &text).map_err(|field| {
            failed(format!("tracefs: {place}/format: it has no `{field}` that is known here"))
        })?;
        if let Some(device) = device {
            self.set(&format!("{place}/filter"), &format!("dev == {device}"))?;
        }
        self.set(&format!("{place}/enable"), "1")
    }

    /// Records as long as something goes on; what each processor has recorded, and what came of it.
    pub(super) fn record<T>(&self, goes_on: impl FnOnce() -> T) -> Result<(Vec<File>, T), Failure> {
        let mut files = Vec::new();
        for _ in &self.processors {
            files.push(unnamed()?);
        }
        let has_ended = AtomicBool::new(false);
        let (copied, result) = std::thread::scope(|scope| {
            let copies: Vec<_> = self
                .processors
                .iter()
                .zip(&mut files)
                .map(|(processor, file)| {
                    let pipe = processor.join("trace_pipe_raw");
                    let has_ended = &has_ended;
                    scope.spawn(move || copy(&pipe, self.page_bytes, file, has_ended))
                })
                .collect();
            let result = goes_on();
            let stopped = fs::write(self.place.join("tracing_on"), "0");
            has_ended.store(true, Ordering::Release);
            copies.iter().for_each(|copy| copy.thread().unpark());
            let copied = copies
                .into_iter()
                .map(|copy| copy.join().unwrap_or_else(|_| Err(io::Error::other("a thread"))));
            (copied.chain([stopped]).collect::<io::Result<Vec<()>>>(), result)
        });
        copied.map_err(|error| failed(format!("what was recorded: {error}")))?;
        Ok((files, result))
    }

    /// What was lost.
    pub(super) fn lost(&self) -> Result<Lost, Failure> {
        let mut lost = Lost::default();
        for processor in &self.processors {
            let place = processor.join("stats");
            let text = fs::read_to_string(&place).map_err(|error| self.tracefs.refused(&place, &error))?;
            lost.count(&text);
        }
        Ok(lost)
    }
}

/// A file without a name.
fn unnamed() -> Result<File, Failure> {
    let flags = OFlags::TMPFILE.bits() as i32;
    let temporary = std::env::temp_dir();
    let made = fs::OpenOptions::new().read(true).write(true).custom_flags(flags).open(&temporary);
    let made = made.or_else(|_| {
        let path = temporary.join(format!("nvmed-record-{}", std::process::id()));
        let file = File::options().read(true).write(true).create_new(true).open(&path)?;
        fs::remove_file(&path)?;
        Ok(file)
    });
    made.map_err(|error: io::Error| {
        failed(format!("{}: {error}; what is recorded goes there (TMPDIR sets it)", temporary.display()))
    })
}

/// Copies a processor's pages into a file until the command has ended, and then what is left.
fn copy(pipe: &Path, page_bytes: usize, file: &mut File, has_ended: &AtomicBool) -> io::Result<()> {
    let mut pipe =
        fs::OpenOptions::new().read(true).custom_flags(OFlags::NONBLOCK.bits() as i32).open(pipe)?;
    let mut page = vec![0; page_bytes];
    loop {
        // Before the look: what was recorded before the end is in the buffer then.
        let is_last = has_ended.load(Ordering::Acquire);
        loop {
            match pipe.read(&mut page) {
                Ok(0) => break,
                Ok(count) => {
                    page[count..].fill(0);
                    file.write_all(&page)?;
                }
                Err(error) if Errno::from_io_error(&error) == Some(Errno::AGAIN) => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        if is_last {
            return file.rewind();
        }
        std::thread::park_timeout(PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use super::Lost;

    #[test]
    fn what_is_lost_is_told_apart_by_whether_the_pages_tell_where() {
        let stats = |overrun, commit, dropped| {
            format!(
                "entries: 7\noverrun: {overrun}\ncommit overrun: {commit}\nbytes: 5128\n\
                 oldest event ts:  38314.657883\ndropped events: {dropped}\nread events: 9\n"
            )
        };
        let of = |all: &[String]| {
            let mut lost = Lost::default();
            all.iter().for_each(|stats| lost.count(stats));
            lost
        };
        assert_eq!(of(&[stats(0, 0, 0)]), Lost { events: 0, is_elsewhere: false });
        assert_eq!(of(&[stats(5, 0, 0), stats(2, 0, 0)]), Lost { events: 7, is_elsewhere: false });
        assert_eq!(of(&[stats(5, 1, 0), stats(0, 0, 0)]), Lost { events: 6, is_elsewhere: true });
        assert_eq!(of(&[stats(0, 0, 3)]), Lost { events: 3, is_elsewhere: true });
    }
}
