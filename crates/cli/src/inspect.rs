//! `tacit inspect`: the parameters of a checkpoint.

use std::fmt;
use std::path::{Path, PathBuf};

use clap::Args;
use mlx_rs::Dtype;
use serde::Serialize;
use tacit_arrays::format;
use tacit_core::{Error, Result, Value};
use tacit_io::{Content, FileKind, Tensors};
use tacit_nn::path_order;

use crate::table::Table;

#[derive(Args)]
pub(crate) struct Options {
    /// A file or a folder, of Tacit's or of another program's
    path: PathBuf,
    /// Show how the values of each parameter are spread, which reads and decodes all of them
    #[arg(long)]
    histograms: bool,
}

/// What a checkpoint holds.
#[derive(Serialize)]
pub(crate) struct Inspection {
    read_by: String,
    parameters: Vec<Row>,
    elements: usize,
    nbytes: usize,
    /// What the rows are.
    #[serde(skip)]
    what: &'static str,
}

#[derive(Serialize)]
struct Row {
    path: String,
    value: String,
    /// The text of the format that it is stored in, as rules have it.
    #[serde(skip_serializing_if = "Option::is_none")]
    format: Option<String>,
    /// Bits for each element, scales included; nothing where the type is not known.
    bits: Option<f64>,
    nbytes: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    histogram: Option<Histogram>,
}

/// Counts of the values between `-reach` and `reach` in bins of one width.
#[derive(Serialize)]
struct Histogram {
    reach: f32,
    counts: Vec<u64>,
    /// How many values are NaN or infinite, which are in no bin.
    not_finite: usize,
}

const BINS: u16 = 16;

pub(crate) fn inspect(options: &Options) -> Result<Inspection> {
    let kind = FileKind::detect(&options.path)?;
    refuse_index(&options.path, kind)?;
    let parameters = kind.contents(&options.path)?;
    let mut rows = Vec::with_capacity(parameters.len());
    let (mut elements, mut nbytes) = (0, 0);
    let mut read_by = kind.to_string();
    let mut what = "parameters";
    // One by one, so that what was decoded is gone before the next is.
    for (path, content) in parameters {
        let value = match content {
            Content::Parameter(value) => value,
            Content::Tensor(array) => {
                (what, read_by) = ("leaves", "ModelFile::load or Training::load".to_owned());
                array.into()
            }
            Content::Unknown { ty, nbytes: own } => {
                nbytes += own;
                let value = format!("{ty}, which is not in this program");
                rows.push(Row { path, value, format: None, bits: None, nbytes: own, histogram: None });
                continue;
            }
        };
        let size = value.aval()?.size();
        let histogram = if options.histograms { histogram(&value)? } else { None };
        elements += size;
        nbytes += value.nbytes();
        rows.push(Row {
            path,
            value: value.to_string(),
            format: format::of_value(&value),
            bits: Some(bits(value.nbytes(), size)),
            nbytes: value.nbytes(),
            histogram,
        });
    }
    rows.sort_by(|a, b| path_order(&a.path, &b.path));
    Ok(Inspection { read_by, parameters: rows, elements, nbytes, what })
}

/// Fails for the index of a run on several ranks, which names files and holds no array itself.
fn refuse_index(path: &Path, kind: FileKind) -> Result<()> {
    // It says nothing of parameters, and so looks like one of floats.
    if kind != FileKind::Floats || !Tensors::open(path)?.metadata().contains_key("tacit.ranks") {
        return Ok(());
    }
    let reason = "it is the index of a run on several ranks, whose arrays are in the files of these";
    Err(Error::checkpoint(path, None, reason, "inspect one of the files beside it, whose names have `-of-`"))
}

fn bits(nbytes: usize, size: usize) -> f64 {
    8.0 * nbytes as f64 / size.max(1) as f64
}

/// How the values are spread; nothing for what is no float, or holds nothing but 0.
fn histogram(value: &Value) -> Result<Option<Histogram>> {
    let aval = value.aval()?;
    if !aval.dtype.is_float() || aval.size() == 0 {
        return Ok(None);
    }
    // What was mapped or transposed is brought into order, with its own axes: one of all elements may be longer than MLX counts.
    let floats = value.dense()?.as_dtype(Dtype::Float32)?.contiguous()?;
    floats.eval()?;
    let finite = || floats.as_slice::<f32>().iter().filter(|value| value.is_finite());
    let (reach, count) = finite().fold((0f32, 0), |(reach, count), value| (reach.max(value.abs()), count + 1));
    let not_finite = floats.size() - count;
    if reach == 0.0 && not_finite == 0 {
        return Ok(None);
    }
    let mut counts = vec![0; usize::from(BINS)];
    for value in finite().filter(|_| reach > 0.0) {
        let place = f32::midpoint(value / reach, 1.0) * f32::from(BINS);
        counts[(place as usize).min(usize::from(BINS) - 1)] += 1;
    }
    Ok(Some(Histogram { reach, counts, not_finite }))
}

impl fmt::Display for Histogram {
    /// As `▁▂▇█▇▂▁ 0.4`, with the greatest finite magnitude, and how many values are not finite where there are some.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
        let most = self.counts.iter().copied().max().unwrap_or(1).max(1);
        for count in &self.counts {
            let height = count * 7 / most;
            write!(f, "{}", BARS[height as usize])?;
        }
        write!(f, " {:.3}", self.reach)?;
        if self.not_finite > 0 { write!(f, ", {} not finite", self.not_finite) } else { Ok(()) }
    }
}

impl fmt::Display for Inspection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = self.parameters.iter().any(|row| row.histogram.is_some());
        let heads = ["parameter", "value", "format", ">bits", ">bytes", "spread and reach"];
        let columns = if shown { heads.len() } else { heads.len() - 1 };
        let mut table = Table::new(&heads[..columns]);
        for Row { path, value, format, bits, nbytes, histogram } in &self.parameters {
            let spread = histogram.as_ref().map(ToString::to_string).unwrap_or_default();
            let format = format.clone().unwrap_or_default();
            let bits = bits.map(|bits| format!("{bits:.3}")).unwrap_or_default();
            let cells = [path.clone(), value.clone(), format, bits, nbytes.to_string(), spread];
            table.row(cells.into_iter().take(columns));
        }
        writeln!(f, "{table}")?;
        let known = self.parameters.iter().filter(|row| row.bits.is_some()).map(|row| row.nbytes).sum();
        write!(
            f,
            "{} {}, {} elements, {} bytes, {:.3} bits an element; read by {}",
            self.parameters.len(),
            self.what,
            self.elements,
            self.nbytes,
            bits(known, self.elements),
            self.read_by,
        )
    }
}
