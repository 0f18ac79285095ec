//! Keys and values on the command line and on the screen.

use crate::failure::Failure;
use crate::kv::arguments::Form;
use serde_json::{Map, Value};

/// The bytes that escaped text or hexadecimal digits stand for.
///
/// # Errors
/// It is neither; the message names `what`.
pub fn parse(what: &str, given: &[u8], hex: bool) -> Result<Vec<u8>, Failure> {
    let parsed = if hex { from_hex(given) } else { from_text(given) };
    parsed.ok_or_else(|| {
        let shown = String::from_utf8_lossy(given);
        let rule = if hex {
            "an even number of hexadecimal digits"
        } else {
            "text in which a backslash begins \\xNN, \\\\, \\t or \\n"
        };
        Failure::usage(format!("{what} `{shown}` is not {rule}"))
    })
}

fn digit(byte: u8) -> Option<u8> {
    char::from(byte).to_digit(16).map(|digit| digit as u8)
}

fn from_hex(given: &[u8]) -> Option<Vec<u8>> {
    let (pairs, rest) = given.as_chunks::<2>();
    let bytes = pairs.iter().map(|[high, low]| Some(digit(*high)? << 4 | digit(*low)?));
    if rest.is_empty() { bytes.collect() } else { None }
}

fn from_text(given: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(given.len());
    let mut rest = given.iter().copied();
    while let Some(byte) = rest.next() {
        if byte != b'\\' {
            bytes.push(byte);
            continue;
        }
        bytes.push(match rest.next()? {
            b'\\' => b'\\',
            b't' => b'\t',
            b'n' => b'\n',
            b'x' => digit(rest.next()?)? << 4 | digit(rest.next()?)?,
            _ => return None,
        });
    }
    Some(bytes)
}

/// Bytes as hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Bytes as text from which [`parse`] gets them back.
pub fn text(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for &byte in bytes {
        match byte {
            b'\\' => text.push_str("\\\\"),
            b'\t' => text.push_str("\\t"),
            b'\n' => text.push_str("\\n"),
            b' '..=b'~' => text.push(char::from(byte)),
            _ => text.push_str(&format!("\\x{byte:02x}")),
        }
    }
    text
}

/// Adds bytes to an object: under `name` if they are UTF-8, else in hexadecimal under `name_hex`.
fn add(object: &mut Map<String, Value>, name: &str, bytes: &[u8]) {
    match core::str::from_utf8(bytes) {
        Ok(text) => object.insert(name.to_owned(), text.into()),
        Err(_) => object.insert(format!("{name}_hex"), hex(bytes).into()),
    };
}

/// A pair, or with no value a key, as a line.
pub fn line(form: Form, key: &[u8], value: Option<&[u8]>) -> String {
    let shown = match form {
        Form::Text => text,
        Form::Hex => hex,
        Form::Json => {
            let mut object = Map::new();
            add(&mut object, "key", key);
            if let Some(value) = value {
                add(&mut object, "value", value);
            }
            return format!("{}\n", Value::Object(object));
        }
    };
    match value {
        Some(value) => format!("{}\t{}\n", shown(key), shown(value)),
        None => format!("{}\n", shown(key)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_printed_can_be_given(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            prop_assert_eq!(&parse("key", text(&bytes).as_bytes(), false).unwrap(), &bytes);
            prop_assert_eq!(&parse("key", hex(&bytes).as_bytes(), true).unwrap(), &bytes);
            prop_assert!(text(&bytes).bytes().all(|byte| (b' '..=b'~').contains(&byte)));
        }

        #[test]
        fn fuzz_what_is_given(
            given in prop::collection::vec(prop_oneof![Just(b'\\'), Just(b'x'), any::<u8>()], 0..20),
        ) {
            let _ = (parse("key", &given, false).is_ok(), parse("key", &given, true).is_ok());
        }
    }

    #[test]
    fn what_means_nothing_is_refused() {
        for (given, hex) in [("a\\", false), ("\\q", false), ("\\xg0", false), ("abc", true), ("zz", true)] {
            assert!(parse("key", given.as_bytes(), hex).is_err(), "{given}");
        }
        let said = parse("key", b"zz", true).unwrap_err().message;
        assert!(said.contains("key `zz` is not an even number of hexadecimal digits"), "{said}");
    }

    #[test]
    fn json_says_which_bytes_are_no_text() {
        assert_eq!(line(Form::Json, b"k", Some(b"\xff\x00")), "{\"key\":\"k\",\"value_hex\":\"ff00\"}\n");
        assert_eq!(line(Form::Text, b"a\tb", Some(b"c")), "a\\tb\tc\n");
        assert_eq!(line(Form::Hex, b"ab", None), "6162\n");
    }
}
