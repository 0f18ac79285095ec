//! The tests of this crate from outside, in one program.

mod keeper;
mod machine;
mod shelf;
#[path = "../../../server/tests/support/mod.rs"]
mod support;
mod table;
mod users;
