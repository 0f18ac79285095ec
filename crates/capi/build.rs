//! Names the shared library's interface: programs linked with this version ask for `libnvmed.so.0`.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libnvmed.so.0");
}
