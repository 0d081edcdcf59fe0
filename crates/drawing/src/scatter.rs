//! Points of two numbers as SVG, with the front of those that no other one beats.

use crate::axis::{Axis, labels, number};
use crate::canvas::{Anchor, Canvas, EDGE, ROW, WIDTH};

const HEIGHT: f64 = 300.0;
/// Left, top, right and bottom of what the axes enclose.
const FRAME: [f64; 4] = [40.0, 10.0, WIDTH - EDGE, 262.0];

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
    /// The drawing.
    #[must_use]
    pub fn to_svg(&self) -> String {
        let positive = |number: &f64| *number > 0.0 && number.is_finite();
        let even = |to: f64| Axis::from_numbers([0.0, to.ceil()].into_iter(), false);
        let x = even(self.points.iter().map(|point| point.x).filter(positive).fold(1.0, f64::max));
        let y = Axis::from_numbers(self.points.iter().map(|point| point.y).filter(positive), true);
        let mut canvas = Canvas::untitled(&self.title);
        if let (Some(x), Some(y)) = (x, y) {
            Field { x, y }.draw(&self.points, &self.kinds, &mut canvas);
        }
        canvas.text((f64::midpoint(FRAME[0], FRAME[2]), 292.0), Anchor::Middle, &self.across);
        canvas.upwards((10.0, f64::midpoint(FRAME[1], FRAME[3])), &self.upwards);
        let mut below = HEIGHT;
        for (color, name) in &self.kinds {
            canvas.dot((46.0, below), 3.5, color, None);
            canvas.text((56.0, below + 4.0), Anchor::Start, name);
            below += ROW;
        }
        canvas.finish(below)
    }
}

/// Both axes.
struct Field {
    x: Axis,
    y: Axis,
}

impl Field {
    fn place(&self, point: &Point) -> (f64, f64) {
        (self.across(point.x), self.upwards(point.y))
    }

    fn across(&self, x: f64) -> f64 {
        FRAME[0] + self.x.place(x) * (FRAME[2] - FRAME[0])
    }

    fn upwards(&self, y: f64) -> f64 {
        FRAME[3] + self.y.place(y) * (FRAME[1] - FRAME[3])
    }

    fn draw(&self, points: &[Point], kinds: &[(&'static str, String)], canvas: &mut Canvas) {
        let ticks = self.x.ticks();
        for (&tick, label) in ticks.iter().zip(labels(&ticks)) {
            let x = self.across(tick);
            canvas.polyline(&[(x, FRAME[1]), (x, FRAME[3])], "currentColor", 1.0, 0.2);
            canvas.text((x, FRAME[3] + 14.0), Anchor::Middle, &label);
        }
        let ticks = self.y.ticks();
        for (&tick, label) in ticks.iter().zip(labels(&ticks)) {
            let y = self.upwards(tick);
            canvas.polyline(&[(FRAME[0], y), (FRAME[2], y)], "currentColor", 1.0, 0.2);
            canvas.text((FRAME[0] - 4.0, y + 4.0), Anchor::End, &label);
        }
        let front: Vec<(f64, f64)> = front(points).into_iter().map(|point| self.place(point)).collect();
        canvas.polyline(&front, "currentColor", 1.0, 0.6);
        for point in points {
            let title = format!("{}: {}, {}", point.label, number(point.x), number(point.y));
            canvas.dot(self.place(point), 3.5, kinds[point.kind].0, Some(&title));
        }
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
