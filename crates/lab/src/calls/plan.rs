//! The calls of a trace as steps that can be done, in the order of their begins, and what must be there before.

use super::numbers::{mentioned, renumber};
use super::tree::{Found, Kind, Place, ROOT, Since, Tree};
use nvmed_trace::{FileAction, FileCall, FileNumber, FileObject, FilePath, Format, LinkTarget};
use std::collections::{BTreeMap, HashMap};

/// Largest file: beyond, an offset is an error of the trace.
const FILE_BYTES_MAX: u64 = 1 << 44;
/// Where files lie that were open before the recording, and whose names are not known.
const UNNAMED: &str = "unnamed";
/// Flags of open that make a difference to a file system.
const FLAGS: i32 = libc::O_ACCMODE
    | libc::O_CREAT
    | libc::O_EXCL
    | libc::O_TRUNC
    | libc::O_APPEND
    | libc::O_SYNC
    | libc::O_DIRECT
    | libc::O_NOATIME
    | libc::O_TMPFILE;
/// What a call was that cannot be made again, where no name of it says so.
const LEADS_OUT: &str = "on paths that lead out of the directory, or are not known";

/// The number of a path.
pub(super) type Name = u32;
/// The number of an open file; each open has another one.
pub(super) type Slot = u32;

/// What is done. Offsets and sizes are bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Open {
        name: Name,
        slot: Slot,
        flags: i32,
        mode: u32,
    },
    Close(Slot),
    Read {
        slot: Slot,
        offset: u64,
        asked: u64,
        done: u64,
    },
    Write {
        slot: Slot,
        offset: u64,
        bytes: u64,
    },
    Copy {
        from: Slot,
        from_offset: u64,
        to: Slot,
        to_offset: u64,
        bytes: u64,
    },
    Sync {
        slot: Slot,
        data_only: bool,
    },
    SyncRange {
        slot: Slot,
        offset: u64,
        bytes: u64,
    },
    ResizeOpen {
        slot: Slot,
        bytes: u64,
    },
    Resize {
        name: Name,
        bytes: u64,
    },
    Allocate {
        slot: Slot,
        flags: i32,
        offset: u64,
        bytes: u64,
    },
    LookOpen(Slot),
    Look(Name),
    List(Slot),
    Unlink(Name),
    RemoveDirectory(Name),
    MakeDirectory(Name, u32),
    MakeFile(Name, u32),
    Rename(Name, Name, u32),
    Link(Name, Name),
    /// The second one is the text of the link.
    Symlink(Name, Name),
    SetModeOpen(Slot, u32),
    SetMode(Name, u32),
    TouchOpen(Slot),
    Touch(Name),
}

/// A step, and what the trace says of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Planned {
    pub begin_ns: u64,
    pub end_ns: u64,
    /// Its line in the trace; 0 of what no line says.
    pub line: u32,
    pub thread: u32,
    /// Why it failed there; 0 if it did not.
    pub errno: i32,
    pub step: Step,
}

/// All of a trace.
#[derive(Debug, Default)]
pub(super) struct Plan {
    pub calls: Vec<Planned>,
    /// Paths from the directory on, and texts of symbolic links.
    pub names: Vec<Vec<u8>>,
    pub slots: Slot,
    pub threads: u32,
    /// What is there before: for a file how large it is.
    pub before: BTreeMap<Vec<u8>, Option<u64>>,
    /// Calls that cannot be made again, by what they are.
    pub passed: BTreeMap<String, u64>,
}

#[derive(Clone, Copy)]
struct OpenFile {
    slot: Slot,
    place: Place,
    position: u64,
    appends: bool,
    is_listed: bool,
}

struct Planner {
    plan: Plan,
    tree: Tree,
    by_name: HashMap<Vec<u8>, Name>,
    open: HashMap<FileNumber, OpenFile>,
    threads: HashMap<u64, u32>,
    /// How many bytes a call was asked for, and not how many it moved, is known if the trace does not tell answers.
    tells_answers: bool,
}

impl Plan {
    /// Plans calls of a format, of which each has the number of its line.
    pub(super) fn of(mut calls: Vec<(u64, FileCall)>, format: &Format) -> Self {
        // Each thread's are in order.
        calls.sort_by_key(|(_, call)| call.begin_ns);
        if format.reuses_numbers() {
            renumber(&mut calls);
        }
        let mut last: HashMap<FileNumber, usize> = HashMap::new();
        for (index, (_, call)) in calls.iter().enumerate() {
            last.extend(mentioned(&call.action).into_iter().flatten().map(|file| (file, index)));
        }
        let mut planner = Planner {
            plan: Self::default(),
            tree: Tree::default(),
            by_name: HashMap::new(),
            open: HashMap::new(),
            threads: HashMap::new(),
            tells_answers: format.tells_answers(),
        };
        for (index, (line, call)) in calls.into_iter().enumerate() {
            let files = mentioned(&call.action);
            planner.take(line, &call, |file| last.get(&file) == Some(&index));
            // A file is closed with its last descriptor, which nobody sees if a process just ends.
            for file in files.into_iter().flatten().filter(|file| last.get(file) == Some(&index)) {
                if let Some(open) = planner.open.remove(&file) {
                    planner.push(0, &call, Step::Close(open.slot));
                }
            }
        }
        planner.finish()
    }
}

/// Why there is no step.
type Passed = &'static str;

impl Planner {
    fn finish(mut self) -> Plan {
        self.plan.threads = self.threads.len() as u32;
        for (path, size) in self.tree.before() {
            let kept = self.plan.before.entry(path.to_vec()).or_insert(size);
            // Two of one name: what was removed, and what came without a call.
            *kept = (*kept).zip(size).map(|(one, other)| one.max(other));
        }
        let above = |path: &Vec<u8>| {
            let ends: Vec<usize> = (0..path.len()).filter(|at| path[*at] == b'/').collect();
            ends.into_iter().map(|end| path[..end].to_vec()).collect::<Vec<_>>()
        };
        let directories: Vec<Vec<u8>> = self.plan.before.keys().flat_map(above).collect();
        self.plan.before.extend(directories.into_iter().map(|path| (path, None)));
        self.plan
    }

    fn push(&mut self, line: u64, call: &FileCall, step: Step) {
        let next = self.threads.len() as u32;
        let thread = *self.threads.entry(call.thread).or_insert(next);
        let line = u32::try_from(line).unwrap_or(u32::MAX);
        let FileCall { begin_ns, end_ns, errno, .. } = *call;
        self.plan.calls.push(Planned { begin_ns, end_ns, line, thread, errno, step });
    }

    fn take(&mut self, line: u64, call: &FileCall, is_last: impl Fn(FileNumber) -> bool) {
        for file in mentioned(&call.action).into_iter().flatten() {
            let opens = matches!(&call.action, FileAction::Open { file: own, .. }
                | FileAction::OpenDirectory { file: own, .. } if *own == file);
            if opens {
                if let Some(old) = self.open.remove(&file) {
                    self.push(0, call, Step::Close(old.slot));
                }
            } else if !self.open.contains_key(&file) {
                self.open_unknown(call, file);
            }
        }
        let step = match call.errno {
            0 => self.step(&call.action, is_last),
            errno => self.failed(&call.action, errno),
        };
        match step {
            Ok(step) => self.push(line, call, step),
            Err(why) => *self.plan.passed.entry(why.to_owned()).or_insert(0) += 1,
        }
    }

    /// A file that no call has opened: it was open before.
    fn open_unknown(&mut self, call: &FileCall, file: FileNumber) {
        let path = format!("{UNNAMED}/before{file}");
        let Some(found) = self.tree.find(ROOT, path.as_bytes(), false) else { return };
        let place = self.tree.there(&found, Kind::File);
        let name = self.name(path.into_bytes());
        let slot = self.hold(file, place, 0, false);
        self.push(0, call, Step::Open { name, slot, flags: libc::O_RDWR, mode: 0 });
    }

    fn hold(&mut self, file: FileNumber, place: Place, position: u64, appends: bool) -> Slot {
        let slot = self.plan.slots;
        self.plan.slots += 1;
        self.open.insert(file, OpenFile { slot, place, position, appends, is_listed: false });
        slot
    }

    fn name(&mut self, path: Vec<u8>) -> Name {
        let next = self.plan.names.len() as Name;
        *self.by_name.entry(path).or_insert_with_key(|path| {
            self.plan.names.push(path.clone());
            next
        })
    }

    fn held(&mut self, file: FileNumber) -> Result<OpenFile, Passed> {
        self.open.get(&file).copied().ok_or(LEADS_OUT)
    }

    fn find(&mut self, path: &FilePath, follows: bool) -> Result<Found, Passed> {
        let from = match path.from {
            None => ROOT,
            Some(file) => self.held(file)?.place,
        };
        self.tree.find(from, &path.names, follows).ok_or(LEADS_OUT)
    }

    fn named(&mut self, found: &Found) -> Result<Name, Passed> {
        let path = self.tree.path(found).ok_or(LEADS_OUT)?;
        Ok(self.name(path))
    }

    /// A call that has failed: its name is looked up.
    fn failed(&mut self, action: &FileAction, errno: i32) -> Result<Step, Passed> {
        let path = match action {
            FileAction::Look(FileObject::Named(path)) | FileAction::Remove { path, .. } => path,
            FileAction::Rename { from, .. } => from,
            _ => return Err("that failed"),
        };
        if errno == libc::EEXIST
            && let Ok(found) = self.find(path, false)
        {
            self.tree.there(&found, Kind::Unknown);
        }
        let from = match path.from {
            None => ROOT,
            Some(file) => self.held(file)?.place,
        };
        let sought = self.tree.sought(from, &path.names).ok_or(LEADS_OUT)?;
        Ok(Step::Look(self.name(sought)))
    }

    fn step(&mut self, action: &FileAction, is_last: impl Fn(FileNumber) -> bool) -> Result<Step, Passed> {
        use FileAction as Do;
        match action {
            Do::Open { file, path, flags, mode, position } => {
                self.opened(*file, path, *flags, *mode, position.unwrap_or(0))
            }
            Do::OpenDirectory { file, path } => self.opened(*file, path, Some(libc::O_DIRECTORY), 0, 0),
            Do::Close(file) if is_last(*file) => {
                let open = self.held(*file)?;
                self.open.remove(file);
                Ok(Step::Close(open.slot))
            }
            Do::Close(_) => Err("close of a descriptor whose file has others"),
            Do::Read { file, offset, asked, done } => self.read(*file, *offset, *asked, *done),
            Do::Write { file, offset, done } => self.written(*file, *offset, *done),
            Do::Copy { from, to, done } => self.copied(*from, *to, *done),
            Do::Seek { file, position, size } => {
                let open = self.held(*file)?;
                size.iter().for_each(|size| self.tree.had(open.place, *size));
                self.open.insert(*file, OpenFile { position: *position, ..open });
                Err("lseek")
            }
            Do::Sync { file, data_only } => {
                Ok(Step::Sync { slot: self.held(*file)?.slot, data_only: *data_only })
            }
            Do::SyncRange { file, offset, bytes } => {
                Ok(Step::SyncRange { slot: self.held(*file)?.slot, offset: *offset, bytes: *bytes })
            }
            Do::Allocate { file, flags, offset, bytes } => {
                let open = self.held(*file)?;
                let end = within(*offset, *bytes)?;
                let node = self.tree.node(open.place);
                if *flags & libc::FALLOC_FL_KEEP_SIZE == 0 {
                    node.size = node.size.max(end);
                }
                Ok(Step::Allocate { slot: open.slot, flags: *flags, offset: *offset, bytes: *bytes })
            }
            Do::List(file) => {
                let open = self.held(*file)?;
                if open.is_listed {
                    return Err("readdir of what was read at once");
                }
                self.open.insert(*file, OpenFile { is_listed: true, ..open });
                Ok(Step::List(open.slot))
            }
            Do::Resize { object, bytes } => self.resized(object, *bytes),
            Do::Look(object) => self.of_object(object, Step::LookOpen, Step::Look, false),
            Do::Touch(object) => self.of_object(object, Step::TouchOpen, Step::Touch, false),
            Do::SetMode { object, mode } => {
                let mode = *mode & 0o7777;
                self.of_object(
                    object,
                    |slot| Step::SetModeOpen(slot, mode),
                    |name| Step::SetMode(name, mode),
                    true,
                )
            }
            other => self.names(other),
        }
    }

    fn of_object(
        &mut self,
        object: &FileObject,
        of_open: impl Fn(Slot) -> Step,
        of_name: impl Fn(Name) -> Step,
        follows: bool,
    ) -> Result<Step, Passed> {
        match object {
            FileObject::Open(file) => Ok(of_open(self.held(*file)?.slot)),
            FileObject::Named(path) => {
                let found = self.find(path, follows)?;
                self.tree.there(&found, Kind::Unknown);
                Ok(of_name(self.named(&found)?))
            }
        }
    }

    fn opened(
        &mut self,
        file: FileNumber,
        path: &FilePath,
        said: Option<i32>,
        mode: u32,
        position: u64,
    ) -> Result<Step, Passed> {
        let flags = said.unwrap_or(libc::O_RDWR | libc::O_CREAT);
        if flags & libc::O_TMPFILE == libc::O_TMPFILE {
            let found = self.find(path, true)?;
            self.tree.there(&found, Kind::Directory);
            let (name, place) = (self.named(&found)?, self.tree.nameless());
            let slot = self.hold(file, place, 0, false);
            return Ok(Step::Open { name, slot, flags: flags & FLAGS, mode: mode & 0o7777 });
        }
        let creates = flags & libc::O_CREAT != 0;
        let exclusive = creates && flags & libc::O_EXCL != 0;
        let found = self.find(path, !exclusive && flags & libc::O_NOFOLLOW == 0)?;
        let kind = if flags & libc::O_DIRECTORY != 0 { Kind::Directory } else { Kind::Unknown };
        let place = match found.place {
            _ if exclusive => self.tree.put(&found, Kind::File, Since::Made),
            None if creates => {
                // Without answers a read beyond the end says nothing of what was there.
                let since = if self.tells_answers { self.tree.since_open(&found) } else { Since::Made };
                self.tree.put(&found, Kind::File, since)
            }
            _ => self.tree.there(&found, kind),
        };
        let access = flags & libc::O_ACCMODE;
        let node = self.tree.node(place);
        if flags & libc::O_TRUNC != 0 && access != libc::O_RDONLY {
            (node.size, node.is_cut) = (0, true);
        }
        // Of a trace without flags what is known to be a directory is opened as one.
        let is_directory = said.is_none() && node.kind == Kind::Directory;
        let flags = if is_directory { libc::O_RDONLY } else { flags & FLAGS };
        let name = self.named(&found)?;
        let slot = self.hold(file, place, position, flags & libc::O_APPEND != 0);
        Ok(Step::Open { name, slot, flags, mode: mode & 0o7777 })
    }

    /// Where a call at `offset`, or at the file's position, begins; the position moves on by `done`.
    fn place_of(
        &mut self,
        file: FileNumber,
        offset: Option<u64>,
        done: u64,
    ) -> Result<(OpenFile, u64), Passed> {
        let open = self.held(file)?;
        let begin = offset.unwrap_or(open.position);
        let end = within(begin, done)?;
        if offset.is_none() {
            self.open.insert(file, OpenFile { position: end, ..open });
        }
        Ok((open, begin))
    }

    fn read(&mut self, file: FileNumber, offset: Option<u64>, asked: u64, done: u64) -> Result<Step, Passed> {
        let (open, offset) = self.place_of(file, offset, done)?;
        if done > 0 {
            self.tree.had(open.place, offset + done);
        }
        Ok(Step::Read { slot: open.slot, offset, asked: asked.max(done), done })
    }

    fn written(&mut self, file: FileNumber, offset: Option<u64>, bytes: u64) -> Result<Step, Passed> {
        let open = self.held(file)?;
        let size = self.tree.node(open.place).size;
        if open.appends && offset.is_none() {
            self.open.insert(file, OpenFile { position: size, ..open });
        } else if let Some(offset) = offset.filter(|offset| open.appends && bytes > 0 && *offset > size) {
            // What was behind its end was there.
            self.tree.had(open.place, offset);
        }
        let (open, offset) = self.place_of(file, offset, bytes)?;
        let node = self.tree.node(open.place);
        node.size = node.size.max(offset + bytes);
        Ok(Step::Write { slot: open.slot, offset, bytes })
    }

    fn copied(
        &mut self,
        from: Option<(FileNumber, Option<u64>)>,
        to: Option<(FileNumber, Option<u64>)>,
        bytes: u64,
    ) -> Result<Step, Passed> {
        match (from, to) {
            (Some((from, from_offset)), Some((to, to_offset))) => {
                let read = self.read(from, from_offset, bytes, bytes)?;
                let written = self.written(to, to_offset, bytes)?;
                match (read, written) {
                    (
                        Step::Read { slot: from, offset: from_offset, .. },
                        Step::Write { slot: to, offset: to_offset, .. },
                    ) => Ok(Step::Copy { from, from_offset, to, to_offset, bytes }),
                    (step, _) => Ok(step),
                }
            }
            // The other side lies elsewhere.
            (Some((from, offset)), None) => self.read(from, offset, bytes, bytes),
            (None, Some((to, offset))) => self.written(to, offset, bytes),
            (None, None) => Err("copy between files that are not known"),
        }
    }

    fn resized(&mut self, object: &FileObject, bytes: u64) -> Result<Step, Passed> {
        within(bytes, 0)?;
        let (place, step) = match object {
            FileObject::Open(file) => {
                let open = self.held(*file)?;
                (open.place, Step::ResizeOpen { slot: open.slot, bytes })
            }
            FileObject::Named(path) => {
                let found = self.find(path, true)?;
                let place = self.tree.there(&found, Kind::File);
                (place, Step::Resize { name: self.named(&found)?, bytes })
            }
        };
        let node = self.tree.node(place);
        (node.size, node.is_cut) = (bytes, true);
        Ok(step)
    }

    /// Calls that make, remove and change names.
    fn names(&mut self, action: &FileAction) -> Result<Step, Passed> {
        use FileAction as Do;
        match action {
            Do::Remove { path, directory } => {
                let found = self.find(path, false)?;
                let kind = if *directory { Kind::Directory } else { Kind::Unknown };
                let place = self.tree.there(&found, kind);
                let is_directory = self.tree.node(place).kind == Kind::Directory;
                let name = self.named(&found)?;
                self.tree.remove(&found);
                Ok(if is_directory { Step::RemoveDirectory(name) } else { Step::Unlink(name) })
            }
            Do::MakeDirectory { path, mode } => {
                let found = self.find(path, false)?;
                self.tree.put(&found, Kind::Directory, Since::Made);
                Ok(Step::MakeDirectory(self.named(&found)?, *mode & 0o7777))
            }
            Do::MakeFile { path, mode } => {
                let found = self.find(path, false)?;
                self.tree.put(&found, Kind::File, Since::Made);
                Ok(Step::MakeFile(self.named(&found)?, *mode & 0o7777))
            }
            Do::Rename { from, to, flags } => self.renamed(from, to, *flags),
            Do::Link { from, to } => {
                let (from, to) = (self.find(from, false)?, self.find(to, false)?);
                let place = self.tree.there(&from, Kind::File);
                self.tree.link(&to, place);
                Ok(Step::Link(self.named(&from)?, self.named(&to)?))
            }
            Do::Symlink { path, target } => {
                let found = self.find(path, false)?;
                let name = self.named(&found)?;
                let text = harmless(target);
                self.tree.put_link(&found, target.clone());
                Ok(Step::Symlink(name, self.name(text)))
            }
            _ => Err("of kinds that are not known"),
        }
    }

    fn renamed(&mut self, from: &FilePath, to: &FilePath, flags: u32) -> Result<Step, Passed> {
        if flags & !(libc::RENAME_NOREPLACE | libc::RENAME_EXCHANGE) != 0 {
            return Err("rename that leaves a whiteout");
        }
        let from = self.find(from, false)?;
        let place = self.tree.there(&from, Kind::Unknown);
        // The way to the new name may be what the tree has just learnt.
        let to = self.find(to, false)?;
        let step = Step::Rename(self.named(&from)?, self.named(&to)?, flags);
        if flags & libc::RENAME_EXCHANGE != 0 {
            let other = self.tree.there(&to, Kind::Unknown);
            self.tree.enter(&from, other);
            self.tree.enter(&to, place);
        } else if to.place != Some(place) {
            self.tree.remove(&from);
            self.tree.enter(&to, place);
        }
        Ok(step)
    }
}

/// The end of a part of a file, if there can be one.
fn within(offset: u64, bytes: u64) -> Result<u64, Passed> {
    let end = offset.checked_add(bytes).filter(|end| *end <= FILE_BYTES_MAX);
    end.ok_or("at offsets beyond 16 TiB")
}

/// The text of a symbolic link that leads nowhere but below its own directory: another one of the same length takes the
/// place of what might, after a rename too, lead out. Calls are made by the way that the link would have gone.
fn harmless(target: &LinkTarget) -> Vec<u8> {
    let (LinkTarget::Inside(bytes, _) | LinkTarget::Outside(bytes)) = target else {
        let LinkTarget::Relative(text) = target else { return Vec::new() };
        let leads_up = text.split(|&byte| byte == b'/').any(|name| name == b"..");
        return if leads_up { dummy(text.len()) } else { text.clone() };
    };
    dummy(*bytes)
}

/// A path of so many bytes, in names that are no longer than a name may be.
fn dummy(bytes: usize) -> Vec<u8> {
    (1..=bytes).map(|number| if number % 200 == 0 && number < bytes { b'/' } else { b'x' }).collect()
}
