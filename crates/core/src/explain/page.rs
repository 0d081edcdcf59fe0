//! An explanation as a page of HTML.

use std::fmt::Write;

use super::explanation::Explanation;
use super::picture::svg;
use crate::dispatch::Taker;
use crate::printable::xml;

/// The looks of the page; it can be read on a phone and in the dark.
const STYLE: &str = "\
body{font:14px system-ui,sans-serif;margin:1rem;color-scheme:light dark}\
.drawing,.list{overflow-x:auto}table{border-collapse:collapse;font:12px ui-monospace,monospace}\
td{padding:2px 12px 2px 0;vertical-align:top}tr:target{outline:2px solid #35639f}\
.materialized td:last-child{color:#b3261e}.declined{opacity:.7}";

pub(super) fn html(explanation: &Explanation) -> String {
    let mut rows = String::new();
    for (at, equation) in explanation.equations.iter().enumerate() {
        let class = if equation.taker == Taker::Materialized { " class=\"materialized\"" } else { "" };
        let mut taker = xml(&equation.taken_by());
        for decline in &equation.declined {
            let _ = write!(taker, "<div class=\"declined\">{}</div>", xml(&decline.to_string()));
        }
        let cells = [xml(&equation.result_text()), xml(&equation.call()), taker];
        let _ = writeln!(rows, "<tr id=\"{at}\"{class}><td>{}</td></tr>", cells.join("</td><td>"));
    }
    let counters = &explanation.counters;
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\"><title>Trace</title>\
         <style>{STYLE}</style></head><body>\n\
         <p>{} ops, {} handled, {} materialized ({} B){}</p>\n\
         <div class=\"drawing\">{}</div>\n<div class=\"list\"><table>\n{rows}</table></div>\n</body></html>\n",
        explanation.equations.len(),
        explanation.handled(),
        counters.materialized,
        counters.materialized_bytes,
        counters.elsewhere(),
        svg(explanation, true),
    )
}
