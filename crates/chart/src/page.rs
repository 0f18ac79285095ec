//! Pages: their frame, their tables, and how a name is made safe.

use std::fmt::Write;

/// How a page looks, in light and in dark.
const STYLE: &str = include_str!("page.css");
/// What lets the charts answer.
const SCRIPT: &str = include_str!("chart.js");

/// Text as HTML and SVG want it, between tags and in attributes.
#[must_use]
pub fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '&' => out.push_str("&amp;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c if c.is_control() && c != '\n' && c != '\t' => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

/// A table of figures in a box of its own, which scrolls when the page is narrower. The first cell of a row names it.
#[must_use]
pub fn table(head: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
    let mut out = "<div class=\"scroll\" tabindex=\"0\"><table class=\"figures\"><thead><tr>".to_owned();
    head.iter().for_each(|cell| _ = write!(out, "<th scope=\"col\">{}</th>", escaped(cell)));
    out += "</tr></thead><tbody>";
    for row in rows {
        out += "<tr>";
        for (index, cell) in row.iter().enumerate() {
            let cell = escaped(cell);
            let _ = match index {
                0 => write!(out, "<th scope=\"row\">{cell}</th>"),
                _ => write!(out, "<td>{cell}</td>"),
            };
        }
        out += "</tr>";
    }
    out + "</tbody></table></div>\n"
}

/// The frame of a page: a title, a style, what stands in it, and the charts' script.
#[must_use]
pub fn document(title: &str, body: &str) -> String {
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"><title>{0}</title>\n\
         <style>\n{STYLE}</style></head><body>\n<h1>{0}</h1>\n{body}\n<script>\n{SCRIPT}</script></body></html>\n",
        escaped(title)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    /// The colours of one block of the style, by name.
    fn colours(block: &str) -> HashMap<&str, [f64; 3]> {
        let declared = block.split([';', '{', '}']).filter_map(|part| part.trim().split_once(": #"));
        let channel =
            |hex: &str, at: usize| f64::from(u8::from_str_radix(&hex[at..at + 2], 16).unwrap()) / 255.0;
        declared.map(|(name, hex)| (name, [channel(hex, 0), channel(hex, 2), channel(hex, 4)])).collect()
    }

    /// Contrast of two colours: Web Content Accessibility Guidelines 2.2, "contrast ratio".
    fn contrast(one: [f64; 3], other: [f64; 3]) -> f64 {
        let linear = |c: f64| if c <= 0.04045 { c / 12.92 } else { ((c + 0.055) / 1.055).powf(2.4) };
        let luminance = |[r, g, b]: [f64; 3]| 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
        let (one, other) = (luminance(one), luminance(other));
        (one.max(other) + 0.05) / (one.min(other) + 0.05)
    }

    #[test]
    fn light_and_dark_have_enough_contrast() {
        let mut blocks = STYLE.split(":root {").skip(1).map(|rest| colours(rest.split('}').next().unwrap()));
        let (light, dark) = (blocks.next().unwrap(), blocks.next().unwrap());
        assert_eq!(light.len(), dark.len());
        for (name, colours) in [("light", light), ("dark", dark)] {
            let of = |colour: &str| contrast(colours[colour], colours["--paper"]);
            for text in ["--text", "--note", "--met", "--missed"] {
                assert!(of(text) >= 4.5, "{name} {text}: {}", of(text));
            }
            for mark in ["--muted", "--heat", "--s0", "--s1", "--s2", "--s3", "--s4", "--s5", "--s6", "--s7"]
            {
                assert!(of(mark) >= 3.0, "{name} {mark}: {}", of(mark));
            }
        }
    }

    #[test]
    fn a_page_needs_nothing_else() {
        let page = document("a <b> & 'c'", &table(&["x", "\"y\""], [vec!["<i>".to_owned()]].into_iter()));
        assert!(page.contains("<title>a &lt;b&gt; &amp; &#39;c&#39;</title>"));
        assert!(page.contains("<th scope=\"row\">&lt;i&gt;</th>") && page.contains("&quot;y&quot;"));
        for word in ["http", "//", "url(", "@import", "src=", "<link"] {
            let code = page.lines().filter(|line| !line.trim_start().starts_with("//"));
            assert!(!code.clone().any(|line| line.contains(word)), "{word}: it loads something");
        }
    }
}
