//! Where system call instructions lie: the address range of libc and the wrapper, and whether the program has such
//! instructions of its own.

use core::ffi::{c_int, c_void};
use core::slice;

/// Most of a program's code that is looked through: what is read here is read from disk.
const SCAN_BYTES_MAX: usize = 64 << 20;
/// The instruction `syscall`.
const SYSCALL: [u8; 2] = [0x0f, 0x05];
/// Bytes before it among which its number is loaded.
const BEFORE: usize = 32;
/// A note of Go's linker.
const GO_NOTE: &[u8] = b"Go\0\0";

/// One object as the loader lists it.
struct Object {
    base: usize,
    headers: &'static [libc::Elf64_Phdr],
    is_program: bool,
}

impl Object {
    fn loaded(&self) -> impl Iterator<Item = (usize, usize, u32)> {
        let base = self.base;
        self.headers.iter().filter(|header| header.p_type == libc::PT_LOAD).map(move |header| {
            let start = base + header.p_vaddr as usize;
            (start, start + header.p_memsz as usize, header.p_flags)
        })
    }

    fn holds(&self, address: usize) -> bool {
        self.loaded().any(|(start, end, _)| (start..end).contains(&address))
    }
}

/// Calls `look` with each object of the process.
fn each(look: &mut dyn FnMut(&Object)) {
    struct Walk<'a> {
        look: &'a mut dyn FnMut(&Object),
        first: bool,
    }
    unsafe extern "C" fn one(info: *mut libc::dl_phdr_info, _: usize, walk: *mut c_void) -> c_int {
        // SAFETY: the loader's structure, and the walk below.
        let (info, walk) = unsafe { (&*info, &mut *walk.cast::<Walk<'_>>()) };
        // SAFETY: the loader's headers live as long as the object, which is not unloaded meanwhile.
        let headers = unsafe { slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
        let is_program = core::mem::take(&mut walk.first);
        (walk.look)(&Object { base: info.dlpi_addr as usize, headers, is_program });
        0
    }
    let mut walk = Walk { look, first: true };
    // SAFETY: a function for this call, and its argument, which outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(one), (&raw mut walk).cast()) };
}

/// The addresses from the first to the last of our library, libc and the loader, which lie side by side.
pub(crate) fn range() -> (usize, usize) {
    let marks = [range as *const () as usize, libc::getpid as *const () as usize, loader()];
    let (mut start, mut end) = (usize::MAX, 0);
    each(&mut |object| {
        if !object.is_program && marks.iter().any(|&mark| object.holds(mark)) {
            for (from, to, _) in object.loaded() {
                (start, end) = (start.min(from & !4095), end.max(to.next_multiple_of(4096)));
            }
        }
    });
    (start, end.max(start))
}

/// An address within the loader.
fn loader() -> usize {
    // SAFETY: reads the process's auxiliary vector.
    unsafe { libc::getauxval(libc::AT_BASE) as usize }
}

/// Whether the program's own code makes system calls, as far as its bytes tell. One that is taken for such
/// pays for the dispatch and gains nothing; one that hides its instructions is missed.
pub(crate) fn program_has_them() -> bool {
    let mut found = false;
    each(&mut |object| {
        if !object.is_program {
            return;
        }
        let notes = object.headers.iter().filter(|header| header.p_type == libc::PT_NOTE);
        for note in notes {
            let start = (object.base + note.p_vaddr as usize) as *const u8;
            // SAFETY: a segment of the program, which is loaded and stays.
            let bytes = unsafe { slice::from_raw_parts(start, note.p_memsz as usize) };
            found |= bytes.windows(GO_NOTE.len()).any(|window| window == GO_NOTE);
        }
        for (start, end, _) in object.loaded().filter(|(_, _, flags)| flags & libc::PF_X != 0) {
            let len = (end - start).min(SCAN_BYTES_MAX);
            // SAFETY: as above.
            found |= has_calls(unsafe { slice::from_raw_parts(start as *const u8, len) });
        }
    });
    found
}

/// Whether there is a `syscall` that looks like one: what loads rax is near before it, and what looks at the
/// answer comes after. Of two bytes alone, every 64 KiB of other code has an example.
pub(crate) fn has_calls(code: &[u8]) -> bool {
    let mut at = 0;
    while let Some(next) = code[at..].windows(2).position(|window| window == SYSCALL) {
        let here = at + next;
        let (before, after) = (&code[here.saturating_sub(BEFORE)..here], &code[here + 2..]);
        if loads_number(before) && looks_at_answer(after) {
            return true;
        }
        at = here + 2;
    }
    false
}

fn loads_number(before: &[u8]) -> bool {
    before.windows(7).any(|window| {
        // mov eax, imm32; mov rax, imm32; both below 1024.
        let immediate = match window {
            [0xb8, low, high, 0, 0, ..] => Some((*low, *high)),
            [0x48, 0xc7, 0xc0, low, high, 0, 0] => Some((*low, *high)),
            _ => None,
        };
        immediate.is_some_and(|(_, high)| high < 4)
    }) || before.windows(4).any(|window| {
        // xor eax, eax; mov eax or rax from a register or the stack.
        matches!(
            window,
            [0x31, 0xc0, ..]
                | [0x48, 0x8b, 0x44, 0x24]
                | [0x48, 0x8b, 0x45, _]
                | [0x48, 0x89, 0xc0 | 0xc8 | 0xd0 | 0xd8 | 0xf0 | 0xf8, _]
        )
    }) || before.ends_with(&[0x89, 0xf8])
        || before.ends_with(&[0x89, 0xd8])
}

fn looks_at_answer(after: &[u8]) -> bool {
    matches!(
        after,
        [0x48, 0x3d, ..]
            | [0x3d, ..]
            | [0x48, 0x85, 0xc0, ..]
            | [0x85, 0xc0, ..]
            | [0x48, 0x83, 0xf8, ..]
            | [0x83, 0xf8, ..]
            | [0x48, 0x89, 0xc0..=0xc7 | 0x44 | 0x45 | 0x84 | 0x85, ..]
            | [0x89, 0xc0..=0xc7, ..]
            | [0xc3, ..]
            | [0x0f, 0x0b, ..]
    )
}

#[cfg(test)]
mod tests {
    use super::has_calls;

    #[test]
    fn calls_are_told_from_other_bytes() {
        // mov eax, 39; syscall; ret. And Go's: mov rax, [rsp + 8]; syscall; cmp rax, -4095.
        assert!(has_calls(&[0xb8, 39, 0, 0, 0, 0x90, 0x90, 0x0f, 0x05, 0xc3]));
        assert!(has_calls(&[0x48, 0x8b, 0x44, 0x24, 0x08, 0x0f, 0x05, 0x48, 0x3d, 0x01, 0xf0]));
        // The bytes within a displacement; and at the end of the code.
        assert!(!has_calls(&[0x48, 0x8d, 0x05, 0x0f, 0x05, 0x00, 0x00, 0x66]));
        assert!(!has_calls(&[0xb8, 39, 0, 0, 0, 0x90, 0x90, 0x0f, 0x05]));
    }
}
