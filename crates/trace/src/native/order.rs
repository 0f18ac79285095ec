//! What a Parquet file says of the order of its rows: then a reader need not hold them to find it. It is believed, and
//! a reader looks whether the rows keep to it.

use parquet::file::metadata::RowGroupMetaData;
use parquet::file::statistics::Statistics;

/// Whether the rows of a group are in the order of their arrivals: sorted by them, or first by a device of which there
/// is only one.
pub(super) fn is_in_order(group: &RowGroupMetaData, arrival: usize, device: Option<usize>) -> bool {
    let sorted = group.sorting_columns().into_iter().flatten();
    let mut behind = sorted.skip_while(|column| {
        let is_device = device.is_some_and(|device| column.column_idx as usize == device);
        is_device && is_one_value(group, column.column_idx as usize)
    });
    behind.next().is_some_and(|column| column.column_idx as usize == arrival && !column.descending)
}

/// Whether a column of names has one for all rows of a group.
fn is_one_value(group: &RowGroupMetaData, column: usize) -> bool {
    let Some(statistics) = group.columns().get(column).and_then(|chunk| chunk.statistics()) else {
        return false;
    };
    let is_exact = statistics.min_is_exact() && statistics.max_is_exact();
    is_exact
        && statistics.null_count_opt() == Some(0)
        && statistics.min_bytes_opt() == statistics.max_bytes_opt()
}

/// Of each group, whether all groups behind it arrive no earlier than it has ended.
#[derive(Debug)]
pub(super) struct BeforeAll {
    /// From the last group on.
    before: Vec<bool>,
    earliest: Option<i64>,
}

impl Default for BeforeAll {
    fn default() -> Self {
        Self { before: Vec::new(), earliest: Some(i64::MAX) }
    }
}

impl BeforeAll {
    /// Takes the group before those that it knows.
    pub(super) fn take(&mut self, group: &RowGroupMetaData, arrival: usize) {
        let span = arrivals(group, arrival);
        self.before.push(span.zip(self.earliest).is_some_and(|((_, last), earliest)| last <= earliest));
        // Behind a group that does not tell, nobody knows.
        self.earliest = self.earliest.zip(span).map(|(earliest, (first, _))| earliest.min(first));
    }

    /// From the first group on.
    pub(super) fn finish(mut self) -> Vec<bool> {
        self.before.reverse();
        self.before
    }
}

/// The first and the last arrival of a group.
fn arrivals(group: &RowGroupMetaData, arrival: usize) -> Option<(i64, i64)> {
    let Some(Statistics::Int64(values)) = group.columns().get(arrival)?.statistics() else { return None };
    Some((*values.min_opt()?, *values.max_opt()?))
}
