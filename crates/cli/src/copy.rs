//! `nvmed cp`: one walk for every direction.

use crate::arguments::Cp;
use crate::failure::Failure;
use crate::host::Host;
use crate::location::Location;
use crate::side::{Attributes, EntryKind, Side};
use crate::volume::{Tree, Use, Volumes};
use std::io::Write;
use std::rc::Rc;

/// Bytes copied at a time; also the granularity at which holes are kept.
const CHUNK_BYTES: usize = 128 << 10;
/// Beyond so many bytes, or steps, a path is not made longer: the walk enters the directory, and paths begin anew
/// there. So they end nowhere, and are short enough for one of each directory that is open. A directory of the host's
/// that was entered costs a descriptor.
const PATH_BYTES: usize = 1024;
const PATH_STEPS: usize = 64;

/// Copies what the arguments say.
///
/// # Errors
/// The first thing that could not be copied; what came before it stays.
pub fn cp(arguments: &Cp) -> Result<(), Failure> {
    crate::shared::use_all_descriptors();
    let mut locations = Vec::new();
    for argument in &arguments.places {
        locations.push(Location::parse(argument)?);
    }
    if locations.iter().all(|location| matches!(location, Location::Host(_))) {
        return Err(Failure::usage(
            "cp: all files are on the host; write a device's file as DEVICE:/path, or use cp",
        ));
    }
    let mut volumes = Volumes::default();
    let (target, sources) = locations.split_last().expect("clap asks for two locations at least");
    volumes.mount(target, Use::Write)?;
    for source in sources {
        volumes.mount(source, Use::Read)?;
    }
    let copied = copy_all(arguments, &volumes, &locations);
    // What was copied before a failure is written back too.
    let unmounted = volumes.unmount();
    copied.and(unmounted)
}

fn copy_all(arguments: &Cp, volumes: &Volumes, locations: &[Location]) -> Result<(), Failure> {
    let (target, sources) = locations.split_last().expect("clap asks for two locations at least");
    let into = side(volumes, target)
        .look(target, true)?
        .is_some_and(|attributes| attributes.kind == EntryKind::Directory);
    if sources.len() > 1 && !into {
        return Err(Failure::usage(format!("cp: {target}: several sources need an existing directory")));
    }
    for source in sources {
        let target = match source.file_name() {
            Some(name) if into => target.join(&name),
            _ => target.clone(),
        };
        let source = Endpoint { side: side(volumes, source), location: source.clone(), entered: false };
        let target = Endpoint { side: side(volumes, &target), location: target, entered: false };
        Copy { arguments }.start(source, target)?;
    }
    Ok(())
}

fn side<'a>(volumes: &'a Volumes, location: &Location) -> Rc<dyn Side<'a> + 'a> {
    match volumes.of(location) {
        Some(volume) => Rc::new(Tree::new(volume)),
        None => Rc::new(Host::default()),
    }
}

/// A file or directory at one end of the copy.
#[derive(Clone)]
struct Endpoint<'a> {
    side: Rc<dyn Side<'a> + 'a>,
    location: Location,
    /// Its path begins at a directory that the walk entered.
    entered: bool,
}

impl Endpoint<'_> {
    fn join(&self, name: &[u8]) -> Self {
        Self { side: Rc::clone(&self.side), location: self.location.join(name), entered: self.entered }
    }

    /// The same directory, entered if its path is long.
    fn near(&self) -> Result<Self, Failure> {
        let path = self.location.path();
        if path.len() <= PATH_BYTES && path.iter().filter(|byte| **byte == b'/').count() <= PATH_STEPS {
            return Ok(self.clone());
        }
        Ok(Self { side: self.side.enter(&self.location)?, location: self.location.anew(), entered: true })
    }

    fn look(&self, follow: bool) -> Result<Option<Attributes>, Failure> {
        self.side.look(&self.location, follow)
    }
}

/// A directory that is being copied.
struct Directory<'a> {
    attributes: Attributes,
    /// As the directory above has it, for what is done last.
    made: Endpoint<'a>,
    source: Endpoint<'a>,
    target: Endpoint<'a>,
    names: std::vec::IntoIter<Vec<u8>>,
}

struct Copy<'a> {
    arguments: &'a Cp,
}

impl Copy<'_> {
    fn start<'s>(&self, source: Endpoint<'s>, target: Endpoint<'s>) -> Result<(), Failure> {
        let attributes = source.look(!self.arguments.recursive)?;
        let attributes =
            attributes.ok_or_else(|| Failure::host(&source.location, rustix::io::Errno::NOENT))?;
        // Depth is the user's, the stack is ours.
        let mut open: Vec<Directory<'s>> = Vec::new();
        open.extend(self.any(source, target, attributes)?);
        // The first directory that this copy makes is not copied into itself.
        let made = match open.first() {
            Some(first) => first.made.look(true)?.map(|there| there.identity),
            None => None,
        };
        while let Some(top) = open.last_mut() {
            let deep = top.source.entered || top.target.entered;
            let done = match top.names.next() {
                Some(name) => self.one(top, &name, made),
                None => {
                    let keeps = self.arguments.preserve;
                    let kept =
                        if keeps { top.made.side.keep(&top.made.location, &top.attributes) } else { Ok(()) };
                    open.pop();
                    kept.map(|()| None)
                }
            };
            let depth = open.len();
            open.extend(done.map_err(|failure| if deep { failure.so_deep(depth) } else { failure })?);
        }
        Ok(())
    }

    /// Copies one name of a directory; what is a directory itself is begun.
    fn one<'s>(
        &self,
        directory: &Directory<'s>,
        name: &[u8],
        made: Option<(u64, u64)>,
    ) -> Result<Option<Directory<'s>>, Failure> {
        let source = directory.source.join(name);
        match source.look(false)? {
            // A name that went away while we copied is nothing to copy.
            None => Ok(None),
            Some(attributes) if Some(attributes.identity) == made => Ok(None),
            Some(attributes) => self.any(source, directory.target.join(name), attributes),
        }
    }

    /// Copies one name, or begins a directory.
    fn any<'s>(
        &self,
        from: Endpoint<'s>,
        to: Endpoint<'s>,
        attributes: Attributes,
    ) -> Result<Option<Directory<'s>>, Failure> {
        let (source, target) = (&from.location, &to.location);
        if self.arguments.verbose {
            // Nobody listening is no reason to stop copying.
            let _ = writeln!(std::io::stdout(), "{source} -> {target}");
        }
        match attributes.kind {
            EntryKind::File => file(&from, &to, &attributes)?,
            EntryKind::Symlink => to.side.make_link(target, &from.side.target(source)?)?,
            EntryKind::Directory if self.arguments.recursive => {
                return begin(&from, to, attributes).map(Some);
            }
            EntryKind::Directory => {
                return Err(Failure::usage(format!("cp: {source}: is a directory; add -r")));
            }
            EntryKind::Other => {
                return Err(Failure::usage(format!(
                    "cp: {source}: neither file, directory nor symbolic link"
                )));
            }
        }
        if self.arguments.preserve {
            to.side.keep(target, &attributes)?;
        }
        Ok(None)
    }
}

/// Makes a directory, if it is not there, that is then filled.
fn begin<'s>(
    source: &Endpoint<'s>,
    target: Endpoint<'s>,
    attributes: Attributes,
) -> Result<Directory<'s>, Failure> {
    let names = source.side.names(&source.location)?.into_iter();
    if target.look(true)?.is_none_or(|there| there.kind != EntryKind::Directory) {
        // Its own files must be writable while it is filled; `keep` gives the final mode.
        target.side.make_directory(&target.location, attributes.mode | 0o700)?;
    }
    Ok(Directory { attributes, source: source.near()?, target: target.near()?, made: target, names })
}

fn file(source: &Endpoint<'_>, target: &Endpoint<'_>, attributes: &Attributes) -> Result<(), Failure> {
    if target.look(true)?.is_some_and(|there| there.identity == attributes.identity) {
        let (source, target) = (&source.location, &target.location);
        return Err(Failure::usage(format!("cp: {source} and {target} are the same file")));
    }
    let mut from = source.side.open(&source.location)?;
    let mut to = target.side.create(&target.location, attributes.mode)?;
    let mut chunk = vec![0; CHUNK_BYTES];
    let mut offset = 0;
    loop {
        let len = from.read(&mut chunk, offset)?;
        if len == 0 {
            break;
        }
        // Zeros become a hole; the size is set at the end.
        if chunk[..len].iter().any(|&byte| byte != 0) {
            to.write(&chunk[..len], offset)?;
        }
        offset += len as u64;
    }
    to.resize(offset)
}
