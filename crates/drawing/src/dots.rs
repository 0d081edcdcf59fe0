//! Rows of dots on one axis.

use crate::axis::{Axis, labels};
use crate::canvas::{Anchor, Canvas, EDGE, WIDTH};

/// The height of a row: its words, and the line with its dot.
const ROW: f64 = 30.0;
const HEADING: f64 = 26.0;
/// For the numbers of the axis, which are above as well as below.
const TOP: f64 = 16.0;

/// Rows under headings on one axis, each with a dot and its words.
///
/// ```
/// use tacit_drawing::{Dot, Dots};
///
/// let dot = Dot { label: "nf4".into(), text: "2.1 ms".into(), value: 2.1, spread: Some([2.0, 2.3]), ours: true };
/// let dots = Dots { title: "products".into(), axis: "ms".into(), groups: vec![("one row".into(), vec![dot])] };
/// assert!(dots.to_svg().starts_with("<svg "));
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Dots {
    /// What it shows, for who cannot see it.
    pub title: String,
    /// What the axis counts, with its unit.
    pub axis: String,
    /// The rows under each heading.
    pub groups: Vec<(String, Vec<Dot>)>,
}

/// One figure.
#[derive(Clone, Debug, PartialEq)]
pub struct Dot {
    /// Whose it is.
    pub label: String,
    /// The figure in words, at the end of the line.
    pub text: String,
    /// Where the dot is.
    pub value: f64,
    /// The quartiles, where they are known.
    pub spread: Option<[f64; 2]>,
    /// Whether it is Tacit's, which is drawn in color.
    pub ours: bool,
}

impl Dots {
    /// The drawing; a number that is infinite or none is drawn at an end of the axis.
    #[must_use]
    pub fn to_svg(&self) -> String {
        let rows = || self.groups.iter().flat_map(|(_, rows)| rows);
        let field = Field(axis(rows().flat_map(|row| {
            let [low, high] = row.spread.unwrap_or([row.value; 2]);
            [row.value, low, high]
        })));
        let headings = self.groups.iter().filter(|(heading, _)| !heading.is_empty()).count();
        let height = TOP + HEADING * headings as f64 + ROW * rows().count() as f64 + 40.0;
        let bottom = height - 34.0;
        let mut canvas = Canvas::untitled(&self.title);
        let ticks = field.0.ticks();
        for (&tick, label) in ticks.iter().zip(labels(&ticks)) {
            let x = field.place(tick);
            let anchor = match x {
                left if left < 20.0 => Anchor::Start,
                right if right > WIDTH - 20.0 => Anchor::End,
                _ => Anchor::Middle,
            };
            canvas.polyline(&[(x, TOP), (x, bottom)], "currentColor", 1.0, 0.2);
            for y in [TOP - 4.0, bottom + 13.0] {
                canvas.text((x, y), anchor, &label);
            }
        }
        let mut y = TOP;
        for (heading, rows) in &self.groups {
            if !heading.is_empty() {
                y += HEADING;
                canvas.bold((EDGE, y - 7.0), Anchor::Start, heading);
            }
            for row in rows {
                row.draw(&field, y, &mut canvas);
                y += ROW;
            }
        }
        canvas.text((WIDTH / 2.0, height - 5.0), Anchor::Middle, &self.axis);
        canvas.finish(height)
    }
}

/// An axis from 0, or by powers of ten where the largest number is far above the least.
fn axis(numbers: impl Iterator<Item = f64>) -> Axis {
    let drawn: Vec<f64> = numbers.filter(|number| *number > 0.0 && number.is_finite()).collect();
    let least = drawn.iter().copied().fold(f64::INFINITY, f64::min);
    let largest = drawn.iter().copied().fold(0.0, f64::max);
    let axis = if largest / least > 10.0 {
        Axis::from_numbers(drawn.into_iter(), true)
    } else {
        Axis::from_numbers([0.0, if largest > 0.0 { largest } else { 1.0 }].into_iter(), false)
    };
    axis.unwrap_or_else(|| unreachable!("an axis of some numbers"))
}

/// The axis, from edge to edge.
struct Field(Axis);

impl Field {
    fn place(&self, number: f64) -> f64 {
        let part = if number.is_nan() { 1.0 } else { self.0.place(number) };
        EDGE + part * (WIDTH - 2.0 * EDGE)
    }
}

impl Dot {
    fn draw(&self, field: &Field, y: f64, canvas: &mut Canvas) {
        // Both colors stand out from white and from black.
        let color = if self.ours { "#d9601a" } else { "#7d8590" };
        let (words, line, x) = (y + 13.0, y + 21.0, field.place(self.value));
        let write = if self.ours { Canvas::bold } else { Canvas::text };
        write(canvas, (EDGE, words), Anchor::Start, &self.label);
        write(canvas, (WIDTH - EDGE, words), Anchor::End, &self.text);
        canvas.polyline(&[(EDGE, line), (x, line)], color, 2.0, 1.0);
        canvas.dot((x, line), 4.0, color, None);
        if let Some([low, high]) = self.spread.map(|spread| spread.map(|at| field.place(at))) {
            canvas.polyline(&[(low, line), (high, line)], color, 6.0, 0.5);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::number;

    fn chart(values: &[f64]) -> Dots {
        let row = |&value: &f64| Dot {
            label: format!("<{value}>"),
            text: number(value),
            value,
            spread: Some([value, value]),
            ours: true,
        };
        Dots {
            title: "a \"title\"".into(),
            axis: "ms".into(),
            groups: vec![("all".into(), values.iter().map(row).collect())],
        }
    }

    #[test]
    fn a_chart_fits_a_phone_and_takes_the_colors_of_its_page() {
        let svg = chart(&[1.0, 4.0]).to_svg();
        assert!(svg.starts_with("<svg ") && svg.contains("viewBox=\"0 0 380 ") && svg.contains("width:100%"), "{svg}");
        assert!(
            svg.contains("fill=\"currentColor\"") && svg.contains("&lt;1&gt;") && svg.contains("&quot;title&quot;")
        );
        assert!(!svg.contains("\n\n") && !svg.contains(" width=\"") && !svg.contains("NaN"), "{svg}");
    }

    #[test]
    fn numbers_far_apart_are_drawn_by_powers_of_ten() {
        let ticks = |numbers: &[f64]| labels(&axis(numbers.iter().copied()).ticks());
        assert_eq!(ticks(&[0.2, 750.0]), ["1", "10", "100"]);
        assert_eq!(ticks(&[1.0, 2.2]), ["0", "0.5", "1", "1.5", "2"]);
    }

    #[test]
    fn no_numbers_are_too_large_too_small_or_too_many_for_an_axis() {
        assert!(!chart(&[]).to_svg().contains("NaN") && !chart(&[-1.0, 0.0]).to_svg().contains("NaN"));
        let all = [f64::INFINITY, f64::NAN, f64::NEG_INFINITY, f64::MAX, f64::MIN_POSITIVE, 5e-324, 1e-300, 1.0, 0.0];
        for one in all {
            for other in all {
                let axis = axis([one, other].into_iter());
                assert!(axis.ticks().len() <= 16, "{one} {other}: {}", axis.ticks().len());
                let svg = chart(&[one, other]).to_svg();
                let bad = ["=\"NaN", "=\"inf", ",NaN", ",inf", " NaN,", " inf,"];
                assert!(bad.iter().all(|bad| !svg.contains(bad)), "{svg}");
            }
        }
    }
}
