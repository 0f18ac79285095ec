//! Directories as libc shows them: streams, scans and walks, with ours listed where it belongs.
//!
//! In: libc's functions over directories, which make calls of their own that no hook sees. Out: the same answers over
//! files of both sides. Neighbours: `find`, `calls`.

pub(crate) mod directory;
pub(crate) mod fts;
pub(crate) mod fts_entry;
pub(crate) mod fts_stream;
pub(crate) mod glob;
pub(crate) mod record;
pub(crate) mod scan;
pub(crate) mod slot;
