//! The gate and the project's own chores.
fn main() {}
