//! What the dynamic loader reads of an ELF file (System V gABI, chapters 4 and 5): its interpreter, the libraries
//! that it needs, and where it says to look for them. A file may hold anything: every number is checked.

/// Bytes of the file header; e_ident and fields up to e_phnum lie in it.
const HEADER_BYTES: usize = 64;
/// Bytes of a program header.
const SEGMENT_BYTES: usize = 56;
/// The kernel takes no more than 64 KiB of program headers.
const SEGMENTS_MAX: usize = 65536 / SEGMENT_BYTES;
/// Real programs have some hundred entries at most, most of them needed libraries.
const DYNAMIC_ENTRIES_MAX: usize = 4096;
/// Longest string that is looked at: the kernel's `PATH_MAX`, and run paths are as long as somebody liked.
const STRING_BYTES_MAX: usize = 16384;
/// `\x7fELF`, 64 bits, little-endian.
const IDENTITY: [u8; 6] = [0x7f, b'E', b'L', b'F', 2, 1];
/// x86-64 in `e_machine`.
const MACHINE: u16 = 62;

const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const PT_INTERP: u32 = 3;
const DT_NULL: u64 = 0;
const DT_NEEDED: u64 = 1;
const DT_STRTAB: u64 = 5;
const DT_SONAME: u64 = 14;
const DT_RPATH: u64 = 15;
const DT_RUNPATH: u64 = 29;

/// Reads at an offset; answers how many bytes it got.
pub(crate) type Source<'a> = dyn Fn(u64, &mut [u8]) -> usize + 'a;

/// What a file says of itself.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Elf {
    /// The dynamic loader; a program without one is static.
    pub interpreter: Option<Vec<u8>>,
    /// Libraries that it wants, by name.
    pub needed: Vec<Vec<u8>>,
    /// The name by which other files need it.
    pub name: Option<Vec<u8>>,
    /// Where they are looked for, joined by colons: `DT_RUNPATH`, or `DT_RPATH` where there is no other.
    pub run_path: Option<Vec<u8>>,
}

struct Segment {
    kind: u32,
    offset: u64,
    address: u64,
    bytes: u64,
}

/// Whether it is an ELF file of any kind.
pub(crate) fn is_elf(head: &[u8]) -> bool {
    head.starts_with(&IDENTITY[..4])
}

/// Reads an ELF file of this machine's kind; `None` for any other.
pub(crate) fn read(source: &Source<'_>) -> Option<Elf> {
    let header = bytes(source, 0, HEADER_BYTES)?;
    if !header.starts_with(&IDENTITY) || half(&header, 18)? != MACHINE {
        return None;
    }
    let (table, each, count) = (word(&header, 32)?, half(&header, 54)?, half(&header, 56)?);
    if usize::from(each) != SEGMENT_BYTES || usize::from(count) > SEGMENTS_MAX {
        return None;
    }
    let table = bytes(source, table, usize::from(count) * SEGMENT_BYTES)?;
    let segments: Vec<Segment> = table.chunks_exact(SEGMENT_BYTES).filter_map(segment).collect();
    let mut elf = Elf::default();
    for segment in &segments {
        match segment.kind {
            PT_INTERP => elf.interpreter = string(source, segment.offset),
            PT_DYNAMIC => dynamic(source, segment, &segments, &mut elf),
            _ => {}
        }
    }
    Some(elf)
}

fn segment(raw: &[u8]) -> Option<Segment> {
    let kind = u32::from_le_bytes(raw.get(..4)?.try_into().ok()?);
    Some(Segment { kind, offset: word(raw, 8)?, address: word(raw, 16)?, bytes: word(raw, 32)? })
}

fn dynamic(source: &Source<'_>, at: &Segment, segments: &[Segment], elf: &mut Elf) {
    let room = usize::try_from(at.bytes / 16).unwrap_or(usize::MAX).min(DYNAMIC_ENTRIES_MAX) * 16;
    let Some(table) = bytes(source, at.offset, room) else { return };
    let pairs = || {
        let pair = |raw: &[u8]| Some((word(raw, 0)?, word(raw, 8)?));
        table.chunks_exact(16).filter_map(pair).take_while(|&(tag, _)| tag != DT_NULL)
    };
    let strings =
        pairs().find(|&(tag, _)| tag == DT_STRTAB).and_then(|(_, address)| place(segments, address));
    let Some(strings) = strings else { return };
    let text = |at: u64| string(source, strings.checked_add(at)?);
    elf.needed = pairs().filter(|&(tag, _)| tag == DT_NEEDED).filter_map(|(_, at)| text(at)).collect();
    let path = |wanted| pairs().find(|&(tag, _)| tag == wanted).and_then(|(_, at)| text(at));
    elf.name = path(DT_SONAME);
    elf.run_path = path(DT_RUNPATH).or_else(|| path(DT_RPATH));
}

/// Where in the file a loaded address comes from.
fn place(segments: &[Segment], address: u64) -> Option<u64> {
    let loaded = segments.iter().filter(|segment| segment.kind == PT_LOAD);
    let mut into = loaded.filter_map(|segment| Some((segment, address.checked_sub(segment.address)?)));
    into.find(|(segment, inside)| *inside < segment.bytes)
        .and_then(|(segment, inside)| segment.offset.checked_add(inside))
}

fn bytes(source: &Source<'_>, at: u64, count: usize) -> Option<Vec<u8>> {
    let mut found = vec![0; count];
    (source(at, &mut found) == count).then_some(found)
}

fn string(source: &Source<'_>, at: u64) -> Option<Vec<u8>> {
    let mut found = Vec::new();
    while found.len() < STRING_BYTES_MAX {
        let mut piece = [0; 256];
        let got = source(at.checked_add(found.len() as u64)?, &mut piece);
        let piece = piece.get(..got).filter(|piece| !piece.is_empty())?;
        match piece.iter().position(|&byte| byte == 0) {
            Some(end) => {
                found.extend_from_slice(&piece[..end]);
                return Some(found);
            }
            None => found.extend_from_slice(piece),
        }
    }
    None
}

fn half(raw: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(raw.get(at..at + 2)?.try_into().ok()?))
}

fn word(raw: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(raw.get(at..at + 8)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(file: &[u8]) -> impl Fn(u64, &mut [u8]) -> usize {
        move |at, into| {
            let rest = usize::try_from(at).ok().and_then(|at| file.get(at..)).unwrap_or_default();
            let count = rest.len().min(into.len());
            into[..count].copy_from_slice(&rest[..count]);
            count
        }
    }

    #[test]
    fn this_very_program_is_dynamic_and_needs_libc() {
        let file = std::fs::read("/proc/self/exe").expect("the test's own file");
        let elf = read(&source(&file)).expect("an ELF file");
        assert!(elf.interpreter.is_some_and(|path| path.starts_with(b"/")));
        assert!(elf.needed.iter().any(|name| name.starts_with(b"libc.so")), "{:?}", elf.needed);
    }

    /// Whatever a file says, reading it ends: with less, or with nothing.
    #[test]
    fn damaged_files_are_read_to_an_end() {
        let mut file = std::fs::read("/proc/self/exe").expect("the test's own file");
        file.truncate(64 * 1024);
        for at in 0..2048 {
            for value in [0, 1, 0x7f, 0xff] {
                let before = std::mem::replace(&mut file[at], value);
                let _ = read(&source(&file));
                file[at] = before;
            }
        }
        for cut in [0, 4, 63, 64, 65, 100, 1000] {
            let _ = read(&source(&file[..cut]));
        }
        assert_eq!(read(&source(b"#!/bin/sh\n")), None);
    }
}
