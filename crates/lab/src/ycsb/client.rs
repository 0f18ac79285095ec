//! One connection of the MongoDB wire protocol: OP_MSG with one body section (MongoDB manual, "Wire Protocol").

use super::bson::{self, Document};
use crate::error::LabError;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// `OP_MSG`.
const OP_MSG: u32 = 2013;
/// Header, flags and the section's kind.
const HEAD_BYTES: usize = 21;
/// No answer is larger (`maxMessageSizeBytes`).
const ANSWER_BYTES_MAX: usize = 48_000_000;
/// A server that does not answer for so long has failed.
const PATIENCE: Duration = Duration::from_secs(60);

pub(super) struct Client {
    stream: TcpStream,
    server: SocketAddr,
    request: u32,
    buffer: Vec<u8>,
}

impl Client {
    /// # Errors
    /// Nobody listens there.
    pub fn connect(server: SocketAddr) -> Result<Self, LabError> {
        let make = || {
            let stream = TcpStream::connect(server)?;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            Ok(stream)
        };
        let stream = make().map_err(|error: std::io::Error| LabError::program(server, &error))?;
        Ok(Self { stream, server, request: 0, buffer: Vec::new() })
    }

    /// Inserts documents.
    ///
    /// # Errors
    /// The server's.
    pub fn insert(
        &mut self,
        database: &str,
        collection: &str,
        documents: &[Document],
    ) -> Result<(), LabError> {
        let mut command = Document::new();
        command.text("insert", collection);
        command.list("documents", documents);
        let done = self.command(command, database)?;
        let inserted = bson::number(&self.buffer[done..], "n").unwrap_or(0.0);
        if inserted as usize == documents.len() { Ok(()) } else { Err(self.refused("insert", done)) }
    }

    /// Fetches the document with this key; answers the bytes of the whole answer.
    ///
    /// # Errors
    /// The server's.
    pub fn find(&mut self, database: &str, collection: &str, key: &str) -> Result<usize, LabError> {
        let mut command = Document::new();
        command.text("find", collection);
        command.document("filter", &by_key(key));
        command.number("limit", 1);
        command.truth("singleBatch", true);
        let done = self.command(command, database)?;
        Ok(self.buffer.len() - done)
    }

    /// Sets one field of the document with this key; answers how many documents there were.
    ///
    /// # Errors
    /// The server's.
    pub fn update(
        &mut self,
        database: &str,
        collection: &str,
        key: &str,
        field: &str,
        value: &[u8],
    ) -> Result<u64, LabError> {
        let (mut fields, mut set, mut update, mut command) =
            (Document::new(), Document::new(), Document::new(), Document::new());
        fields.binary(field, value);
        set.document("$set", &fields);
        update.document("q", &by_key(key));
        update.document("u", &set);
        command.text("update", collection);
        command.list("updates", &[update]);
        let done = self.command(command, database)?;
        Ok(bson::number(&self.buffer[done..], "n").unwrap_or(0.0) as u64)
    }

    /// Sends a command and waits for its answer; where the answer's document begins in the buffer.
    fn command(&mut self, mut command: Document, database: &str) -> Result<usize, LabError> {
        command.text("$db", database);
        let body = command.bytes();
        self.request += 1;
        let len = (HEAD_BYTES + body.len()) as u32;
        self.buffer.clear();
        for word in [len, self.request, 0, OP_MSG, 0] {
            self.buffer.extend_from_slice(&word.to_le_bytes());
        }
        self.buffer.push(0);
        self.buffer.extend_from_slice(&body);
        self.exchange().map_err(|error| LabError::program(self.server, &error))?;
        let ok = bson::number(&self.buffer[HEAD_BYTES..], "ok");
        if ok == Some(1.0) { Ok(HEAD_BYTES) } else { Err(self.refused("a command", HEAD_BYTES)) }
    }

    fn exchange(&mut self) -> std::io::Result<()> {
        self.stream.write_all(&self.buffer)?;
        let mut len = [0; 4];
        self.stream.read_exact(&mut len)?;
        let bytes = u32::from_le_bytes(len) as usize;
        if !(HEAD_BYTES..=ANSWER_BYTES_MAX).contains(&bytes) {
            return Err(std::io::Error::new(std::io::ErrorKind::InvalidData, "an answer of a wrong length"));
        }
        self.buffer.resize(bytes, 0);
        self.buffer[..4].copy_from_slice(&len);
        self.stream.read_exact(&mut self.buffer[4..])
    }

    fn refused(&self, what: &str, from: usize) -> LabError {
        let text: String = self.buffer[from..]
            .iter()
            .map(|&byte| char::from(byte))
            .filter(|c| c.is_ascii_graphic() || *c == ' ')
            .collect();
        LabError::Program {
            shown: format!("{}: {what}", self.server),
            reason: text.chars().take(300).collect(),
        }
    }
}

fn by_key(key: &str) -> Document {
    let mut filter = Document::new();
    filter.text("_id", key);
    filter
}
