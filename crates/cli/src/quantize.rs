//! `tacit quantize`: formats of few bits for the parameters of a checkpoint.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use clap::{ArgGroup, Args};
use serde::{Deserialize, Serialize};
use tacit_arrays::format::AnyFormat;
use tacit_core::{Error, Result, Value};
use tacit_io::layout::as_mlx_lm;
use tacit_io::{Progress, Resumable, Writing, convert, progress_bar, read};
use tacit_nn::{DecoderRules, Observations, Parameters, Pattern, Rules};

use crate::calibration::{Calibration, CalibrationOptions, Reader, unmet};
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
    /// What of it was rounded, as the text multiplies nothing with it.
    #[serde(skip)]
    unmet: Option<String>,
}

pub(crate) fn quantize(options: &Options) -> Result<Quantized> {
    let text = &options.calibration.text.calibrate;
    let of_text = options.calibration.text.inputs(&options.input);
    // Whether files can be made is tried.
    interruption::clear_up(None);
    options.overwriting.check([&options.output], [&options.input].into_iter().chain(&options.rules).chain(&of_text))?;
    let named_rules = options.rules.as_ref().map(Rules::load).transpose()?;
    let values = read(&options.input)?;
    // What the decoder meets has its names, by which experts are one array.
    let values = if text.is_some() { as_mlx_lm(&options.input, values)? } else { values };
    let DecoderRules { rules, note } = match (named_rules, &options.format) {
        (Some(rules), _) => formats::named(&options.input, &rules, &values)?,
        (None, text) => Rules::for_decoder(text.as_deref().unwrap_or_default(), &values)?,
    };
    named(options, &rules, &values)?;
    let (windows, calibration) = options.calibration.open(&options.input)?.unzip();
    let mut work = Resumable::open(&options.output, [&options.input].into_iter().chain(&of_text))?;
    interruption::clear_up(work.folder());
    let mut results = Results::from_values(&values);
    let mut tasks = BTreeMap::new();
    for (path, value) in values {
        match way(&rules, calibration.as_ref(), &path, &value)? {
            Err(reason) => results.stays(path, value, reason),
            Ok((format, recipe)) => {
                if let Some((result, noted)) = work.made(&path, &recipe) {
                    results.becomes(path, &value, &result, noted);
                } else {
                    tasks.insert(path, Task { value, format, recipe });
                }
            }
        }
    }
    if let (Some(windows), Some(calibration), false) = (windows, &calibration, tasks.is_empty()) {
        let reader = Reader::open(&options.input, windows)?;
        for pass in reader.passes(Pattern::any(tasks.keys()), calibration.sums)? {
            let (paths, observations) = pass?;
            for path in paths {
                let Some(task) = tasks.remove(&path) else { continue };
                let (result, noted) = task.quantize(&mut work, &rules, &path, Some((calibration, &observations)))?;
                results.becomes(path, &task.value, &result, noted);
            }
        }
    }
    // Those that the decoder does not have, or all of them where there is no text.
    let nothing = Observations::default();
    for (path, task) in tasks {
        let by = calibration.as_ref().map(|calibration| (calibration, &nothing));
        let (result, noted) = task.quantize(&mut work, &rules, &path, by)?;
        results.becomes(path, &task.value, &result, noted);
    }
    let Results { unchanged, rows, .. } = results;
    let rows: Vec<Row> = rows.into_values().collect();
    let unmet: Vec<&str> = rows.iter().filter_map(|row| row.unmet.as_deref()).collect();
    let unmet =
        (!unmet.is_empty()).then(|| format!("rounded, as the text multiplies nothing with it: {}", unmet.join(", ")));
    let note = [note, unmet].into_iter().flatten().reduce(|a, b| format!("{a}\n{b}"));
    let resumed = work.resumed();
    let mut bar = progress_bar();
    let mut parameters = work.values()?;
    parameters.extend(unchanged);
    work.finish(parameters, Writing { progress: Some(&mut bar), ..Writing::default() })?;
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

/// The format of a parameter with the text that says how it is made, or why the parameter stays.
fn way<'r>(
    rules: &'r Rules,
    calibration: Option<&Calibration>,
    path: &str,
    value: &Value,
) -> Result<Result<(&'r AnyFormat, String), String>> {
    let aval = value.aval()?;
    let stays = |reason: &str| Ok(Err(reason.to_owned()));
    let Some(format) = rules.format(path, &aval) else { return stays("no rule gives it a format") };
    if !Rules::is_matrix(path, &aval) {
        return stays("it is no matrix");
    }
    if !aval.dtype.is_float() {
        return stays("it is no float");
    }
    format.supported()?;
    if let Some(reason) = format.misfit(&aval)? {
        return stays(&reason);
    }
    let by = calibration.map(|calibration| format!(" by {}", calibration.recipe)).unwrap_or_default();
    Ok(Ok((format, format!("{format} of {value}{by}"))))
}

/// A parameter that is to be made.
struct Task<'r> {
    value: Value,
    format: &'r AnyFormat,
    recipe: String,
}

/// What is noted of a parameter in its format.
#[derive(Serialize, Deserialize)]
struct Noted {
    /// As [`Row::error`].
    error: f32,
    /// As [`Row::unmet`].
    unmet: Option<String>,
}

impl Task<'_> {
    /// The parameter in its format, by what was seen of it.
    fn quantize(
        &self,
        work: &mut Resumable,
        rules: &Rules,
        path: &str,
        by: Option<(&Calibration, &Observations)>,
    ) -> Result<(Value, Noted)> {
        work.value(path, &self.recipe, || {
            let unmet = by.and_then(|(_, observations)| unmet(observations, path));
            if let Some((calibration, observations)) = by
                && let Some((value, error)) = calibration.quantized(observations, path, &self.value, self.format)?
            {
                return Ok((value, Noted { error, unmet }));
            }
            let one = Parameters::from([(path.to_owned(), self.value.clone())]);
            let (mut converted, report) = convert(&one, rules)?;
            let error = report.converted.first().map_or(0.0, |row| row.error);
            Ok((converted.remove(path).unwrap_or_else(|| self.value.clone()), Noted { error, unmet }))
        })
    }
}

/// What became of the parameters so far.
struct Results {
    /// Parameters that stay. Those that were made are read from the disk in the end.
    unchanged: Parameters,
    rows: BTreeMap<String, Row>,
    bar: Box<dyn FnMut(Progress)>,
    /// The bytes of parameters that are done, and of all.
    done: usize,
    total: usize,
}

impl Results {
    fn from_values(values: &Parameters) -> Self {
        let total = values.values().map(Value::nbytes).sum();
        Self { unchanged: Parameters::new(), rows: BTreeMap::new(), bar: Box::new(progress_bar()), done: 0, total }
    }

    fn stays(&mut self, path: String, value: Value, reason: String) {
        let row = |row| Row { reason: Some(reason), ..row };
        self.add(path.clone(), value.nbytes(), &value, row);
        self.unchanged.insert(path, value);
    }

    fn becomes(&mut self, path: String, before: &Value, after: &Value, Noted { error, unmet }: Noted) {
        let row = |row| Row { error: Some(error), unmet, ..row };
        self.add(path, before.nbytes(), after, row);
    }

    fn add(&mut self, path: String, before: usize, value: &Value, of: impl FnOnce(Row) -> Row) {
        let after = value.nbytes();
        let row =
            Row { path: path.clone(), value: value.to_string(), before, after, error: None, reason: None, unmet: None };
        self.rows.insert(path, of(row));
        self.done += before;
        (self.bar)(Progress { done: self.done, total: self.total });
    }
}

impl fmt::Display for Quantized {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = Table::new(&["parameter", "value", ">error", ">before", ">after", ""]);
        for Row { path, value, before, after, error, reason, unmet: _ } in &self.parameters {
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
