//! The names of a trace as they are while its calls are read: what was there before, what a call has made, and where
//! symbolic links lead.
//!
//! Renaming a directory is one step, whatever lies below it. What a call succeeds on and no call has made was there
//! before.

use nvmed_trace::LinkTarget;
use std::collections::HashMap;

/// Symbolic links that are followed in one path (Linux).
const LINKS_MAX: usize = 40;
/// Bytes of a path: the kernel's `PATH_MAX`.
const PATH_BYTES_MAX: usize = 4096;

/// Where a file or directory is in the tree's list.
pub(super) type Place = usize;

/// The directory that was recorded.
pub(super) const ROOT: Place = 0;

/// What something is, as far as the trace has shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Unknown,
    File,
    Directory,
    Link,
}

/// Since when something is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Since {
    /// A call has made it.
    Made,
    /// A call has opened it that makes what is not there.
    Perhaps,
    /// It was there.
    Before,
}

/// A file, directory or symbolic link.
#[derive(Debug)]
pub(super) struct Node {
    pub kind: Kind,
    pub since: Since,
    /// Its size now, as far as is known.
    pub size: u64,
    /// What it was before, if it was there: as large as it is read.
    pub before_bytes: u64,
    /// Its size was set, so that what it was before no longer shows.
    pub is_cut: bool,
    /// The name that it had before the recording, from the root on.
    origin: Option<Vec<u8>>,
    parent: Place,
    name: Vec<u8>,
    /// What lies in a directory; none for a name that is known not to be there.
    children: HashMap<Vec<u8>, Option<Place>>,
    target: Option<LinkTarget>,
}

/// Where a path leads.
#[derive(Clone, Debug)]
pub(super) struct Found {
    pub parent: Place,
    /// The last name; empty for the root itself.
    pub name: Vec<u8>,
    /// What is there, if the trace has shown it.
    pub place: Option<Place>,
}

/// All names.
#[derive(Debug)]
pub(super) struct Tree {
    nodes: Vec<Node>,
}

impl Default for Tree {
    fn default() -> Self {
        let mut tree = Self { nodes: Vec::new() };
        tree.add(ROOT, Vec::new(), Kind::Directory, Since::Before);
        tree.nodes[ROOT].origin = Some(Vec::new());
        tree
    }
}

fn joined(directory: &[u8], name: &[u8]) -> Vec<u8> {
    if directory.is_empty() { name.to_vec() } else { [directory, name].join(&b'/') }
}

impl Tree {
    pub(super) fn node(&mut self, place: Place) -> &mut Node {
        &mut self.nodes[place]
    }

    fn add(&mut self, parent: Place, name: Vec<u8>, kind: Kind, since: Since) -> Place {
        let origin = match since {
            Since::Made => None,
            // What was there before lies where its directory was.
            Since::Perhaps | Since::Before => self
                .nodes
                .get(parent)
                .and_then(|parent| parent.origin.as_ref())
                .map(|origin| joined(origin, &name)),
        };
        self.nodes.push(Node {
            kind,
            since,
            size: 0,
            before_bytes: 0,
            is_cut: false,
            origin,
            parent,
            name,
            children: HashMap::new(),
            target: None,
        });
        self.nodes.len() - 1
    }

    /// Follows a path whose directories are there: those that no call has made were there before. None where it leads
    /// out, or through too many links.
    pub(super) fn find(&mut self, from: Place, names: &[u8], follows: bool) -> Option<Found> {
        let mut rest: Vec<Vec<u8>> = names.rsplit(|&byte| byte == b'/').map(<[u8]>::to_vec).collect();
        let mut at = Found { parent: from, name: Vec::new(), place: Some(from) };
        let mut links = 0;
        while let Some(name) = rest.pop() {
            if name.is_empty() || name == b"." {
                continue;
            }
            // What lies on the way is a directory, and was there.
            let here = self.there(&at, Kind::Directory);
            if name == b".." {
                if here == ROOT {
                    return None;
                }
                let parent = self.nodes[here].parent;
                at = Found { parent, name: Vec::new(), place: Some(parent) };
                continue;
            }
            let place = self.nodes[here].children.get(&name).copied().flatten();
            at = Found { parent: here, name, place };
            let target = place.and_then(|place| self.nodes[place].target.clone());
            let Some(target) = target.filter(|_| follows || rest.iter().any(|name| !name.is_empty())) else {
                continue;
            };
            links += 1;
            if links > LINKS_MAX {
                return None;
            }
            let (start, names) = match target {
                LinkTarget::Relative(names) => (here, names),
                LinkTarget::Inside(_, names) => (ROOT, names),
                LinkTarget::Outside(_) => return None,
            };
            rest.extend(names.rsplit(|&byte| byte == b'/').map(<[u8]>::to_vec));
            if rest.len() > PATH_BYTES_MAX {
                return None;
            }
            at = Found { parent: start, name: Vec::new(), place: Some(start) };
        }
        Some(at)
    }

    /// What a path has led to: if no call has made it, it was there.
    pub(super) fn there(&mut self, found: &Found, kind: Kind) -> Place {
        let place = match found.place {
            Some(place) => place,
            None => {
                let since =
                    if self.nodes[found.parent].since == Since::Made { Since::Made } else { Since::Before };
                self.put(found, kind, since)
            }
        };
        let node = &mut self.nodes[place];
        if node.kind == Kind::Unknown {
            node.kind = kind;
        }
        if node.since == Since::Perhaps && kind == Kind::Directory {
            node.since = Since::Before;
        }
        place
    }

    /// Something new at the end of a path.
    pub(super) fn put(&mut self, found: &Found, kind: Kind, since: Since) -> Place {
        let place = self.add(found.parent, found.name.clone(), kind, since);
        self.enter(found, place);
        place
    }

    /// A symbolic link at the end of a path.
    pub(super) fn put_link(&mut self, found: &Found, target: LinkTarget) {
        let place = self.put(found, Kind::Link, Since::Made);
        self.nodes[place].target = Some(target);
    }

    /// Something without a name.
    pub(super) fn nameless(&mut self) -> Place {
        self.add(ROOT, Vec::new(), Kind::File, Since::Made)
    }

    /// Gives what is at `place` the name at the end of a path.
    pub(super) fn enter(&mut self, found: &Found, place: Place) {
        // The root has no other name.
        if place == ROOT || found.name.is_empty() || self.lies_below(found.parent, place) {
            return;
        }
        self.nodes[found.parent].children.insert(found.name.clone(), Some(place));
        (self.nodes[place].parent, self.nodes[place].name) = (found.parent, found.name.clone());
    }

    /// Gives what is at `place` one more name. The first one stays the one by which it is found.
    pub(super) fn link(&mut self, found: &Found, place: Place) {
        if !found.name.is_empty() {
            self.nodes[found.parent].children.insert(found.name.clone(), Some(place));
        }
    }

    /// Since when something is there that a call has opened, and would have made.
    pub(super) fn since_open(&self, found: &Found) -> Since {
        let parent = &self.nodes[found.parent];
        let was_removed = parent.children.get(&found.name).is_some_and(Option::is_none);
        if was_removed || parent.since == Since::Made { Since::Made } else { Since::Perhaps }
    }

    /// The name is no longer there.
    pub(super) fn remove(&mut self, found: &Found) {
        if !found.name.is_empty() {
            self.nodes[found.parent].children.insert(found.name.clone(), None);
        }
    }

    fn lies_below(&self, mut place: Place, above: Place) -> bool {
        for _ in 0..PATH_BYTES_MAX {
            if place == above {
                return true;
            }
            if place == ROOT {
                return false;
            }
            place = self.nodes[place].parent;
        }
        true
    }

    /// The path of the end of a path, from the root on; none if it is too long.
    pub(super) fn path(&self, found: &Found) -> Option<Vec<u8>> {
        let mut names: Vec<&[u8]> = Vec::new();
        if !found.name.is_empty() {
            names.push(&found.name);
        }
        let (mut place, mut bytes) = (found.parent, found.name.len());
        while place != ROOT {
            let node = &self.nodes[place];
            bytes += node.name.len() + 1;
            if bytes > PATH_BYTES_MAX {
                return None;
            }
            names.push(&node.name);
            place = node.parent;
        }
        names.reverse();
        Some(names.join(&b'/'))
    }

    /// The path of something that has a name.
    pub(super) fn path_of(&self, place: Place) -> Option<Vec<u8>> {
        if place == ROOT {
            return Some(Vec::new());
        }
        let Node { parent, name, .. } = &self.nodes[place];
        self.path(&Found { parent: *parent, name: name.clone(), place: Some(place) })
    }

    /// A path as far as its directories are known, and the rest as it is: for what a call has not found.
    pub(super) fn sought(&self, from: Place, names: &[u8]) -> Option<Vec<u8>> {
        let rest: Vec<&[u8]> = names.split(|&byte| byte == b'/').filter(|name| !name.is_empty()).collect();
        if rest.contains(&&b".."[..]) {
            return None;
        }
        let path = joined(&self.path_of(from)?, &rest.join(&b'/'));
        (path.len() <= PATH_BYTES_MAX).then_some(path)
    }

    /// `end` is a byte that a file has had: if no call has written it, it was there before.
    pub(super) fn had(&mut self, place: Place, end: u64) {
        let node = &mut self.nodes[place];
        if end > node.size && !node.is_cut && node.since != Since::Made {
            node.since = Since::Before;
            node.before_bytes = node.before_bytes.max(end);
        }
        node.size = node.size.max(end);
    }

    /// What was there before: the path, and for a file how large it is.
    pub(super) fn before(&self) -> impl Iterator<Item = (&[u8], Option<u64>)> {
        let there = self.nodes.iter().filter(|node| node.since == Since::Before);
        there.filter_map(|node| {
            let size = (node.kind != Kind::Directory).then_some(node.before_bytes);
            node.origin.as_deref().map(|origin| (origin, size))
        })
    }
}
