//! Links the stack unwinder into the library where the C compiler has it as an archive: a program that
//! starts under the wrapper then loads one shared library less, which is a quarter of what it pays. The command
//! is built by this too, since `nvmed run` starts twice, as holder and as server.

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=../wrapper/build.rs");
    let output = Command::new("cc").arg("-print-file-name=libgcc_eh.a").output();
    let Some(archive) = output.ok().and_then(|output| String::from_utf8(output.stdout).ok()) else { return };
    let archive = Path::new(archive.trim());
    // Without the archive the compiler answers the bare name; the shared library then serves.
    if let Some(dir) = archive.parent().filter(|_| archive.is_absolute() && archive.exists()) {
        println!("cargo::rustc-link-search=native={}", dir.display());
        println!("cargo::rustc-link-lib=static:-bundle=gcc_eh");
    }
}
