//! Charts as SVG: rows of dots on one axis, which grow with the page and take its colors.

use std::fmt::Write;

/// The width of a phone; a chart is drawn in it and scaled.
const WIDTH: f64 = 380.0;
/// Where the axis begins and ends.
const AXIS: [f64; 2] = [6.0, 374.0];
/// The height of a row: its words, and the line with its dot.
const ROW: f64 = 30.0;
const HEADING: f64 = 26.0;
/// About how many numbers an axis has room for.
const MOST_TICKS: f64 = 8.0;
/// For the numbers of the axis, which are above as well as below.
const TOP: f64 = 16.0;

/// Rows under headings on one axis.
#[derive(Clone, Debug, PartialEq)]
pub struct Chart {
    /// What it shows, for who cannot see it.
    pub title: String,
    /// What the axis counts, with its unit.
    pub axis: String,
    /// The rows under each heading.
    pub groups: Vec<(String, Vec<Row>)>,
}

/// One figure.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
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

impl Chart {
    /// The drawing, without a line that is empty, so that Markdown keeps it whole.
    #[must_use]
    pub fn to_svg(&self) -> String {
        let rows = || self.groups.iter().flat_map(|(_, rows)| rows);
        let scale = Scale::of(rows().flat_map(|row| {
            let [low, high] = row.spread.unwrap_or([row.value; 2]);
            [row.value, low, high]
        }));
        let headings = self.groups.iter().filter(|(heading, _)| !heading.is_empty()).count();
        let height = TOP + HEADING * headings as f64 + ROW * rows().count() as f64 + 40.0;
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{}\" \
             font-family=\"sans-serif\" font-size=\"12\" fill=\"currentColor\" \
             style=\"display:block;width:100%;max-width:640px;height:auto\">\n",
            escaped(&self.title)
        );
        let bottom = height - 34.0;
        for (at, label) in scale.ticks() {
            let x = scale.place(at);
            let anchor = if x < 20.0 {
                "start"
            } else if x > WIDTH - 20.0 {
                "end"
            } else {
                "middle"
            };
            let _ = writeln!(
                svg,
                "<line x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{TOP}\" y2=\"{bottom}\" stroke=\"currentColor\" stroke-opacity=\"0.2\"/>"
            );
            for y in [TOP - 4.0, bottom + 13.0] {
                let _ = writeln!(
                    svg,
                    "<text x=\"{x:.1}\" y=\"{y}\" text-anchor=\"{anchor}\" font-size=\"11\">{label}</text>"
                );
            }
        }
        let mut y = TOP;
        for (heading, rows) in &self.groups {
            if !heading.is_empty() {
                y += HEADING;
                let _ =
                    writeln!(svg, "<text x=\"6\" y=\"{}\" font-weight=\"bold\">{}</text>", y - 7.0, escaped(heading));
            }
            for row in rows {
                row.draw(&scale, y, &mut svg);
                y += ROW;
            }
        }
        let _ = writeln!(
            svg,
            "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\" font-size=\"11\">{}</text>\n</svg>",
            WIDTH / 2.0,
            height - 5.0,
            escaped(&self.axis)
        );
        svg
    }
}

impl Row {
    fn draw(&self, scale: &Scale, y: f64, svg: &mut String) {
        // Both colors stand out from white and from black.
        let color = if self.ours { "#d9601a" } else { "#7d8590" };
        let weight = if self.ours { " font-weight=\"bold\"" } else { "" };
        let (words, line, x) = (y + 13.0, y + 21.0, scale.place(self.value));
        let _ = writeln!(
            svg,
            "<text x=\"6\" y=\"{words}\"{weight}>{}</text><text x=\"374\" y=\"{words}\" text-anchor=\"end\"{weight}>{}</text>",
            escaped(&self.label),
            escaped(&self.text)
        );
        let _ = writeln!(
            svg,
            "<line x1=\"{}\" x2=\"{x:.1}\" y1=\"{line}\" y2=\"{line}\" stroke=\"{color}\" stroke-width=\"2\"/>\
             <circle cx=\"{x:.1}\" cy=\"{line}\" r=\"4\" fill=\"{color}\"/>",
            AXIS[0]
        );
        if let Some([low, high]) = self.spread.map(|spread| spread.map(|at| scale.place(at))) {
            let _ = writeln!(
                svg,
                "<line x1=\"{low:.1}\" x2=\"{high:.1}\" y1=\"{line}\" y2=\"{line}\" stroke=\"{color}\" \
                 stroke-width=\"6\" stroke-opacity=\"0.5\"/>"
            );
        }
    }
}

/// An axis from nothing, or by powers of ten where the largest number is far above the least.
struct Scale {
    logarithmic: bool,
    from: f64,
    to: f64,
}

impl Scale {
    fn of(numbers: impl Iterator<Item = f64>) -> Self {
        // What is infinite or no number is drawn at an end of the axis, and has no place on it.
        let (least, most) = numbers
            .filter(|number| *number > 0.0 && number.is_finite())
            .fold((f64::INFINITY, 0.0_f64), |(least, most), number| (least.min(number), most.max(number)));
        if most <= 10.0 * least || least > most {
            return Self { logarithmic: false, from: 0.0, to: if most > 0.0 { most } else { 1.0 } };
        }
        Self { logarithmic: true, from: 10_f64.powf(least.log10().floor()), to: most }
    }

    fn place(&self, number: f64) -> f64 {
        let part = if self.logarithmic {
            (number.max(self.from) / self.from).ln() / (self.to / self.from).ln()
        } else {
            number / self.to
        };
        let part = if part.is_nan() { 1.0 } else { part.clamp(0.0, 1.0) };
        AXIS[0] + part * (AXIS[1] - AXIS[0])
    }

    fn ticks(&self) -> Vec<(f64, String)> {
        let step = 10_f64.powf(self.to.log10().floor());
        let mut at = self.from;
        let mut ticks = Vec::new();
        // Half steps where whole ones are few.
        let step = if self.to / step < 3.0 { step / 2.0 } else { step };
        // Not all powers of ten where there are many.
        let times = if self.logarithmic {
            10_f64.powf(((self.to / self.from).log10() / MOST_TICKS).ceil().max(1.0))
        } else {
            1.0
        };
        while at <= self.to * (1.0 + 1e-9) && at.is_finite() && ticks.len() < 2 * MOST_TICKS as usize {
            ticks.push((at, number(at)));
            at = if self.logarithmic { at * times } else { at + step };
        }
        ticks
    }
}

/// A number in three digits or so.
#[must_use]
pub fn number(number: f64) -> String {
    let digits = match number.abs() {
        0.0 => 0,
        large if large >= 100.0 => 0,
        other if other >= 10.0 => 1,
        other if other >= 1.0 => 2,
        small => -small.log10().floor() as usize + 2,
    };
    let text = format!("{number:.digits$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

pub(crate) fn escaped(text: &str) -> String {
    // XML has no control characters, not even as entities.
    let plain = text.replace(|c: char| c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}'), "\u{fffd}");
    plain.replace('&', "&amp;").replace('<', "&lt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(values: &[f64]) -> Chart {
        let row = |&value: &f64| Row {
            label: format!("<{value}>"),
            text: number(value),
            value,
            spread: Some([value, value]),
            ours: true,
        };
        Chart {
            title: "a \"title\"".into(),
            axis: "ms".into(),
            groups: vec![("all".into(), values.iter().map(row).collect())],
        }
    }

    #[test]
    fn a_chart_fits_a_phone_and_takes_the_colors_of_its_page() {
        let svg = chart(&[1.0, 4.0]).to_svg();
        assert!(svg.starts_with("<svg ") && svg.contains("viewBox=\"0 0 380 ") && svg.contains("width:100%"), "{svg}");
        assert!(svg.contains("fill=\"currentColor\"") && svg.contains("&lt;1>") && svg.contains("&quot;title&quot;"));
        assert!(!svg.contains("\n\n") && !svg.contains(" width=\"") && !svg.contains("NaN"), "{svg}");
    }

    #[test]
    fn numbers_far_apart_are_drawn_by_powers_of_ten() {
        let scale = Scale::of([0.2, 750.0].into_iter());
        let ticks: Vec<String> = scale.ticks().into_iter().map(|(_, label)| label).collect();
        assert_eq!(ticks, ["0.1", "1", "10", "100"]);
        assert!((scale.place(0.1) - AXIS[0]).abs() < 1e-9 && (scale.place(750.0) - AXIS[1]).abs() < 1e-9);
        let near = Scale::of([1.0, 2.2].into_iter());
        assert_eq!(near.ticks().into_iter().map(|(_, label)| label).collect::<Vec<_>>(), ["0", "0.5", "1", "1.5", "2"]);
        assert_eq!(
            ["0.0123", "1.23", "12.3", "1235"],
            [0.0123, 1.234, 12.34, 1234.6].map(number).each_ref().map(String::as_str)
        );
    }

    #[test]
    fn no_numbers_make_an_axis_all_the_same() {
        assert!(!chart(&[]).to_svg().contains("NaN") && !chart(&[-1.0, 0.0]).to_svg().contains("NaN"));
    }

    #[test]
    fn no_numbers_are_too_large_too_small_or_too_many_for_an_axis() {
        let all = [f64::INFINITY, f64::NAN, f64::NEG_INFINITY, f64::MAX, f64::MIN_POSITIVE, 5e-324, 1e-300, 1.0, 0.0];
        for one in all {
            for other in all {
                let scale = Scale::of([one, other].into_iter());
                assert!(scale.ticks().len() <= 16, "{one} {other}: {}", scale.ticks().len());
                assert!(
                    scale.ticks().iter().chain([&(one, String::new())]).all(|(at, _)| scale.place(*at).is_finite())
                );
                let svg = chart(&[one, other]).to_svg();
                assert!(!svg.contains("=\"NaN") && !svg.contains("=\"inf"), "{svg}");
            }
        }
    }
}
