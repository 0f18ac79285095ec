//! The one door to memory that a program names by its address: it may not be there, or go while it is copied.
//!
//! The routines below touch it at instructions whose addresses are known. The handler of SIGSEGV and SIGBUS asks
//! [`recovery`] about the instruction that faulted, and goes on where the routine says that it has met nothing. Where
//! no such handler stands ([`set_watched`]) the kernel copies instead. Nothing is locked or kept across an access.
//!
//! A buffer of the program's is copied far below where it is named, by [`crate::Mapping`]'s `give` and `take`. What
//! they could not move is noted for the thread, and whoever was given the buffer asks ([`lost`]).

use core::arch::global_asm;
use core::cell::Cell;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Bytes that [`string`] may write behind what it was asked for: it moves so many at once.
pub const STRING_SLACK: usize = 16;
/// The kernel's page: within one, all or nothing is there.
const PAGE: usize = 4096;

global_asm!(
    ".pushsection .text.nvmed_door,\"ax\",@progbits",
    // rdi: to, rsi: from, rdx: bytes. Answers in rax the bytes that were not moved.
    ".balign 16",
    ".hidden nvmed_door_copy",
    ".globl nvmed_door_copy",
    ".type nvmed_door_copy,@function",
    "nvmed_door_copy:",
    ".cfi_startproc",
    "lea rax, [rdx - 64]",
    "cmp rax, 64",
    "ja 8f",
    // From 64 bytes to 128: what most small calls move.
    "movdqu xmm0, xmmword ptr [rsi]",
    "movdqu xmm1, xmmword ptr [rsi + 16]",
    "movdqu xmm2, xmmword ptr [rsi + 32]",
    "movdqu xmm3, xmmword ptr [rsi + 48]",
    "movdqu xmm4, xmmword ptr [rsi + rdx - 64]",
    "movdqu xmm5, xmmword ptr [rsi + rdx - 48]",
    "movdqu xmm6, xmmword ptr [rsi + rdx - 32]",
    "movdqu xmm7, xmmword ptr [rsi + rdx - 16]",
    "movdqu xmmword ptr [rdi], xmm0",
    "movdqu xmmword ptr [rdi + 16], xmm1",
    "movdqu xmmword ptr [rdi + 32], xmm2",
    "movdqu xmmword ptr [rdi + 48], xmm3",
    "movdqu xmmword ptr [rdi + rdx - 64], xmm4",
    "movdqu xmmword ptr [rdi + rdx - 48], xmm5",
    "movdqu xmmword ptr [rdi + rdx - 32], xmm6",
    "movdqu xmmword ptr [rdi + rdx - 16], xmm7",
    "xor eax, eax",
    "ret",
    "8:",
    "cmp rdx, 32",
    "jae 6f",
    "cmp rdx, 16",
    "jae 5f",
    "cmp rdx, 8",
    "jae 4f",
    "cmp rdx, 4",
    "jae 3f",
    "test rdx, rdx",
    "je 2f",
    // The first, the last, and the one between them.
    "mov rcx, rdx",
    "shr rcx",
    "movzx r8d, byte ptr [rsi]",
    "movzx r9d, byte ptr [rsi + rcx]",
    "movzx r10d, byte ptr [rsi + rdx - 1]",
    "mov byte ptr [rdi], r8b",
    "mov byte ptr [rdi + rcx], r9b",
    "mov byte ptr [rdi + rdx - 1], r10b",
    "2:",
    "xor eax, eax",
    "ret",
    // From here on the two halves overlap.
    "3:",
    "mov ecx, dword ptr [rsi]",
    "mov r8d, dword ptr [rsi + rdx - 4]",
    "mov dword ptr [rdi], ecx",
    "mov dword ptr [rdi + rdx - 4], r8d",
    "xor eax, eax",
    "ret",
    "4:",
    "mov rcx, qword ptr [rsi]",
    "mov r8, qword ptr [rsi + rdx - 8]",
    "mov qword ptr [rdi], rcx",
    "mov qword ptr [rdi + rdx - 8], r8",
    "xor eax, eax",
    "ret",
    "5:",
    "movdqu xmm0, xmmword ptr [rsi]",
    "movdqu xmm1, xmmword ptr [rsi + rdx - 16]",
    "movdqu xmmword ptr [rdi], xmm0",
    "movdqu xmmword ptr [rdi + rdx - 16], xmm1",
    "xor eax, eax",
    "ret",
    "6:",
    "cmp rdx, {whole}",
    "jae nvmed_door_again",
    // Thirty-two at a time, and the last thirty-two.
    "lea r8, [rdx - 32]",
    "movdqu xmm2, xmmword ptr [rsi + r8]",
    "movdqu xmm3, xmmword ptr [rsi + r8 + 16]",
    "xor ecx, ecx",
    "7:",
    "movdqu xmm0, xmmword ptr [rsi + rcx]",
    "movdqu xmm1, xmmword ptr [rsi + rcx + 16]",
    "movdqu xmmword ptr [rdi + rcx], xmm0",
    "movdqu xmmword ptr [rdi + rcx + 16], xmm1",
    "add rcx, 32",
    "cmp rcx, r8",
    "jb 7b",
    "movdqu xmmword ptr [rdi + r8], xmm2",
    "movdqu xmmword ptr [rdi + r8 + 16], xmm3",
    "xor eax, eax",
    "ret",
    // Where a fault above goes on: all of it once more, and exactly. At a fault here rcx says what is left, and the
    // routine goes on behind.
    ".hidden nvmed_door_again",
    ".globl nvmed_door_again",
    "nvmed_door_again:",
    "mov rcx, rdx",
    "rep movsb",
    ".hidden nvmed_door_copied",
    ".globl nvmed_door_copied",
    "nvmed_door_copied:",
    "mov rax, rcx",
    "ret",
    ".cfi_endproc",
    ".size nvmed_door_copy, . - nvmed_door_copy",
    // rdi: to, rsi: from, rdx: bytes at most. Answers in rax where the NUL is; rdx or more: there is none before;
    // all ones: at a fault.
    ".balign 16",
    ".hidden nvmed_door_string",
    ".globl nvmed_door_string",
    ".type nvmed_door_string,@function",
    "nvmed_door_string:",
    ".cfi_startproc",
    "xor eax, eax",
    "pxor xmm1, xmm1",
    "2:",
    "cmp rax, rdx",
    "jae 4f",
    "lea rcx, [rsi + rax]",
    "mov r8d, ecx",
    "and r8d, 4095",
    "cmp r8d, 4080",
    // Sixteen bytes would reach into the next page, which the string may end before.
    "ja 3f",
    "movdqu xmm0, xmmword ptr [rcx]",
    "movdqu xmmword ptr [rdi + rax], xmm0",
    "pcmpeqb xmm0, xmm1",
    "pmovmskb r8d, xmm0",
    "add rax, 16",
    "test r8d, r8d",
    "je 2b",
    "bsf r8d, r8d",
    "lea rax, [rax + r8 - 16]",
    "ret",
    "3:",
    "movzx r8d, byte ptr [rcx]",
    "mov byte ptr [rdi + rax], r8b",
    "test r8d, r8d",
    "je 4f",
    "inc rax",
    "jmp 2b",
    "4:",
    "ret",
    ".hidden nvmed_door_lost",
    ".globl nvmed_door_lost",
    "nvmed_door_lost:",
    "mov rax, -1",
    "ret",
    ".cfi_endproc",
    ".size nvmed_door_string, . - nvmed_door_string",
    // rdi: from, rsi: bytes, of which there are some. Answers in rax how many are there, by one of each page.
    ".balign 16",
    ".hidden nvmed_door_there",
    ".globl nvmed_door_there",
    ".type nvmed_door_there,@function",
    "nvmed_door_there:",
    ".cfi_startproc",
    "lea rdx, [rdi + rsi]",
    "mov rax, rdi",
    "2:",
    "movzx ecx, byte ptr [rax]",
    "or rax, 4095",
    "inc rax",
    "cmp rax, rdx",
    "jb 2b",
    "mov rax, rsi",
    "ret",
    ".hidden nvmed_door_absent",
    ".globl nvmed_door_absent",
    "nvmed_door_absent:",
    "sub rax, rdi",
    "ret",
    ".cfi_endproc",
    ".size nvmed_door_there, . - nvmed_door_there",
    // rdi: to, a multiple of a line; rsi: from; rdx: bytes, a multiple of a line. Answers in rax the bytes that were
    // not moved, whole lines: all of a line is loaded before any of it is stored. Four lines a round, that is gone
    // through once more, line by line, where it meets nothing. The wide one is for processors with AVX.
    ".balign 16",
    ".hidden nvmed_door_stream",
    ".globl nvmed_door_stream",
    ".type nvmed_door_stream,@function",
    "nvmed_door_stream:",
    ".cfi_startproc",
    "mov rax, rdx",
    "cmp rax, 4 * {line}",
    "jb nvmed_door_lines",
    "2:",
    "movdqu xmm0, xmmword ptr [rsi + 0]",
    "movdqu xmm1, xmmword ptr [rsi + 16]",
    "movdqu xmm2, xmmword ptr [rsi + 32]",
    "movdqu xmm3, xmmword ptr [rsi + 48]",
    "movntdq xmmword ptr [rdi + 0], xmm0",
    "movntdq xmmword ptr [rdi + 16], xmm1",
    "movntdq xmmword ptr [rdi + 32], xmm2",
    "movntdq xmmword ptr [rdi + 48], xmm3",
    "movdqu xmm0, xmmword ptr [rsi + 64]",
    "movdqu xmm1, xmmword ptr [rsi + 80]",
    "movdqu xmm2, xmmword ptr [rsi + 96]",
    "movdqu xmm3, xmmword ptr [rsi + 112]",
    "movntdq xmmword ptr [rdi + 64], xmm0",
    "movntdq xmmword ptr [rdi + 80], xmm1",
    "movntdq xmmword ptr [rdi + 96], xmm2",
    "movntdq xmmword ptr [rdi + 112], xmm3",
    "movdqu xmm0, xmmword ptr [rsi + 128]",
    "movdqu xmm1, xmmword ptr [rsi + 144]",
    "movdqu xmm2, xmmword ptr [rsi + 160]",
    "movdqu xmm3, xmmword ptr [rsi + 176]",
    "movntdq xmmword ptr [rdi + 128], xmm0",
    "movntdq xmmword ptr [rdi + 144], xmm1",
    "movntdq xmmword ptr [rdi + 160], xmm2",
    "movntdq xmmword ptr [rdi + 176], xmm3",
    "movdqu xmm0, xmmword ptr [rsi + 192]",
    "movdqu xmm1, xmmword ptr [rsi + 208]",
    "movdqu xmm2, xmmword ptr [rsi + 224]",
    "movdqu xmm3, xmmword ptr [rsi + 240]",
    "movntdq xmmword ptr [rdi + 192], xmm0",
    "movntdq xmmword ptr [rdi + 208], xmm1",
    "movntdq xmmword ptr [rdi + 224], xmm2",
    "movntdq xmmword ptr [rdi + 240], xmm3",
    "add rsi, 4 * {line}",
    "add rdi, 4 * {line}",
    "sub rax, 4 * {line}",
    "cmp rax, 4 * {line}",
    "jae 2b",
    "jmp nvmed_door_lines",
    ".hidden nvmed_door_stream_wide",
    ".globl nvmed_door_stream_wide",
    "nvmed_door_stream_wide: mov rax, rdx",
    "cmp rax, 4 * {line}",
    "jb nvmed_door_lines",
    "2:",
    "vmovdqu ymm0, ymmword ptr [rsi + 0]",
    "vmovdqu ymm1, ymmword ptr [rsi + 32]",
    "vmovdqu ymm2, ymmword ptr [rsi + 64]",
    "vmovdqu ymm3, ymmword ptr [rsi + 96]",
    "vmovdqu ymm4, ymmword ptr [rsi + 128]",
    "vmovdqu ymm5, ymmword ptr [rsi + 160]",
    "vmovdqu ymm6, ymmword ptr [rsi + 192]",
    "vmovdqu ymm7, ymmword ptr [rsi + 224]",
    "vmovntdq ymmword ptr [rdi + 0], ymm0",
    "vmovntdq ymmword ptr [rdi + 32], ymm1",
    "vmovntdq ymmword ptr [rdi + 64], ymm2",
    "vmovntdq ymmword ptr [rdi + 96], ymm3",
    "vmovntdq ymmword ptr [rdi + 128], ymm4",
    "vmovntdq ymmword ptr [rdi + 160], ymm5",
    "vmovntdq ymmword ptr [rdi + 192], ymm6",
    "vmovntdq ymmword ptr [rdi + 224], ymm7",
    "add rsi, 4 * {line}",
    "add rdi, 4 * {line}",
    "sub rax, 4 * {line}",
    "cmp rax, 4 * {line}",
    "jae 2b",
    "vzeroupper",
    ".hidden nvmed_door_lines",
    ".globl nvmed_door_lines",
    "nvmed_door_lines:",
    "test rax, rax",
    "je nvmed_door_streamed",
    "2:",
    "movdqu xmm0, xmmword ptr [rsi]",
    "movdqu xmm1, xmmword ptr [rsi + 16]",
    "movdqu xmm2, xmmword ptr [rsi + 32]",
    "movdqu xmm3, xmmword ptr [rsi + 48]",
    "movntdq xmmword ptr [rdi], xmm0",
    "movntdq xmmword ptr [rdi + 16], xmm1",
    "movntdq xmmword ptr [rdi + 32], xmm2",
    "movntdq xmmword ptr [rdi + 48], xmm3",
    "add rsi, {line}",
    "add rdi, {line}",
    "sub rax, {line}",
    "jne 2b",
    ".hidden nvmed_door_streamed",
    ".globl nvmed_door_streamed",
    "nvmed_door_streamed:",
    "ret",
    ".cfi_endproc",
    ".size nvmed_door_stream, . - nvmed_door_stream",
    ".popsection",
    whole = const WHOLE_BYTES,
    line = const LINE_BYTES,
);

/// Bytes of a line, which [`stream`] stores as one.
pub const LINE_BYTES: usize = 64;

/// From here on the processor's own copy is as fast as ours.
const WHOLE_BYTES: usize = 1024;

unsafe extern "C" {
    fn nvmed_door_copy(to: *mut u8, from: *const u8, bytes: usize) -> usize;
    fn nvmed_door_string(to: *mut u8, from: *const u8, bytes: usize) -> usize;
    fn nvmed_door_there(from: *const u8, bytes: usize) -> usize;
    fn nvmed_door_stream(to: *mut u8, from: *const u8, bytes: usize) -> usize;
    fn nvmed_door_stream_wide(to: *mut u8, from: *const u8, bytes: usize) -> usize;
    static nvmed_door_again: u8;
    static nvmed_door_copied: u8;
    static nvmed_door_absent: u8;
    static nvmed_door_lost: u8;
    static nvmed_door_lines: u8;
    static nvmed_door_streamed: u8;
}

/// Whether a handler stands that asks [`recovery`].
static WATCHED: AtomicBool = AtomicBool::new(false);
/// Whether it was said that none does. It counts in [`UNUSUAL`].
static UNWATCHED: AtomicBool = AtomicBool::new(false);

/// Says whether the process's handler of SIGSEGV and SIGBUS asks [`recovery`].
pub fn set_watched(on: bool) {
    WATCHED.store(on, Ordering::Release);
    match (UNWATCHED.swap(!on, Ordering::AcqRel), on) {
        (false, false) => UNUSUAL.fetch_add(1, Ordering::Release),
        (true, true) => UNUSUAL.fetch_sub(1, Ordering::Release),
        _ => return,
    };
}

/// Where a thread goes on that has faulted at the instruction `at`; None if that is none of ours. For a signal handler.
#[must_use]
pub fn recovery(at: usize) -> Option<usize> {
    let ways = [
        (nvmed_door_copy as *const (), &raw const nvmed_door_again),
        ((&raw const nvmed_door_again).cast(), &raw const nvmed_door_copied),
        (nvmed_door_string as *const (), &raw const nvmed_door_lost),
        (nvmed_door_there as *const (), &raw const nvmed_door_absent),
        (nvmed_door_stream as *const (), &raw const nvmed_door_lines),
        ((&raw const nvmed_door_lines).cast(), &raw const nvmed_door_streamed),
    ];
    ways.iter().find(|(from, to)| (from.addr()..to.addr()).contains(&at)).map(|(_, to)| to.addr())
}

/// Why a buffer of the program's is not given to as usual: threads with a loss that nobody has asked for yet, and one
/// more where no handler stands.
static UNUSUAL: AtomicUsize = AtomicUsize::new(0);

std::thread_local! {
    /// Where a copy of this thread's met nothing.
    static LOST: Cell<Option<usize>> = const { Cell::new(None) };
}

/// Moves bytes of which one side may be the program's; how many were left. Where no handler stands a fault ends the
/// process.
///
/// # Safety
/// As [`copy`].
#[inline(always)]
#[must_use]
pub unsafe fn transfer(to: *mut u8, from: *const u8, bytes: usize) -> usize {
    // SAFETY: as in `copy`.
    unsafe { nvmed_door_copy(to, from, bytes) }
}

/// Copies whole lines past the caches (non-temporal stores), from what may be the program's; how many bytes arrived, a
/// multiple of a line: one of which a byte is not there is not touched. Where no handler stands a fault ends the
/// process. A fault of the other side is taken for one of the program's: whoever has that side looks.
///
/// # Safety
/// As [`copy`]; `to` and `bytes` are multiples of [`LINE_BYTES`]. The caller's thread executes SFENCE before it tells
/// another one.
#[inline(always)]
#[must_use]
pub unsafe fn stream(to: *mut u8, from: *const u8, bytes: usize) -> usize {
    let routine = if is_x86_feature_detected!("avx") { nvmed_door_stream_wide } else { nvmed_door_stream };
    // SAFETY: as in `copy`; whole lines go to aligned ones, by the contract, and the processor has what is used.
    bytes - unsafe { routine(to, from, bytes) }
}

/// Notes where a transfer has met nothing, an address; of several the lowest. It is told by [`lost`].
#[cold]
pub fn note(at: usize) {
    let before = LOST.get();
    LOST.set(Some(before.map_or(at, |before| before.min(at))));
    if before.is_none() {
        UNUSUAL.fetch_add(1, Ordering::Relaxed);
    }
}

/// Where a transfer of this thread's has met nothing since it was last asked.
#[inline(always)]
#[must_use]
pub fn lost() -> Option<usize> {
    if is_usual() { None } else { taken() }
}

/// Whether a handler stands, as far as anybody has said, and no thread has lost anything.
#[inline(always)]
pub(crate) fn is_usual() -> bool {
    UNUSUAL.load(Ordering::Relaxed) == 0
}

#[cold]
fn taken() -> Option<usize> {
    let lost = LOST.take();
    if lost.is_some() {
        UNUSUAL.fetch_sub(1, Ordering::Relaxed);
    }
    lost
}

/// How many of `bytes` bytes at the address `from` are there, by a look at each page.
#[inline]
#[must_use]
pub fn there(from: usize, bytes: usize) -> usize {
    if bytes == 0 {
        return 0;
    }
    if !WATCHED.load(Ordering::Relaxed) {
        return there_by_kernel(from, bytes);
    }
    // SAFETY: what is looked at need not be there, as the handler knows.
    unsafe { nvmed_door_there(core::ptr::without_provenance(from), bytes) }
}

/// Copies `bytes` bytes, of which one side is the program's; how many arrived, from the first on.
///
/// # Safety
/// The side that is not the program's is valid for `bytes` bytes, and the two do not overlap. Nothing is asked of the
/// program's, but that no `&` or `&mut` of ours reaches it.
#[must_use]
pub unsafe fn copy(to: *mut u8, from: *const u8, bytes: usize) -> usize {
    if !WATCHED.load(Ordering::Relaxed) {
        // SAFETY: the caller's contract.
        return unsafe { by_kernel(to, from, bytes) };
    }
    // SAFETY: the caller's contract; at a fault the handler goes on behind the copying instruction. The direction flag
    // is clear at every call (System V ABI).
    bytes - unsafe { nvmed_door_copy(to, from, bytes) }
}

/// Copies from a buffer that may be a program's; how many bytes arrived, from the first on.
///
/// # Panics
/// When the lengths differ.
#[must_use]
pub fn take(from: &[u8], into: &mut [u8]) -> usize {
    assert_eq!(from.len(), into.len(), "as many bytes as there is room for");
    // SAFETY: two references of this length, of which one is unique, so that they do not overlap.
    unsafe { copy(into.as_mut_ptr(), from.as_ptr(), from.len()) }
}

/// Copies into a buffer that may be a program's, as [`crate::Mapping::give`] does from a mapping.
///
/// # Panics
/// When the lengths differ.
pub fn give(from: &[u8], into: &mut [u8]) {
    let sound = before_hole(into);
    let arrived = take(&from[..sound], &mut into[..sound]);
    if arrived < sound {
        note(into.as_ptr().addr() + arrived);
    }
}

/// As [`give`], of zeroes.
pub fn give_zeroes(into: &mut [u8]) {
    static ZEROES: [u8; 4096] = [0; 4096];
    into.chunks_mut(ZEROES.len()).for_each(|part| give(&ZEROES[..part.len()], part));
}

/// How many bytes of a buffer lie before the hole that this thread has met, of which nobody has asked yet.
pub(crate) fn before_hole(of: &[u8]) -> usize {
    LOST.get().map_or(of.len(), |lost| lost.saturating_sub(of.as_ptr().addr()).min(of.len()))
}

/// Copies the C string of the program's at the address `from`, as far as it fits before the last [`STRING_SLACK`] bytes
/// of `into`: where its NUL was put. What is beyond those bytes when there is no NUL among them; None when it is not
/// there.
///
/// # Panics
/// When `into` is not longer than the slack.
#[must_use]
pub fn string(from: usize, into: &mut [MaybeUninit<u8>]) -> Option<usize> {
    assert!(into.len() > STRING_SLACK, "room for a string and its slack");
    let room = into.len() - STRING_SLACK;
    if !WATCHED.load(Ordering::Relaxed) {
        return string_by_kernel(from, into.as_mut_ptr().cast(), room);
    }
    // SAFETY: at most `room` bytes and the slack are written. What is read need not be there, as the handler knows.
    let end =
        unsafe { nvmed_door_string(into.as_mut_ptr().cast(), core::ptr::without_provenance(from), room) };
    (end != usize::MAX).then_some(end)
}

/// [`copy`] where a fault would end the process: a system call of the kernel's.
///
/// # Safety
/// As [`copy`].
#[cold]
unsafe fn by_kernel(to: *mut u8, from: *const u8, bytes: usize) -> usize {
    let mut done = 0;
    while done < bytes {
        let (into, out) = (to.wrapping_add(done), from.wrapping_add(done));
        // Within one page of each side, which is there whole or not at all.
        let piece = (PAGE - (into as usize % PAGE).max(out as usize % PAGE)).min(bytes - done);
        let local = libc::iovec { iov_base: into.cast(), iov_len: piece };
        let remote = libc::iovec { iov_base: out.cast_mut().cast(), iov_len: piece };
        // SAFETY: two vectors on this stack; the kernel looks whether what they name is there, and may be written by
        // the caller's contract.
        let moved =
            unsafe { libc::process_vm_readv(libc::getpid(), &raw const local, 1, &raw const remote, 1, 0) };
        if moved < 0 && std::io::Error::last_os_error().raw_os_error() != Some(libc::EFAULT) {
            // A filter forbids the call. What is there is there; a fault does what it did without us.
            // SAFETY: the caller's contract, and the program's.
            unsafe { into.copy_from_nonoverlapping(out, bytes - done) };
            return bytes;
        }
        match usize::try_from(moved) {
            Ok(moved) if moved > 0 => done += moved,
            _ => break,
        }
    }
    done
}

#[cold]
fn string_by_kernel(from: usize, into: *mut u8, room: usize) -> Option<usize> {
    let mut at = 0;
    while at < room {
        let here = from.wrapping_add(at);
        let piece = (PAGE - here % PAGE).min(room - at);
        // SAFETY: `piece` bytes fit behind `at`.
        let got = unsafe { by_kernel(into.wrapping_add(at), core::ptr::without_provenance(here), piece) };
        // SAFETY: the kernel has just written them.
        let bytes = unsafe { core::slice::from_raw_parts(into.wrapping_add(at), got) };
        if let Some(end) = bytes.iter().position(|&byte| byte == 0) {
            return Some(at + end);
        }
        if got < piece {
            return None;
        }
        at += piece;
    }
    Some(at)
}

/// Pages of which the kernel is asked at once.
const PAGES_AT_ONCE: usize = 64;

/// [`there`] where a fault would end the process.
#[cold]
fn there_by_kernel(from: usize, bytes: usize) -> usize {
    let end = from.saturating_add(bytes);
    let mut at = from;
    while at < end {
        // One byte of each page; none of those behind the end.
        let place = |page: usize| if page == 0 { at } else { (at & !(PAGE - 1)) + page * PAGE };
        let remote: [libc::iovec; PAGES_AT_ONCE] = core::array::from_fn(|page| libc::iovec {
            iov_base: core::ptr::without_provenance_mut(place(page)),
            iov_len: usize::from(place(page) < end),
        });
        let mut seen = [0u8; PAGES_AT_ONCE];
        let local = libc::iovec { iov_base: seen.as_mut_ptr().cast(), iov_len: seen.len() };
        // SAFETY: vectors on this stack; the kernel looks whether what they name is there.
        let looked = unsafe {
            libc::process_vm_readv(
                libc::getpid(),
                &raw const local,
                1,
                remote.as_ptr(),
                PAGES_AT_ONCE as u64,
                0,
            )
        };
        if looked < 0 && std::io::Error::last_os_error().raw_os_error() != Some(libc::EFAULT) {
            // A filter forbids the call.
            return bytes;
        }
        let looked = usize::try_from(looked).unwrap_or(0);
        if remote.get(looked).is_some_and(|next| next.iov_len > 0) {
            return place(looked) - from;
        }
        at = place(PAGES_AT_ONCE);
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::ffi::c_void;

    /// A page, and behind it none that may be touched: a hole would be filled by what other tests map.
    fn last_page() -> *mut u8 {
        // SAFETY: new memory, of which nobody has touched the second page.
        unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let at =
                libc::mmap(core::ptr::null_mut(), 2 * PAGE, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
            assert_ne!(at, libc::MAP_FAILED);
            assert_eq!(libc::mprotect(at.byte_add(PAGE), PAGE, libc::PROT_NONE), 0);
            at.cast()
        }
    }

    extern "C" fn on_fault(_: i32, _: *mut libc::siginfo_t, context: *mut c_void) {
        // SAFETY: the kernel's context, valid while its handler runs.
        let registers = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
        match recovery(registers[libc::REG_RIP as usize] as usize) {
            Some(to) => registers[libc::REG_RIP as usize] = to as i64,
            None => std::process::abort(),
        }
    }

    fn watch() {
        // SAFETY: zeroed is a valid `sigaction`; the handler does what one may.
        unsafe {
            let mut action: libc::sigaction = core::mem::zeroed();
            action.sa_sigaction = on_fault as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO;
            assert_eq!(libc::sigaction(libc::SIGSEGV, &raw const action, core::ptr::null_mut()), 0);
        }
    }

    fn check() {
        let page = last_page();
        let mut room = [MaybeUninit::uninit(); 64 + STRING_SLACK];
        for len in 0..64 {
            let start = page.wrapping_add(PAGE - len - 1);
            // SAFETY: within the page.
            unsafe { start.write_bytes(b'n', len) };
            // SAFETY: as above.
            unsafe { start.add(len).write(b'n') };
            let unended = if len + 1 < 64 { None } else { Some(64) };
            assert_eq!(string(start.addr(), &mut room), unended, "{len} bytes and no end");
            // SAFETY: as above.
            unsafe { start.add(len).write(0) };
            assert_eq!(string(start.addr(), &mut room), Some(len));
            // SAFETY: as many bytes as were written.
            let got = unsafe { core::slice::from_raw_parts(room.as_ptr().cast::<u8>(), len + 1) };
            assert!(got[..len].iter().all(|&byte| byte == b'n') && got[len] == 0);
        }
        check_sizes(page);
        let mut bytes = [0u8; 300];
        // SAFETY: one side is the array, here and below.
        unsafe {
            assert_eq!(copy(bytes.as_mut_ptr(), page.add(PAGE - 100), 300), 100);
            assert_eq!(copy(page.add(PAGE - 7), bytes.as_ptr(), 300), 7);
            assert_eq!(copy(bytes.as_mut_ptr(), page.add(PAGE), 1), 0);
            assert_eq!(copy(page.add(PAGE - 300), bytes.as_ptr(), 300), 300);
            for nowhere in [0usize, 8, 1 << 62, usize::MAX - 300, usize::MAX] {
                assert_eq!(string(nowhere, &mut room), None);
                let nowhere = core::ptr::without_provenance_mut(nowhere);
                assert_eq!(copy(nowhere, bytes.as_ptr(), 300), 0);
                assert_eq!(copy(bytes.as_mut_ptr(), nowhere, 300), 0);
            }
        }
    }

    /// Many sizes, up to the end of the page and across it, in both directions.
    fn check_sizes(page: *mut u8) {
        let pattern: Vec<u8> = (0..WHOLE_BYTES + 100).map(|at| (at * 7 % 251) as u8 + 1).collect();
        for len in (0..300).chain(WHOLE_BYTES - 3..WHOLE_BYTES + 100) {
            for room in [0, 1, len / 3, len.saturating_sub(1), len].map(|room| room.min(len)) {
                let at = page.wrapping_add(PAGE - room);
                let mut back = vec![0u8; len + 1];
                // SAFETY: one side is ours; of the other `room` bytes are there.
                unsafe {
                    at.write_bytes(0, room);
                    assert_eq!(copy(at, pattern.as_ptr(), len), room, "{len} bytes into {room}");
                    assert_eq!(core::slice::from_raw_parts(at, room), &pattern[..room]);
                    assert_eq!(copy(back.as_mut_ptr(), at, len), room, "{len} bytes of {room}");
                }
                assert!(back[..room] == pattern[..room] && back[len] == 0, "{len} bytes of {room}");
            }
        }
    }

    /// Lines up to the end of the page and across it: whole ones, and the rest of the target as it was.
    fn check_lines(page: *mut u8) {
        #[repr(align(64))]
        struct Lines([u8; 512]);
        let pattern: Vec<u8> = (0..512).map(|at| (at * 7 % 241) as u8 + 8).collect();
        for bytes in (0..=512).step_by(LINE_BYTES) {
            for there in [0, 63, 64, 100, 200, 255, 256, 300, 383, 500, 512].map(|there| there.min(bytes)) {
                let from = page.wrapping_add(PAGE - there);
                // SAFETY: the page has so many bytes; targets are aligned and have 512.
                unsafe { core::ptr::copy_nonoverlapping(pattern.as_ptr(), from, there) };
                // SAFETY: as said.
                let narrow = |to, from, bytes| bytes - unsafe { nvmed_door_stream(to, from, bytes) };
                // SAFETY: as said.
                let wide = |to, from, bytes| unsafe { stream(to, from, bytes) };
                for stream in [&narrow as &dyn Fn(*mut u8, *const u8, usize) -> usize, &wide] {
                    let mut to = Lines([7; 512]);
                    let arrived = stream(to.0.as_mut_ptr(), from, bytes);
                    assert_eq!(arrived, there / LINE_BYTES * LINE_BYTES, "{bytes} bytes of {there}");
                    assert!(to.0[..arrived] == pattern[..arrived], "{bytes} bytes of {there}");
                    assert!(to.0[arrived..].iter().all(|&byte| byte == 7), "{bytes} bytes of {there}");
                }
            }
        }
        let (mut whole, buffer) = ([0; 100], [5; 100]);
        assert_eq!(take(&buffer, &mut whole), 100);
        assert_eq!(whole, buffer);
    }

    /// A copy out of a file that was cut short, and one into a buffer that is not there: which of both it was.
    fn is_lent() -> bool {
        let fd = rustix::fs::memfd_create("lent", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&fd, 2 * PAGE as u64).unwrap();
        let memory =
            crate::Mapping::read_only(rustix::fd::AsFd::as_fd(&fd), 0, 2 * PAGE, crate::Pages::Base).unwrap();
        rustix::io::pwrite(&fd, &[7; 2 * PAGE], 0).unwrap();
        let mut bytes = vec![0; 2 * PAGE];
        let whole = memory.lend(0, &mut bytes) && bytes.iter().all(|&byte| byte == 7);
        // SAFETY: nobody but the door looks at what is not there.
        let short = unsafe { core::slice::from_raw_parts_mut(last_page().add(PAGE - 100), 300) };
        let hole = short.as_ptr().addr() + 100;
        let told = memory.lend(0, short) && lost() == Some(hole);
        rustix::fs::ftruncate(&fd, PAGE as u64).unwrap();
        let cut = [(0, 2 * PAGE), (PAGE, 64), (PAGE - 8, 16)].into_iter().all(|(at, len)| {
            bytes.fill(0);
            !memory.lend(at, &mut bytes[..len])
                && lost().is_none()
                && bytes[..PAGE - at].iter().all(|&byte| byte == 7)
        });
        whole && told && cut && memory.lend(0, &mut bytes[..PAGE])
    }

    #[test]
    fn who_copies_from_a_file_that_was_cut_short_is_told() {
        // SAFETY: the child's handlers are its own; it ends without destructors.
        let child = unsafe { libc::fork() };
        if child == 0 {
            watch();
            // SAFETY: as in `watch`.
            unsafe {
                let mut action: libc::sigaction = core::mem::zeroed();
                action.sa_sigaction = on_fault as *const () as usize;
                action.sa_flags = libc::SA_SIGINFO;
                libc::sigaction(libc::SIGBUS, &raw const action, core::ptr::null_mut());
            }
            set_watched(true);
            let is_lent = is_lent();
            // SAFETY: takes no pointer.
            unsafe { libc::_exit(if is_lent { 0 } else { 1 }) }
        }
        let mut status = 0;
        // SAFETY: `status` lives on this stack.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!((libc::WIFEXITED(status), libc::WEXITSTATUS(status)), (true, 0), "status {status:x}");
    }

    #[test]
    fn what_a_transfer_has_lost_is_told_once() {
        note(9);
        note(7);
        assert_eq!(std::thread::spawn(lost).join().expect("it ends"), None);
        assert_eq!((lost(), lost()), (Some(7), None));
    }

    #[test]
    fn what_is_not_there_is_told() {
        // Before a handler stands, with one, and where none can run.
        check();
        watch();
        set_watched(true);
        check();
        let page = last_page();
        check_lines(page);
        for (from, bytes, are) in [(100, 5000, 100), (0, 1, 0), (PAGE, PAGE + 1, PAGE), (9, 9, 9)] {
            assert_eq!(there(page.addr() + PAGE - from, bytes), are);
        }
        set_watched(false);
        check();
    }
}
