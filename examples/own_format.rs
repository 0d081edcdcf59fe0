//! The book's chapter on a stored format of one's own: a codebook, declared once.

// ANCHOR: use
use std::fmt::Write;

use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::{Array, Dtype, random};
use tacit::format::{self, Coding, Encoding, Format, PackedArray, Scaling, Scheme, TextForm};
use tacit::prelude::*;
use tacit::register::{register_array, register_format};
use tacit::transform::grad;

// ANCHOR_END: use

/// A title, and the function that makes what the chapter shows.
type Section = (&'static str, fn() -> Result<String>);

/// In the chapter's order.
pub(crate) const SECTIONS: [Section; 4] =
    [("product", product), ("errors", errors), ("training", training), ("rows", rows)];

// ANCHOR: format
/// AF4, whose values keep the mean error of normal numbers small (Yoshida, 2023).
#[rustfmt::skip]
static AF4: [f32; 16] = [
    -1.0, -0.694_410_1, -0.512_437_4, -0.373_695_1, -0.256_075_5, -0.149_824_8, -0.049_348_1, 0.0,
    0.042_731_6, 0.129_344_8, 0.219_612_7, 0.316_756_7, 0.425_638_8, 0.554_962_3, 0.724_248_6, 1.0,
];

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Af4 {
    block: usize,
}

impl Format for Af4 {
    const SAVED_AS: &'static str = "book.Af4";

    fn scheme(&self) -> Scheme {
        Scheme::codebook(Self::NAME, &AF4)
    }

    fn block(&self) -> usize {
        self.block
    }
}

impl TextForm for Af4 {
    const NAME: &'static str = "af4";
    const FORMS: &'static str = "af4:BLOCK";

    fn options(&self) -> String {
        format!(":{}", self.block)
    }

    fn from_options(options: &[&str]) -> Option<Self> {
        let [block] = options else { return None };
        Some(Self { block: block.parse().ok()? })
    }
}

register_format!(Af4);
register_array!(PackedArray<Af4>);
// ANCHOR_END: format

fn normal(seed: u64, shape: &[i32]) -> Result<Array> {
    Ok(random::normal::<f32>(shape, None, None, Some(&random::key(seed)?))?)
}

// ANCHOR: product
fn product() -> Result<String> {
    let _deny = Policy::Deny.scope();
    let w = Af4 { block: 64 }.quantize(&normal(1, &[256, 512])?)?;
    let x = normal(2, &[4, 512])?;
    Ok(explain((x, w), |(x, w)| x.matmul(w.try_index((..128, ..))?.t()))?.to_string())
}
// ANCHOR_END: product

// ANCHOR: errors
fn errors() -> Result<String> {
    let w = normal(1, &[256, 512])?;
    let mut table = String::new();
    for text in ["nf4:64", "af4:64", "nf4:4096", "af4:4096"] {
        let _allow = Policy::Allow.scope();
        let stored = format::parse(text)?.quantize(&w)?.dense()?;
        let error = stored.subtract(&w)?.abs()?.mean(None)?.item_exact::<f32>();
        let _ = writeln!(table, "{text:<10}{error:.4}");
    }
    Ok(table.trim_end().to_owned())
}
// ANCHOR_END: errors

// ANCHOR: training
fn training() -> Result<String> {
    let _deny = Policy::Deny.scope();
    let (w, x) = (normal(1, &[256, 512])?, normal(2, &[4, 512])?);
    let loss = |w: Array| -> Result<Value> {
        let w = ste(&w, |w| Af4 { block: 64 }.quantize(w))?;
        implicit((&x, w), |(x, w)| x.matmul(w.t())?.square()?.mean(None))
    };
    Ok(format!("gradient of the master: {}", grad(loss).call(w)?))
}
// ANCHOR_END: training

// ANCHOR: bytes
/// Signed bytes, with one scale for each row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct RowBytes {
    /// The length of a row; 0 until the shape is known.
    row: usize,
}

impl Format for RowBytes {
    const SAVED_AS: &'static str = "book.RowBytes";

    fn scheme(&self) -> Scheme {
        Scheme {
            label: Self::NAME,
            encoding: Encoding::Int8,
            coding: Coding::Signed,
            scaling: Scaling::Float,
            biased: false,
            nested: None,
            storage: Dtype::Int8,
        }
    }

    fn block(&self) -> usize {
        self.row
    }

    fn on(&self, shape: &[i32]) -> Self {
        Self { row: shape.last().map_or(1, |&last| last.max(1) as usize) }
    }

    fn check(&self) -> Result<()> {
        Ok(())
    }
}

impl TextForm for RowBytes {
    const NAME: &'static str = "row_bytes";
    const FORMS: &'static str = "row_bytes";

    fn options(&self) -> String {
        if self.row == 0 { String::new() } else { format!(":{}", self.row) }
    }

    fn from_options(options: &[&str]) -> Option<Self> {
        let row = match options {
            [] => 0,
            [row] => row.parse().ok()?,
            _ => return None,
        };
        Some(Self { row })
    }
}

register_format!(RowBytes);
register_array!(PackedArray<RowBytes>);
// ANCHOR_END: bytes

// ANCHOR: rows
fn rows() -> Result<String> {
    let w = format::parse("row_bytes")?.quantize(&normal(1, &[256, 512])?)?;
    Ok(format!("{w}, {} bytes", w.nbytes()))
}
// ANCHOR_END: rows

pub(crate) fn main() -> Result<()> {
    for (title, section) in SECTIONS {
        println!("== {title}\n{}\n", section()?);
    }
    Ok(())
}
