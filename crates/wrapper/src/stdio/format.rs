//! Variadic functions that print: libc's own write below every hook, so the text is made in memory first.

use crate::calls::data;
use crate::find::table;
use core::ffi::{c_char, c_int, c_void};

/// A `va_list` as a function's argument: the address of the list.
pub(crate) type Arguments = *mut c_void;

/// Exports a variadic function as its `v` form: `$fixed` arguments, then the rest as a `va_list` in the next
/// register (System V ABI, section 3.5.7).
macro_rules! variadic {
    ($($name:ident, $fixed:literal, $register:literal => $($with_list:ident)::+;)*) => { $(
        /// A variadic function, by its form with a list.
        #[unsafe(naked)]
        pub(crate) unsafe extern "C" fn $name() {
            // 176 bytes of saved registers, 24 of the list; what was pushed before the call is 224 above.
            core::arch::naked_asm!(
                ".cfi_startproc",
                "sub rsp, 216",
                ".cfi_adjust_cfa_offset 216",
                "mov [rsp], rdi",
                "mov [rsp + 8], rsi",
                "mov [rsp + 16], rdx",
                "mov [rsp + 24], rcx",
                "mov [rsp + 32], r8",
                "mov [rsp + 40], r9",
                "test al, al",
                "je 2f",
                "movaps [rsp + 48], xmm0",
                "movaps [rsp + 64], xmm1",
                "movaps [rsp + 80], xmm2",
                "movaps [rsp + 96], xmm3",
                "movaps [rsp + 112], xmm4",
                "movaps [rsp + 128], xmm5",
                "movaps [rsp + 144], xmm6",
                "movaps [rsp + 160], xmm7",
                "2:",
                "mov dword ptr [rsp + 176], 8 * {fixed}",
                "mov dword ptr [rsp + 180], 48",
                "lea r11, [rsp + 224]",
                "mov [rsp + 184], r11",
                "mov [rsp + 192], rsp",
                concat!("lea ", $register, ", [rsp + 176]"),
                "call {with_list}",
                "add rsp, 216",
                ".cfi_adjust_cfa_offset -216",
                "ret",
                ".cfi_endproc",
                fixed = const $fixed,
                with_list = sym $($with_list)::+,
            )
        }
    )* };
}
pub(crate) use variadic;

variadic! {
    dprintf, 2, "rdx" => vdprintf;
    __dprintf_chk, 3, "rcx" => __vdprintf_chk;
}

/// Text that libc made, which `free` takes back.
struct AllocatedText(*mut c_char);

impl Drop for AllocatedText {
    fn drop(&mut self) {
        // SAFETY: null, or memory of malloc's that nobody else has.
        unsafe { libc::free(self.0.cast()) };
    }
}

/// Prints to a descriptor of ours.
unsafe fn print(fd: c_int, make: impl FnOnce(*mut *mut c_char) -> c_int) -> c_int {
    let mut text = AllocatedText(core::ptr::null_mut());
    let len = make(&raw mut text.0);
    if len < 0 {
        text.0 = core::ptr::null_mut();
        return len;
    }
    let mut done = 0;
    while done < len as usize {
        // SAFETY: libc made `len` bytes at `text`.
        let now = unsafe { data::write(fd, text.0.add(done).cast(), len as usize - done) };
        if now < 0 {
            return -1;
        }
        done += now as usize;
    }
    len
}

hook! {
    /// vdprintf(3)
    fn vdprintf(fd: c_int, format: *const c_char, list: Arguments) -> c_int, next libc_vdprintf {
        if !table::is_ours(fd) {
            return libc_vdprintf(fd, format, list);
        }
        let libc = next!(vasprintf, fn(*mut *mut c_char, *const c_char, Arguments) -> c_int);
        print(fd, |text| unsafe { libc(text, format, list) })
    }
}

hook! {
    /// vdprintf(3), as compiled with _FORTIFY_SOURCE
    fn __vdprintf_chk(fd: c_int, flag: c_int, format: *const c_char, list: Arguments) -> c_int,
        next libc_vdprintf_chk {
        if !table::is_ours(fd) {
            return libc_vdprintf_chk(fd, flag, format, list);
        }
        let libc = next!(__vasprintf_chk, fn(*mut *mut c_char, c_int, *const c_char, Arguments) -> c_int);
        print(fd, |text| unsafe { libc(text, flag, format, list) })
    }
}
