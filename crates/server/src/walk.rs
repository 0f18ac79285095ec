//! How the processes of a class go through directories, as far as their calls tell (docs/spec/shelf.md, "What
//! follows").

use nvmed_fs::versions::Version;
use std::collections::VecDeque;

/// Directories of which it is known where a call was last: more than there are threads that walk at a time.
const PLACES_MAX: usize = 8;
/// Steps after which a walk goes on in a directory where it has not been yet.
const STEPS_MIN: u32 = 2;

/// The last directories in which calls have asked for names.
#[derive(Default)]
pub(crate) struct Walk {
    /// Of each its version, and the last name that was asked for, or that the last call brought. The latest first.
    places: VecDeque<(Version, Box<[u8]>)>,
    /// Names in a row each of which came soon after the one before it in its directory.
    steps: u32,
}

/// Where a call is that asks for a name.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    /// Behind this name, in a directory where a call was lately.
    Behind(Box<[u8]>),
    /// In a directory where none was, or where a name has changed since.
    Elsewhere,
}

impl Walk {
    /// A call asks for a name in the directory that has this version.
    pub(crate) fn asks(&self, directory: Version) -> Asked {
        let place = self.places.iter().find(|(version, _)| *version == directory);
        place.map_or(Asked::Elsewhere, |(_, last)| Asked::Behind(last.clone()))
    }

    /// Whether a walk that comes to another directory is likely to go through that one as well.
    pub(crate) fn goes_on(&self) -> bool {
        self.steps >= STEPS_MIN
    }

    /// What was asked for was the next name behind the last one, or was not.
    pub(crate) fn was_step(&mut self, is_step: bool) {
        self.steps = if is_step { self.steps.saturating_add(1) } else { 0 };
    }

    /// The last name in this directory that was asked for, or brought.
    pub(crate) fn is_at(&mut self, directory: Version, name: &[u8]) {
        self.places.retain(|(version, _)| *version != directory);
        self.places.truncate(PLACES_MAX - 1);
        self.places.push_front((directory, name.into()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_walk_goes_on_in_other_directories_until_it_jumps() {
        let mut walk = Walk::default();
        let [one, other] = [1, 2].map(|number| Version::new(number).expect("not 0"));
        assert_eq!(walk.asks(one), Asked::Elsewhere);
        walk.is_at(one, b"a");
        assert_eq!((walk.asks(one), walk.goes_on()), (Asked::Behind(b"a".as_slice().into()), false));
        walk.was_step(true);
        walk.is_at(one, b"b");
        walk.was_step(true);
        assert_eq!((walk.asks(other), walk.goes_on()), (Asked::Elsewhere, true));
        walk.was_step(false);
        assert!(!walk.goes_on());
        for directory in 2..2 + PLACES_MAX as u64 {
            walk.is_at(Version::new(directory).expect("not 0"), b"x");
        }
        assert_eq!(walk.asks(one), Asked::Elsewhere, "it was too long ago");
    }
}
