//! The native format: Parquet, a row a request (docs/trace.md, "Parquet").

mod bits;
mod column;
mod footer;
mod order;
mod pages;
mod read;
mod write;

pub(crate) use read::{begins, open};
pub(crate) use write::create;

/// First bytes of a file, and last ones.
const MAGIC: [u8; 4] = *b"PAR1";
/// Names of the columns.
const DEVICE: &str = "device";
const PROCESS: &str = "process";
const OP: &str = "op";
const OFFSET: &str = "offset_bytes";
const SIZE: &str = "size_bytes";
const ARRIVAL: &str = "arrival_ns";
const START: &str = "start_ns";
const FINISH: &str = "finish_ns";
const WAITED: &str = "waited";
const FLAGS: &str = "flags";
/// Key of the metadata that has the version of this format, and the version.
const VERSION_KEY: &str = "nvmed.trace";
const VERSION: &str = "1";
/// How the keys begin that say where the trace comes from.
const PROVENANCE_KEY: &str = "nvmed.from.";
/// How the keys begin that have the unit of a column, whose name follows.
const UNIT_KEY: &str = "nvmed.unit.";
/// Columns that have a unit, and it; times are from the trace's zero.
const COLUMN_UNITS: [(&str, &str); 5] =
    [(OFFSET, "bytes"), (SIZE, "bytes"), (ARRIVAL, "ns"), (START, "ns"), (FINISH, "ns")];
