//! `tacit advise`: formats for the parameters of a checkpoint under a budget of bits.

use std::fmt;
use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;
use tacit_arrays::format::{AnyFormat, Fit, Fitted};
use tacit_core::{Error, Result};
use tacit_files::replace;
use tacit_io::layout::as_mlx_lm;
use tacit_io::read;
use tacit_nn::{Advice, Advisor, Parameters};

use crate::calibration::{Reader, TextOptions};
use crate::overwriting::Overwriting;
use crate::table::Table;

#[derive(Args)]
pub(crate) struct Options {
    /// A file or a folder, of Tacit's or of another program's
    path: PathBuf,
    /// The most bits that an element may take, counting all parameters, those that stay as they are too
    #[arg(long)]
    bits: f64,
    /// The formats to choose among, with commas between them; `tacit types` lists them
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "affine:2:64,affine:3:64,affine:4:64,affine:5:64,affine:6:64,affine:8:64,nf4:64:double"
    )]
    formats: Vec<String>,
    /// How the formats choose their scales: absmax, search or hqq. One that has a fit of its own, or to which this one is of no
    /// use, stays as it is
    #[arg(long, default_value = "absmax")]
    fit: String,
    /// A file of activations: what each parameter is multiplied with, by its path
    #[arg(long, conflicts_with_all = ["calibrate", "windows"])]
    inputs: Option<PathBuf>,
    #[command(flatten)]
    text: TextOptions,
    /// The file of rules that is written, in JSON, for `tacit quantize --rules`
    #[arg(short, long)]
    pub(crate) output: Option<PathBuf>,
    #[command(flatten)]
    overwriting: Overwriting,
}

/// What was chosen.
#[derive(Serialize)]
pub(crate) struct Advised {
    #[serde(flatten)]
    advice: Advice,
    /// Where its rules go, with U+FFFD for what is no UTF-8: serde refuses such a path.
    rules: Option<String>,
}

pub(crate) fn advise(options: &Options) -> Result<Advised> {
    if options.output.as_ref().is_some_and(|path| path.extension().is_none_or(|kind| kind != "json")) {
        return Err(Error::invalid("the rules are written in JSON", "name the file .json"));
    }
    let of_text = options.text.inputs(&options.path);
    let inputs = [&options.path].into_iter().chain(&options.inputs).chain(&of_text);
    options.overwriting.check(options.output.as_deref(), inputs)?;
    let fit: Fit = options.fit.parse()?;
    let formats = options.formats.iter().map(|text| fitted(text.parse()?, fit)).collect::<Result<Vec<_>>>()?;
    let inputs = options.inputs.as_ref().map_or_else(|| Ok(Parameters::new()), read)?;
    let (mut advisor, mut values) = (Advisor::new(formats).with_inputs(inputs), read(&options.path)?);
    if let Some(windows) = options.text.tokens(&options.path)? {
        let observations = Reader::open(&options.path, windows)?.squares()?;
        // What the decoder meets has its names, by which experts are one array.
        values = as_mlx_lm(&options.path, values)?;
        advisor = advisor.with_observations(&observations)?;
    }
    let advice = advisor.advise(&values, options.bits)?;
    Ok(Advised { advice, rules: options.output.as_ref().map(|path| path.display().to_string()) })
}

impl Advised {
    /// Writes the rules into a file, if there is one.
    pub(crate) fn write(&self, file: Option<&Path>) -> Result<()> {
        let Some(path) = file else { return Ok(()) };
        let text = serde_json::to_string_pretty(&self.advice.rules()?);
        let text = text.map_err(|error| Error::file("write", path)(error.into()))?;
        replace(path, (text + "\n").as_bytes())
    }
}

/// The format with the fit, if it has none of its own and scales to choose.
fn fitted(format: AnyFormat, fit: Fit) -> Result<AnyFormat> {
    Ok(if fit != Fit::Absmax && format.fits(fit) { Fitted::new(format, fit)?.into() } else { format })
}

impl fmt::Display for Advised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = Table::new(&["parameter", "aval", "format", ">bits", ">error", ">share"]);
        for (path, row) in &self.advice.rows {
            let [error, share] = match row.format {
                Some(_) => [format!("{:.5}", row.error), format!("{:.1} %", 100.0 * row.share)],
                None => [String::new(), String::new()],
            };
            let format = row.format.clone().unwrap_or_default();
            table.row([path.clone(), row.aval.to_string(), format, format!("{:.3}", row.bits), error, share]);
        }
        write!(f, "{table}\n{}", self.advice)?;
        if let Some(path) = &self.rules {
            write!(f, "\nrules go to {path}")?;
        }
        Ok(())
    }
}
