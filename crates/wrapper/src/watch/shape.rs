//! The shape of each file call, as counting needs it: its kind, and which of its arguments is the descriptor, the path,
//! the offset and the size.

use nvmed_tally::CallKind;

/// Stands for an argument that a call does not have.
const NO: u8 = u8::MAX;

/// How a call says which file it is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum About {
    /// The argument of this number is a descriptor.
    Descriptor(u8),
    /// The arguments of these numbers are descriptors: one of them is enough.
    Descriptors(u8, u8),
    /// A directory stream.
    Directory(u8),
    /// A path, from the working directory.
    Path(u8),
    /// A path from a directory descriptor.
    At(u8, u8),
    /// Its arguments do not tell: the code that finds it out says so.
    Inside,
}

/// How a call says that it failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fails {
    /// By -1 and errno; `MAP_FAILED` too.
    Minus,
    /// By a null pointer and errno.
    Null,
    /// By the error itself.
    Error,
    /// Not at all.
    Never,
}

/// What a call opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Opens {
    Nothing,
    /// It answers a descriptor.
    Descriptor,
    /// It answers a stream of stdio.
    Stream,
    /// It answers a directory stream.
    Directory,
}

/// One file call.
#[derive(Debug)]
pub(crate) struct Shape {
    pub kind: CallKind,
    pub about: About,
    pub fails: Fails,
    pub opens: Opens,
    /// Whether what it answers is how many bytes it moved.
    pub moves: bool,
    bytes: u8,
    offset: u8,
    command: u8,
}

impl Shape {
    const fn new(kind: CallKind, about: About) -> Self {
        let (fails, opens) = (Fails::Minus, Opens::Nothing);
        Self { kind, about, fails, opens, moves: false, bytes: NO, offset: NO, command: NO }
    }

    const fn fd(kind: CallKind) -> Self {
        Self::new(kind, About::Descriptor(0))
    }

    const fn path(kind: CallKind) -> Self {
        Self::new(kind, About::Path(0))
    }

    const fn at(kind: CallKind) -> Self {
        Self::new(kind, About::At(0, 1))
    }

    const fn inside(kind: CallKind) -> Self {
        Self::new(kind, About::Inside)
    }

    /// Its file is said by other arguments than by the first.
    const fn by(self, about: About) -> Self {
        Self { about, ..self }
    }

    /// The argument that is a command of fcntl's, several of which have kinds of their own.
    const fn command(self, command: u8) -> Self {
        Self { command, ..self }
    }

    const fn fails(self, fails: Fails) -> Self {
        Self { fails, ..self }
    }

    const fn opens(self, opens: Opens) -> Self {
        let fails = match opens {
            Opens::Nothing | Opens::Descriptor => Fails::Minus,
            Opens::Stream | Opens::Directory => Fails::Null,
        };
        Self { opens, fails, ..self }
    }

    /// It moves bytes, as many as it answers; `bytes` of them were asked for.
    const fn moves(self, bytes: u8) -> Self {
        Self { moves: true, bytes, ..self }
    }

    /// The argument that is a count of bytes.
    const fn sized(self, bytes: u8) -> Self {
        Self { bytes, ..self }
    }

    /// The argument that is a file offset.
    const fn from(self, offset: u8) -> Self {
        Self { offset, ..self }
    }

    /// The count of bytes that was asked for.
    pub(crate) fn bytes_of(&self, words: &[usize]) -> Option<i64> {
        words.get(usize::from(self.bytes)).map(|&word| word as i64)
    }

    /// The command of fcntl's.
    pub(crate) fn command_of(&self, words: &[usize]) -> Option<core::ffi::c_int> {
        words.get(usize::from(self.command)).map(|&word| word as core::ffi::c_int)
    }

    /// The file offset that was named.
    pub(crate) fn offset_of(&self, words: &[usize]) -> Option<i64> {
        words.get(usize::from(self.offset)).map(|&word| word as i64)
    }
}

/// Arguments that are looked at are among the first so many.
pub(crate) const WORDS: usize = 6;

/// What a row says: `none`, or a kind behind what the call is about.
macro_rules! shape {
    (none) => {
        None
    };
    ($about:ident $kind:ident $($more:tt)*) => {{
        const SHAPE: Shape = Shape::$about(CallKind::$kind) $($more)*;
        Some(&SHAPE)
    }};
}

macro_rules! shapes {
    ($($module:ident { $(
        $function:ident: $($gate:ident [$($name:ident)+] $takes:literal)? $(($($shape:tt)+))?
            $(@$about:ident $number:ident ($($word:literal),*))?;
    )* })*) => {
        /// What each hook counts, by its name. One that is not a file call, or is counted by the calls that it makes
        /// itself (`scandir`, `nftw`, `fts_read`, `glob`), has none.
        #[allow(non_upper_case_globals, reason = "named as the hooks are")]
        pub(crate) mod of {
            use super::*;
            $($($( pub(crate) const $function: Option<&Shape> = shape!($($shape)+); )?)*)*
        }

        #[cfg(test)]
        const SHAPES: &[(&str, Option<&Shape>)] = &[$($($( (stringify!($function), shape!($($shape)+)), )?)*)*];
    };
}
rows!(shapes);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_lie_among_those_that_are_kept() {
        for (name, shape) in SHAPES {
            let Some(shape) = shape else { continue };
            let about = match shape.about {
                About::Descriptor(at) | About::Descriptors(_, at) | About::Directory(at) => at,
                About::Path(at) | About::At(_, at) => at,
                About::Inside => 0,
            };
            let kept = |at: u8| at == NO || usize::from(at) < WORDS;
            assert!(kept(about) && kept(shape.bytes) && kept(shape.offset) && kept(shape.command), "{name}");
        }
    }
}
