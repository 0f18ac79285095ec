//! From a path to inodes (POSIX.1-2017, 4.13 "Pathname Resolution"; Linux path_resolution(7)).

use crate::core::Core;
use crate::directory::Found;
use crate::error::FsError;
use crate::inode::{Dentry, Home, Inode};
use crate::permission::{self, EXECUTE};
use crate::status::{Credentials, Follow};
use crate::versions::Walked;
use crate::view::{Start, View};
use crate::{NAME_BYTES_MAX, PATH_BYTES_MAX, SYMLINKS_MAX};
use core::ops::Range;
use nvmed_layout::keys::{self, TARGET_PART_BYTES};
use nvmed_layout::record::{Entry, RECORD_BYTES_USUAL, Record, Tail};
use nvmed_layout::{Damage, FileType};
use std::borrow::Cow;
use std::sync::Arc;

/// What to do at the last component.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Last {
    /// A symbolic link is followed.
    Follow,
    /// It is not, unless a slash follows it.
    Stay,
    /// The name itself is meant: it is never followed, and a slash after it is the caller's business.
    Name,
    /// The same; that a directory can hold such a name is the caller's business too ([`Resolved::check_name`]).
    AnyName,
    /// A file may be made there: no slash may follow. A symbolic link is followed, or is not.
    Create {
        /// Whether it is.
        follow: bool,
    },
}

impl Last {
    /// Whether a symbolic link is followed at the last component.
    fn follows(self, slash: bool) -> bool {
        match self {
            Self::Follow | Self::Create { follow: true } => true,
            Self::Stay => slash,
            Self::Name | Self::AnyName | Self::Create { follow: false } => false,
        }
    }
}

impl From<Follow> for Last {
    fn from(follow: Follow) -> Self {
        match follow {
            Follow::Yes => Self::Follow,
            Follow::No => Self::Stay,
        }
    }
}

/// What the last component is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Component {
    /// A name.
    Name,
    /// `.`, or nothing after the slashes of the root.
    Dot,
    /// `..`.
    DotDot,
}

/// Where a path leads.
pub(crate) struct Resolved<'p> {
    /// The directory of the last component; for `.` and `..`, of no meaning.
    pub(crate) directory: Arc<Inode>,
    /// What the last component is.
    pub(crate) component: Component,
    /// The inode there, if there is one.
    pub(crate) inode: Option<Arc<Inode>>,
    /// Whether a slash followed.
    pub(crate) slash: bool,
    text: Cow<'p, [u8]>,
    name: Range<usize>,
}

impl Resolved<'_> {
    /// The last component.
    pub(crate) fn name(&self) -> &[u8] {
        &self.text[self.name.clone()]
    }

    /// Whether the directory can hold the last component.
    ///
    /// # Errors
    /// [`FsError::NotFound`] for a removed directory, [`FsError::NameTooLong`], [`FsError::Invalid`].
    pub(crate) fn check_name(&self) -> Result<(), FsError> {
        if self.directory.nlink() == 0 { Err(FsError::NotFound) } else { check_name(self.name()) }
    }

    /// The inode.
    ///
    /// # Errors
    /// [`FsError::NotFound`].
    pub(crate) fn found(self) -> Result<Arc<Inode>, FsError> {
        self.inode.ok_or(FsError::NotFound)
    }
}

/// The text still to be walked.
struct Walk<'p> {
    text: Cow<'p, [u8]>,
    at: usize,
    links: u32,
}

/// A component of the text: where it is, where the next one begins, whether it is the last.
struct Step {
    name: Range<usize>,
    after: usize,
    ended: bool,
    slash: bool,
}

/// What a component led to.
enum Stepped {
    Into(Arc<Inode>),
    Again,
    At(Option<Arc<Inode>>),
}

impl Walk<'_> {
    /// The next component, and where the one after it begins; slashes are skipped.
    fn next(&mut self) -> Option<(Range<usize>, usize)> {
        let text = &self.text;
        let start = self.at + text[self.at..].iter().take_while(|&&byte| byte == b'/').count();
        if start == text.len() {
            return None;
        }
        let end = start + text[start..].iter().take_while(|&&byte| byte != b'/').count();
        let after = end + text[end..].iter().take_while(|&&byte| byte == b'/').count();
        Some((start..end, after))
    }

    /// Puts a link's target in the place of everything up to `end`.
    fn follow(&mut self, target: &[u8], end: usize) -> Result<(), FsError> {
        self.links += 1;
        if self.links > SYMLINKS_MAX {
            return Err(FsError::Loop);
        }
        let text = [target, &self.text[end..]].concat();
        if text.first() == Some(&b'/') {
            return Err(FsError::Away(text.into_boxed_slice()));
        }
        check_path(&text)?;
        self.text = Cow::Owned(text);
        self.at = 0;
        Ok(())
    }
}

fn check_path(path: &[u8]) -> Result<(), FsError> {
    match path.len() {
        0 => Err(FsError::NotFound),
        PATH_BYTES_MAX.. => Err(FsError::NameTooLong),
        _ => Ok(()),
    }
}

fn check_name(name: &[u8]) -> Result<(), FsError> {
    if name.len() > NAME_BYTES_MAX {
        return Err(FsError::NameTooLong);
    }
    if name.contains(&0) { Err(FsError::Invalid) } else { Ok(()) }
}

impl Core {
    /// Walks `path` from `at`, or from the view's root if it begins with a slash. The caller holds the namespace.
    ///
    /// # Errors
    /// [`FsError::Away`], [`FsError::NotFound`], [`FsError::NotDirectory`], [`FsError::Access`],
    /// [`FsError::Loop`], [`FsError::NameTooLong`]; the store's.
    pub(crate) fn resolve<'p>(
        &self,
        at: Start<'_>,
        path: &'p [u8],
        last: Last,
        who: &Credentials<'_>,
    ) -> Result<Resolved<'p>, FsError> {
        self.resolve_along(at, path, last, who, &mut ())
    }

    /// As [`Core::resolve`]; `walked` hears of each directory before it is looked into, and of each name
    /// that leads to no directory on the way.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn resolve_along<'p>(
        &self,
        at: Start<'_>,
        path: &'p [u8],
        last: Last,
        who: &Credentials<'_>,
        walked: &mut impl Walked,
    ) -> Result<Resolved<'p>, FsError> {
        check_path(path)?;
        let mut directory = if path[0] == b'/' {
            self.root_of(at.view)
        } else {
            self.within(at.view, at.at)?;
            Arc::clone(at.at)
        };
        let mut walk = Walk { text: Cow::Borrowed(path), at: 0, links: 0 };
        while let Some((name, after)) = walk.next() {
            directory.directory()?;
            walked.enters(&directory);
            permission::may(&directory, EXECUTE, who)?;
            let step = Step { ended: after == walk.text.len(), slash: after > name.end, name, after };
            let component = match &walk.text[step.name.clone()] {
                b"." => Component::Dot,
                b".." => {
                    directory = self.above(&directory, at.view, &walk.text[step.name.start..])?;
                    Component::DotDot
                }
                _ => match self.step(&directory, &mut walk, &step, last, walked)? {
                    Stepped::Into(next) => {
                        directory = next;
                        continue;
                    }
                    Stepped::Again => continue,
                    Stepped::At(inode) => {
                        let (text, slash, name) = (walk.text, step.slash, step.name);
                        return Ok(Resolved {
                            directory,
                            component: Component::Name,
                            inode,
                            slash,
                            text,
                            name,
                        });
                    }
                },
            };
            if step.ended {
                // Above a directory there is nothing once the one above was removed.
                walked.enters(&directory);
                return Ok(arrived(directory, component, walk, step.slash));
            }
            walk.at = step.after;
        }
        Ok(arrived(directory, Component::Dot, walk, true))
    }

    /// One name: into a directory, through a symbolic link, or at the end.
    #[inline]
    fn step(
        &self,
        directory: &Arc<Inode>,
        walk: &mut Walk<'_>,
        step: &Step,
        last: Last,
        walked: &mut impl Walked,
    ) -> Result<Stepped, FsError> {
        let name = &walk.text[step.name.clone()];
        match check_name(name) {
            Ok(()) => {}
            Err(_) if step.ended && last == Last::AnyName => return Ok(Stepped::At(None)),
            // In a removed directory there is nothing, whatever its name would be.
            Err(_) if directory.nlink() == 0 => return Err(FsError::NotFound),
            Err(error) => return Err(error),
        }
        if step.ended && step.slash && matches!(last, Last::Create { .. }) {
            return Err(FsError::IsDirectory);
        }
        let child = self.child(directory, name)?;
        if step.ended || child.as_ref().is_none_or(|child| child.kind != FileType::Directory) {
            walked.asks_for(directory, name);
        }
        let inode = match child {
            Some(inode) => inode,
            None if step.ended => return Ok(Stepped::At(None)),
            None => return Err(FsError::NotFound),
        };
        if inode.kind == FileType::Symlink && (!step.ended || last.follows(step.slash)) {
            let target = self.link_target(&inode)?;
            walk.follow(&target, step.name.end)?;
            return Ok(Stepped::Again);
        }
        if !step.ended {
            walk.at = step.after;
            return Ok(Stepped::Into(inode));
        }
        if step.slash && !matches!(last, Last::Name | Last::AnyName) && inode.kind != FileType::Directory {
            return Err(FsError::NotDirectory);
        }
        Ok(Stepped::At(Some(inode)))
    }

    /// The directory above one.
    ///
    /// # Errors
    /// [`FsError::Away`] with `rest` above the root; the store's.
    fn above(&self, directory: &Arc<Inode>, view: &View, rest: &[u8]) -> Result<Arc<Inode>, FsError> {
        if directory.ino == view.root_ino() {
            return Err(FsError::Away(rest.into()));
        }
        // A removed directory may outlive the one above it.
        directory.parent().filter(|above| above.nlink() > 0).ok_or(FsError::NotFound)
    }

    /// The inode that a name of a directory stands for. The caller holds the namespace.
    ///
    /// # Errors
    /// [`FsError::NotDirectory`]; the store's.
    #[inline]
    pub(crate) fn child(&self, directory: &Arc<Inode>, name: &[u8]) -> Result<Option<Arc<Inode>>, FsError> {
        let found = directory.directory()?.names().find(name);
        match found {
            Found::Inode(inode) => {
                inode.found();
                Ok(Some(inode))
            }
            Found::Absent => Ok(None),
            Found::Unknown => self.ask_store(directory, name),
        }
    }

    #[cold]
    fn ask_store(&self, directory: &Arc<Inode>, name: &[u8]) -> Result<Option<Arc<Inode>>, FsError> {
        if directory.nlink() == 0 {
            return Ok(None);
        }
        let mut value = Vec::with_capacity(RECORD_BYTES_USUAL);
        let key = self.meta.with_prefix(directory, |prefix| keys::entry(prefix, name));
        if !self.meta.journal.store.get(&key, &mut value)? {
            let more = directory.directory()?.names_mut().set_absent(name);
            self.count_names(more);
            return Ok(None);
        }
        let entry = Entry::decode(&value);
        let entry = entry.ok_or(Damage::Entry(directory.ino))?;
        let name: Arc<[u8]> = name.into();
        let dentry = Dentry { parent: Arc::clone(directory), name: Arc::clone(&name) };
        let inode = self.load_entry(&entry, &dentry)?;
        // A directory has one name: a second would make a circle, or two ways to lock it.
        let second = inode.kind == FileType::Directory && !inode.is_at(directory, &name);
        if second || inode.kind != entry.kind {
            return Err(Damage::Name(inode.ino).into());
        }
        if inode.is_own() && inode.nlink() > 0 && inode.dentry().is_none() {
            inode.set_dentry(Some(dentry));
        }
        self.set_name(directory, name, &inode)?;
        Ok(Some(inode))
    }

    /// The inode of an entry, from memory, from the entry or from its own record.
    fn load_entry(&self, entry: &Entry<'_>, dentry: &Dentry) -> Result<Arc<Inode>, FsError> {
        let damaged = || FsError::from(Damage::Inode(entry.ino));
        self.meta.check_number(entry.ino)?;
        self.meta.inodes.get_or_load(entry.ino, || {
            let own = entry.record.is_none();
            let record = match entry.record {
                Some(bytes) => Record::decode(bytes).ok_or_else(damaged)?,
                None => self.meta.read_own(entry.ino)?,
            };
            if record.kind() != entry.kind {
                return Err(damaged());
            }
            Ok((record, Home { own, dentry: Some(dentry.clone()), zone: entry.zone }))
        })
    }

    /// A name of a directory stands for an inode from now on. The caller has begun [`Inode::name_changes`], unless
    /// it has asked the store what the name stands for.
    ///
    /// # Errors
    /// [`FsError::NotDirectory`].
    pub(crate) fn set_name(
        &self,
        directory: &Arc<Inode>,
        name: Arc<[u8]>,
        inode: &Arc<Inode>,
    ) -> Result<(), FsError> {
        let more = directory.directory()?.names_mut().set(name, inode);
        self.count_names(more);
        Ok(())
    }

    /// The target of a symbolic link.
    ///
    /// # Errors
    /// [`FsError::Layout`]; the store's.
    pub(crate) fn link_target(&self, link: &Inode) -> Result<Vec<u8>, FsError> {
        let (tail, size) = {
            let state = link.lock();
            (state.record().tail.clone(), state.record().size)
        };
        let bytes = size as usize;
        let damaged = FsError::from(Damage::Target(link.ino));
        match tail {
            Tail::Target(target) if target.len() == bytes => Ok(target.to_vec()),
            _ if bytes >= PATH_BYTES_MAX => Err(damaged),
            _ => {
                let (mut target, mut part) = (Vec::with_capacity(bytes), Vec::new());
                for number in 0..bytes.div_ceil(TARGET_PART_BYTES) {
                    self.meta.journal.store.get(&keys::target(link.ino, number as u64), &mut part)?;
                    target.append(&mut part);
                }
                if target.len() == bytes { Ok(target) } else { Err(damaged) }
            }
        }
    }
}

fn arrived(inode: Arc<Inode>, component: Component, walk: Walk<'_>, slash: bool) -> Resolved<'_> {
    let directory = Arc::clone(&inode);
    Resolved { directory, component, inode: Some(inode), slash, text: walk.text, name: 0..0 }
}
