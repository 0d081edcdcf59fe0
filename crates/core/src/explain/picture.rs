//! The graph of a trace as a drawing.

use std::collections::HashMap;

use super::explanation::Explanation;
use super::fold::Repeat;
use super::layout::{Node, Place, layered};
use crate::dispatch::Taker;
use crate::printable::{name, xml};

/// The height of a box, and the width of a letter in it.
const HEIGHT: f32 = 44.0;
const LETTER: f32 = 7.3;

/// The looks of the drawing, bright and dark; who took a node is its class.
const STYLE: &str = "\
text{font:12px ui-monospace,monospace;text-anchor:middle;fill:#222}\
.edge{fill:none;stroke:#999}.box{fill:#eee;stroke:#888}.input .box,.output .box{fill:none}\
.handled .box{fill:#d7ecd9;stroke:#3a7d44}.default .box{fill:#dbe6f7;stroke:#35639f}\
.materialized .box{fill:#f7d4d2;stroke:#b3261e}.frame{fill:none;stroke:#35639f;stroke-dasharray:6 4}\
@media(prefers-color-scheme:dark){text{fill:#ddd}.edge{stroke:#777}.box{fill:#333}\
.handled .box{fill:#1f3d26}.default .box{fill:#20324d}.materialized .box{fill:#5a1f1c}}";

/// The drawing; with `links`, each box of an equation is a link to `#` and its number.
pub(super) fn svg(explanation: &Explanation, links: bool) -> String {
    let repeat = Repeat::find(&explanation.equations);
    let boxes = boxes(explanation, repeat.as_ref());
    let nodes: Vec<Node> =
        boxes.iter().map(|drawn| Node { takes: drawn.takes.clone(), width: drawn.width() }).collect();
    let (places, [width, height]) = layered(&nodes);
    let mut pieces = vec![format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" width=\"{width:.0}\" \
         height=\"{height:.0}\" role=\"img\"><style>{STYLE}</style>"
    )];
    for (drawn, &to) in boxes.iter().zip(&places) {
        pieces.extend(drawn.takes.iter().map(|&taken| edge(places[taken], to)));
    }
    pieces.extend(boxes.iter().zip(&places).map(|(drawn, &place)| drawn.shown(place, links)));
    if let Some(repeat) = &repeat {
        let inside =
            boxes.iter().zip(&places).filter(|(drawn, _)| drawn.equation.is_some_and(|at| repeat.block.contains(&at)));
        pieces.extend(frame(inside, repeat.times));
    }
    pieces.push("</svg>\n".to_owned());
    pieces.join("\n")
}

/// One box.
struct Drawn {
    class: &'static str,
    /// The equation that it stands for, where it is one.
    equation: Option<usize>,
    lines: [String; 2],
    /// What is shown beside the pointer.
    title: String,
    takes: Vec<usize>,
}

/// Inputs, equations and results; what is folded has no box.
fn boxes(explanation: &Explanation, repeat: Option<&Repeat>) -> Vec<Drawn> {
    let mut boxes = Vec::new();
    let mut made_by: HashMap<&str, usize> = HashMap::new();
    for input in explanation.inputs.iter().filter(|input| !explanation.is_folded(repeat, &input.name)) {
        made_by.insert(&input.name, boxes.len());
        boxes.push(Drawn {
            class: "input",
            equation: None,
            lines: [name(&input.name).into_owned(), input.form.clone()],
            title: input.to_string(),
            takes: Vec::new(),
        });
    }
    let mut box_of = HashMap::new();
    for (at, equation) in explanation.equations.iter().enumerate() {
        let stands_for = repeat.map_or(at, |repeat| repeat.stands_for(at));
        if stands_for == at {
            let mut takes: Vec<usize> =
                equation.operands.iter().filter_map(|name| made_by.get(&**name).copied()).collect();
            takes.sort_unstable();
            takes.dedup();
            box_of.insert(at, boxes.len());
            let primitive = equation.primitive.split('[').next().unwrap_or_default();
            boxes.push(Drawn {
                class: class(&equation.taker),
                equation: Some(at),
                lines: [
                    primitive.to_owned(),
                    equation.results.first().map(|result| result.form.clone()).unwrap_or_default(),
                ],
                title: equation.to_string(),
                takes,
            });
        }
        for result in &equation.results {
            made_by.insert(&result.name, box_of[&stands_for]);
        }
    }
    for output in &explanation.outputs {
        boxes.push(Drawn {
            class: "output",
            equation: None,
            lines: [name(output).into_owned(), "result".to_owned()],
            title: output.clone(),
            takes: made_by.get(&**output).copied().into_iter().collect(),
        });
    }
    boxes
}

fn class(taker: &Taker) -> &'static str {
    match taker {
        Taker::Dense | Taker::Computed => "dense",
        Taker::Handler(_) => "handled",
        Taker::Default(_) => "default",
        Taker::Materialized => "materialized",
    }
}

impl Drawn {
    fn width(&self) -> f32 {
        let letters = self.lines.iter().map(|line| line.chars().count()).max().unwrap_or(0);
        LETTER * letters as f32 + 20.0
    }

    fn shown(&self, Place { x, y }: Place, links: bool) -> String {
        let (width, left, top) = (self.width(), x - self.width() / 2.0, y - HEIGHT / 2.0);
        let [first, second] = &self.lines;
        let result = format!(
            "<g class=\"{}\"><title>{}</title>\
             <rect class=\"box\" x=\"{left:.1}\" y=\"{top:.1}\" width=\"{width:.1}\" height=\"{HEIGHT}\" rx=\"6\"/>\
             <text x=\"{x:.1}\" y=\"{:.1}\">{}</text><text x=\"{x:.1}\" y=\"{:.1}\">{}</text></g>",
            self.class,
            xml(&self.title),
            y - 4.0,
            xml(first),
            y + 13.0,
            xml(second),
        );
        match self.equation {
            Some(at) if links => format!("<a href=\"#{at}\">{result}</a>"),
            _ => result,
        }
    }
}

fn edge(from: Place, to: Place) -> String {
    let (start, end) = (from.y + HEIGHT / 2.0, to.y - HEIGHT / 2.0);
    let bend = (end - start) / 2.0;
    format!(
        "<path class=\"edge\" d=\"M{:.1} {start:.1}C{:.1} {:.1} {:.1} {:.1} {:.1} {end:.1}\"/>",
        from.x,
        from.x,
        start + bend,
        to.x,
        end - bend,
        to.x,
    )
}

/// A line around what repeats, with the number of times.
fn frame<'a>(inside: impl Iterator<Item = (&'a Drawn, &'a Place)>, times: usize) -> Option<String> {
    const AROUND: f32 = 14.0;
    let ends = inside.map(|(drawn, place)| {
        let half = drawn.width() / 2.0;
        [place.x - half, place.y - HEIGHT / 2.0, place.x + half, place.y + HEIGHT / 2.0]
    });
    let [left, top, right, bottom] =
        ends.reduce(|a, b| [a[0].min(b[0]), a[1].min(b[1]), a[2].max(b[2]), a[3].max(b[3])])?;
    Some(format!(
        "<rect class=\"frame\" x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\" rx=\"10\"/>\
         <text x=\"{:.1}\" y=\"{:.1}\">&#215; {times}</text>",
        left - AROUND,
        top - AROUND,
        right - left + 2.0 * AROUND,
        bottom - top + 2.0 * AROUND,
        right - AROUND,
        top + 2.0,
    ))
}
