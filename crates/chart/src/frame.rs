//! What all charts with two axes have in common: title, keys, labels, and the plot.

use crate::axis::Span;
use crate::page::escaped;
use std::fmt::Write;

/// A plot's width and height in its own units. It is stretched to the room that the page has.
pub(crate) const SIDE: f64 = 1000.0;
/// Colours in `page.css`; later series have them again, dashed.
const COLOURS: usize = 8;

/// The horizontal axis.
pub(crate) enum Along<'a> {
    /// Values.
    Values(Span<'a>),
    /// Slots of one width, by name.
    Slots { name: &'a str, slots: &'a [String] },
}

/// A chart without what is drawn on it.
pub(crate) struct Frame<'a> {
    pub title: &'a str,
    /// Names of the series, for their keys; a single one has none. One without values has no key, but keeps its colour.
    pub series: &'a [Option<&'a str>],
    /// The series without a colour of its own, if there is one.
    pub muted: Option<usize>,
    pub x: Along<'a>,
    pub y: Span<'a>,
}

/// The class that gives a series its colour.
pub(crate) fn colour(index: usize) -> String {
    match index / COLOURS {
        0 => format!("s{index}"),
        round => format!("s{} dash{}", index % COLOURS, round.min(2)),
    }
}

/// The style that gives a part of a whole its shade, where there are more parts than colours.
pub(crate) fn shade(index: usize, parts: usize) -> Option<String> {
    const PALEST: f64 = 20.0;
    let percent = PALEST + (100.0 - PALEST) * index as f64 / parts.saturating_sub(1).max(1) as f64;
    (parts > COLOURS)
        .then(|| format!(" style=\"--own: color-mix(in srgb, var(--heat) {percent:.0}%, var(--paper))\""))
}

/// The series' names beside their colours.
fn keys(series: &[Option<&str>], muted: Option<usize>) -> String {
    key_list(series, muted, |_| String::new())
}

/// The same for parts of a whole, which have shades where they are many.
pub(crate) fn part_keys(parts: &[&str]) -> String {
    let named: Vec<Option<&str>> = parts.iter().copied().map(Some).collect();
    key_list(&named, None, |index| shade(index, parts.len()).unwrap_or_default())
}

fn key_list(names: &[Option<&str>], muted: Option<usize>, style: impl Fn(usize) -> String) -> String {
    if names.len() < 2 {
        return String::new();
    }
    let key = |(index, name): (usize, &Option<&str>)| {
        let name = (*name)?;
        let class = if muted == Some(index) { "muted".to_owned() } else { colour(index) };
        let style = style(index);
        Some(format!("<span class=\"key {class}\"{style} data-series=\"{index}\">{}</span>", escaped(name)))
    };
    format!("<div class=\"keys\">{}</div>", names.iter().enumerate().filter_map(key).collect::<String>())
}

impl Frame<'_> {
    /// The chart, with SVG `marks` in a square of [`SIDE`], and what stands below it.
    pub(crate) fn around(&self, marks: &str, below: &str) -> String {
        let title = escaped(self.title);
        let mut grid = String::new();
        let mut heights = String::new();
        for (value, text) in self.y.marks() {
            let place = self.y.place(value);
            let y = SIDE * (1.0 - place);
            let _ = write!(grid, "<path class=\"grid\" d=\"M0 {y:.1}H{SIDE}\"/>");
            let _ = write!(heights, "<span style=\"bottom:{:.2}%\">{}</span>", place * 100.0, escaped(&text));
        }
        let (kind, name, labels) = self.x.parts();
        format!(
            "<figure class=\"chart\" data-x=\"{kind}\" data-y=\"{}\"><figcaption>{title}</figcaption>{}\
             <p class=\"y-name\">{}</p><div class=\"frame\"><div class=\"y\">{heights}</div>\
             <svg class=\"plot\" viewBox=\"0 0 {SIDE} {SIDE}\" preserveAspectRatio=\"none\" role=\"img\" \
             aria-label=\"{title}\">{grid}{marks}</svg><div class=\"x\">{labels}</div></div>\
             <p class=\"x-name\">{}</p>{below}</figure>\n",
            self.y.data(),
            keys(self.series, self.muted),
            escaped(self.y.axis.name),
            escaped(name),
        )
    }
}

impl Along<'_> {
    /// What `chart.js` must know of it, its name, and its labels.
    fn parts(&self) -> (String, &str, String) {
        let label = |(place, text): (f64, &str)| {
            format!("<span style=\"left:{:.2}%\">{}</span>", place * 100.0, escaped(text))
        };
        match self {
            Self::Values(span) => {
                let marks = span.marks();
                let labels = marks.iter().map(|(value, text)| label((span.place(*value), text))).collect();
                (span.data(), span.axis.name, labels)
            }
            Self::Slots { name, slots } => {
                let middle = |index: usize| (index as f64 + 0.5) / slots.len() as f64;
                let labels =
                    slots.iter().enumerate().map(|(index, text)| label((middle(index), text))).collect();
                (format!("slots {}", slots.len()), name, labels)
            }
        }
    }
}
