//! BSON, as much of it as the load needs (bsonspec.org, version 1.1): documents are written, and numbers found in
//! answers.

/// A document under construction.
#[derive(Clone, Debug)]
pub(super) struct Document(Vec<u8>);

const DOUBLE: u8 = 0x01;
const TEXT: u8 = 0x02;
const DOCUMENT: u8 = 0x03;
const ARRAY: u8 = 0x04;
const BINARY: u8 = 0x05;
const TRUTH: u8 = 0x08;
const INT32: u8 = 0x10;
const INT64: u8 = 0x12;

impl Document {
    /// An empty one.
    pub fn new() -> Self {
        Self(vec![0; 4])
    }

    fn element(&mut self, kind: u8, name: &str) {
        self.0.push(kind);
        self.0.extend_from_slice(name.as_bytes());
        self.0.push(0);
    }

    /// Adds a text.
    pub fn text(&mut self, name: &str, value: &str) {
        self.element(TEXT, name);
        self.0.extend_from_slice(&(value.len() as u32 + 1).to_le_bytes());
        self.0.extend_from_slice(value.as_bytes());
        self.0.push(0);
    }

    /// Adds bytes.
    pub(crate) fn binary(&mut self, name: &str, value: &[u8]) {
        self.element(BINARY, name);
        self.0.extend_from_slice(&(value.len() as u32).to_le_bytes());
        // Generic binary.
        self.0.push(0);
        self.0.extend_from_slice(value);
    }

    /// Adds a number.
    pub fn number(&mut self, name: &str, value: i32) {
        self.element(INT32, name);
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    /// Adds `true` or `false`.
    pub(crate) fn truth(&mut self, name: &str, value: bool) {
        self.element(TRUTH, name);
        self.0.push(u8::from(value));
    }

    /// Adds a document.
    pub(crate) fn document(&mut self, name: &str, value: &Self) {
        self.element(DOCUMENT, name);
        self.0.extend_from_slice(&value.bytes());
    }

    /// Adds a list of documents.
    pub fn list(&mut self, name: &str, values: &[Self]) {
        let mut list = Self::new();
        values.iter().enumerate().for_each(|(index, value)| list.document(&index.to_string(), value));
        self.element(ARRAY, name);
        self.0.extend_from_slice(&list.bytes());
    }

    /// The document as bytes.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = self.0.clone();
        bytes.push(0);
        let len = (bytes.len() as u32).to_le_bytes();
        bytes[..4].copy_from_slice(&len);
        bytes
    }
}

/// A number at the top of a document: `ok`, `n`.
pub(super) fn number(document: &[u8], wanted: &str) -> Option<f64> {
    elements(document).find(|(_, name, _)| *name == wanted.as_bytes()).and_then(|(kind, _, value)| match kind
    {
        DOUBLE => Some(f64::from_le_bytes(value.try_into().ok()?)),
        INT32 => Some(f64::from(i32::from_le_bytes(value.try_into().ok()?))),
        INT64 => Some(i64::from_le_bytes(value.try_into().ok()?) as f64),
        _ => None,
    })
}

/// The elements at the top of a document, until one that is not understood.
fn elements(document: &[u8]) -> impl Iterator<Item = (u8, &[u8], &[u8])> {
    let mut rest = document.get(4..).unwrap_or(&[]);
    std::iter::from_fn(move || {
        let (&kind, after) = rest.split_first().filter(|(kind, _)| **kind != 0)?;
        let end = after.iter().position(|&byte| byte == 0)?;
        let (name, value) = (&after[..end], &after[end + 1..]);
        let bytes = span(kind, value)?;
        rest = value.get(bytes..)?;
        Some((kind, name, &value[..bytes]))
    })
}

/// Bytes of a value.
fn span(kind: u8, value: &[u8]) -> Option<usize> {
    let len = || {
        value.get(..4).and_then(|bytes| bytes.try_into().ok()).map(|bytes| u32::from_le_bytes(bytes) as usize)
    };
    let bytes = match kind {
        DOUBLE | INT64 | 0x09 | 0x11 => 8,
        TEXT => len()?.checked_add(4)?,
        DOCUMENT | ARRAY => len()?,
        BINARY => len()?.checked_add(5)?,
        0x07 => 12,
        TRUTH => 1,
        0x0a => 0,
        INT32 => 4,
        _ => return None,
    };
    (bytes <= value.len()).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of bsonspec.org.
    #[test]
    fn a_document_has_the_bytes_of_the_specification() {
        let mut document = Document::new();
        document.text("hello", "world");
        assert_eq!(document.bytes(), b"\x16\0\0\0\x02hello\0\x06\0\0\0world\0\0");
    }

    #[test]
    fn numbers_are_found_behind_other_elements_and_damage_ends_the_search() {
        let mut inner = Document::new();
        inner.number("n", 5);
        let mut document = Document::new();
        document.text("a", "b");
        document.document("inner", &inner);
        document.list("list", &[inner]);
        document.binary("bytes", &[1, 2]);
        document.truth("yes", true);
        document.number("n", 3);
        let bytes = document.bytes();
        assert_eq!((number(&bytes, "n"), number(&bytes, "m")), (Some(3.0), None));
        for cut in 0..bytes.len() {
            let _ = number(&bytes[..cut], "n");
        }
    }
}
