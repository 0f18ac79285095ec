//! All results on one page.

use crate::advice::{Advice, Evidence, Judgement};
use crate::cell::Cell;
use crate::duel::Series;
use crate::experiment::Goal;
use crate::outcome::Outcome;
use nvmed_chart::{Row, Unit, document, escaped, rows, short, table as figures};
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
    let measured: Vec<String> = outcome.parts().iter().map(|part| escaped(part)).collect();
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
    out += &advices(&outcome.advice);
    // Whose series are parts of its advice has a chart there.
    for series in outcome.measured.iter().filter(|_| outcome.advice.is_empty()) {
        out += &chart(series);
        out.push('\n');
    }
    out += &table(&outcome.cells, outcome.goal);
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
        name: of.name.clone(),
        parts: vec![of.runs.median()],
        range: Some(of.runs.range()),
        muted: !ours,
    };
    let mut all = vec![row(&series.ours, true)];
    all.extend(series.rivals.iter().map(|rival| row(rival, false)));
    let figure = |value| format!("{} {}", short(value), series.unit);
    rows(&format!("{}: median, smallest to largest round", series.label), &figure, &[], &all)
}

/// Each advice in a line, then its reasons and numbers; nothing where there is none.
fn advices(all: &[Advice]) -> String {
    if all.is_empty() {
        return String::new();
    }
    let mut out = "<ol>".to_owned();
    for one in all {
        let _ = write!(
            out,
            "<li><b>{}</b><br><span class=\"note\">{}: the paper's claim {}</span></li>",
            escaped(&one.advice),
            escaped(&one.name),
            judged(one.judgement)
        );
    }
    out += "</ol>\n";
    for one in all {
        let _ = write!(
            out,
            "<h3>{}</h3>\n<p><b>{}</b></p>\n<p>{}.</p>\n<p class=\"note\">Paper: {}. This {}. Departs: {}.</p>\n",
            escaped(&one.name),
            escaped(&one.advice),
            escaped(&one.found),
            escaped(&one.paper),
            judged(one.judgement),
            escaped(&one.departs)
        );
        one.evidence.iter().for_each(|evidence| out += &shown(evidence));
    }
    out
}

fn judged(judgement: Judgement) -> String {
    let class = match judgement {
        Judgement::Holds => "met",
        Judgement::InPart => "open",
        Judgement::Fails => "missed",
    };
    format!("<span class=\"{class}\">{}</span>", judgement.words())
}

/// Medians, and a column by row, as charts; and all figures as a table.
fn shown(evidence: &Evidence) -> String {
    let (first, end) = evidence.medians;
    let name = |column: usize| evidence.columns.get(column).map_or("", String::as_str);
    let bars: Vec<Row> =
        (first..end).map(|column| Row::new(name(column), vec![evidence.median(column)])).collect();
    let mut out = "<div class=\"charts\">".to_owned();
    if !bars.is_empty() {
        let title = format!("{}: medians of {} traces", evidence.title, evidence.rows.len());
        out += &rows(&title, &short, &[], &bars);
    }
    let (column, of) = evidence.drawn;
    let figure = |row: &[Option<f64>], column: usize| row.get(column).copied().flatten().unwrap_or(f64::NAN);
    let bar = |(name, row): &(String, Vec<Option<f64>>)| {
        let whole = of.map_or(1.0, |of| figure(row, of) / 100.0);
        Row::new(name, vec![figure(row, column) / whole])
    };
    let bars: Vec<Row> = evidence.rows.iter().map(bar).collect();
    out += &match of {
        Some(of) => {
            let title = format!("{}: {}, in percent of {}", evidence.title, name(column), name(of));
            rows(&title, &|value| Unit::Percent.text(value), &[], &bars)
        }
        None => rows(&format!("{}: {}", evidence.title, name(column)), &short, &[], &bars),
    };
    let head: Vec<&str> =
        std::iter::once("trace").chain(evidence.columns.iter().map(String::as_str)).collect();
    let _ = writeln!(
        out,
        "</div><details><summary>{}: all figures</summary>{}</details>",
        escaped(&evidence.title),
        figures(&head, evidence.lines())
    );
    out
}

/// Cells by row and column, ours above the paper's; nothing where there are none. A row may lack columns.
fn table(cells: &[Cell], goal: Goal) -> String {
    if cells.is_empty() {
        return String::new();
    }
    let mut columns: Vec<&str> = Vec::new();
    for cell in cells {
        if !columns.contains(&cell.column.as_str()) {
            columns.push(&cell.column);
        }
    }
    let heads: String = columns.iter().map(|column| format!("<th>{}</th>", escaped(column))).collect();
    let mut out = format!(
        "<p class=\"note\">Above: found here. Below: the paper's, or what follows from it. Muted: not judged.</p>\n\
         <div class=\"scroll\" tabindex=\"0\"><table><tr><th></th>{heads}</tr>\n"
    );
    for row in cells.chunk_by(|a, b| a.row == b.row) {
        let _ = write!(out, "<tr><th>{}</th>", escaped(&row[0].row));
        for column in &columns {
            match row.iter().find(|cell| cell.column == *column) {
                Some(cell) => out += &shown_cell(cell, goal),
                None => out += "<td class=\"note\">-</td>",
            }
        }
        out += "</tr>\n";
    }
    out + "</table></div>\n"
}

/// A cell; the reason why it is not judged, or its goal, where the pointer rests on it.
fn shown_cell(cell: &Cell, experiment: Goal) -> String {
    let (class, why) = match (cell.judged_by(experiment), &cell.contradicted) {
        (Some(goal), _) if goal.met(cell.ratio()) => ("", goal.text_of_cell()),
        (Some(goal), _) => (" class=\"missed\"", goal.text_of_cell()),
        (None, why) => (" class=\"note\"", why.clone().unwrap_or_default()),
    };
    format!(
        "<td{class} title=\"{}\">{:.2}<br><small>{:.2}</small></td>",
        escaped(&why),
        cell.ours,
        cell.paper
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::Effort;
    use crate::fake_experiment::FakeExperiment;

    #[test]
    fn a_row_of_the_table_may_lack_columns_and_a_missed_cell_stands_out() {
        let cell = |row, column, ours| Cell::new(row, column, 10.0, ours);
        let cells = [cell("a", "x", 10.0), cell("b", "x", 10.1), cell("b", "y", 20.0), cell("c", "y", 10.0)];
        let text = table(&cells, Goal::Within(2.0));
        assert!(text.contains("<tr><th></th><th>x</th><th>y</th></tr>"), "{text}");
        assert_eq!(text.matches("<td class=\"note\">-</td>").count(), 2, "{text}");
        assert!(text.contains("<tr><th>c</th><td class=\"note\">-</td><td title="), "{text}");
        assert_eq!(text.matches("<td class=\"missed\" title=\"within 2 %\">20.00").count(), 1, "{text}");
        assert_eq!(table(&cells, Goal::AtMost(1.0)).matches("<td class=\"note\" title").count(), 4);
    }

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
