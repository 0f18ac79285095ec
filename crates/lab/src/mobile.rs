//! What applications of a mobile device do to their files: TCE'17, IV.D.
//!
//! `App` is the database traffic of three kinds of application as SQL for the unmodified `sqlite3` shell; a seed fixes
//! it, so every contender does the same. Recorded ones are calls of a trace ([`crate::calls`]).

mod app;

pub(crate) use app::App;
