//! An SVG that takes the colors of its page, in units of a phone's pixels.

use std::fmt::Write;

use crate::printable::xml;

/// The width of a phone: a drawing is made in it and scaled.
pub const WIDTH: f64 = 380.0;
/// Room at both sides.
pub const EDGE: f64 = 6.0;
/// The height of a line of words.
pub const ROW: f64 = 17.0;
const TITLE: f64 = 20.0;

/// The colors of what is drawn, which stand out from white and from a dark page alike.
const COLORS: [&str; 6] = ["#2f7de1", "#d9601a", "#2b985f", "#b359c4", "#85842a", "#d6455d"];

/// The color of a curve by its place among them.
#[must_use]
pub fn color(at: usize) -> &'static str {
    COLORS[at % COLORS.len()]
}

/// Where words lie beside their place.
#[derive(Clone, Copy, Debug)]
pub enum Anchor {
    /// Behind it.
    Start,
    /// Around it.
    Middle,
    /// Before it.
    End,
}

/// A drawing, whose height is known at its end.
#[derive(Clone, Debug)]
pub struct Canvas {
    title: String,
    body: String,
    /// Where what is drawn may begin.
    pub top: f64,
}

impl Canvas {
    /// A drawing with its title above, and a legend where there are several labels.
    pub fn titled<'a>(title: &str, labels: impl Iterator<Item = &'a str>) -> Self {
        let mut canvas = Self { top: TITLE, ..Self::untitled(title) };
        canvas.bold((EDGE, 14.0), Anchor::Start, title);
        let labels: Vec<&str> = labels.collect();
        if labels.len() > 1 {
            canvas.legend(&labels);
        }
        canvas
    }

    /// A drawing whose title is only read out.
    #[must_use]
    pub fn untitled(title: &str) -> Self {
        Self { title: xml(title), body: String::new(), top: 0.0 }
    }

    /// Says which color is whose. A single curve needs it not: the title says what it is.
    fn legend(&mut self, labels: &[&str]) {
        let columns = if labels.iter().all(|label| label.chars().count() <= 24) { 2 } else { 1 };
        for (at, label) in labels.iter().enumerate() {
            let x = EDGE + (at % columns) as f64 * WIDTH / 2.0;
            let y = self.top + (at / columns) as f64 * ROW + ROW / 2.0;
            self.polyline(&[(x, y), (x + 18.0, y)], color(at), 3.0, 1.0);
            self.text((x + 24.0, y + 4.0), Anchor::Start, label);
        }
        self.top += labels.len().div_ceil(columns) as f64 * ROW;
    }

    /// Words beside a place.
    pub fn text(&mut self, at: (f64, f64), anchor: Anchor, words: &str) {
        self.words(at, anchor, words, "");
    }

    /// Words in bold letters.
    pub fn bold(&mut self, at: (f64, f64), anchor: Anchor, words: &str) {
        self.words(at, anchor, words, " font-weight=\"bold\"");
    }

    /// Words around a place, from below to above.
    pub fn upwards(&mut self, (x, y): (f64, f64), words: &str) {
        let rotated = format!(" transform=\"rotate(-90 {x:.1} {y:.1})\"");
        self.words((x, y), Anchor::Middle, words, &rotated);
    }

    fn words(&mut self, (x, y): (f64, f64), anchor: Anchor, words: &str, more: &str) {
        let anchor = match anchor {
            Anchor::Start => "",
            Anchor::Middle => " text-anchor=\"middle\"",
            Anchor::End => " text-anchor=\"end\"",
        };
        let _ = writeln!(self.body, "<text x=\"{x:.1}\" y=\"{y:.1}\"{anchor}{more}>{}</text>", xml(words));
    }

    /// A dot, and the words that are shown where the pointer rests on it.
    pub fn dot(&mut self, (x, y): (f64, f64), radius: f64, color: &str, title: Option<&str>) {
        let title = title.map(|title| format!("<title>{}</title>", xml(title))).unwrap_or_default();
        let _ =
            writeln!(self.body, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{radius}\" fill=\"{color}\">{title}</circle>");
    }

    /// A line through points.
    pub fn polyline(&mut self, points: &[(f64, f64)], color: &str, width: f64, opacity: f64) {
        let _ = writeln!(
            self.body,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{color}\" stroke-width=\"{width}\" \
             stroke-opacity=\"{opacity}\" stroke-linejoin=\"round\"/>",
            joined(points)
        );
    }

    /// An area between points.
    pub fn polygon(&mut self, points: &[(f64, f64)], color: &str, opacity: f64) {
        let points = joined(points);
        let _ = writeln!(self.body, "<polygon points=\"{points}\" fill=\"{color}\" fill-opacity=\"{opacity}\"/>");
    }

    /// The text of the drawing, without a line that is empty, so that Markdown keeps it whole.
    #[must_use]
    pub fn finish(self, bottom: f64) -> String {
        // As a file of its own it takes the colors that the reader prefers, in a page the page's.
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {bottom:.0}\" role=\"img\" \
             aria-label=\"{}\" font-family=\"sans-serif\" font-size=\"12\" fill=\"currentColor\" \
             style=\"display:block;width:100%;max-width:640px;height:auto\">\n\
             <style>svg:root{{color-scheme:light dark;color:CanvasText}}</style>\n{}</svg>\n",
            self.title, self.body
        )
    }
}

fn joined(points: &[(f64, f64)]) -> String {
    let points: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    points.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The luminance of a color, and from two of them the contrast, by the Web Content Accessibility Guidelines 2.
    fn luminance(color: &str) -> f64 {
        let part = |at: usize| {
            let part = f64::from(u8::from_str_radix(&color[at..at + 2], 16).unwrap()) / 255.0;
            if part <= 0.04045 { part / 12.92 } else { ((part + 0.055) / 1.055).powf(2.4) }
        };
        0.2126 * part(1) + 0.7152 * part(3) + 0.0722 * part(5) + 0.05
    }

    #[test]
    fn every_color_stands_out_from_a_bright_page_and_from_a_dark_one() {
        for color in COLORS {
            for page in ["#ffffff", "#161923", "#000000"] {
                let (a, b) = (luminance(color), luminance(page));
                let contrast = a.max(b) / a.min(b);
                assert!(contrast >= 3.0, "{color} on {page}: {contrast:.1}");
            }
        }
    }
}
