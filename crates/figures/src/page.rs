//! The page of the book that draws what was recorded.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::io;
use std::path::Path;

use tacit_drawing::{Dot, Dots, number};

use crate::{Line, Machine, Run, limits, read};

/// Tacit's recorded lines, from the root of the repository.
pub const OURS: &str = "benches/recorded/ours.jsonl";

/// The recorded lines of others.
pub const PEERS: &str = "benches/recorded/peers.jsonl";

/// Where the page lies.
pub const FOLDER: &str = "book/src/reference";

const HEAD: &str = "\
<!-- Made by `cargo run -p tacit-figures -- record`, or of what is recorded by `UPDATE_EXPECT=1 cargo test -p tacit-figures`. -->
# Figures

Each figure is the median of many short rounds in which what is compared took turns; a ratio is the median of the ratios of
single rounds, and the thick part of a line holds the middle half of them. What is Tacit's is in color. Letters name the
machines below: only figures of one letter, measured in the same hour, can be compared as they stand. Ratios to the limit of
the machine that they were measured on say more.
";

/// A chart of the page.
struct Section {
    file: &'static str,
    title: &'static str,
    words: &'static str,
    axis: &'static str,
    /// The place of a line in it.
    place: fn(&Line) -> Option<Place>,
}

/// Where a line is drawn.
struct Place {
    /// The order of the headings.
    order: u32,
    heading: String,
    label: String,
    value: f64,
    spread: Option<[f64; 2]>,
    text: String,
}

impl Place {
    /// The figure itself.
    fn of_value(line: &Line, order: u32, heading: &str, label: &str) -> Self {
        let text = format!("{} {}", number(line.value), line.unit);
        let (heading, label) = (heading.to_owned(), label.to_owned());
        Self { order, heading, label, value: line.value, spread: None, text }
    }
}

const SECTIONS: [Section; 5] = [
    Section {
        file: "products",
        title: "Products with packed weights",
        words: "`x W^T` with `W: f32[4096,4096]` in few bits, in times of the limit: reading the stored bytes or multiplying, \
                whichever takes longer. Of activations in 8 bits the limit is that of 8-bit dot products where that is longer.",
        axis: "times the limit of the machine",
        place: |line| {
            let limited = line.bench == "matmul" && line.baseline.contains("limit");
            let mut parts = line.case.splitn(4, '/');
            let (format, _, m, suffix) = (parts.next()?, parts.next()?, parts.next()?, parts.next());
            let rows: u32 = m.strip_prefix('m')?.parse().ok()?;
            let cold = if suffix == Some("cold") { ", weights in no cache" } else { "" };
            let label = match suffix {
                Some("cold") | None => format.to_owned(),
                Some("int8") => format!("{format}, int8 activations"),
                Some(other) => format!("{format}, {other}"),
            };
            limited.then(|| Place {
                order: 2 * rows + u32::from(!cold.is_empty()),
                heading: format!("{rows} {}{cold}", if rows == 1 { "row" } else { "rows" }),
                label,
                value: line.ratio,
                spread: line.spread,
                text: format!("{} times, {} {}", number(line.ratio), number(line.value), line.unit),
            })
        },
    },
    Section {
        file: "training",
        title: "Training steps",
        words: "Steps in a second, straight through the quantization where a format is named; compiled as a whole where the \
                library can. The model without another name is 784-512-512-10, a batch of 128, plain SGD.",
        axis: "steps in a second",
        place: |line| {
            let (model, format) = line.case.rsplit_once('/').unwrap_or(("784-512-512-10", &line.case));
            let is = line.bench == "qat" && line.is_rate();
            is.then(|| Place::of_value(line, u32::from(line.case.contains('/')), model, format))
        },
    },
    Section {
        file: "generation",
        title: "Generation",
        words: "Tokens in a second of a decoder of Qwen3-0.6B's sizes with drawn weights.",
        axis: "tokens in a second",
        place: |line| {
            let (kind, weights) = line.case.split_once('/')?;
            let (order, heading) = match kind.strip_prefix("prompt") {
                Some(tokens) => (1, format!("Reading a prompt of {tokens}")),
                None if kind == "lookup" => (2, "Decoding with drafts from the text, and without".to_owned()),
                None => (0, "Decoding".to_owned()),
            };
            let is = line.bench == "generate" && line.is_rate();
            is.then(|| Place::of_value(line, order, &heading, weights))
        },
    },
    Section {
        file: "interception",
        title: "What interception costs",
        words: "Microseconds that an op costs more because one of its operands is an implicit array without a handler.",
        axis: "microseconds an op",
        place: |line| {
            let nodes = line.case.strip_prefix("extra_per_op")?;
            let label = match nodes {
                "" => "",
                "/dense" => "nothing implicit",
                "/100000" => "100,000 ops",
                "/100000/dense" => "100,000 ops, nothing implicit",
                other => other,
            };
            (line.bench == "interception").then(|| Place::of_value(line, 0, "", label))
        },
    },
    Section {
        file: "coding",
        title: "Coding and decoding",
        words: "Gigabytes of `f32` in a second, 4096 x 4096. `eval` is a whole array in MLX's graph, in fresh memory.",
        axis: "GB of f32 in a second",
        place: |line| {
            let mut parts = line.case.splitn(3, '/');
            let (format, way) = (parts.next()?, parts.next()?);
            let label = parts.next().map_or(format.to_owned(), |rest| format!("{format}, {rest}"));
            let heading = if way == "quantize" { "Coding" } else { "Decoding" };
            (line.bench == "quantize").then(|| Place::of_value(line, u32::from(way != "quantize"), heading, &label))
        },
    },
];

/// The files of the page by their names in [`FOLDER`], from the recorded lines below this root.
///
/// # Errors
///
/// Fails if the recorded lines cannot be read.
pub fn files(root: &Path) -> io::Result<Vec<(String, String)>> {
    Ok(drawn(&read(&root.join(OURS))?, &read(&root.join(PEERS))?))
}

fn drawn(ours: &[Line], peers: &[Line]) -> Vec<(String, String)> {
    let lines: Vec<&Line> = ours.iter().chain(peers).collect();
    let machines = machines(&lines);
    let mut page = HEAD.to_owned();
    let mut files = Vec::new();
    for section in &SECTIONS {
        let chart = section.chart(&lines, &machines);
        // What is drawn is how Tacit does beside others.
        if !chart.groups.iter().flat_map(|(_, rows)| rows).any(|row| row.ours) {
            continue;
        }
        let file = format!("figures/{}.svg", section.file);
        let _ = write!(page, "\n## {}\n\n{}\n\n{{{{#include {file}}}}}\n", section.title, section.words);
        files.push((file, chart.to_svg()));
    }
    page += &machines_table(&lines, &machines);
    page += &tables(ours, &machines);
    files.push(("figures.md".to_owned(), page));
    files.extend(limits::files(ours));
    files
}

impl Section {
    fn chart(&self, lines: &[&Line], machines: &[&Machine]) -> Dots {
        let mut groups: BTreeMap<(u32, String), Vec<Dot>> = BTreeMap::new();
        for line in lines {
            let Some(place) = (self.place)(line) else { continue };
            let who = line.peer.as_deref().unwrap_or("Tacit");
            let letter = line.run.as_ref().map_or(' ', |run| letter(&run.machine, machines));
            let label = format!("{letter}  {who} {}", place.label);
            let rows = groups.entry((place.order, place.heading)).or_default();
            // One run records a case beside each of its baselines.
            if rows.iter().any(|row| row.label == label) {
                continue;
            }
            let (value, spread, text) = (place.value, place.spread, place.text);
            rows.push(Dot { label, text, value, spread, ours: line.peer.is_none() });
        }
        let groups = groups.into_iter().map(|((_, heading), rows)| (heading, rows)).collect();
        Dots { title: self.title.into(), axis: self.axis.into(), groups }
    }
}

/// The machines in the order of their letters.
fn machines<'a>(lines: &[&'a Line]) -> Vec<&'a Machine> {
    let mut machines: Vec<&Machine> = Vec::new();
    for machine in lines.iter().filter_map(|line| Some(&line.run.as_ref()?.machine)) {
        if !machines.iter().any(|known| same(known, machine)) {
            machines.push(machine);
        }
    }
    machines
}

/// Whether they are the same but for what else they had to do.
fn same(one: &Machine, other: &Machine) -> bool {
    (&one.cpu, &one.isa, one.threads) == (&other.cpu, &other.isa, other.threads)
}

fn letter(machine: &Machine, machines: &[&Machine]) -> char {
    let place = machines.iter().position(|known| same(known, machine)).unwrap_or(25);
    char::from(b'A' + place.min(25) as u8)
}

fn machines_table(lines: &[&Line], machines: &[&Machine]) -> String {
    let mut text = "\n## Machines\n\n| | Processor | Kernels | Threads | Read, hot and cold | Multiply-adds | 8-bit dots | Measured |\n\
                    |---|---|---|---|---|---|---|---|\n"
        .to_owned();
    for machine in machines {
        let runs: Vec<&Run> =
            lines.iter().filter_map(|line| line.run.as_ref()).filter(|run| same(&run.machine, machine)).collect();
        // What the quietest of its runs reached.
        let limit = |limit: fn(&Run) -> Option<f64>| runs.iter().filter_map(|run| limit(run)).reduce(f64::max);
        let shown = |limit: Option<f64>| limit.map_or("?".into(), number);
        let mut days: Vec<&str> = runs.iter().map(|run| run.date.get(..10).unwrap_or(&run.date)).collect();
        let mut commits: Vec<&str> =
            runs.iter().map(|run| run.commit.as_str()).filter(|commit| !commit.is_empty()).collect();
        for all in [&mut days, &mut commits] {
            all.sort_unstable();
            all.dedup();
        }
        let _ = writeln!(
            text,
            "| {} | {}{} | {} | {} | {}, {} GB/s | {} GFLOP/s | {} GOP/s | {} {} |",
            letter(machine, machines),
            machine.cpu,
            caches(&machine.caches),
            machine.isa,
            machine.threads,
            shown(limit(|run| Some(run.limits?.read_hot))),
            shown(limit(|run| run.limits?.read_cold)),
            shown(limit(|run| Some(run.limits?.fma))),
            shown(limit(|run| Some(run.limits?.dot))),
            days.join(", "),
            commits.join(", ")
        );
    }
    text
}

fn caches(kilobytes: &[u64]) -> String {
    let shown = |kilobytes: &u64| {
        if *kilobytes < 1024 { format!("{kilobytes} KB") } else { format!("{} MB", kilobytes / 1024) }
    };
    let all: Vec<String> = kilobytes.iter().map(shown).collect();
    if all.is_empty() { String::new() } else { format!("; caches {}", all.join(", ")) }
}

/// All that is recorded of Tacit.
fn tables(ours: &[Line], machines: &[&Machine]) -> String {
    let mut benches: Vec<&str> = Vec::new();
    for line in ours {
        if !benches.contains(&line.bench.as_str()) {
            benches.push(&line.bench);
        }
    }
    let mut text = "\n## All that is measured\n".to_owned();
    for bench in benches {
        let _ = write!(
            text,
            "\n### {bench}\n\n| | Case | Figure | Beside | Ratio | Middle half |\n|---|---|---|---|---|---|\n"
        );
        for line in ours.iter().filter(|line| line.bench == bench) {
            let letter = line.run.as_ref().map_or(' ', |run| letter(&run.machine, machines));
            let spread =
                line.spread.map_or(String::new(), |[low, high]| format!("{} to {}", number(low), number(high)));
            let _ = writeln!(
                text,
                "| {letter} | {} | {} {} | {} | {} | {spread} |",
                line.case,
                number(line.value),
                line.unit,
                line.baseline,
                number(line.ratio)
            );
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(bench: &str, case: &str, unit: &str, peer: Option<&str>) -> Line {
        let machine = Machine {
            cpu: peer.unwrap_or("own").into(),
            isa: String::new(),
            caches: vec![48, 2048],
            threads: 2,
            load: None,
        };
        Line {
            bench: bench.into(),
            case: case.into(),
            unit: unit.into(),
            value: 0.5,
            baseline: "the limit".into(),
            ratio: 1.25,
            spread: Some([1.0, 1.5]),
            peer: peer.map(Into::into),
            run: Some(Run { machine, commit: String::new(), date: "2026-11-22T10:00:00Z".into(), limits: None }),
            ..Line::default()
        }
    }

    #[test]
    fn each_chart_has_its_lines_and_each_line_its_machine() {
        let ours = [
            line("matmul", "nf4/4096x4096/m32", "ms", None),
            line("matmul", "nf4/4096x4096/m1", "ms", None),
            line("matmul", "eval_latency", "us", None),
            line("qat", "nf4", "steps/s", None),
            line("generate", "prompt512/nf4", "tokens/s", None),
        ];
        let peers = [line("matmul", "nf4/4096x4096/m1", "ms", Some("another"))];
        let files: BTreeMap<String, String> = drawn(&ours, &peers).into_iter().collect();
        let names: Vec<&str> = files.keys().map(String::as_str).collect();
        assert_eq!(names, ["figures.md", "figures/generation.svg", "figures/products.svg", "figures/training.svg"]);
        let products = &files["figures/products.svg"];
        let at = |text: &str| products.find(text).unwrap_or_else(|| panic!("no {text} in {products}"));
        assert!(
            at(">1 row<") < at("A  Tacit nf4")
                && at("A  Tacit nf4") < at("B  another nf4")
                && at("B  another") < at(">32 rows<")
        );
        assert!(products.contains("1.25 times, 0.5 ms"));
        let page = &files["figures.md"];
        assert!(
            page.contains("| A | own; caches 48 KB, 2 MB |") && page.contains("| A | eval_latency | 0.5 us |"),
            "{page}"
        );
        assert!(page.contains("{{#include figures/products.svg}}") && !page.contains("interception.svg"));
    }
}
