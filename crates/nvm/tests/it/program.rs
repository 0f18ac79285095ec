//! Buffers of a program: what of them is not there is told, and never takes the medium with it.

use crate::{Scratch, alone, file, ram};
use nvmed_nvm::{FlushTo, Memory, Record, What};
use nvmed_sys::door;
use std::sync::{Arc, Once};

const PAGE: usize = 4096;

/// A handler as a program's wrapper has one: what faults at the door goes on there, all else is as before.
#[cfg(target_arch = "x86_64")]
fn watch() {
    use std::sync::atomic::{AtomicUsize, Ordering};
    static BEFORE: AtomicUsize = AtomicUsize::new(0);
    static ONCE: Once = Once::new();

    extern "C" fn on_fault(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
        // SAFETY: the kernel gives an SA_SIGINFO handler the context of the thread that it interrupts, this one.
        let registers = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
        let at = &mut registers[libc::REG_RIP as usize];
        if let Some(to) = door::recovery(*at as usize) {
            *at = to as i64;
            return;
        }
        assert_eq!(signal, libc::SIGBUS, "a fault outside the door");
        let before = BEFORE.load(Ordering::SeqCst);
        // SAFETY: what guards files was the handler before, and has this signature.
        unsafe {
            std::mem::transmute::<usize, extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void)>(
                before,
            )(signal, info, context);
        }
    }

    ONCE.call_once(|| {
        nvmed_sys::survive_cut_files().expect("a handler");
        // SAFETY: zeroed actions are valid ones, and `on_fault` has the signature that SA_SIGINFO asks for.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            let mut before: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = on_fault as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO;
            assert_eq!(libc::sigaction(libc::SIGBUS, std::ptr::null(), &raw mut before), 0);
            BEFORE.store(before.sa_sigaction, Ordering::SeqCst);
            assert_eq!(libc::sigaction(libc::SIGSEGV, &raw const action, std::ptr::null_mut()), 0);
            assert_eq!(libc::sigaction(libc::SIGBUS, &raw const action, std::ptr::null_mut()), 0);
        }
        door::set_watched(true);
    });
}

/// The last `there` bytes before memory that may not be touched, as a buffer of `bytes`: what a program names.
fn buffer(there: usize, bytes: usize) -> &'static mut [u8] {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: new memory, which is never unmapped; nobody but the door touches what is behind its first pages.
    unsafe {
        let len = 64 * PAGE;
        let at = libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
        assert_ne!(at, libc::MAP_FAILED);
        assert_eq!(libc::mprotect(at.byte_add(len / 2), len / 2, libc::PROT_NONE), 0);
        let begin = at.cast::<u8>().add(len / 2 - there);
        begin.write_bytes(9, there);
        std::slice::from_raw_parts_mut(begin, bytes)
    }
}

fn contents(memory: &Memory, at: u64, bytes: usize) -> Vec<u8> {
    let mut found = vec![0; bytes];
    memory.read(at, &mut found).expect("bytes");
    found
}

/// Where a buffer ends early, at every place in a line: what is there arrives, zeroes follow, and nothing else changes.
#[test]
fn what_is_not_there_of_a_buffer_is_told_and_the_rest_is_whole() {
    let _alone = alone();
    watch();
    let scratch = Scratch::new();
    let options = file(&scratch.image(), Some(1 << 20), FlushTo::Process);
    for memory in [ram(1 << 20), Arc::new(Memory::open(options).expect("a file"))] {
        for (at, bytes) in
            [(64_u64, 4096_usize), (100, 1000), (131_000, 300), (7, 20), (64, 64), (130_000, 70_000)]
        {
            for there in [0, 1, bytes / 3, bytes / 2 / 64 * 64, bytes - 1, bytes] {
                let from = buffer(there, bytes);
                let begin = from.as_ptr().addr();
                memory.store(0, &vec![7; 1 << 20]).expect("bytes");
                assert_eq!(memory.take(at, from), Ok(there == bytes), "{there} of {bytes} at {at}");
                let lost = (there < bytes).then_some(begin + there);
                assert_eq!(door::lost(), lost, "{there} of {bytes} at {at}");
                let found = contents(&memory, 0, 1 << 20);
                let (begin, end) = (at as usize, at as usize + bytes);
                assert!(
                    found[begin..begin + there].iter().all(|&byte| byte == 9),
                    "{there} of {bytes} at {at}"
                );
                assert!(
                    found[begin + there..end].iter().all(|&byte| byte == 0),
                    "{there} of {bytes} at {at}"
                );
                assert!(found[..begin].iter().chain(&found[end..]).all(|&byte| byte == 7));
                let into = buffer(there, bytes);
                memory.give(4096, into).expect("a medium that is there");
                assert_eq!(door::lost(), (there < bytes).then(|| into.as_ptr().addr() + there));
                let want = contents(&memory, 4096, there);
                assert!(into[..there] == want, "{there} of {bytes} at {at}");
            }
        }
    }
}

/// What is recorded is what is stored, and no byte of the buffer is touched but by the door.
#[test]
fn the_record_of_a_buffer_that_ends_early_is_what_was_stored() {
    let _alone = alone();
    watch();
    let memory = ram(1 << 20);
    let record = Record::new();
    memory.record(Arc::clone(&record));
    assert_eq!(memory.take(100, buffer(70, 200)), Ok(false));
    assert!(door::lost().is_some());
    let stored = contents(&memory, 100, 200);
    assert!(stored[..70] == [9; 70] && stored[70..] == [0; 130]);
    if cfg!(debug_assertions) {
        let stored = What::Store { at: 100, bytes: stored };
        assert!(record.take().iter().any(|event| event.what == stored));
    }
}

/// A fault of the file's in the middle of a copy of the door's is the file's error and not the buffer's.
#[test]
fn a_file_that_is_cut_under_a_copy_is_no_fault_of_the_buffer() {
    let _alone = alone();
    watch();
    let scratch = Scratch::new();
    for is_read in [false, true] {
        let _ = std::fs::remove_file(scratch.image());
        let options = file(&scratch.image(), Some(1 << 20), FlushTo::Process);
        let memory = Memory::open(options).expect("a file");
        memory.store(0, &vec![7; 1 << 20]).expect("bytes");
        let cut = std::fs::OpenOptions::new().write(true).open(scratch.image()).expect("the file");
        cut.set_len(1 << 19).expect("a cut");
        let whole = buffer(4096, 4096);
        let answer =
            if is_read { memory.give(1 << 19, whole) } else { memory.take(1 << 19, whole).map(drop) };
        assert!(answer.is_err(), "{answer:?}");
        assert_eq!(door::lost(), None, "the buffer was there");
        assert!(memory.fence().is_err());
    }
}
