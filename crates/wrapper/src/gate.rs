//! The way past us for descriptors that are not ours: one load, one compare, and libc's own function goes on
//! in its caller's frame.
//!
//! So such a call costs a nanosecond or two more, and it is a cancellation point as ever: a thread that is
//! cancelled in the middle of libc's `read` is unwound, which a Rust frame in between could not be. Calls on
//! our descriptors end in the hook's own function; those that POSIX lists as cancellation points ask first.

use crate::find::table;
use crate::raw::{self, name_of};
use core::arch::naked_asm;
use core::ffi::{CStr, c_int, c_void};
use core::sync::atomic::{AtomicPtr, Ordering};

/// Where a gate leads for the host's descriptors: the hook itself, until [`open`] has found libc's function.
#[repr(transparent)]
pub(crate) struct Way(AtomicPtr<c_void>);

impl Way {
    const fn new(hook: *const ()) -> Self {
        Self(AtomicPtr::new(hook.cast_mut().cast()))
    }

    fn lead_to(&self, name: &CStr) {
        let found = raw::behind_us(name);
        if !found.is_null() {
            self.0.store(found, Ordering::Relaxed);
        }
    }
}

unsafe extern "C" {
    fn pthread_testcancel();
}

/// Leads the host's descriptors to libc's functions. Not while calls are watched, which the hooks do.
pub(crate) fn open() {
    for (name, way) in WAYS.iter().flatten() {
        way.lead_to(name);
    }
}

/// Saves the words of a call's arguments around a call of ours; seven, so that the stack stays aligned.
macro_rules! around {
    ($($call:expr),*) => {
        concat!(
            "push rdi\n.cfi_adjust_cfa_offset 8\npush rsi\n.cfi_adjust_cfa_offset 8\n",
            "push rdx\n.cfi_adjust_cfa_offset 8\npush rcx\n.cfi_adjust_cfa_offset 8\n",
            "push r8\n.cfi_adjust_cfa_offset 8\npush r9\n.cfi_adjust_cfa_offset 8\n",
            "push rax\n.cfi_adjust_cfa_offset 8\n",
            $($call, "\n",)*
            "pop rax\n.cfi_adjust_cfa_offset -8\npop r9\n.cfi_adjust_cfa_offset -8\n",
            "pop r8\n.cfi_adjust_cfa_offset -8\npop rcx\n.cfi_adjust_cfa_offset -8\n",
            "pop rdx\n.cfi_adjust_cfa_offset -8\npop rsi\n.cfi_adjust_cfa_offset -8\n",
            "pop rdi\n.cfi_adjust_cfa_offset -8\n",
        )
    };
}

/// Whether a descriptor beyond the first chunk of the table is ours.
#[cfg_attr(test, allow(dead_code))]
extern "C" fn is_high_ours(fd: c_int) -> bool {
    table::is_ours(fd)
}

/// Looks the descriptor in `edi` up in the table: jumps where it is ours, and where its number is beyond the table's
/// direct part, or another bound. Its number is left in `r10`.
#[cfg(not(test))]
macro_rules! look_up {
    (high: $high:literal, ours: $ours:literal) => {
        look_up!(bound: "{direct}", high: $high, ours: $ours)
    };
    (bound: $bound:literal, high: $high:literal, ours: $ours:literal) => {
        concat!(
            "cmp edi, ",
            $bound,
            "\njae ",
            $high,
            "\nmov r10d, edi\nlea r11, [rip + {table}]\ncmp qword ptr [r11 + r10 * 8], 0\njne ",
            $ours,
        )
    };
}

/// The rest of a look-up that went to `4` for a number beyond the table's direct part: on at `2` if the descriptor is
/// ours, else at `3`.
#[cfg(not(test))]
macro_rules! look_high_up {
    () => {
        concat!("4:\n", around!("call {high}", "test al, al"), "je 3b\n2:")
    };
}

/// An exported function of these instructions, and their operands.
#[cfg(not(test))]
macro_rules! function {
    ($name:ident [$($line:expr),* $(,)?] $($operands:tt)*) => {
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        unsafe extern "C" fn $name() {
            naked_asm!(".cfi_startproc", $($line,)* ".cfi_endproc", $($operands)*)
        }
    };
}

/// One that looks the descriptor up in the table.
#[cfg(not(test))]
macro_rules! looking_up {
    ($name:ident $hook:path, [$($line:expr),* $(,)?] $($operands:tt)*) => {
        function! { $name [$($line),*]
            direct = const table::DIRECT,
            table = sym table::TABLE,
            way = sym ways::$name,
            hook = sym $hook,
            $($operands)*
        }
    };
}

/// The exported function of each kind of gate.
#[cfg(not(test))]
macro_rules! gate {
    // No gate: the function serves the host's too.
    (direct $name:ident $hook:path) => {
        function! { $name ["jmp {hook}"] hook = sym $hook }
    };
    // A call that is no cancellation point.
    (plain $name:ident $hook:path) => {
        looking_up! { $name $hook, [
            look_up!(high: "2f", ours: "2f"),
            "jmp qword ptr [rip + {way}]",
            "2:",
            "jmp {hook}",
        ] }
    };
    // A jump out of whatever the thread is in: the hook is told, and libc's function jumps.
    (leaving $name:ident $hook:path) => {
        function! { $name [around!("call {hook}"), "jmp qword ptr [rip + {way}]"]
            way = sym ways::$name,
            hook = sym $hook,
        }
    };
    // The stack's own descriptors are the hook's too, which says that they are not there, and what is none of either is
    // the kernel's to refuse.
    (hiding $name:ident $hook:path) => {
        looking_up! { $name $hook, [
            look_up!(bound: "dword ptr [rip + {least}]", high: "3f", ours: "2f"),
            "4:",
            "jmp qword ptr [rip + {way}]",
            "3:",
            "test edi, edi",
            "js 4b",
            look_up!(high: "2f", ours: "2f"),
            "shr r10d, 6",
            "lea r11, [rip + {quiet}]",
            "mov r11, qword ptr [r11 + r10 * 8]",
            "bt r11, rdi",
            "jnc 4b",
            "2:",
            "jmp {hook}",
        ]
            least = sym nvmed_sys::QUIET_LEAST,
            quiet = sym nvmed_sys::QUIET,
        }
    };
    // A cancellation point: a program with one thread has nobody to cancel it.
    (cancel $name:ident $hook:path) => {
        looking_up! { $name $hook, [
            look_up!(high: "2f", ours: "2f"),
            "jmp qword ptr [rip + {way}]",
            "2:",
            "mov r11, qword ptr [rip + __libc_single_threaded@GOTPCREL]",
            "cmp byte ptr [r11], 0",
            "jne 3f",
            around!("call {test}"),
            "3:",
            "jmp {hook}",
        ]
            test = sym pthread_testcancel,
        }
    };
    // A list of descriptors, a message with some, or an address: a function looks through it.
    (list $name:ident $hook:path) => {
        gate!(@looked $name $hook, poll::looks::$name);
    };
    (message $name:ident $hook:path) => {
        gate!(@looked $name $hook, rights::looks::$name);
    };
    (address $name:ident $hook:path) => {
        gate!(@looked $name $hook, socket::looks::$name);
    };
    (@looked $name:ident $hook:path, $look:path) => {
        function! { $name [
            around!("call {look}", "test al, al"),
            "jne 2f",
            "jmp qword ptr [rip + {way}]",
            "2:",
            "jmp {hook}",
        ]
            look = sym $look,
            way = sym ways::$name,
            hook = sym $hook,
        }
    };
    // A call that answers an address, in its second and third argument or in its last two.
    (accepting $name:ident $hook:path) => {
        gate!(@telling $name $hook, "rsi", "rdx");
    };
    (receiving $name:ident $hook:path) => {
        gate!(@telling $name $hook, "r8", "r9");
    };
    // If one is asked for, libc's function comes back here, and the address is looked at.
    (@telling $name:ident $hook:path, $address:literal, $len:literal) => {
        looking_up! { $name $hook, [
            look_up!(high: "4f", ours: "2f"),
            "3:",
            concat!("test ", $address, ", ", $address),
            "je 5f",
            concat!("test ", $len, ", ", $len),
            "je 5f",
            // The saved rax has the answer.
            around!(concat!("mov rdi, ", $len), "call {room}", "mov qword ptr [rsp], rax"),
            "sub rsp, 24",
            ".cfi_adjust_cfa_offset 24",
            concat!("mov qword ptr [rsp], ", $address),
            concat!("mov qword ptr [rsp + 8], ", $len),
            "mov qword ptr [rsp + 16], rax",
            "call qword ptr [rip + {way}]",
            "mov rdi, qword ptr [rsp]",
            "mov rsi, qword ptr [rsp + 16]",
            "mov rdx, qword ptr [rsp + 8]",
            "mov ecx, eax",
            "mov qword ptr [rsp], rax",
            "call {told}",
            "mov rax, qword ptr [rsp]",
            "add rsp, 24",
            ".cfi_adjust_cfa_offset -24",
            "ret",
            look_high_up!(),
            around!("call {hook}", "mov qword ptr [rsp + 48], rax"),
            "jmp 3b",
            "5:",
            "jmp qword ptr [rip + {way}]",
        ]
            high = sym is_high_ours,
            room = sym socket::room,
            told = sym socket::told,
        }
    };
    // recvfrom with the room that its buffer has, as the fourth argument of seven: without it, it is a call of
    // recvfrom.
    (checked $name:ident $overflow:path) => {
        function! { $name [
            "cmp rdx, rcx",
            "ja 2f",
            "mov ecx, r8d",
            "mov r8, r9",
            "mov r9, qword ptr [rsp + 8]",
            "jmp {recvfrom}",
            "2:",
            "jmp {overflow}",
        ]
            recvfrom = sym recvfrom,
            overflow = sym $overflow,
        }
    };
    // A call of another kind of descriptor: libc goes on with the number that the hook answers for one of ours. It
    // takes the place of the first argument, which is saved below the others.
    (lent $name:ident $hook:path) => {
        looking_up! { $name $hook, [
            look_up!(high: "4f", ours: "2f"),
            "3:",
            "jmp qword ptr [rip + {way}]",
            look_high_up!(),
            around!("call {hook}", "mov qword ptr [rsp + 48], rax"),
            "jmp 3b",
        ]
            high = sym is_high_ours,
        }
    };
    // A call of another kind of descriptor: the hook is for ours alone.
    (other $name:ident $hook:path) => {
        looking_up! { $name $hook, [
            look_up!(high: "4f", ours: "2f"),
            "3:",
            "jmp qword ptr [rip + {way}]",
            look_high_up!(),
            "jmp {hook}",
        ]
            high = sym is_high_ours,
        }
    };
}

/// Tells `$then` when a kind of gate finds its way.
macro_rules! found {
    // Never: it leads nowhere, or goes another gate's way.
    (direct, $then:ident $($rest:tt)*) => { $then! { never $($rest)* } };
    (checked, $then:ident $($rest:tt)*) => { $then! { never $($rest)* } };
    // At its first call: the hook is for ours alone.
    (accepting, $then:ident $($rest:tt)*) => { $then! { at_call $($rest)* } };
    (leaving, $then:ident $($rest:tt)*) => { $then! { at_call $($rest)* } };
    (lent, $then:ident $($rest:tt)*) => { $then! { at_call $($rest)* } };
    (other, $then:ident $($rest:tt)*) => { $then! { at_call $($rest)* } };
    (receiving, $then:ident $($rest:tt)*) => { $then! { at_call $($rest)* } };
    // By `open`: until then the hook serves the host's too.
    ($kind:ident, $then:ident $($rest:tt)*) => { $then! { at_open $($rest)* } };
}

macro_rules! way {
    (never $name:ident $hook:path) => {};
    (at_call $name:ident $hook:path) => {
        #[allow(non_upper_case_globals, reason = "named as libc's function is")]
        pub(super) static $name: Way = Way::new({
            #[unsafe(naked)]
            unsafe extern "C" fn resolve() {
                extern "C" fn find() {
                    $name.lead_to(name_of(concat!(stringify!($name), "\0")));
                }
                naked_asm!(
                    ".cfi_startproc",
                    around!("call {find}"),
                    "jmp qword ptr [rip + {way}]",
                    ".cfi_endproc",
                    find = sym find,
                    way = sym $name,
                )
            }
            resolve as *const ()
        });
    };
    (at_open $name:ident $hook:path) => {
        #[allow(non_upper_case_globals, reason = "named as libc's function is")]
        pub(super) static $name: Way = Way::new($hook as *const ());
    };
}

macro_rules! listed {
    (at_open $name:ident) => {
        Some((name_of(concat!(stringify!($name), "\0")), &ways::$name))
    };
    ($when:ident $name:ident) => {
        None
    };
}

macro_rules! gates {
    ($($kind:ident $name:ident => $hook:path;)*) => {
        /// The exported functions, by libc's names.
        #[cfg(not(test))]
        #[allow(non_snake_case, reason = "named as libc's functions are")]
        mod exported {
            use crate::hooks::*;
            use super::*;
            $(gate!($kind $name $hook);)*
        }

        mod ways {
            use crate::hooks::*;
            use super::*;
            $(found!($kind, way $name $hook);)*
        }

        /// The gates that `open` opens.
        const WAYS: &[Option<(&CStr, &Way)>] = &[$(found!($kind, listed $name)),*];
    };
}

/// The bits of quiet descriptors reach as far as the first chunk of the table.
const _: () = assert!(nvmed_sys::QUIET.len() * 64 == table::DIRECT);

macro_rules! exports {
    ($($module:ident { $(
        $function:ident: $($gate:ident [$($name:ident)+] $takes:literal)? $(($($shape:tt)+))?
            $(@$about:ident $number:ident ($($word:literal),*))?;
    )* })*) => { gates! { $($($($( $gate $name => $module::$function; )+)?)*)* } };
}
rows!(exports);
