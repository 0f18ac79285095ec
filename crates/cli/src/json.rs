//! One JSON object a line, written; nothing here reads JSON.

use std::fmt::Display;

/// A flat object under construction.
pub struct Object(String);

impl Object {
    /// An empty object.
    pub fn new() -> Self {
        Self("{".to_owned())
    }

    /// Adds a number.
    pub fn number(&mut self, name: &str, value: impl Display) {
        self.name(name);
        self.0.push_str(&value.to_string());
    }

    /// Adds `true` or `false`.
    pub fn truth(&mut self, name: &str, value: bool) {
        self.number(name, value);
    }

    /// Adds a text.
    pub fn text(&mut self, name: &str, value: &str) {
        self.name(name);
        self.0.push_str(&quoted(value));
    }

    /// Adds a list of texts.
    pub fn texts(&mut self, name: &str, values: &[impl AsRef<str>]) {
        self.name(name);
        let quoted: Vec<String> = values.iter().map(|value| quoted(value.as_ref())).collect();
        self.0.push_str(&format!("[{}]", quoted.join(",")));
    }

    /// Adds an object.
    pub fn object(&mut self, name: &str, value: Object) {
        self.name(name);
        self.0.push_str(&value.0);
        self.0.push('}');
    }

    /// Adds a list of objects.
    pub fn objects(&mut self, name: &str, values: Vec<Object>) {
        let values: Vec<_> = values.into_iter().map(|value| format!("{}}}", value.0)).collect();
        self.number(name, format!("[{}]", values.join(",")));
    }

    /// The object as a line.
    pub fn line(mut self) -> String {
        self.0.push_str("}\n");
        self.0
    }

    fn name(&mut self, name: &str) {
        if self.0.len() > 1 {
            self.0.push(',');
        }
        self.0.push_str(&quoted(name));
        self.0.push(':');
    }
}

/// A JSON string (RFC 8259, section 7).
fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => {
                quoted.push('\\');
                quoted.push(c);
            }
            c if c < ' ' => quoted.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_is_one_valid_line() {
        let mut inner = Object::new();
        inner.truth("yes", true);
        let mut object = Object::new();
        object.text("name", "a \"b\"\\\n");
        object.number("size", 7);
        object.object("inner", inner);
        object.texts("list", &["a", "b"]);
        assert_eq!(
            object.line(),
            "{\"name\":\"a \\\"b\\\"\\\\\\u000a\",\"size\":7,\"inner\":{\"yes\":true},\"list\":[\"a\",\"b\"]}\n"
        );
    }
}
