//! What the tokens of a source say, in macros too: functions, paths, asserts, casts, parameters.

use proc_macro2::{Delimiter, Span, TokenStream, TokenTree};

/// Types to which a cast can lose bits.
const SHORT_TYPES: [&str; 10] =
    ["u8", "u16", "u32", "i8", "i16", "i32", "c_int", "c_uint", "c_short", "c_ushort"];

/// A function, by its name and its lines from `fn` to the closing brace.
#[derive(Debug, PartialEq, Eq)]
pub struct Function {
    /// Its name.
    pub name: String,
    /// The line of its `fn`, from 1.
    pub line: usize,
    /// Lines of signature and body.
    pub lines: usize,
}

/// What was counted.
#[derive(Default)]
pub struct Counts {
    /// `assert!`, `assert_eq!`, `assert_ne!`, whether in a function or evaluated when it is compiled.
    pub asserts: usize,
    /// `debug_assert!` and its like.
    pub debug_asserts: usize,
    /// `pub(crate)`.
    pub crate_items: usize,
    /// Parameters of functions whose type is `u64` and nothing else.
    pub bare_u64: usize,
    /// `.0`, `.1` and so on, other than `self.0`.
    pub unnamed_fields: usize,
    /// `as` to a type of at most 32 bits.
    pub short_casts: usize,
    /// The functions that have a body.
    pub functions: Vec<Function>,
    /// Paths of at least two names, as they are written.
    pub paths: Vec<Vec<String>>,
}

impl Counts {
    /// Reads `tokens`, and what is inside their brackets.
    pub fn read(&mut self, tokens: TokenStream) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let mut at = 0;
        while let Some(token) = tokens.get(at) {
            let rest = &tokens[at..];
            match token {
                TokenTree::Ident(name) => {
                    if name == "pub" && self.restricted(rest) {
                        at += 2;
                        continue;
                    }
                    at += self.word(&name.to_string(), name.span(), &tokens[..at], rest);
                    continue;
                }
                TokenTree::Group(group) => self.read(group.stream()),
                TokenTree::Literal(number) => self.field(&number.to_string(), &tokens[..at]),
                TokenTree::Punct(_) => {}
            }
            at += 1;
        }
    }

    /// `pub(…)` at the start of `rest`.
    fn restricted(&mut self, rest: &[TokenTree]) -> bool {
        let Some(TokenTree::Group(group)) = rest.get(1) else { return false };
        let place = group.stream().to_string();
        let restricted = place == "crate" || place == "super" || place.starts_with("in ");
        self.crate_items += usize::from(place == "crate");
        restricted && group.delimiter() == Delimiter::Parenthesis
    }

    /// A word and what follows it; returns the tokens that are done.
    fn word(&mut self, name: &str, span: Span, before: &[TokenTree], rest: &[TokenTree]) -> usize {
        let called = rest.get(1).is_some_and(|next| is_punct(next, '!'));
        match name {
            "assert" | "assert_eq" | "assert_ne" if called => self.asserts += 1,
            "debug_assert" | "debug_assert_eq" | "debug_assert_ne" if called => self.debug_asserts += 1,
            "as" => {
                let to = path(&rest[1..]).pop();
                self.short_casts += usize::from(to.is_some_and(|name| SHORT_TYPES.contains(&name.as_str())));
            }
            "fn" => self.function(span, rest),
            _ => {}
        }
        let names = path(rest);
        let length = 1 + 3 * (names.len() - 1);
        let inner = before.last().is_some_and(|token| is_punct(token, ':') || is_punct(token, '\''));
        let continued = inner && before.len() > 1 && is_punct(&before[before.len() - 2], ':');
        if names.len() > 1 && !continued {
            self.paths.push(names);
        }
        length
    }

    /// `fn name…` at the start of `rest`.
    fn function(&mut self, start: Span, rest: &[TokenTree]) {
        let Some(TokenTree::Ident(name)) = rest.get(1) else { return };
        let Some(parameters) = after_generics(&rest[2..]) else { return };
        self.bare_u64 += bare(parameters.stream());
        for token in &rest[2..] {
            match token {
                TokenTree::Punct(end) if end.as_char() == ';' => return,
                TokenTree::Group(body) if body.delimiter() == Delimiter::Brace => {
                    let line = start.start().line;
                    let lines = body.span_close().end().line.saturating_sub(line) + 1;
                    self.functions.push(Function { name: name.to_string(), line, lines });
                    return;
                }
                _ => {}
            }
        }
    }

    /// A number behind a single dot: `.0`, or `.0.1`, which is one token.
    fn field(&mut self, number: &str, before: &[TokenTree]) {
        let mut back = before.iter().rev();
        let dot = back.next().is_some_and(|token| is_punct(token, '.'));
        let owner = back.next();
        if !dot || owner.is_some_and(|token| is_punct(token, '.')) {
            return;
        }
        let parts: Vec<_> = number.split('.').collect();
        if parts.iter().all(|part| part.bytes().all(|byte| byte.is_ascii_digit())) {
            let own = owner.is_some_and(|token| token.to_string() == "self");
            self.unnamed_fields += parts.len() - usize::from(own && parts[0] == "0");
        }
    }
}

fn is_punct(token: &TokenTree, wanted: char) -> bool {
    matches!(token, TokenTree::Punct(found) if found.as_char() == wanted)
}

/// The names of the path at the start of `tokens`: `a::b::c`.
fn path(tokens: &[TokenTree]) -> Vec<String> {
    let mut names = Vec::new();
    let mut at = 0;
    while let Some(TokenTree::Ident(name)) = tokens.get(at) {
        names.push(name.to_string());
        let colon = |index: usize| tokens.get(index).is_some_and(|token| is_punct(token, ':'));
        if !(colon(at + 1) && colon(at + 2)) {
            break;
        }
        if !matches!(tokens.get(at + 3), Some(TokenTree::Ident(_))) {
            break;
        }
        at += 3;
    }
    names
}

/// The parameters of a function: its first round bracket that is in no angle bracket.
fn after_generics(tokens: &[TokenTree]) -> Option<&proc_macro2::Group> {
    let mut depth = 0_i32;
    let mut arrow = false;
    for token in tokens {
        match token {
            TokenTree::Punct(mark) => {
                match mark.as_char() {
                    '<' => depth += 1,
                    '>' if !arrow => depth -= 1,
                    _ => {}
                }
                arrow = mark.as_char() == '-';
            }
            TokenTree::Group(group) if depth == 0 => return Some(group),
            _ => {}
        }
    }
    None
}

/// The parameters that are `name: u64`.
fn bare(parameters: TokenStream) -> usize {
    let tokens: Vec<TokenTree> = parameters.into_iter().collect();
    let ends = |at: usize| tokens.get(at).is_none_or(|token| is_punct(token, ','));
    let is_u64 = |at: usize| {
        let typed = tokens.get(at + 1).is_some_and(|token| token.to_string() == "u64");
        let path = at > 0 && is_punct(&tokens[at - 1], ':');
        is_punct(&tokens[at], ':') && typed && !path && ends(at + 2)
    };
    (0..tokens.len()).filter(|at| is_u64(*at)).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(text: &str) -> Counts {
        let mut counts = Counts::default();
        counts.read(text.parse().expect("the text is Rust"));
        counts
    }

    #[test]
    fn a_function_is_read_in_a_macro_too() {
        let counts = counted("hook! {\n inner fn f<F: Fn(u64)>(a: u64, b: &u64, c: u64) -> u8 {\n 1\n }\n}");
        assert_eq!(counts.functions, [Function { name: "f".into(), line: 2, lines: 3 }]);
        assert_eq!(counts.bare_u64, 2);
    }

    #[test]
    fn asserts_casts_and_fields_are_counted() {
        let counts = counted(
            "assert!(x.0 == y.0.1); debug_assert_eq!(a as u32, self.0 as u64); 0..1; a as libc::c_int",
        );
        assert_eq!((counts.asserts, counts.debug_asserts), (1, 1));
        assert_eq!((counts.short_casts, counts.unnamed_fields), (2, 3));
    }

    #[test]
    fn paths_are_whole_and_visibility_is_none() {
        let counts = counted("pub(in crate::a) fn f() { crate::b::C::new(super::d()) } pub(crate) struct E;");
        let paths: Vec<_> = counts.paths.iter().map(|path| path.join("::")).collect();
        assert_eq!(paths, ["crate::b::C::new", "super::d"]);
        assert_eq!(counts.crate_items, 1);
    }
}
