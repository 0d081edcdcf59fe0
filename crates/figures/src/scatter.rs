//! Points of two numbers as SVG, with the front that none is below.

use std::fmt::Write;

use crate::drawing::{escaped, number};

/// The width of a phone; a chart is drawn in it and scaled.
const WIDTH: f64 = 380.0;
const HEIGHT: f64 = 300.0;
/// Left, top, right and bottom of what the axes enclose.
const FRAME: [f64; 4] = [40.0, 10.0, 372.0, 262.0];

/// Points on an even axis to the right and one of powers upwards.
#[derive(Clone, Debug, PartialEq)]
pub struct Scatter {
    /// What it shows, for who cannot see it.
    pub title: String,
    /// What the axis to the right counts.
    pub across: String,
    /// What the axis upwards counts, of which less is better.
    pub upwards: String,
    /// The kinds of points, in the order of their legend: a color of CSS and a name.
    pub kinds: Vec<(&'static str, String)>,
    /// The points.
    pub points: Vec<Point>,
}

/// A point, both of whose numbers are above zero.
#[derive(Clone, Debug, PartialEq)]
pub struct Point {
    /// What it is, which is shown where the pointer rests on it, and beside it on the front.
    pub label: String,
    /// Its place in [`Scatter::kinds`].
    pub kind: usize,
    /// To the right.
    pub x: f64,
    /// Upwards.
    pub y: f64,
}

/// The points than which no other is as far left and lower, from the left.
#[must_use]
pub fn front(points: &[Point]) -> Vec<&Point> {
    let mut front: Vec<&Point> = points.iter().collect();
    front.sort_by(|a, b| a.x.total_cmp(&b.x).then(a.y.total_cmp(&b.y)));
    let mut least = f64::INFINITY;
    front.retain(|point| {
        let lower = point.y < least;
        least = least.min(point.y);
        lower
    });
    front
}

impl Scatter {
    /// The drawing, without a line that is empty, so that Markdown keeps it whole.
    #[must_use]
    pub fn to_svg(&self) -> String {
        let (x, y) = (
            Axis::even(self.points.iter().map(|point| point.x)),
            Axis::powers(self.points.iter().map(|point| point.y)),
        );
        let at = |point: &Point| [x.place(point.x, FRAME[0], FRAME[2]), y.place(point.y, FRAME[3], FRAME[1])];
        let legend = 14.0 * self.kinds.len() as f64;
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {}\" role=\"img\" aria-label=\"{}\" \
             font-family=\"sans-serif\" font-size=\"11\" fill=\"currentColor\" \
             style=\"display:block;width:100%;max-width:640px;height:auto\">\n",
            HEIGHT + legend,
            escaped(&self.title)
        );
        let line = |svg: &mut String, [x1, y1]: [f64; 2], [x2, y2]: [f64; 2]| {
            let _ = writeln!(
                svg,
                "<line x1=\"{x1:.1}\" x2=\"{x2:.1}\" y1=\"{y1:.1}\" y2=\"{y2:.1}\" stroke=\"currentColor\" stroke-opacity=\"0.2\"/>"
            );
        };
        for tick in &x.ticks {
            let place = x.place(*tick, FRAME[0], FRAME[2]);
            line(&mut svg, [place, FRAME[1]], [place, FRAME[3]]);
            let _ = writeln!(svg, "<text x=\"{place:.1}\" y=\"276\" text-anchor=\"middle\">{}</text>", number(*tick));
        }
        for tick in &y.ticks {
            let place = y.place(*tick, FRAME[3], FRAME[1]);
            line(&mut svg, [FRAME[0], place], [FRAME[2], place]);
            let _ =
                writeln!(svg, "<text x=\"36\" y=\"{:.1}\" text-anchor=\"end\">{}</text>", place + 4.0, number(*tick));
        }
        let front = front(&self.points);
        let path: Vec<String> =
            front.iter().map(|point| at(point).map(|place| format!("{place:.1}")).join(",")).collect();
        let _ = writeln!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"currentColor\" stroke-opacity=\"0.6\" stroke-dasharray=\"4 3\"/>",
            path.join(" ")
        );
        for point in &self.points {
            let [x, y] = at(point);
            let (color, _) = &self.kinds[point.kind];
            let _ = writeln!(
                svg,
                "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.5\" fill=\"{color}\" fill-opacity=\"0.85\"><title>{}: {}, {}</title></circle>",
                escaped(&point.label),
                number(point.x),
                number(point.y)
            );
        }
        let middle = f64::midpoint(FRAME[1], FRAME[3]);
        let _ = writeln!(
            svg,
            "<text x=\"{}\" y=\"292\" text-anchor=\"middle\">{}</text>\n<text x=\"10\" y=\"{middle}\" text-anchor=\"middle\" \
             transform=\"rotate(-90 10 {middle})\">{}</text>",
            f64::midpoint(FRAME[0], FRAME[2]),
            escaped(&self.across),
            escaped(&self.upwards)
        );
        for (place, (color, name)) in self.kinds.iter().enumerate() {
            let y = HEIGHT + 14.0 * place as f64;
            let _ = writeln!(
                svg,
                "<circle cx=\"46\" cy=\"{}\" r=\"3.5\" fill=\"{color}\"/><text x=\"56\" y=\"{}\">{}</text>",
                y,
                y + 4.0,
                escaped(name)
            );
        }
        svg.push_str("</svg>\n");
        svg
    }
}

/// An axis with its ticks.
struct Axis {
    powers: bool,
    from: f64,
    to: f64,
    ticks: Vec<f64>,
}

impl Axis {
    /// From zero by whole numbers.
    fn even(numbers: impl Iterator<Item = f64>) -> Self {
        let to = numbers.fold(1.0_f64, f64::max).ceil();
        let ticks = (0..=to as u32).map(f64::from).collect();
        Self { powers: false, from: 0.0, to, ticks }
    }

    /// By powers of ten, with ticks at one, two and five.
    fn powers(numbers: impl Iterator<Item = f64>) -> Self {
        let numbers: Vec<f64> = numbers.filter(|number| *number > 0.0 && number.is_finite()).collect();
        let least = numbers.iter().copied().fold(f64::INFINITY, f64::min);
        let most = numbers.iter().copied().fold(0.0, f64::max);
        let [from, to] = if least <= most { [least / 1.1, most * 1.1] } else { [0.1, 1.0] };
        let powers = from.log10().floor() as i32..=to.log10().ceil() as i32;
        let ticks = powers.flat_map(|power| [1.0, 2.0, 5.0].map(|times| times * 10_f64.powi(power)));
        Self { powers: true, from, to, ticks: ticks.filter(|tick| (from..=to).contains(tick)).collect() }
    }

    fn place(&self, number: f64, low: f64, high: f64) -> f64 {
        let part = if self.powers {
            (number.max(self.from) / self.from).ln() / (self.to / self.from).ln()
        } else {
            (number - self.from) / (self.to - self.from)
        };
        low + part.clamp(0.0, 1.0) * (high - low)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(label: &str, x: f64, y: f64) -> Point {
        Point { label: label.to_owned(), kind: 0, x, y }
    }

    #[test]
    fn the_front_is_what_no_other_beats() {
        let points = [
            point("d", 4.0, 0.1),
            point("a", 1.0, 1.0),
            point("b", 2.0, 1.5),
            point("c", 2.0, 0.5),
            point("e", 5.0, 0.1),
        ];
        let labels: Vec<&str> = front(&points).iter().map(|point| point.label.as_str()).collect();
        assert_eq!(labels, ["a", "c", "d"]);
    }

    #[test]
    fn a_chart_fits_a_phone_and_says_what_each_point_is() {
        let scatter = Scatter {
            title: "t".to_owned(),
            across: "bits".to_owned(),
            upwards: "error".to_owned(),
            kinds: vec![("#d9601a", "ours & theirs".to_owned())],
            points: vec![point("a<b", 1.0, 0.5), point("c", 4.5, 0.02)],
        };
        let svg = scatter.to_svg();
        assert!(svg.starts_with("<svg ") && svg.contains("viewBox=\"0 0 380 ") && svg.contains("width:100%"), "{svg}");
        assert!(svg.contains("a&lt;b: 1, 0.5") && svg.contains("ours &amp; theirs"), "{svg}");
        assert!(!svg.contains("\n\n") && !svg.contains("NaN"), "{svg}");
        let none = Scatter { points: Vec::new(), ..scatter };
        assert!(!none.to_svg().contains("NaN"));
    }
}
