//! Bar charts: numbers by name.

use std::path::Path;

use tacit_core::{Error, Result};
use tacit_drawing::{Anchor, Canvas, EDGE, ROW, WIDTH, color, number};

use crate::chart::save;

/// Numbers by name as bars, one below the other, such as the error of each layer, of one run or of several.
///
/// It looks as a [`Chart`](crate::Chart) does.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use tacit_record::Bars;
///
/// let errors = [("layers.0".to_owned(), 0.1), ("layers.1".to_owned(), 0.25)];
/// let svg = Bars::new("relative error by layer").bars("2 bits", errors).to_svg()?;
/// assert!(svg.contains("layers.1") && svg.contains("0.25"));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Bars {
    title: String,
    runs: Vec<(String, Vec<(String, f64)>)>,
}

const BAR: f64 = 8.0;
const APART: f64 = 12.0;
/// For the number at the end of a bar.
const NUMBER: f64 = 50.0;

impl Bars {
    /// A chart without a bar; the title, of up to about 55 characters, says what is drawn.
    #[must_use]
    pub fn new(title: impl Into<String>) -> Self {
        Self { title: title.into(), runs: Vec::new() }
    }

    /// Adds the numbers of a run.
    ///
    /// Names are in the order in which they first come.
    #[must_use]
    pub fn bars(mut self, label: impl Into<String>, numbers: impl IntoIterator<Item = (String, f64)>) -> Self {
        self.runs.push((label.into(), numbers.into_iter().collect()));
        self
    }

    /// The drawing as SVG; a number that is infinite, NaN or negative is written without a bar.
    ///
    /// # Errors
    ///
    /// There is no number.
    pub fn to_svg(&self) -> Result<String> {
        let mut names: Vec<&str> = Vec::new();
        for (name, _) in self.runs.iter().flat_map(|(_, numbers)| numbers) {
            if !names.contains(&name.as_str()) {
                names.push(name);
            }
        }
        if names.is_empty() {
            return Err(Error::invalid(
                format!("{:?} has no number that can be drawn", self.title),
                "add some with `bars`",
            ));
        }
        let all = self.runs.iter().flat_map(|(_, numbers)| numbers).map(|&(_, number)| number);
        let most = all.filter(|number| number.is_finite()).fold(0.0, f64::max);
        let mut drawing = Canvas::titled(&self.title, self.runs.iter().map(|(label, _)| label.as_str()));
        let mut y = drawing.top;
        for name in names {
            drawing.text((EDGE, y + ROW - 5.0), Anchor::Start, name);
            y += ROW;
            for (at, (_, numbers)) in self.runs.iter().enumerate() {
                if let Some(&(_, value)) = numbers.iter().find(|(own, _)| own == name) {
                    let part = if most > 0.0 && value.is_finite() { value.max(0.0) / most } else { 0.0 };
                    let end = EDGE + part * (WIDTH - 2.0 * EDGE - NUMBER);
                    drawing.polygon(&[(EDGE, y), (end, y), (end, y + BAR), (EDGE, y + BAR)], color(at), 1.0);
                    drawing.text((end + 5.0, y + BAR), Anchor::Start, &number(value));
                }
                y += APART;
            }
        }
        Ok(drawing.finish(y + EDGE))
    }

    /// Writes the drawing to a file, in a folder that is made where it does not exist.
    ///
    /// # Errors
    ///
    /// As for [`to_svg`](Self::to_svg), or the system refuses to write.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        save(&self.to_svg()?, path.as_ref())
    }
}
