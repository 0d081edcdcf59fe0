//! What formats lose, as lines of JSON, and the page of the book that draws them.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;
use std::{fs, io};

use serde::{Deserialize, Serialize};

use tacit_drawing::{Point, Scatter, front, number};

use crate::machine;

/// The recorded lines, from the root of the repository.
pub const RECORDED: &str = "benches/recorded/accuracy.jsonl";

/// What a format loses of something.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
pub struct Loss {
    /// The text of the format, with how its scales are chosen behind a plus.
    pub format: String,
    /// What was quantized: `normal`, `student` or `decoder`.
    pub of: String,
    /// What is measured: `error`, `sqnr`, `cosine`, `perplexity`, `trained` or `seconds`.
    pub measure: String,
    /// Bits for each element, scales included.
    pub bits: f64,
    /// The figure.
    pub value: f64,
    /// The commit of which it was measured.
    #[serde(default)]
    pub commit: String,
    /// When it was written down.
    #[serde(default)]
    pub date: String,
}

impl Loss {
    /// A figure of this tree, which [`write()`] dates.
    #[must_use]
    pub fn new(format: &str, of: &str, measure: &str, bits: f64, value: f64) -> Self {
        let [format, of, measure] = [format, of, measure].map(str::to_owned);
        Self { format, of, measure, bits, value, commit: String::new(), date: String::new() }
    }

    /// The format, and how its scales are chosen.
    fn parts(&self) -> (&str, &str) {
        self.format.split_once('+').unwrap_or((&self.format, OWN))
    }
}

/// Writes lines to a file, with the commit of this tree and the time of now.
///
/// # Errors
///
/// Fails if the file cannot be written.
pub fn write(path: &Path, losses: &[Loss]) -> io::Result<()> {
    let (commit, date) = (machine::commit(Path::new(env!("CARGO_MANIFEST_DIR"))), machine::now());
    let mut text = String::new();
    for loss in losses {
        text += &serde_json::to_string(&Loss { commit: commit.clone(), date: date.clone(), ..loss.clone() })?;
        text.push('\n');
    }
    fs::create_dir_all(path.parent().unwrap_or(Path::new(".")))?;
    fs::write(path, text)
}

/// The scales of the format itself.
const OWN: &str = "own";

/// How scales are chosen, with the words and the color of each.
const FITS: [(&str, &str, &str); 3] = [
    (OWN, "the format's own scales", "#7d8590"),
    ("search", "searched: least squared error", "#d9601a"),
    ("hqq", "half-quadratic: least error to the power of 0.7", "#2f81f7"),
];

/// The color of what was trained in its format.
const TRAINED: &str = "#3fb950";

/// More bits than this are no choice for weights, and would press all else together.
const MOST_BITS: f64 = 9.0;

const HEAD: &str = "\
<!-- Made of benches/recorded/accuracy.jsonl by `UPDATE_EXPECT=1 cargo test -p tacit-figures`; `cargo bench --bench accuracy -- --record` measures anew. -->
# Accuracy

What each format loses, by its bits, with the scales that it is defined with and with fitted ones: `nf4:64+search` tries multiples
of each block's scale for the least squared error, and `nf4:64+hqq` fits by the half-quadratic method, which leaves outliers to
themselves. Errors are the norm of what is lost over the norm of what was. Nothing here depends on the machine.
The broken line is the front: nothing left of it is as good. Models of other kinds are not measured here.
";

/// The files of the page by their names beside the page of figures, from the recorded lines below this root.
///
/// # Errors
///
/// Fails if the recorded lines cannot be read.
pub fn files(root: &Path) -> io::Result<Vec<(String, String)>> {
    let path = root.join(RECORDED);
    let lines = fs::read_to_string(&path)?;
    let read = |(at, line)| {
        serde_json::from_str(line)
            .map_err(|error| io::Error::other(format!("{}: line {}: {error}", path.display(), at + 1)))
    };
    Ok(drawn(&lines.lines().enumerate().map(read).collect::<io::Result<Vec<_>>>()?))
}

fn drawn(losses: &[Loss]) -> Vec<(String, String)> {
    let mut page = HEAD.to_owned();
    let mut files = Vec::new();
    for (of, title, words) in [
        (
            "normal",
            "Normal weights",
            "`bf16[512,1024]` of normally distributed numbers. SQNR and cosine are those of `x W^T` against the exact product, \
             where a hundredth of the channels of `x` is twenty times as large as the others: the power of the product over that \
             of what it loses, in decibels.",
        ),
        (
            "student",
            "Weights with long tails",
            "The same of Student's t with 4 degrees of freedom, where the largest magnitude of a block says little of the rest.",
        ),
    ] {
        let chart = scatter(losses, of, &["error"], title, "relative error");
        add(&mut files, &mut page, of, title, words, &chart);
        page += &table(losses, of, &["error", "sqnr", "cosine"]);
    }
    let title = "A trained decoder";
    let words = "A decoder of characters, two blocks of 128 dimensions, trained by the bench on the book of Genesis, with the \
                 projections of its attention, its MLPs and its head in each format: perplexity of a character on the last tenth \
                 of the text, which it was not trained on. Trained weights had the last quarter of the steps in their format, \
                 straight through its rounding. Its floats are `f32`, and the scales of affine formats with them, which costs 0.5 bits \
                 in groups of 64 against `bf16`.";
    let chart = scatter(losses, "decoder", &["perplexity", "trained"], title, "perplexity");
    add(&mut files, &mut page, "decoder", title, words, &chart);
    if let Some(float) = losses.iter().find(|loss| loss.of == "decoder" && loss.format == "f32") {
        let _ = write!(page, "\nIn `f32` its perplexity is {:.3}.\n", float.value);
    }
    page += &table(losses, "decoder", &["error", "perplexity", "trained"]);
    page += &seconds(losses);
    files.push(("accuracy.md".to_owned(), page));
    files
}

fn add(files: &mut Vec<(String, String)>, page: &mut String, of: &str, title: &str, words: &str, chart: &Scatter) {
    let file = format!("accuracy/{of}.svg");
    let _ = write!(page, "\n## {title}\n\n{words}\n\n{{{{#include {file}}}}}\n");
    let best: Vec<String> = front(&chart.points).iter().map(|point| format!("`{}`", point.label)).collect();
    let _ = write!(page, "\nOn the front, by bits: {}.\n", best.join(", "));
    files.push((file, chart.to_svg()));
}

fn scatter(losses: &[Loss], of: &str, measures: &[&str], title: &str, upwards: &str) -> Scatter {
    let mut kinds: Vec<(&'static str, String)> = FITS.map(|(_, words, color)| (color, words.to_owned())).into();
    if measures.len() > 1 {
        kinds.push((TRAINED, "trained in the format".to_owned()));
    }
    let point = |loss: &Loss| {
        let kind =
            if loss.measure == "trained" { 3 } else { FITS.iter().position(|(fit, ..)| *fit == loss.parts().1)? };
        let label = if kind == 3 { format!("{} trained", loss.format) } else { loss.format.clone() };
        Some(Point { label, kind, x: loss.bits, y: loss.value })
    };
    let wanted = |loss: &&Loss| loss.of == of && measures.contains(&loss.measure.as_str()) && loss.bits <= MOST_BITS;
    let points = losses.iter().filter(wanted).filter_map(point).collect();
    Scatter { title: title.into(), across: "bits an element".into(), upwards: upwards.into(), kinds, points }
}

/// A column, and what stands in it.
type Cell<'a> = ((&'a str, &'a str), f64);

/// The formats by their bits, with each measure by how the scales are chosen.
fn table(losses: &[Loss], of: &str, measures: &[&str]) -> String {
    let mut columns: Vec<(&str, &str)> = Vec::new();
    for &measure in measures {
        for (fit, ..) in FITS {
            let here = |loss: &&Loss| loss.of == of && loss.measure == measure && loss.parts().1 == fit;
            if losses.iter().any(|loss| here(&loss)) {
                columns.push((measure, fit));
            }
        }
    }
    let mut rows: BTreeMap<(u64, &str), Vec<Cell<'_>>> = BTreeMap::new();
    for loss in losses.iter().filter(|loss| loss.of == of && loss.format != "f32") {
        let (format, fit) = loss.parts();
        rows.entry(((loss.bits * 1000.0) as u64, format)).or_default().push(((&loss.measure, fit), loss.value));
    }
    let mut text = "\n| Format | Bits |".to_owned();
    for (measure, fit) in &columns {
        let head = match (*measure, *fit) {
            ("sqnr", OWN) => "SQNR, dB".to_owned(),
            ("sqnr", fit) => format!("SQNR, {fit}"),
            (measure, OWN) => measure.to_owned(),
            (measure, fit) => format!("{measure}, {fit}"),
        };
        let _ = write!(text, " {head} |");
    }
    let _ = write!(text, "\n|---|---|{}\n", "---|".repeat(columns.len()));
    for ((bits, format), values) in rows {
        let _ = write!(text, "| `{format}` | {:.2} |", bits as f64 / 1000.0);
        for column @ (measure, _) in &columns {
            let shown = values.iter().find(|(of, _)| of == column).map_or(String::new(), |(_, value)| match *measure {
                "cosine" => format!("{value:.5}"),
                "sqnr" => format!("{value:.1}"),
                "perplexity" | "trained" => format!("{value:.3}"),
                _ => number(*value),
            });
            let _ = write!(text, " {shown} |");
        }
        text.push('\n');
    }
    text
}

/// How long fitting takes.
fn seconds(losses: &[Loss]) -> String {
    let timed: Vec<&Loss> = losses.iter().filter(|loss| loss.measure == "seconds").collect();
    if timed.is_empty() {
        return String::new();
    }
    let mut text =
        "\n## What fitting takes\n\nSeconds to quantize `f32[4096,4096]`, once, on the machine of the run.\n\n\
                    | Format | Seconds |\n|---|---|\n"
            .to_owned();
    for loss in timed {
        let _ = writeln!(text, "| `{}` | {} |", loss.format, number(loss.value));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_format_has_its_row_and_each_fit_its_column() {
        let losses = [
            Loss::new("nf4:64", "normal", "error", 4.5, 0.09),
            Loss::new("nf4:64+search", "normal", "error", 4.5, 0.08),
            Loss::new("int8", "normal", "error", 8.0, 0.01),
            Loss::new("f32", "decoder", "perplexity", 32.0, 4.0),
            Loss::new("nf4:64", "decoder", "trained", 4.5, 4.1),
        ];
        let files: BTreeMap<String, String> = drawn(&losses).into_iter().collect();
        let names: Vec<&str> = files.keys().map(String::as_str).collect();
        assert_eq!(names, ["accuracy.md", "accuracy/decoder.svg", "accuracy/normal.svg", "accuracy/student.svg"]);
        let page = &files["accuracy.md"];
        assert!(page.contains("| Format | Bits | error | error, search |\n"), "{page}");
        assert!(
            page.contains("| `nf4:64` | 4.50 | 0.09 | 0.08 |") && page.contains("| `int8` | 8.00 | 0.01 |  |"),
            "{page}"
        );
        assert!(
            page.contains("On the front, by bits: `nf4:64+search`, `int8`.") && page.contains("perplexity is 4.000")
        );
        assert!(files["accuracy/decoder.svg"].contains("nf4:64 trained: 4.5, 4.1"));
    }
}
