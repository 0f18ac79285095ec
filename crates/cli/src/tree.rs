//! `nvmed cat`, `mkdir`, `rm` and `mv`: one call of the file system each, or a walk of them.

use crate::arguments::{Files, Mkdir, Mv, Rm};
use crate::failure::Failure;
use crate::location::Location;
use crate::output::Output;
use crate::volume::{Use, Volume, Volumes, within};
use nvmed_fs::{FileType, Follow, FsError, Node, OpenFlags, RenameFlags};
use std::ffi::OsString;

/// Bytes read at a time.
const CHUNK_BYTES: usize = 128 << 10;

/// Does `each` to every location, then writes back what was done, all of it or up to the failure.
fn for_each(
    arguments: &[OsString],
    how: Use,
    mut each: impl FnMut(&Volume, &Location) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut volumes = Volumes::default();
    let mut done = Ok(());
    for argument in arguments {
        done = Location::parse_device(argument)
            .and_then(|location| each(volumes.at(&location, how)?, &location));
        if done.is_err() {
            break;
        }
    }
    done.and(volumes.unmount())
}

/// Writes files to standard output.
///
/// # Errors
/// A file cannot be read, or the output not written.
pub fn cat(arguments: &Files) -> Result<(), Failure> {
    let mut out = Output::new();
    let mut chunk = vec![0; CHUNK_BYTES];
    for_each(&arguments.places, Use::Read, |volume, location| {
        let file = volume.open_file(location, OpenFlags::READ, 0)?;
        loop {
            match file.read(&mut chunk).map_err(|error| Failure::device(location, &error))? {
                0 => return Ok(()),
                len => out.bytes(&chunk[..len])?,
            }
        }
    })?;
    out.finish()
}

/// Makes directories.
///
/// # Errors
/// One cannot be made.
pub fn mkdir(arguments: &Mkdir) -> Result<(), Failure> {
    for_each(&arguments.places, Use::Write, |volume, location| {
        if !arguments.parents {
            return make(volume, location, within(location), arguments.mode);
        }
        let path = within(location);
        let ends = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(end, _)| end);
        for end in ends {
            // A parent must let its owner fill it, whatever the mode of the last directory.
            make_missing(volume, location, &path[..end], 0o777)?;
        }
        make_missing(volume, location, path, arguments.mode)
    })
}

fn make(volume: &Volume, location: &Location, path: &[u8], mode: u32) -> Result<(), Failure> {
    let made = volume.files().mkdir(&volume.root(), path, volume.masked(mode), &volume.who());
    made.map_err(|error| Failure::device(location, &error))
}

fn make_missing(volume: &Volume, location: &Location, path: &[u8], mode: u32) -> Result<(), Failure> {
    let there = volume.files().stat(&volume.root(), path, Follow::Yes, &volume.who());
    match there {
        Ok(stat) if stat.kind() == FileType::Directory => Ok(()),
        Ok(_) => Err(Failure::device(location, &FsError::NotDirectory)),
        Err(FsError::NotFound) => make(volume, location, path, mode),
        Err(error) => Err(Failure::device(location, &error)),
    }
}

/// Removes files, and with `-r` directories.
///
/// # Errors
/// One cannot be removed; what was removed before it stays removed.
pub fn rm(arguments: &Rm) -> Result<(), Failure> {
    for_each(&arguments.places, Use::Write, |volume, location| {
        let stat = volume.files().stat(&volume.root(), within(location), Follow::No, &volume.who());
        match stat {
            Err(FsError::NotFound) if arguments.force => Ok(()),
            Err(error) => Err(Failure::device(location, &error)),
            Ok(stat) if stat.kind() != FileType::Directory => unlink(volume, location),
            Ok(_) if within(location) == b"." => Err(Failure::usage(format!(
                "rm: {location}: the root stays; `nvmed format --force` empties a device"
            ))),
            Ok(_) if arguments.recursive => remove_tree(volume, location),
            Ok(_) => Err(Failure::usage(format!("rm: {location}: is a directory; add -r"))),
        }
    })
}

fn unlink(volume: &Volume, location: &Location) -> Result<(), Failure> {
    let removed = volume.files().unlink(&volume.root(), within(location), &volume.who());
    removed.map_err(|error| Failure::device(location, &error))
}

/// A directory that is being emptied.
struct Emptied {
    node: Node,
    name: Vec<u8>,
    entries: std::vec::IntoIter<(Vec<u8>, FileType)>,
}

impl Emptied {
    fn begin(volume: &Volume, at: &Node, name: &[u8], location: &Location) -> Result<Self, Failure> {
        let fail = |error| Failure::device(location, &error);
        let node = volume.files().lookup(at, name, Follow::No, &volume.who()).map_err(fail)?;
        let entries = volume.entries_of(&node, b".", location)?.into_iter();
        Ok(Self { node, name: name.to_vec(), entries })
    }
}

/// Removes a directory and what is in it, without recursion and by names in held directories: depth is the user's, the
/// stack and the length of paths are ours.
fn remove_tree(volume: &Volume, top: &Location) -> Result<(), Failure> {
    let (files, root, mut location) = (volume.files(), volume.root(), top.clone());
    let mut open = vec![Emptied::begin(volume, &root, within(top), top)?];
    while let Some(last) = open.last_mut() {
        if let Some((name, kind)) = last.entries.next() {
            location = location.join(&name);
            if kind == FileType::Directory {
                let below = Emptied::begin(volume, &last.node, &name, &location)?;
                open.push(below);
                continue;
            }
            let removed = files.unlink(&last.node, &name, &volume.who());
            removed.map_err(|error| Failure::device(&location, &error))?;
        } else if let Some(done) = open.pop() {
            let above = open.last().map_or(&root, |above| &above.node);
            let removed = files.rmdir(above, &done.name, &volume.who());
            removed.map_err(|error| Failure::device(&location, &error))?;
        }
        location.leave();
    }
    Ok(())
}

/// Renames files, or moves them to a directory.
///
/// # Errors
/// One cannot be renamed, or lies on another device.
pub fn mv(arguments: &Mv) -> Result<(), Failure> {
    let (target, sources) = arguments.places.split_last().expect("clap asks for two locations at least");
    let target = Location::parse_device(target)?;
    let mut volumes = Volumes::default();
    let volume = volumes.at(&target, Use::Write)?;
    let mut done = Ok(());
    for source in sources {
        done = Location::parse_device(source)
            .and_then(|source| move_one(volume, &source, &target, arguments, sources.len() > 1));
        if done.is_err() {
            break;
        }
    }
    done.and(volumes.unmount())
}

fn move_one(
    volume: &Volume,
    source: &Location,
    target: &Location,
    arguments: &Mv,
    many: bool,
) -> Result<(), Failure> {
    if !volume.is_at(source) {
        return Err(Failure::usage(format!("mv: {source} and {target} are on two devices; use cp, then rm")));
    }
    let (files, root, who) = (volume.files(), volume.root(), volume.who());
    let into = files
        .stat(&root, within(target), Follow::Yes, &who)
        .is_ok_and(|stat| stat.kind() == FileType::Directory);
    if many && !into {
        return Err(Failure::usage(format!("mv: {target}: several sources need an existing directory")));
    }
    let target = match source.file_name() {
        Some(name) if into => target.join(&name),
        _ => target.clone(),
    };
    let flags = if arguments.no_replace { RenameFlags::NoReplace } else { RenameFlags::Replace };
    files
        .rename(&root, within(source), &root, within(&target), flags, &who)
        .map_err(|error| Failure::device(format!("{source} -> {target}"), &error))
}
