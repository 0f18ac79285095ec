//! YCSB's workload A against a server that speaks MongoDB's protocol: records of ten fields, read and updated in equal
//! parts, chosen by Zipf's law. Cooper et al., "Benchmarking Cloud Serving Systems with YCSB", SoCC 2010; the core
//! workload's defaults as its properties file has them: ten fields of 100 bytes, an update writes one field, a read
//! fetches all.

mod bson;
mod client;
mod zipf;

use crate::error::LabError;
use bson::Document;
use client::Client;
use nvmed_dice::mix;
use std::net::SocketAddr;
use std::sync::Barrier;
use std::time::Instant;
use zipf::Scrambled;

/// Fields of a record, and bytes of a field.
const FIELDS: u64 = 10;
const FIELD_BYTES: usize = 100;
/// Records that one insert command carries while the collection is loaded.
const LOAD_BATCH: u64 = 200;
/// Database and collection, as YCSB names them.
const DATABASE: &str = "ycsb";
const COLLECTION: &str = "usertable";

/// How much.
#[derive(Clone, Copy, Debug)]
pub struct Workload {
    /// Records.
    pub records: u64,
    /// Reads and updates, of all threads together.
    pub operations: u64,
    /// Threads, each with a connection.
    pub threads: u64,
    /// Which operations.
    pub seed: u64,
}

/// What the server did.
#[derive(Clone, Copy, Debug)]
pub struct Done {
    /// Seconds of the operations.
    pub seconds: f64,
    /// Operations.
    pub operations: u64,
}

impl Workload {
    /// Loads the records.
    ///
    /// # Errors
    /// The server's.
    pub fn load(&self, server: SocketAddr) -> Result<(), LabError> {
        let mut client = Client::connect(server)?;
        let mut next = 0;
        while next < self.records {
            let end = (next + LOAD_BATCH).min(self.records);
            let documents: Vec<Document> = (next..end).map(record).collect();
            client.insert(DATABASE, COLLECTION, &documents)?;
            next = end;
        }
        Ok(())
    }

    /// Runs the operations on loaded records, half of them updates.
    ///
    /// # Errors
    /// The server's; a record is missing.
    pub fn run(&self, server: SocketAddr) -> Result<Done, LabError> {
        let zipf = Scrambled::new(self.records);
        let start = Barrier::new(self.threads as usize + 1);
        let each = self.operations / self.threads;
        let connect = |_| Client::connect(server);
        let clients = (0..self.threads).map(connect).collect::<Result<Vec<_>, _>>()?;
        let seconds = std::thread::scope(|scope| {
            let (start, zipf) = (&start, &zipf);
            let threads: Vec<_> = (0..)
                .zip(clients)
                .map(|(thread, client)| {
                    let seed = mix(self.seed ^ thread << 32);
                    scope.spawn(move || {
                        start.wait();
                        operate(client, zipf, each, seed)
                    })
                })
                .collect();
            start.wait();
            let begin = Instant::now();
            let early = |_| Err(LabError::missing("a thread of the load ended early"));
            threads.into_iter().try_for_each(|thread| thread.join().unwrap_or_else(early))?;
            Ok::<_, LabError>(begin.elapsed().as_secs_f64())
        })?;
        Ok(Done { seconds, operations: each * self.threads })
    }
}

/// One thread's operations.
fn operate(mut client: Client, zipf: &Scrambled, count: u64, seed: u64) -> Result<(), LabError> {
    let mut dice = seed;
    for _ in 0..count {
        dice = mix(dice.wrapping_add(1));
        let key = key(zipf.pick(mix(dice ^ 1)));
        if dice & 1 == 0 {
            let found = client.find(DATABASE, COLLECTION, &key)?;
            if found < FIELDS as usize * FIELD_BYTES {
                return Err(missing(&key));
            }
        } else {
            let field = mix(dice ^ 2) % FIELDS;
            let value = value(mix(dice ^ 3));
            if client.update(DATABASE, COLLECTION, &key, &name(field), &value)? != 1 {
                return Err(missing(&key));
            }
        }
    }
    Ok(())
}

fn missing(key: &str) -> LabError {
    LabError::Program { shown: "the server".to_owned(), reason: format!("record {key} is missing") }
}

/// A record's key: hashed, so that neighbours are not inserted one after another.
fn key(record: u64) -> String {
    format!("user{}", mix(record))
}

fn name(field: u64) -> String {
    format!("field{field}")
}

/// Bytes that do not compress.
fn value(seed: u64) -> Vec<u8> {
    let words = (0..FIELD_BYTES.div_ceil(8) as u64).flat_map(|word| mix(seed ^ word << 8).to_le_bytes());
    words.take(FIELD_BYTES).collect()
}

fn record(index: u64) -> Document {
    let mut document = Document::new();
    document.text("_id", &key(index));
    (0..FIELDS).for_each(|field| document.binary(&name(field), &value(index << 8 ^ field << 1)));
    document
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_a_kilobyte_in_ten_fields_and_records_differ() {
        let bytes = record(7).bytes();
        assert!((FIELDS as usize * FIELD_BYTES..1300).contains(&bytes.len()), "{}", bytes.len());
        assert_ne!(record(7).bytes(), record(8).bytes());
        assert_ne!(value(1), value(2));
        assert_eq!(value(9).len(), FIELD_BYTES);
    }
}
