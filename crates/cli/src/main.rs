//! The nvmed command
fn main() {}
