//! `tacit compare`: how far two checkpoints are from each other.

use std::fmt;
use std::path::{Path, PathBuf};

use clap::Args;
use mlx_rs::{Array, random};
use serde::Serialize;
use tacit_core::{Error, Result, Value, printable};
use tacit_drawing::{Dot, Dots};
use tacit_files::replace;
use tacit_io::{Distance, layout, read};
use tacit_nn::Parameters;

use crate::overwriting::Overwriting;
use crate::table::Table;

#[derive(Args)]
pub(crate) struct Options {
    /// The checkpoint that is taken for right
    a: PathBuf,
    /// The checkpoint that is compared with it
    b: PathBuf,
    /// Compare what layers give as well: each matrix is the weight of a linear layer, whose inputs are normal numbers
    #[arg(long)]
    outputs: bool,
    /// How many rows of normal numbers each layer is given by `--outputs`
    #[arg(
        long,
        value_name = "N",
        default_value_t = 64,
        value_parser = clap::value_parser!(i32).range(1..),
        requires = "outputs",
        conflicts_with = "inputs"
    )]
    rows: i32,
    /// Compare what layers give for these inputs, in place of normal numbers: a checkpoint with an array `[.., in]` under the path of
    /// each weight
    #[arg(long, value_name = "PATH")]
    inputs: Option<PathBuf>,
    /// Fail where a relative error, of a parameter or of what a layer gives, is larger, or a parameter is missing or has another shape
    #[arg(long, value_name = "ERROR", value_parser = relative_error)]
    max_error: Option<f64>,
    /// Draw the relative errors into this file
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
    #[command(flatten)]
    overwriting: Overwriting,
}

fn relative_error(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(error) if error >= 0.0 => Ok(error),
        _ => Err("it is no relative error: give 0 or more".to_owned()),
    }
}

/// How far two checkpoints are from each other, the parameters of the largest error first.
#[derive(Serialize)]
pub(crate) struct Comparison {
    parameters: Vec<Row>,
    /// The paths that one has and the other has not.
    only_a: Vec<String>,
    only_b: Vec<String>,
    #[serde(flatten)]
    limit: Option<Limit>,
}

/// How near the parameters were to be.
#[derive(Serialize)]
struct Limit {
    max_error: f64,
    /// How many of those that both have are not.
    farther: usize,
}

#[derive(Serialize)]
struct Row {
    path: String,
    a: String,
    b: String,
    /// Nothing where the shapes differ.
    distance: Option<Distance>,
    /// The distance of what a linear layer with this weight gives; nothing where that was not asked for, or it is no such weight.
    #[serde(skip_serializing_if = "Option::is_none")]
    outputs: Option<Distance>,
}

pub(crate) fn compare(options: &Options) -> Result<Comparison> {
    options.overwriting.check(options.svg.as_deref(), [&options.a, &options.b].into_iter().chain(&options.inputs))?;
    let (a, mut b) = in_common_names(options)?;
    let inputs = Inputs::new(options, &a)?;
    let (mut parameters, mut only_a) = (Vec::new(), Vec::new());
    for (path, a) in a {
        let Some(b) = b.remove(&path) else {
            only_a.push(path);
            continue;
        };
        let same = a.aval()?.shape == b.aval()?.shape;
        let distance = if same { Some(Distance::of_values(&a, &b)?) } else { None };
        let x = if same { inputs.of_layer(&path, &a)? } else { None };
        let outputs = x.map(|x| Distance::of_outputs(&a, &b, &x)).transpose()?;
        parameters.push(Row { path, a: a.to_string(), b: b.to_string(), distance, outputs });
    }
    parameters.sort_by(|x, y| y.error().total_cmp(&x.error()));
    let only_b = b.into_keys().collect();
    let farther = |most: f64| parameters.iter().filter(|row| !row.is_within(most)).count();
    let limit = options.max_error.map(|max_error| Limit { max_error, farther: farther(max_error) });
    Ok(Comparison { parameters, only_a, only_b, limit })
}

/// The parameters of both, by names that are the same in files of llama.cpp, mlx-lm and Hugging Face.
fn in_common_names(options: &Options) -> Result<(Parameters, Parameters)> {
    let (mut a, mut b) = (read(&options.a)?, read(&options.b)?);
    if !a.keys().eq(b.keys()) {
        // One shard, or a part of the experts, has no such layout, and is compared by the names that it has.
        let alike = |input: &Path, parameters: &Parameters| layout::as_mlx_lm(input, parameters.clone());
        if let (Ok(first), Ok(second)) = (alike(&options.a, &a), alike(&options.b, &b)) {
            (a, b) = (first, second);
        }
    }
    if !a.keys().any(|path| b.contains_key(path)) {
        let first = |parameters: &Parameters| {
            parameters.keys().next().map_or_else(|| "nothing".to_owned(), |path| printable::name(path).into_owned())
        };
        let message = format!("the two have no parameter in common: a begins with {}, b with {}", first(&a), first(&b));
        return Err(Error::invalid(
            message,
            "compare two checkpoints of one model; `tacit inspect` lists their parameters",
        ));
    }
    Ok((a, b))
}

/// What linear layers are given.
enum Inputs {
    None,
    Normal { rows: i32 },
    Read(PathBuf, Parameters),
}

impl Inputs {
    /// The inputs of layers that are compared, by names of either library; others are an error.
    fn new(options: &Options, parameters: &Parameters) -> Result<Self> {
        Ok(match &options.inputs {
            Some(path) => {
                let mut read = read(path)?;
                if !read.keys().all(|path| parameters.contains_key(path)) {
                    read = layout::as_mlx_lm(path, read)?;
                }
                if let Some(other) = read.keys().find(|path| !parameters.contains_key(*path)) {
                    let help = "name inputs by the weights of the layers, as `tacit inspect` lists them";
                    return Err(Error::checkpoint(path, Some(other), "a has no such parameter", help));
                }
                Self::Read(path.clone(), read)
            }
            None if options.outputs => Self::Normal { rows: options.rows },
            None => Self::None,
        })
    }

    /// The inputs of the layer with this weight, if there are some and it is the weight of a linear layer.
    fn of_layer(&self, path: &str, weight: &Value) -> Result<Option<Array>> {
        let aval = weight.aval()?;
        let [.., width] = aval.shape[..] else { return Ok(None) };
        if aval.shape.len() < 2 || !aval.dtype.is_float() {
            return Ok(None);
        }
        match self {
            Self::None => Ok(None),
            Self::Normal { rows } if aval.shape.iter().any(|&extent| rows.checked_mul(extent).is_none()) => {
                let path = printable::name(path);
                let message = format!("{rows} rows for {path}, {aval}, are more numbers than an array has");
                Err(Error::invalid(message, "give fewer `--rows`"))
            }
            Self::Normal { rows } => Ok(Some(random::normal::<f32>(&[*rows, width], None, None, &random::key(0)?)?)),
            Self::Read(file, read) => read.get(path).map(|x| fitting(file, path, x, width)).transpose(),
        }
    }
}

/// Inputs that were read, if the layer takes them.
fn fitting(file: &Path, path: &str, x: &Value, width: i32) -> Result<Array> {
    let aval = x.aval()?;
    if aval.shape.last() == Some(&width) && aval.dtype.is_float() {
        return x.dense();
    }
    let reason = format!("the layer takes {width} numbers, and its inputs are {aval}");
    Err(Error::checkpoint(file, Some(path), reason, "give floats whose last axis is that of the weight"))
}

impl Row {
    /// The error that rows are sorted by: what a layer gives counts before what it holds.
    fn error(&self) -> f64 {
        self.outputs.or(self.distance).map_or(f64::INFINITY, |distance| distance.error)
    }

    /// Whether no error of it is larger.
    fn is_within(&self, most: f64) -> bool {
        self.distance.is_some_and(|distance| distance.error <= most)
            && self.outputs.is_none_or(|distance| distance.error <= most)
    }
}

impl Comparison {
    /// Whether every parameter is as near as was asked.
    pub(crate) fn is_close(&self) -> bool {
        let near = |limit: &Limit| limit.farther == 0 && self.only_a.is_empty() && self.only_b.is_empty();
        self.limit.as_ref().is_none_or(near)
    }

    /// Draws them into a file, if there is one.
    pub(crate) fn draw(&self, file: Option<&Path>) -> Result<()> {
        file.map_or(Ok(()), |file| replace(file, self.chart().to_svg().as_bytes()))
    }

    /// The errors of the parameters, and of what the layers give.
    fn chart(&self) -> Dots {
        let rows = |distance: fn(&Row) -> Option<Distance>| -> Vec<Dot> {
            let measured = self.parameters.iter().filter_map(|row| Some((row, distance(row)?)));
            let drawn = measured.map(|(row, Distance { error, sqnr, .. })| Dot {
                label: printable::name(&row.path).into_owned(),
                text: sqnr.map_or_else(|| "exact".to_owned(), |sqnr| format!("{error:.2e}, {sqnr:.1} dB")),
                value: error,
                spread: None,
                ours: true,
            });
            drawn.collect()
        };
        let groups = [("What layers give", rows(|row| row.outputs)), ("Parameters", rows(|row| row.distance))];
        Dots {
            title: "Relative error by parameter".to_owned(),
            axis: "relative error".to_owned(),
            groups: groups
                .into_iter()
                .filter(|(_, rows)| !rows.is_empty())
                .map(|(name, rows)| (name.to_owned(), rows))
                .collect(),
        }
    }
}

/// Error, cosine and ratio in the columns of a table.
fn cells(distance: Option<&Distance>, absent: &str) -> [String; 3] {
    let Some(Distance { error, cosine, sqnr }) = distance else {
        return [absent.to_owned(), String::new(), String::new()];
    };
    let sqnr = sqnr.map_or_else(|| "exact".to_owned(), |sqnr| format!("{sqnr:.1}"));
    [format!("{error:.2e}"), format!("{cosine:.6}"), sqnr]
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let heads =
            ["parameter", "a", "b", ">error", ">cosine", ">sqnr dB", ">of outputs: error", ">cosine", ">sqnr dB"];
        let columns =
            if self.parameters.iter().any(|row| row.outputs.is_some()) { heads.len() } else { heads.len() - 3 };
        let mut table = Table::new(&heads[..columns]);
        for Row { path, a, b, distance, outputs } in &self.parameters {
            let numbers = [cells(distance.as_ref(), "shapes differ"), cells(outputs.as_ref(), "")];
            let names = [path, a, b].map(Clone::clone).into_iter();
            table.row(names.chain(numbers.into_iter().flatten()).take(columns));
        }
        write!(f, "{table}")?;
        for (name, paths) in [("a", &self.only_a), ("b", &self.only_b)] {
            if !paths.is_empty() {
                let paths: Vec<_> = paths.iter().map(|path| printable::name(path)).collect();
                write!(f, "\nonly in {name}: {}", paths.join(", "))?;
            }
        }
        match &self.limit {
            Some(Limit { max_error, farther }) if *farther > 0 => {
                write!(f, "\nfarther than {max_error}: {farther} of {} parameters", self.parameters.len())
            }
            _ => Ok(()),
        }
    }
}
