//! Charts, and the pages that they stand on.
//!
//! In: numbers, names and units. Out: HTML text, in which the charts are SVG with HTML labels, so that text keeps its
//! size at any width. A page needs no other file and no script: the script on it adds values below the pointer, zoom,
//! keys, and series that can be hidden.
//! Neighbours: none below; every room that writes a page is above.
//! Invariants: every name is escaped; a value that is no number is left out; nothing on a page has an address
//! elsewhere.

#![forbid(unsafe_code)]

mod axis;
mod columns;
mod frame;
mod heat;
mod lines;
mod page;
mod rows;
mod scatter;
mod unit;

pub use axis::{Axis, Scale};
pub use columns::{Columns, columns};
pub use heat::{Grid, heat};
pub use lines::{Line, Shape, lines};
pub use page::{document, escaped, table};
pub use rows::{Row, rows};
pub use scatter::{Point, Points, scatter};
pub use unit::{Unit, short, time};
