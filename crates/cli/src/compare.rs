//! `tacit compare`: how far two checkpoints are from each other.

use std::fmt;
use std::path::PathBuf;

use clap::Args;
use mlx_rs::{Array, Dtype};
use serde::Serialize;
use tacit_core::{Result, Value};
use tacit_io::read;

use crate::table::Table;

#[derive(Args)]
pub(crate) struct Options {
    /// The checkpoint that is taken for right
    a: PathBuf,
    /// The checkpoint that is compared with it
    b: PathBuf,
    /// Fail where the relative error of a parameter is larger, or a parameter is missing
    #[arg(long)]
    max_error: Option<f64>,
}

/// How far two checkpoints are from each other, the parameters of the largest error first.
#[derive(Serialize)]
pub(crate) struct Comparison {
    parameters: Vec<Row>,
    /// The paths that one has and the other has not.
    only_a: Vec<String>,
    only_b: Vec<String>,
    #[serde(skip)]
    max_error: Option<f64>,
}

#[derive(Serialize)]
struct Row {
    path: String,
    a: String,
    b: String,
    /// Nothing where the shapes differ.
    distance: Option<Distance>,
}

#[derive(Serialize)]
struct Distance {
    /// The norm of the difference over the norm of `a`.
    error: f64,
    /// The cosine of the two as vectors.
    cosine: f64,
    /// The power of `a` over that of the difference, in decibels; nothing where there is no difference.
    sqnr: Option<f64>,
}

pub(crate) fn compare(options: &Options) -> Result<Comparison> {
    let (a, mut b) = (read(&options.a)?, read(&options.b)?);
    let (mut parameters, mut only_a) = (Vec::new(), Vec::new());
    for (path, a) in a {
        let Some(b) = b.remove(&path) else {
            only_a.push(path);
            continue;
        };
        let same = a.aval()?.shape == b.aval()?.shape;
        let distance = if same { Some(distance(&a, &b)?) } else { None };
        parameters.push(Row { path, a: a.to_string(), b: b.to_string(), distance });
    }
    let error = |row: &Row| row.distance.as_ref().map_or(f64::INFINITY, |distance| distance.error);
    parameters.sort_by(|x, y| error(y).total_cmp(&error(x)));
    Ok(Comparison { parameters, only_a, only_b: b.into_keys().collect(), max_error: options.max_error })
}

fn distance(a: &Value, b: &Value) -> Result<Distance> {
    let wide = |value: &Value| -> Result<Array> { Ok(value.dense()?.as_dtype(Dtype::Float32)?) };
    let (a, b) = (wide(a)?, wide(b)?);
    let dot = |x: &Array, y: &Array| -> Result<f64> {
        let sum = x.multiply(y)?.sum(None)?;
        sum.eval()?;
        Ok(f64::from(sum.item_exact::<f32>()))
    };
    let difference = a.subtract(&b)?;
    let (own, other, lost) = (dot(&a, &a)?, dot(&b, &b)?, dot(&difference, &difference)?);
    let error = if lost == 0.0 { 0.0 } else { (lost / own).sqrt() };
    let cosine = if lost == 0.0 { 1.0 } else { dot(&a, &b)? / (own * other).sqrt() };
    Ok(Distance { error, cosine, sqnr: (lost > 0.0).then(|| 10.0 * (own / lost).log10()) })
}

impl Comparison {
    /// Whether every parameter is as near as was asked.
    pub(crate) fn is_close(&self) -> bool {
        let Some(most) = self.max_error else { return true };
        let near = |row: &Row| row.distance.as_ref().is_some_and(|distance| distance.error <= most);
        self.only_a.is_empty() && self.only_b.is_empty() && self.parameters.iter().all(near)
    }
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = Table::new(&["parameter", "a", "b", ">error", ">cosine", ">sqnr dB"]);
        for Row { path, a, b, distance } in &self.parameters {
            let numbers = match distance {
                None => ["shapes differ".to_owned(), String::new(), String::new()],
                Some(Distance { error, cosine, sqnr }) => [
                    format!("{error:.2e}"),
                    format!("{cosine:.6}"),
                    sqnr.map_or_else(|| "exact".to_owned(), |sqnr| format!("{sqnr:.1}")),
                ],
            };
            table.row([path.clone(), a.clone(), b.clone()].into_iter().chain(numbers));
        }
        write!(f, "{table}")?;
        for (name, paths) in [("a", &self.only_a), ("b", &self.only_b)] {
            if !paths.is_empty() {
                write!(f, "\nonly in {name}: {}", paths.join(", "))?;
            }
        }
        Ok(())
    }
}
