//! The crate redb: a copy-on-write B-tree in a file.

use crate::{Job, Key, Store, Value};
use redb::{Database, ReadableDatabase, TableDefinition};
use std::path::Path;

const PAIRS: TableDefinition<'static, &[u8], &[u8]> = TableDefinition::new("pairs");
/// Pairs a transaction of the fill.
const BATCH: usize = 100_000;

pub(crate) struct Redb(Database);

fn failed(error: impl std::fmt::Display) -> String {
    format!("redb: {error}")
}

impl Redb {
    pub(crate) fn open(path: &Path, job: &Job, _new: bool) -> Result<Self, String> {
        // Half for its own cache; the rest is the page cache's, which the memory group counts too.
        let builder = || {
            let mut builder = Database::builder();
            builder.set_cache_size(job.memory_bytes / 2);
            builder
        };
        builder().create(path.join("pairs.redb")).map(Self).map_err(failed)
    }
}

impl Store for Redb {
    fn fill(&self, pairs: &mut dyn Iterator<Item = (Key, Value)>) -> Result<(), String> {
        let mut more = true;
        while more {
            let write = self.0.begin_write().map_err(failed)?;
            {
                let mut table = write.open_table(PAIRS).map_err(failed)?;
                let mut held = 0;
                for (key, value) in (&mut *pairs).take(BATCH) {
                    table.insert(&key[..], &value[..]).map_err(failed)?;
                    held += 1;
                }
                more = held == BATCH;
            }
            write.commit().map_err(failed)?;
        }
        Ok(())
    }

    fn get(&self, key: &Key, value: &mut Vec<u8>) -> Result<bool, String> {
        let read = self.0.begin_read().map_err(failed)?;
        let table = read.open_table(PAIRS).map_err(failed)?;
        let found = table.get(&key[..]).map_err(failed)?;
        Ok(found.map(|found| value.extend_from_slice(found.value())).is_some())
    }

    fn put(&self, key: &Key, value: &Value) -> Result<(), String> {
        let write = self.0.begin_write().map_err(failed)?;
        write.open_table(PAIRS).map_err(failed)?.insert(&key[..], &value[..]).map_err(failed)?;
        write.commit().map_err(failed)
    }

    fn close(self: Box<Self>) -> Result<(), String> {
        Ok(())
    }
}
