//! `nvmed cp`: one walk for every direction.

use crate::arguments::Cp;
use crate::failure::Failure;
use crate::host::Host;
use crate::place::Place;
use crate::side::{Entry, Kind, Side};
use crate::volume::Volumes;
use std::io::Write;

/// Bytes copied at a time; also the granularity at which holes are kept.
const CHUNK_BYTES: usize = 128 << 10;
/// Directories within each other; the walk recurses, and host paths end long before.
const DEPTH_MAX: usize = 2048;

/// Copies what the arguments say.
///
/// # Errors
/// The first thing that could not be copied; what came before it stays.
pub fn cp(arguments: &Cp) -> Result<(), Failure> {
    let mut places = Vec::new();
    for argument in &arguments.places {
        places.push(Place::parse(argument)?);
    }
    if places.iter().all(|place| matches!(place, Place::Host(_))) {
        return Err(Failure::usage(
            "cp: all files are on the host; write a device's file as DEVICE:/path, or use cp",
        ));
    }
    let mut volumes = Volumes::default();
    for place in &places {
        volumes.mount(place)?;
    }
    let copied = copy_all(arguments, &volumes, &places);
    // What was copied before a failure is written back too.
    let unmounted = volumes.unmount();
    copied.and(unmounted)
}

fn copy_all(arguments: &Cp, volumes: &Volumes, places: &[Place]) -> Result<(), Failure> {
    let (target, sources) = places.split_last().expect("clap asks for two places at least");
    let into = side(volumes, target).look(target, true)?.is_some_and(|entry| entry.kind == Kind::Directory);
    if sources.len() > 1 && !into {
        return Err(Failure::usage(format!("cp: {target}: several sources need an existing directory")));
    }
    for source in sources {
        let target = match source.file_name() {
            Some(name) if into => target.join(&name),
            _ => target.clone(),
        };
        let copy = Copy { arguments, from: side(volumes, source), to: side(volumes, &target) };
        copy.start(source, &target)?;
    }
    Ok(())
}

fn side<'a>(volumes: &'a Volumes, place: &Place) -> &'a dyn Side {
    match volumes.of(place) {
        Some(volume) => volume,
        None => &Host,
    }
}

struct Copy<'a> {
    arguments: &'a Cp,
    from: &'a dyn Side,
    to: &'a dyn Side,
}

impl Copy<'_> {
    fn start(&self, source: &Place, target: &Place) -> Result<(), Failure> {
        let entry = self.from.look(source, !self.arguments.recursive)?;
        let entry = entry.ok_or_else(|| Failure::host(source, rustix::io::Errno::NOENT))?;
        self.any(source, target, &entry, None, 0)
    }

    /// Copies one name. `made` is the first directory made by this copy, which is not copied into
    /// itself.
    fn any(
        &self,
        source: &Place,
        target: &Place,
        entry: &Entry,
        made: Option<(u64, u64)>,
        depth: usize,
    ) -> Result<(), Failure> {
        if self.arguments.verbose {
            // Nobody listening is no reason to stop copying.
            let _ = writeln!(std::io::stdout(), "{source} -> {target}");
        }
        match entry.kind {
            Kind::File => self.file(source, target, entry)?,
            Kind::Symlink => self.to.make_link(target, &self.from.target(source)?)?,
            Kind::Directory if self.arguments.recursive => {
                self.directory(source, target, entry, made, depth)?;
            }
            Kind::Directory => {
                return Err(Failure::usage(format!("cp: {source}: is a directory; add -r")));
            }
            Kind::Other => {
                return Err(Failure::usage(format!(
                    "cp: {source}: neither file, directory nor symbolic link"
                )));
            }
        }
        if self.arguments.preserve { self.to.keep(target, entry) } else { Ok(()) }
    }

    fn directory(
        &self,
        source: &Place,
        target: &Place,
        entry: &Entry,
        made: Option<(u64, u64)>,
        depth: usize,
    ) -> Result<(), Failure> {
        if depth > DEPTH_MAX {
            return Err(Failure::usage(format!("cp: {source}: more than {DEPTH_MAX} directories deep")));
        }
        let names = self.from.names(source)?;
        if self.to.look(target, true)?.is_none_or(|there| there.kind != Kind::Directory) {
            // Its own files must be writable while it is filled; `keep` gives the final mode.
            self.to.make_directory(target, entry.mode | 0o700)?;
        }
        let made = match made {
            Some(made) => Some(made),
            None => self.to.look(target, true)?.map(|there| there.identity),
        };
        for name in names {
            let source = source.join(&name);
            // A name that went away while we copied is nothing to copy.
            let Some(entry) = self.from.look(&source, false)? else { continue };
            if Some(entry.identity) == made {
                continue;
            }
            self.any(&source, &target.join(&name), &entry, made, depth + 1)?;
        }
        Ok(())
    }

    fn file(&self, source: &Place, target: &Place, entry: &Entry) -> Result<(), Failure> {
        if self.to.look(target, true)?.is_some_and(|there| there.identity == entry.identity) {
            return Err(Failure::usage(format!("cp: {source} and {target} are the same file")));
        }
        let mut from = self.from.open(source)?;
        let mut to = self.to.create(target, entry.mode)?;
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
}
