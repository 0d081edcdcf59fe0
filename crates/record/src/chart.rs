//! Charts of curves by step.

use std::collections::BTreeMap;
use std::path::Path;

use tacit_core::{Error, Result};
use tacit_drawing::{Anchor, Axis, Canvas, EDGE, ROW, WIDTH, color, labels};
use tacit_files::{folder_of, make_folder, replace};

use crate::{Histogram, Series};

/// Numbers by step as lines, and histograms by step as bands: of all elements, of the middle half, and the median.
///
/// The drawing is an `svg` element for a page to include. It is as wide as its place, legible at 380 pixels, and its words and axes
/// have the color of the page's text, on bright pages and on dark ones.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use tacit_record::{Chart, Series};
///
/// let loss: Series = (1..=50).map(|step| (step, 1.0 / step as f64)).collect();
/// let svg = Chart::new("loss by step").logarithmic().line("float32", loss).mark(30, "2 bits from here").to_svg()?;
/// assert!(svg.starts_with("<svg "));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Chart {
    title: String,
    by: String,
    logarithmic: bool,
    curves: Vec<(String, Curve)>,
    marks: Vec<(u64, String)>,
}

#[derive(Clone, Debug, PartialEq)]
enum Curve {
    Line(Series),
    Bands(Vec<(u64, [f64; 5])>),
}

/// The height of the axes.
const HEIGHT: f64 = 180.0;
/// Where they begin at least: to the left are the numbers.
const LEFT: f64 = 44.0;
/// The width of a digit, about.
const LETTER: f64 = 6.3;
/// The quantiles that bands are drawn between.
const SHARES: [f64; 5] = [0.0, 0.25, 0.5, 0.75, 1.0];

impl Chart {
    /// A chart without a curve; the title, of up to about 55 characters, says what is drawn, and in which unit.
    #[must_use]
    pub fn new(title: impl Into<String>) -> Self {
        Self { title: title.into(), by: "step".to_owned(), logarithmic: false, curves: Vec::new(), marks: Vec::new() }
    }

    /// Says what a step is, such as `epoch`.
    #[must_use]
    pub fn by(self, step: impl Into<String>) -> Self {
        Self { by: step.into(), ..self }
    }

    /// Draws numbers by their powers of ten; those that are not positive are then left out.
    #[must_use]
    pub fn logarithmic(self) -> Self {
        Self { logarithmic: true, ..self }
    }

    /// Adds a line, which has a gap where a number is infinite or NaN.
    #[must_use]
    pub fn line(mut self, label: impl Into<String>, series: Series) -> Self {
        self.curves.push((label.into(), Curve::Line(series)));
        self
    }

    /// Adds the bands of histograms by step; an empty histogram is left out.
    #[must_use]
    pub fn bands(mut self, label: impl Into<String>, histograms: &BTreeMap<u64, Histogram>) -> Self {
        let quantiles = histograms.iter().filter_map(|(&step, histogram)| {
            let mut quantiles = [0.0; 5];
            for (quantile, share) in quantiles.iter_mut().zip(SHARES) {
                *quantile = histogram.quantile(share)?;
            }
            Some((step, quantiles))
        });
        self.curves.push((label.into(), Curve::Bands(quantiles.collect())));
        self
    }

    /// Marks a step, such as that from which on a format is used.
    #[must_use]
    pub fn mark(mut self, step: u64, words: impl Into<String>) -> Self {
        self.marks.push((step, words.into()));
        self
    }

    /// The drawing as SVG.
    ///
    /// # Errors
    ///
    /// No number can be drawn.
    pub fn to_svg(&self) -> Result<String> {
        let points = || self.curves.iter().flat_map(|(_, curve)| curve.points()).filter(|&(_, y)| self.draws(y));
        let marked = self.marks.iter().map(|&(step, _)| step);
        let x = Axis::from_numbers(points().map(|(step, _)| step).chain(marked).map(|step| step as f64), false);
        let (Some(x), Some(y)) = (x, Axis::from_numbers(points().map(|(_, y)| y), self.logarithmic)) else {
            let help = "add a line that was recorded, and without `logarithmic` where no number is positive";
            return Err(Error::invalid(format!("{:?} has no number that can be drawn", self.title), help));
        };
        let mut drawing = Canvas::titled(&self.title, self.curves.iter().map(|(label, _)| label.as_str()));
        // Words of marks are above the field, where no curve is.
        let above = if self.marks.is_empty() { 8.0 } else { ROW };
        let widest = labels(&y.ticks()).iter().map(String::len).max().unwrap_or(0);
        let left = LEFT.max(widest as f64 * LETTER + 6.0);
        let field = Field { x, y, top: drawing.top + above, left };
        field.draw(&mut drawing);
        for (step, words) in &self.marks {
            let at = field.across(*step);
            drawing.polyline(&[(at, field.top), (at, field.top + HEIGHT)], "currentColor", 1.0, 0.5);
            // At the end of the axis the words are on the other side of their line.
            let anchor = if at > WIDTH / 2.0 { Anchor::End } else { Anchor::Start };
            drawing.text((at, field.top - 4.0), anchor, words);
        }
        for (at, (_, curve)) in self.curves.iter().enumerate() {
            match curve {
                Curve::Line(series) => {
                    for piece in series.points().split(|&(_, y)| !self.draws(y)).filter(|piece| !piece.is_empty()) {
                        field.line(&mut drawing, piece.iter().copied(), color(at));
                    }
                }
                Curve::Bands(steps) => {
                    let steps: Vec<&(u64, [f64; 5])> = steps.iter().filter(|(_, all)| self.draws(all[0])).collect();
                    for ([low, high], opacity) in [([0, 4], 0.2), ([1, 3], 0.4)] {
                        let below = steps.iter().map(|(step, all)| field.place((*step, all[low])));
                        let above = steps.iter().rev().map(|(step, all)| field.place((*step, all[high])));
                        drawing.polygon(&below.chain(above).collect::<Vec<_>>(), color(at), opacity);
                    }
                    field.line(&mut drawing, steps.iter().map(|(step, all)| (*step, all[2])), color(at));
                }
            }
        }
        let bottom = field.top + HEIGHT + 2.0 * ROW;
        drawing.text((field.left.midpoint(WIDTH), bottom - 4.0), Anchor::Middle, &self.by);
        Ok(drawing.finish(bottom))
    }

    /// Writes the drawing to a file, in a folder that is made where it does not exist.
    ///
    /// # Errors
    ///
    /// As for [`to_svg`](Self::to_svg), or the system refuses to write.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        save(&self.to_svg()?, path.as_ref())
    }

    fn draws(&self, y: f64) -> bool {
        y.is_finite() && (!self.logarithmic || y > 0.0)
    }
}

/// Both axes, and where they are.
struct Field {
    x: Axis,
    y: Axis,
    top: f64,
    left: f64,
}

impl Field {
    fn across(&self, step: u64) -> f64 {
        self.left + self.x.place(step as f64) * (WIDTH - EDGE - self.left)
    }

    fn place(&self, (step, y): (u64, f64)) -> (f64, f64) {
        (self.across(step), self.top + (1.0 - self.y.place(y)) * HEIGHT)
    }

    fn line(&self, drawing: &mut Canvas, points: impl Iterator<Item = (u64, f64)>, color: &str) {
        let mut points: Vec<(f64, f64)> = points.map(|point| self.place(point)).collect();
        // A single point is drawn as a short line.
        if let [(x, y)] = points[..] {
            points = vec![(x - 1.5, y), (x + 1.5, y)];
        }
        drawing.polyline(&points, color, 2.0, 1.0);
    }

    /// The axes with their numbers.
    fn draw(&self, drawing: &mut Canvas) {
        let ticks = self.y.ticks();
        for (&tick, label) in ticks.iter().zip(labels(&ticks)) {
            let y = self.top + (1.0 - self.y.place(tick)) * HEIGHT;
            drawing.polyline(&[(self.left, y), (WIDTH - EDGE, y)], "currentColor", 1.0, 0.15);
            drawing.text((self.left - 5.0, y + 4.0), Anchor::End, &label);
        }
        let (left, bottom) = (self.left, self.top + HEIGHT);
        drawing.polyline(&[(left, self.top), (left, bottom), (WIDTH - EDGE, bottom)], "currentColor", 1.0, 0.5);
        let ticks: Vec<f64> = self.x.ticks().into_iter().filter(|tick| tick.fract() == 0.0).collect();
        for (&tick, label) in ticks.iter().zip(labels(&ticks)) {
            let x = self.across(tick as u64);
            let half = (label.len() as f64 * LETTER / 2.0).max(18.0);
            drawing.text((x.min(WIDTH - half), bottom + 14.0), Anchor::Middle, &label);
        }
    }
}

impl Curve {
    fn points(&self) -> Vec<(u64, f64)> {
        match self {
            Self::Line(series) => series.points().to_vec(),
            Self::Bands(steps) => steps.iter().flat_map(|(step, all)| [(*step, all[0]), (*step, all[4])]).collect(),
        }
    }
}

/// Writes a drawing to a file, which is the old one or the new one whenever the program ends.
pub(crate) fn save(svg: &str, path: &Path) -> Result<()> {
    let _new = make_folder(folder_of(path))?;
    replace(path, svg.as_bytes())
}
