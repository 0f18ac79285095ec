//! `nvmed ls` and `nvmed stat`.

use crate::arguments::{Ls, Stat as StatArguments};
use crate::clock;
use crate::failure::Failure;
use crate::location::Location;
use crate::output::Output;
use crate::volume::{Use, Volume, Volumes};
use nvmed_fs::{FileType, Follow, Stat};
use serde_json::json;

/// Lists directories, and files by their names.
///
/// # Errors
/// A location does not exist or cannot be read.
pub fn ls(arguments: &Ls) -> Result<(), Failure> {
    let mut volumes = Volumes::default();
    let mut out = Output::new();
    for (index, argument) in arguments.places.iter().enumerate() {
        let location = Location::parse_device(argument)?;
        let volume = volumes.at(&location, Use::Read)?;
        let stat = volume.stat(&location, if arguments.long { Follow::No } else { Follow::Yes })?;
        if stat.kind() != FileType::Directory || arguments.directory {
            let name = location.path().to_vec();
            line(&mut out, arguments, volume, &location, &name)?;
            continue;
        }
        if arguments.places.len() > 1 {
            let gap = if index == 0 { "" } else { "\n" };
            out.text(&format!("{gap}{location}:\n"))?;
        }
        for (name, _) in volume.entries(&location)? {
            if arguments.all || !name.starts_with(b".") {
                line(&mut out, arguments, volume, &location.join(&name), &name)?;
            }
        }
    }
    out.finish()?;
    volumes.unmount()
}

fn line(
    out: &mut Output,
    arguments: &Ls,
    volume: &Volume,
    location: &Location,
    name: &[u8],
) -> Result<(), Failure> {
    let mut target = Vec::new();
    if arguments.long {
        let stat = volume.stat(location, Follow::No)?;
        out.text(&format!(
            "{} {:>3} {:>6} {:>6} {:>12} {} ",
            mode_text(&stat),
            stat.nlink,
            stat.uid,
            stat.gid,
            stat.size,
            clock::date(stat.mtime_ns)
        ))?;
        if stat.kind() == FileType::Symlink {
            target = crate::side::Side::target(&crate::volume::Tree::new(volume), location)?;
        }
    }
    out.bytes(name)?;
    if !target.is_empty() {
        out.text(" -> ")?;
        out.bytes(&target)?;
    }
    out.text("\n")
}

/// Shows what is known of each file.
///
/// # Errors
/// A location does not exist.
pub fn stat(arguments: &StatArguments) -> Result<(), Failure> {
    let mut volumes = Volumes::default();
    let mut out = Output::new();
    for argument in &arguments.places {
        let location = Location::parse_device(argument)?;
        let stat = volumes.at(&location, Use::Read)?.stat(&location, Follow::No)?;
        let text = if arguments.json { facts(&location, &stat) } else { page(&location, &stat) };
        out.text(&text)?;
    }
    out.finish()?;
    volumes.unmount()
}

fn page(location: &Location, stat: &Stat) -> String {
    format!(
        "  File: {location}\n  Size: {:<12} Blocks: {:<8} {}\n Inode: {:<12} Links: {}\n  Mode: {:04o} ({})  \
         Uid: {}  Gid: {}\nAccess: {}\nModify: {}\nChange: {}\n Birth: {}\n",
        stat.size,
        stat.blocks_512,
        kind_name(stat.kind()),
        stat.ino,
        stat.nlink,
        stat.mode & 0o7777,
        mode_text(stat),
        stat.uid,
        stat.gid,
        clock::date(stat.atime_ns),
        clock::date(stat.mtime_ns),
        clock::date(stat.ctime_ns),
        clock::date(stat.btime_ns),
    )
}

fn facts(location: &Location, stat: &Stat) -> String {
    let facts = json!({
        "file": location.to_string(),
        "kind": kind_name(stat.kind()),
        "mode": format!("{:04o}", stat.mode & 0o7777),
        "inode": stat.ino,
        "links": stat.nlink,
        "uid": stat.uid,
        "gid": stat.gid,
        "size": stat.size,
        "blocks_512": stat.blocks_512,
        "atime_ns": stat.atime_ns,
        "mtime_ns": stat.mtime_ns,
        "ctime_ns": stat.ctime_ns,
    });
    format!("{facts}\n")
}

fn kind_name(kind: FileType) -> &'static str {
    match kind {
        FileType::File => "regular file",
        FileType::Directory => "directory",
        FileType::Symlink => "symbolic link",
        FileType::Fifo => "fifo",
        FileType::Socket => "socket",
        FileType::CharDevice => "character special file",
        FileType::BlockDevice => "block special file",
    }
}

/// `drwxr-xr-x`, with `s` and `t` where set-id and sticky bits change an `x`.
fn mode_text(stat: &Stat) -> String {
    let mut text = String::with_capacity(10);
    text.push(match stat.kind() {
        FileType::File => '-',
        FileType::Directory => 'd',
        FileType::Symlink => 'l',
        FileType::Fifo => 'p',
        FileType::Socket => 's',
        FileType::CharDevice => 'c',
        FileType::BlockDevice => 'b',
    });
    for (shift, special, mark) in [(6, 0o4000, 's'), (3, 0o2000, 's'), (0, 0o1000, 't')] {
        let bits = stat.mode >> shift;
        text.push(if bits & 4 != 0 { 'r' } else { '-' });
        text.push(if bits & 2 != 0 { 'w' } else { '-' });
        text.push(match (stat.mode & special != 0, bits & 1 != 0) {
            (true, true) => mark,
            (true, false) => mark.to_ascii_uppercase(),
            (false, true) => 'x',
            (false, false) => '-',
        });
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_read_as_in_ls() {
        let text = |mode| {
            mode_text(&Stat {
                mode,
                dev: 0,
                ino: 0,
                nlink: 0,
                uid: 0,
                gid: 0,
                rdev: 0,
                size: 0,
                blocks_512: 0,
                block_bytes: 4096,
                atime_ns: 0,
                mtime_ns: 0,
                ctime_ns: 0,
                btime_ns: 0,
            })
        };
        assert_eq!(text(0o100_644), "-rw-r--r--");
        assert_eq!(text(0o041_777), "drwxrwxrwt");
        assert_eq!(text(0o104_655), "-rwSr-xr-x");
        assert_eq!(text(0o120_777), "lrwxrwxrwx");
    }
}
