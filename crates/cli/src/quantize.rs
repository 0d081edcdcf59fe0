//! `tacit quantize`: formats of few bits for the parameters of a checkpoint.

use std::fmt;
use std::path::PathBuf;

use clap::{ArgGroup, Args};
use serde::Serialize;
use tacit_core::{Error, Result, Value};
use tacit_io::layout::as_mlx_lm;
use tacit_io::{Progress, Resumable, Writing, convert, progress_bar, read};
use tacit_nn::{DecoderRules, Parameters, Rules};

use crate::calibration::{Calibration, CalibrationOptions};
use crate::formats;
use crate::interruption;
use crate::overwriting::Overwriting;
use crate::table::Table;

#[derive(Args)]
#[command(group = ArgGroup::new("what").required(true).args(["rules", "format"]))]
pub(crate) struct Options {
    /// A file or a folder, of Tacit's or of another program's
    input: PathBuf,
    /// A TOML or JSON file of rules: patterns of paths, each with a format. Paths are as `tacit inspect` lists them; the names of a GGUF
    /// file serve too, and those of experts in Hugging Face's or in mlx-lm's way
    #[arg(long)]
    rules: Option<PathBuf>,
    /// One format for all matrices, such as nf4:64 or affine:4:64; `tacit types` lists them. The embedding and the head of a
    /// decoder have at least 6 bits
    #[arg(long)]
    format: Option<String>,
    #[command(flatten)]
    calibration: CalibrationOptions,
    /// The file that is written, in Tacit's own way
    #[arg(short, long)]
    pub(crate) output: PathBuf,
    #[command(flatten)]
    overwriting: Overwriting,
}

/// What became of each parameter.
#[derive(Serialize)]
pub(crate) struct Quantized {
    parameters: Vec<Row>,
    before: usize,
    after: usize,
    /// How many parameters an interrupted run had made.
    resumed: usize,
    /// Which are in another format than was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<String>,
}

#[derive(Serialize)]
struct Row {
    path: String,
    value: String,
    before: usize,
    after: usize,
    /// The norm of what was lost over the norm of what was; nothing where the parameter stays.
    error: Option<f32>,
    /// Why the parameter stays.
    reason: Option<String>,
}

pub(crate) fn quantize(options: &Options) -> Result<Quantized> {
    let text = &options.calibration.text.calibrate;
    let of_text = options.calibration.text.inputs(&options.input);
    // Whether files can be made is tried.
    interruption::clear_up(None);
    options.overwriting.check([&options.output], [&options.input].into_iter().chain(&options.rules).chain(&of_text))?;
    let own = options.rules.as_ref().map(Rules::load).transpose()?;
    let values = read(&options.input)?;
    // What the decoder meets has its names, by which experts are one array.
    let values = if text.is_some() { as_mlx_lm(&options.input, values)? } else { values };
    let DecoderRules { rules, note } = match (own, &options.format) {
        (Some(rules), _) => formats::named(&options.input, &rules, &values)?,
        (None, text) => Rules::for_decoder(text.as_deref().unwrap_or_default(), &values)?,
    };
    named(options, &rules, &values)?;
    let calibration = options.calibration.read(&options.input)?;
    let mut work = Resumable::open(&options.output, [&options.input].into_iter().chain(&of_text))?;
    interruption::clear_up(work.folder());
    let (mut bar, total, mut done) = (progress_bar(), values.values().map(Value::nbytes).sum(), 0);
    let (mut left, mut rows) = (Parameters::new(), Vec::new());
    for (path, value) in values {
        let before = value.nbytes();
        let (value, outcome) = quantized(&mut work, &rules, calibration.as_ref(), &path, &value)?;
        let (error, reason) = match outcome {
            Ok(error) => (Some(error), None),
            Err(reason) => (None, Some(reason)),
        };
        let after = value.nbytes();
        let row = Row { path: path.clone(), value: value.to_string(), before, after, error, reason };
        // What was made is let go of.
        if row.error.is_none() {
            left.insert(path, value);
        }
        rows.push(row);
        done += before;
        bar(Progress { done, total });
    }
    let rounded = rows.iter().filter(|row| row.error.is_some());
    let unmet: Vec<String> = rounded.filter_map(|row| calibration.as_ref()?.unmet(&row.path)).collect();
    let unmet =
        (!unmet.is_empty()).then(|| format!("rounded, as the text multiplies nothing with it: {}", unmet.join(", ")));
    let note = [note, unmet].into_iter().flatten().reduce(|a, b| format!("{a}\n{b}"));
    let resumed = work.resumed();
    let mut bar = progress_bar();
    let mut all = work.values()?;
    all.extend(left);
    work.finish(all, Writing { progress: Some(&mut bar), ..Writing::default() })?;
    let sum = |bytes: fn(&Row) -> usize| rows.iter().map(bytes).sum();
    let (before, after) = (sum(|row| row.before), sum(|row| row.after));
    Ok(Quantized { parameters: rows, before, after, resumed, note })
}

/// Checks that the rules have a format for some parameter: others are those of another model.
fn named(options: &Options, rules: &Rules, values: &Parameters) -> Result<()> {
    for (path, value) in values {
        if rules.format(path, &value.aval()?).is_some() {
            return Ok(());
        }
    }
    let first = values.keys().next().map_or_else(|| "it has none".to_owned(), |path| format!("the first is {path}"));
    let message = format!("no rule gives a parameter of {} a format: {first}", options.input.display());
    let help = "name parameters as `tacit inspect` lists them, or, of a GGUF file, as the file does";
    Err(Error::invalid(message, help))
}

/// The parameter in its format with what that lost, or as it was with why.
fn quantized(
    work: &mut Resumable,
    rules: &Rules,
    calibration: Option<&Calibration>,
    path: &str,
    value: &Value,
) -> Result<(Value, Result<f32, String>)> {
    let aval = value.aval()?;
    let left = |reason: &str| Ok((value.clone(), Err(reason.to_owned())));
    let Some(format) = rules.format(path, &aval) else { return left("no rule gives it a format") };
    if !Rules::is_matrix(path, &aval) {
        return left("it is no matrix");
    }
    if !aval.dtype.is_float() {
        return left("it is no float");
    }
    format.supported()?;
    if let Some(reason) = format.misfit(&aval)? {
        return left(&reason);
    }
    let by = calibration.map(|calibration| format!(" by {}", calibration.recipe)).unwrap_or_default();
    let (value, error) = work.value(path, &format!("{format} of {value}{by}"), || {
        if let Some(calibration) = calibration
            && let Some(made) = calibration.quantized(path, value, format)?
        {
            return Ok(made);
        }
        let one = Parameters::from([(path.to_owned(), value.clone())]);
        let (mut made, report) = convert(&one, rules)?;
        let error = report.converted.first().map_or(0.0, |row| row.error);
        Ok((made.remove(path).unwrap_or_else(|| value.clone()), error))
    })?;
    Ok((value, Ok(error)))
}

impl fmt::Display for Quantized {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = Table::new(&["parameter", "value", ">error", ">before", ">after", ""]);
        for Row { path, value, before, after, error, reason } in &self.parameters {
            table.row([
                path.clone(),
                value.clone(),
                error.map(|error| format!("{error:.5}")).unwrap_or_default(),
                before.to_string(),
                after.to_string(),
                reason.clone().unwrap_or_default(),
            ]);
        }
        write!(f, "{table}\n{} bytes before, {} after", self.before, self.after)?;
        if self.resumed > 0 {
            write!(f, "; {} parameters were made before", self.resumed)?;
        }
        self.note.iter().try_for_each(|note| write!(f, "\n{note}"))
    }
}
