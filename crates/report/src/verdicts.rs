//! The six characteristics, each with its verdict and the evidence.

use crate::figure::text;
use crate::{Traced, section as whole};
use nvmed_chart::{escaped, table};
use nvmed_trace::{Characteristic, Claim, Row, Verdict};
use std::fmt::Write;

/// The columns of the table of claims.
const CLAIMS: [&str; 5] = ["of a trace", "so in the paper", "so here", "numbers of these", "verdict"];

/// A claim with what it stands on.
fn claim(claim: &Claim) -> Vec<String> {
    let range = claim
        .range
        .map_or("-".to_owned(), |(low, high)| format!("{} to {}", text(Some(low)), text(Some(high))));
    vec![
        claim.says.to_owned(),
        format!("{} of 18", claim.said_of_18),
        format!("{} of {}", claim.found, claim.told),
        range,
        claim.verdict.words().to_owned(),
    ]
}

/// The traces that a claim is not true of, and what qualifies a characteristic.
fn remarks(found: &Characteristic) -> String {
    let mut out = String::new();
    for claim in &found.claims {
        let (says, of) = (escaped(claim.says), |names: &[String]| escaped(&names.join(", ")));
        if !claim.exceptions.is_empty() {
            let _ = write!(out, "<li>Not so that {says}: {}.</li>", of(&claim.exceptions));
        }
        if !claim.at_limit.is_empty() {
            let _ = write!(out, "<li>Exactly at the limit of this: {}.</li>", of(&claim.at_limit));
        }
    }
    found.remarks.iter().for_each(|remark| _ = write!(out, "<li>{}.</li>", escaped(remark)));
    if out.is_empty() { out } else { format!("<ul class=\"note\">{out}</ul>") }
}

/// The class that gives a verdict its colour.
fn class(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Holds => "met",
        Verdict::Fails => "missed",
        Verdict::Open | Verdict::HoldsInPart | Verdict::NotTold => "open",
    }
}

/// All of them, judged by the traces together.
pub(crate) fn section(traces: &[Traced<'_>]) -> String {
    let rows: Vec<Row> = traces.iter().map(|trace| trace.summary.all.row.clone()).collect();
    let mut out = String::new();
    for found in Characteristic::all(&rows) {
        let _ = write!(
            out,
            "<h3>{}. {}: <span class=\"{}\">{}</span></h3>\n{}{}\n",
            found.number,
            escaped(found.says),
            class(found.verdict),
            found.verdict.words(),
            table(&CLAIMS, found.claims.iter().map(claim)),
            remarks(&found)
        );
    }
    let words = "What IISWC'15 says of 18 applications, asked of these traces: a claim holds if the same share of them \
                 bears it out. It is open if that depends on a trace whose figure is the limit itself.";
    whole("Six characteristics", words, &out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn evidence_names_the_exceptions_safely() {
        let mut rows: Vec<Row> = Row::published().into_iter().take(18).collect();
        rows.iter_mut().filter(|row| row.name == "Booting").for_each(|row| row.name = "<Booting>".to_owned());
        let found = Characteristic::all(&rows);
        let locality = remarks(&found[4]);
        assert!(
            locality.contains("spatial locality is below temporal locality: &lt;Booting&gt;, "),
            "{locality}"
        );
        assert!(remarks(&found[2]).contains("at the limit of this: Installing."), "{}", remarks(&found[2]));
        assert_eq!(claim(&found[2].claims[1])[1..3], ["10 of 18", "9 of 18"]);
    }
}
