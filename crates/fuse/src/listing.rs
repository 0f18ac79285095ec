//! Directories, in portions that fit a request.

use crate::attribute::{BELIEF, attribute, kind};
use crate::error::Refusal;
use crate::server::Server;
use fuser::{Generation, INodeNo, ReplyDirectory, ReplyDirectoryPlus};
use nvmed_fs::{Credentials, File, Follow, FsError, Node, Whence};
use std::ffi::OsStr;
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;

/// Entries taken from a directory before they are looked up: a request's page holds about 25.
const PORTION: usize = 32;

/// An entry, kept while it is looked up.
struct Entry {
    ino: u64,
    cookie: u64,
    name: Vec<u8>,
}

/// Goes to where the kernel wants to read on.
fn go_to(directory: &File, cookie: u64) -> Result<(), FsError> {
    if directory.position() != cookie {
        // A cookie is no offset, and fits: we gave it.
        directory.seek(i64::try_from(cookie).map_err(|_| FsError::Invalid)?, Whence::Set)?;
    }
    Ok(())
}

/// A removed directory has no entries; to the kernel that is no error.
fn or_removed(told: Result<(), FsError>) -> Result<(), FsError> {
    match told {
        Err(FsError::NotFound) => Ok(()),
        told => told,
    }
}

/// Names and inode numbers from `cookie` on, as many as fit.
pub(crate) fn names(directory: &File, cookie: u64, reply: &mut ReplyDirectory) -> Result<(), Refusal> {
    go_to(directory, cookie)?;
    let told = directory.read_dir(&mut |entry| {
        let kind = kind(u32::from(entry.kind.d_type()));
        if reply.add(INodeNo(entry.ino), entry.cookie, kind, OsStr::from_bytes(entry.name)) {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    });
    Ok(or_removed(told)?)
}

/// Names with what a lookup of each would answer.
pub(crate) fn names_and_nodes(
    server: &Server,
    parent: &Node,
    directory: &File,
    cookie: u64,
    reply: &mut ReplyDirectoryPlus,
) -> Result<(), Refusal> {
    go_to(directory, cookie)?;
    let mut portion: Vec<Entry> = Vec::with_capacity(PORTION);
    let mut told_some = false;
    loop {
        portion.clear();
        let told = directory.read_dir(&mut |entry| {
            if portion.len() == PORTION {
                return ControlFlow::Break(());
            }
            portion.push(Entry { ino: entry.ino, cookie: entry.cookie, name: entry.name.to_vec() });
            ControlFlow::Continue(())
        });
        or_removed(told)?;
        for entry in &portion {
            match add(server, parent, directory, entry, reply) {
                Ok(false) => told_some = true,
                Ok(true) => return Ok(()),
                // What was counted must be told; the next portion begins with the error.
                Err(_) if told_some => return Ok(()),
                Err(refusal) => return Err(refusal),
            }
        }
        if portion.len() < PORTION {
            return Ok(());
        }
    }
}

/// Adds an entry; true when there is no room for it.
fn add(
    server: &Server,
    parent: &Node,
    directory: &File,
    entry: &Entry,
    reply: &mut ReplyDirectoryPlus,
) -> Result<bool, Refusal> {
    let name = OsStr::from_bytes(&entry.name);
    if matches!(&entry.name[..], b"." | b"..") {
        // The kernel takes number and kind of these two, and counts no lookup.
        let mut attributes = attribute(&directory.stat());
        attributes.ino = INodeNo(entry.ino);
        return Ok(reply.add(attributes.ino, entry.cookie, name, &BELIEF, &attributes, Generation(0)));
    }
    let node = match server.files.lookup(parent, &entry.name, Follow::No, &Credentials::permitted(0, 0)) {
        Ok(node) => node,
        // Removed since: it is not there any more.
        Err(FsError::NotFound) => return Ok(false),
        Err(error) => return Err(error.into()),
    };
    let ino = INodeNo(node.ino());
    let full = reply.add(ino, entry.cookie, name, &BELIEF, &attribute(&node.stat()), Generation(0));
    if !full {
        server.nodes.enter(&node);
    }
    Ok(full)
}
