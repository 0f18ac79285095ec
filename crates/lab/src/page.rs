//! All results on one page.

use crate::cell::{Cell, summary};
use crate::duel::Series;
use crate::outcome::{Outcome, sides};
use nvmed_chart::{Row, document, escaped, rows, short};
use std::fmt::Write;

/// A page of its own: the table paper, measured, ratio; then each experiment's charts, method and limits.
#[must_use]
pub fn page(outcomes: &[Outcome]) -> String {
    let machine = outcomes.first().map_or("", |first| first.machine.as_str());
    let mut body = format!(
        "<p class=\"note\">{}</p>\n<div class=\"scroll\" tabindex=\"0\"><table><tr><th>experiment</th>\
         <th>paper</th><th>measured (medians)</th><th>ratio</th><th>goal</th></tr>\n",
        escaped(machine)
    );
    outcomes.iter().for_each(|outcome| body += &row(outcome));
    body += "</table></div>\n";
    outcomes.iter().for_each(|outcome| body += &section(outcome));
    document("nvmed lab: the papers' figures, run again", &body)
}

fn row(outcome: &Outcome) -> String {
    let paper = outcome.paper.as_ref().map_or("-", |paper| paper.printed.as_str());
    let mut measured: Vec<String> = outcome.measured.iter().map(|series| escaped(&sides(series))).collect();
    measured.extend((!outcome.cells.is_empty()).then(|| escaped(&summary(&outcome.cells))));
    let measured = match &outcome.skipped {
        Some(reason) => format!("<span class=\"missed\">skipped</span>: {}", escaped(reason)),
        None => measured.join("<br>"),
    };
    let ratio = outcome.ratio.map_or("-".to_owned(), |ratio| format!("{ratio:.2} ×"));
    let spread = outcome
        .spread
        .map_or(String::new(), |(low, high)| format!("<br><small>{low:.2} to {high:.2}</small>"));
    let (class, word) = if outcome.met { ("met", "met") } else { ("missed", "not met") };
    format!(
        "<tr><td><a href=\"#{id}\">{id}</a></td><td>{}</td><td>{measured}</td><td>{ratio}{spread}</td>\
         <td>{}<br><span class=\"{class}\">{word}</span></td></tr>\n",
        escaped(paper),
        escaped(&outcome.goal_text),
        id = escaped(&outcome.id),
    )
}

fn section(outcome: &Outcome) -> String {
    let mut out =
        format!("<h2 id=\"{0}\">{0}</h2>\n<p>{1}</p>\n", escaped(&outcome.id), escaped(&outcome.what));
    if let Some(paper) = &outcome.paper {
        let _ = writeln!(
            out,
            "<p class=\"note\">Paper: {}: {}: {}.</p>",
            escaped(&paper.source),
            escaped(&paper.what),
            escaped(&paper.printed)
        );
    }
    for series in &outcome.measured {
        out += &chart(series);
        out.push('\n');
    }
    out += &table(&outcome.cells);
    if !outcome.method.is_empty() {
        let _ = writeln!(out, "<p class=\"note\">Method: {}.</p>", escaped(&outcome.method));
    }
    for limit in &outcome.limits {
        let _ = writeln!(out, "<p class=\"note\">Limit: {}.</p>", escaped(limit));
    }
    out
}

fn chart(series: &Series) -> String {
    let row = |of: &crate::duel::Measured, ours: bool| Row {
        name: if ours { "ours".to_owned() } else { of.name.clone() },
        parts: vec![of.runs.median()],
        range: Some(of.runs.range()),
        muted: !ours,
    };
    let mut all = vec![row(&series.ours, true)];
    all.extend(series.rivals.iter().map(|rival| row(rival, false)));
    let figure = |value| format!("{} {}", short(value), series.unit);
    rows(&format!("{}: median, smallest to largest round", series.label), &figure, &[], &all)
}

/// Cells by row and column, ours above the paper's; nothing where there are none.
fn table(cells: &[Cell]) -> String {
    let Some(first) = cells.first() else { return String::new() };
    let columns: Vec<&str> =
        cells.iter().take_while(|cell| cell.row == first.row).map(|cell| cell.column.as_str()).collect();
    let heads: String = columns.iter().map(|column| format!("<th>{}</th>", escaped(column))).collect();
    let mut out = format!("<table><tr><th></th>{heads}</tr>\n");
    for row in cells.chunk_by(|a, b| a.row == b.row) {
        let _ = write!(out, "<tr><th>{}</th>", escaped(&row[0].row));
        for cell in row {
            let class = if cell.contradicted.is_some() { " class=\"note\"" } else { "" };
            let why = cell.contradicted.as_deref().unwrap_or("");
            let _ = write!(
                out,
                "<td{class} title=\"{}\">{:.2}<br><small>{:.2}</small></td>",
                escaped(why),
                cell.ours,
                cell.paper
            );
        }
        out += "</tr>\n";
    }
    out + "</table>\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::Effort;
    use crate::fake_experiment::FakeExperiment;

    #[test]
    fn the_page_needs_nothing_else_and_shows_all() {
        let run =
            |missing| crate::run(&FakeExperiment { ours: 3.0, rival: 2.0, missing }, &Effort::default());
        let page = page(&[run(false), run(true)]);
        for words in ["1.50 ×", "&gt;= 1.5 x", "skipped", "no such machine", "fast &lt;path&gt;", "</html>"]
        {
            assert!(page.contains(words), "no {words:?}");
        }
        assert!(!page.contains("http"), "it loads something");
    }
}
