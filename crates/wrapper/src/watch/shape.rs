//! The shape of each file call, as counting and recording need it: its kind, and which of its arguments is the
//! descriptor, the path, the offset, the size, the flags, the mode and the other path.

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

/// How a call says its flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flagged {
    /// It has none.
    No,
    /// The argument of this number has them.
    Word(u8),
    /// It has the same ones always.
    Always(u32),
    /// The argument of this number is the mode of a stream, as `w+`.
    Stream(u8),
    /// The argument of this number is the address of a structure that begins with them (openat2).
    Behind(u8),
}

/// What the other name is that a call has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Other {
    Nothing,
    /// The argument of this number is a path.
    Path(u8),
    /// A path from a directory descriptor.
    At(u8, u8),
    /// Bytes go from the descriptor of the first argument to that of the second one, at the offsets that the third and
    /// the fourth argument point to.
    Copy {
        from: u8,
        to: u8,
        from_at: u8,
        to_at: u8,
    },
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
    pub flagged: Flagged,
    mode: u8,
    pub other: Other,
}

impl Shape {
    const fn new(kind: CallKind, about: About) -> Self {
        let (fails, opens) = (Fails::Minus, Opens::Nothing);
        let (flagged, other) = (Flagged::No, Other::Nothing);
        Self {
            kind,
            about,
            fails,
            opens,
            moves: false,
            bytes: NO,
            offset: NO,
            command: NO,
            flagged,
            mode: NO,
            other,
        }
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

    /// The argument that has flags.
    const fn flags(self, flags: u8) -> Self {
        Self { flagged: Flagged::Word(flags), ..self }
    }

    const fn flagged(self, flagged: Flagged) -> Self {
        Self { flagged, ..self }
    }

    /// The argument that has permissions.
    const fn mode(self, mode: u8) -> Self {
        Self { mode, ..self }
    }

    /// It has another name, or file.
    const fn to(self, other: Other) -> Self {
        Self { other, ..self }
    }

    /// The permissions that were given.
    pub(crate) fn mode_of(&self, words: &[usize]) -> Option<u32> {
        words.get(usize::from(self.mode)).map(|&word| word as u32)
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

/// The flags of creat.
const CREAT: Flagged = Flagged::Always((libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC) as u32);
/// The files of `copy_file_range` and splice.
const BOTH_AT: Other = Other::Copy { from: 0, to: 2, from_at: 1, to_at: 3 };
/// Those of sendfile, which writes at the position.
const SENT: Other = Other::Copy { from: 1, to: 0, from_at: 2, to_at: NO };

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
            let flags = match shape.flagged {
                Flagged::No | Flagged::Always(_) => 0,
                Flagged::Word(at) | Flagged::Stream(at) | Flagged::Behind(at) => at,
            };
            let other = match shape.other {
                Other::Nothing => 0,
                Other::Path(at) | Other::At(_, at) => at,
                Other::Copy { from, to, from_at, to_at } => {
                    assert!(kept(from) && kept(to) && kept(from_at), "{name}");
                    to_at
                }
            };
            assert!(kept(flags) && kept(other) && kept(shape.mode), "{name}");
        }
    }
}
