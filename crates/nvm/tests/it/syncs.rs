//! Which calls a fence makes: counted by the kernel, which hands them to this thread in place of doing them.

use crate::{Scratch, alone, file};
use nvmed_nvm::{FlushTo, Memory};
use std::sync::Arc;

const BYTES: u64 = 4 << 20;
const GRANULE: usize = 64 << 10;

/// One call: its number, and for `msync` its length.
#[cfg(target_arch = "x86_64")]
mod counted {
    use std::sync::atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering};

    const CALLS: usize = 64;
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    static NUMBERS: [AtomicU64; CALLS] = [const { AtomicU64::new(0) }; CALLS];
    static LENGTHS: [AtomicU64; CALLS] = [const { AtomicU64::new(0) }; CALLS];
    static ANSWER: AtomicI64 = AtomicI64::new(0);

    extern "C" fn on_call(_: libc::c_int, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
        // SAFETY: the kernel gives an SA_SIGINFO handler the context of the thread that it interrupts, this one.
        let registers = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
        let at = COUNT.fetch_add(1, Ordering::SeqCst).min(CALLS - 1);
        NUMBERS[at].store(registers[libc::REG_RAX as usize] as u64, Ordering::SeqCst);
        LENGTHS[at].store(registers[libc::REG_RSI as usize] as u64, Ordering::SeqCst);
        registers[libc::REG_RAX as usize] = ANSWER.load(Ordering::SeqCst);
    }

    /// Answers this thread's syncs from here on by `answer`, and none is made.
    pub fn answer(answer: i64) {
        ANSWER.store(answer, Ordering::SeqCst);
    }

    /// The calls since the last question: `None` for the file, the length for a run.
    pub fn take() -> Vec<Option<usize>> {
        let count = COUNT.swap(0, Ordering::SeqCst);
        assert!(count < CALLS, "{count} syncs");
        let one = |at: usize| {
            let run = NUMBERS[at].load(Ordering::SeqCst) == libc::SYS_msync as u64;
            run.then(|| LENGTHS[at].load(Ordering::SeqCst) as usize)
        };
        (0..count).map(one).collect()
    }

    /// Has this thread's syncs answered here; whether the kernel can do that.
    pub fn begin() -> bool {
        let step = |code: u32, k: u32, jt: u8| libc::sock_filter { code: code as u16, jt, jf: 0, k };
        let equals = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
        let mut filter = [
            step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0),
            step(equals, libc::SYS_msync as u32, 3),
            step(equals, libc::SYS_fdatasync as u32, 2),
            step(equals, libc::SYS_fsync as u32, 1),
            step(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW, 0),
            step(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_TRAP, 0),
        ];
        let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
        // SAFETY: a zeroed action is a valid one, and `on_call` has the signature that SA_SIGINFO asks for; the kernel
        // copies the program during the call, and both `prctl` restrict this thread only.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = on_call as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO;
            libc::sigaction(libc::SIGSYS, &action, std::ptr::null_mut()) == 0
                && libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
                && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program) == 0
        }
    }
}

/// Does `body` in a thread whose syncs are counted.
fn counting(body: impl FnOnce() + Send + 'static) {
    #[cfg(target_arch = "x86_64")]
    {
        let _alone = alone();
        let begun = std::thread::spawn(move || {
            let begun = counted::begin();
            if begun {
                counted::answer(0);
                drop(counted::take());
                body();
            }
            begun
        });
        if begun.join().expect("the body asserts") {
            return;
        }
    }
    println!("SKIPPED: syncs cannot be counted here (needs seccomp, on x86-64)");
}

#[cfg(target_arch = "x86_64")]
#[test]
fn a_fence_syncs_what_was_stored_since_the_last_one() {
    counting(|| {
        let scratch = Scratch::new();
        let options = || file(&scratch.image(), Some(BYTES), FlushTo::Host);
        let memory = Arc::new(Memory::open(options()).expect("a file"));
        let fenced = || {
            memory.fence().expect("a fence");
            counted::take()
        };
        assert_eq!(fenced(), [None], "what an earlier process left is in no note");
        assert_eq!(fenced(), []);
        memory.store(100, &[1; 100]).expect("bytes");
        memory.store(5000, &[1; 8]).expect("bytes");
        assert_eq!(fenced(), [Some(GRANULE)]);
        assert_eq!(fenced(), [], "what was synced is not synced again");
        memory.store(GRANULE as u64 - 4, &[1; 8]).expect("bytes");
        assert_eq!(fenced(), [Some(2 * GRANULE)], "one run");
        memory.store_u64(0, 1).expect("a word");
        memory.store(10 * GRANULE as u64, &[1]).expect("bytes");
        assert_eq!(fenced(), [None], "two runs are one sync of the file");
        let other = Arc::clone(&memory);
        // A new thread inherits the filter, and makes no sync.
        std::thread::spawn(move || {
            other.store(1 << 20, &[2; 4096]).expect("bytes");
            other.settle();
        })
        .join()
        .expect("the other thread");
        assert_eq!(fenced(), [Some(GRANULE)], "another thread's store");
        memory.zero(BYTES - 4096, 4096, true).expect("zeroes");
        assert_eq!(fenced(), [Some(GRANULE)], "to the end of the file and no further");
        memory.store(0, &[]).expect("nothing");
        assert_eq!(fenced(), []);
        drop(memory);
        let memory = Memory::open(options()).expect("a file");
        memory.store(0, &[1]).expect("bytes");
        memory.fence().expect("a fence");
        assert_eq!(counted::take(), [None], "opened anew");
    });
}

#[cfg(target_arch = "x86_64")]
#[test]
fn a_fence_for_the_process_makes_no_call() {
    counting(|| {
        let scratch = Scratch::new();
        let memory = Memory::open(file(&scratch.image(), Some(BYTES), FlushTo::Process)).expect("a file");
        for at in [0, 4096, 3 << 20] {
            memory.store(at, &[1; 4096]).expect("bytes");
            memory.fence().expect("a fence");
        }
        memory.zero(0, 1 << 20, true).expect("zeroes");
        memory.fence().expect("a fence");
        assert_eq!(counted::take(), []);
    });
}

/// The host may have dropped what it could not write: a later success would lie.
#[cfg(target_arch = "x86_64")]
#[test]
fn a_sync_that_failed_fails_every_fence_from_then_on() {
    counting(|| {
        let scratch = Scratch::new();
        let memory = Memory::open(file(&scratch.image(), Some(BYTES), FlushTo::Host)).expect("a file");
        memory.fence().expect("a fence");
        memory.store(0, &[1]).expect("bytes");
        counted::answer(-i64::from(libc::EIO));
        assert!(memory.fence().is_err());
        counted::answer(0);
        assert!(memory.fence().is_err(), "nothing is noted any more, and nothing is well");
        memory.store(0, &[2]).expect("bytes");
        assert!(memory.fence().is_err());
    });
}

/// What programs stored by mappings of their own is in no note until somebody says so.
#[cfg(target_arch = "x86_64")]
#[test]
fn a_fence_syncs_what_mappings_may_have_stored() {
    counting(|| {
        for (flush, synced) in [(FlushTo::Host, &[Some(GRANULE)][..]), (FlushTo::Process, &[])] {
            let scratch = Scratch::new();
            let memory = Memory::open(file(&scratch.image(), Some(BYTES), flush)).expect("a file");
            memory.allocate(2 << 20, 4096).expect("room");
            memory.fence().expect("a fence");
            drop(counted::take());
            let stored = memory.descriptor(true).expect("a descriptor to store by");
            assert_eq!(rustix::io::pwrite(&*stored, b"by a mapping", 2 << 20), Ok(12));
            let read = memory.descriptor(false).expect("a descriptor to read by");
            assert!(rustix::io::pwrite(&*read, b"x", 2 << 20).is_err(), "nobody stores by it");
            let mut found = [0; 12];
            memory.read(2 << 20, &mut found).expect("bytes");
            assert_eq!(&found, b"by a mapping");
            memory.note_mapped(2 << 20, 4096);
            memory.fence().expect("a fence");
            assert_eq!(counted::take(), synced);
            // The descriptors go with the memory.
            assert!(memory.check_maps().is_err(), "others may have it mapped");
            drop((memory, stored, read));
            let memory = Memory::open(file(&scratch.image(), None, flush)).expect("a file");
            memory.check_maps().expect("nobody has it mapped");
        }
    });
}
