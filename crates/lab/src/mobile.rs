//! What applications of a mobile device do to their files: TCE'17, IV.D.
//!
//! `App` is the database traffic of three kinds of application as SQL for the unmodified `sqlite3` shell; [`Replay`]
//! is a recorded one's system calls. A seed fixes both, so every contender does the same.

mod app;
mod recorded;
mod replay;

pub(crate) use app::App;
pub use replay::{Replay, Replayed};
