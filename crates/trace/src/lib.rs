//! Block traces: requests with their times, in the formats of those who recorded them; what they are like; and traces
//! that are like a description.
//!
//! In: bytes of a file. Out: [`Request`]s, in the order of their arrivals. See docs/trace.md.
//! Neighbours: `units`, `dice`.
//! Invariant: what a stranger wrote is a request that can be, or a malformed line that is counted; never a panic.
#![forbid(unsafe_code)]

mod analysis;
mod call_source;
mod characteristics;
mod codec;
mod fenwick;
mod format;
mod intake;
mod kernel;
mod labels;
mod malformed;
mod native;
mod output;
mod pairing;
mod provenance;
mod request;
mod row;
mod selection;
mod sink;
mod source;
mod summary;
mod synth;
mod table;
mod timeline;

pub use analysis::{Analysis, Burstiness, HitRatio, ReuseDistances, WindowSet, WorkingSet};
pub use call_source::{CallOptions, CallSource};
pub use characteristics::{Characteristic, Claim, Verdict};
pub use format::{
    CallWords, FORMATS, FileAction, FileCall, FileNumber, FileObject, FilePath, Format, LinkTarget,
};
pub use intake::{Counts, MalformedLine, Tolerance};
pub use kernel::{KernelCounts, KernelEvent, KernelLayout, KernelTrace};
pub use malformed::Malformed;
pub use output::OutputFile;
pub use pairing::Unpaired;
pub use provenance::Provenance;
pub use request::{Catalogue, Flags, Names, Op, Request, RequestError};
pub use row::{Cell, Row};
pub use selection::Selection;
pub use sink::{Sink, Written};
pub use source::{Options, Source, TraceError, text_of_calls};
pub use summary::{
    BySide, Depth, Interference, Latencies, Part, Percentiles, SizeClass, Summary, TimeClass, Waiting,
};
pub use synth::{DeviceModel, Model, Several, SynthError, Synthesis};
pub use table::{characteristics, remarks, shown, table, verdicts};
pub use timeline::{DepthBin, DepthCourse, OffsetMap, Rate, Timeline};
