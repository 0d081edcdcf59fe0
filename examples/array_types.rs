//! The book's fifth chapter: the array types, alone and inside each other.

// ANCHOR: use
use std::fmt::Write;

use mlx_rs::{Array, Dtype, ops, random};
use tacit::arrays::{Concat, Diagonal, Lora, Scaled};
use tacit::format::{self, Affine, Nf4};
use tacit::prelude::*;

// ANCHOR_END: use

/// A title, and the function that makes what the chapter shows.
type Section = (&'static str, fn() -> Result<String>);

/// In the chapter's order.
pub(crate) const SECTIONS: [Section; 4] =
    [("formats", formats), ("nested", nested), ("joined", joined), ("diagonals", diagonals)];

fn normal(seed: u64, shape: &[i32]) -> Result<Array> {
    Ok(random::normal::<f32>(shape, None, None, Some(&random::key(seed)?))?)
}

// ANCHOR: formats
/// Bits an element and mean error of a normal matrix in each stored format, and the error of a product with it.
fn formats() -> Result<String> {
    let (w, x) = (normal(1, &[256, 512])?, normal(2, &[4, 512])?);
    let product = |w: Value| implicit((&x, w), |(x, w)| x.matmul(w.t()))?.dense();
    let exact = product((&w).into())?;
    let mut table = format!("{:<14}{:>6}{:>8}{:>9}\n", "", "bits", "element", "product");
    let stored = "nf4:64 nf4:64:double fp4:64 affine:8:64 affine:4:64 affine:3:64 affine:2:64 int8 int8:64 \
                  e5m2:64 mxfp8 mxfp4 nvfp4 ternary:64 binary:64";
    for text in stored.split(' ') {
        let value = format::parse(text)?.quantize(&w)?;
        let bits = 8.0 * value.nbytes() as f64 / w.size() as f64;
        let rounded = {
            let _allow = Policy::Allow.scope();
            value.dense()?
        };
        let [element, product] = [relative(&rounded, &w)?, relative(&product(value)?, &exact)?];
        let _ = writeln!(table, "{text:<14}{bits:>6.2}{element:>8.3}{product:>9.3}");
    }
    Ok(table.trim_end().to_owned())
}

/// The root mean square of the difference, over that of `exact`.
fn relative(found: &Array, exact: &Array) -> Result<f32> {
    let square = |array: &Array| array.square()?.mean(None);
    Ok(square(&found.subtract(exact)?)?.divide(square(exact)?)?.sqrt()?.item_exact())
}
// ANCHOR_END: formats

// ANCHOR: nested
/// A low-rank change of a 4-bit weight whose scales are quantized as well, in code that knows of nothing.
fn nested() -> Result<String> {
    let _deny = Policy::Deny.scope();
    let base = Nf4Array::quantize(&normal(1, &[128, 256])?, Nf4 { block: 64, double: true })?;
    let (a, b) = (normal(2, &[8, 256])?, ops::zeros::<f32>(&[128, 8])?);
    let w = Lora::new(base, a, b, 16.0)?;
    let x = normal(3, &[2, 256])?;
    Ok(explain((x, w), |(x, w)| x.matmul(w.t()))?.to_string())
}
// ANCHOR_END: nested

// ANCHOR: joined
/// Three weights of two formats as the one matrix that a fused projection multiplies with.
fn joined() -> Result<String> {
    let _deny = Policy::Deny.scope();
    let [q, k, v] = [1, 2, 3].map(|seed| normal(seed, &[64, 256]));
    let parts: Vec<Value> = vec![
        Nf4Array::quantize(&q?, 64)?.into(),
        Nf4Array::quantize(&k?, 64)?.into(),
        Scaled::new(AffineArray::quantize(&v?, Affine { bits: 8, group: 64 })?, &Array::from_f32(0.5))?.into(),
    ];
    let w = Concat::new(parts, 0)?;
    let x = normal(4, &[2, 256])?;
    Ok(explain((x, w), |(x, w)| x.matmul(w.t()))?.to_string())
}
// ANCHOR_END: joined

// ANCHOR: diagonals
/// Products of diagonal matrices stay diagonal, and only the last step is dense.
fn diagonals() -> Result<String> {
    let _deny = Policy::Deny.scope();
    let diagonal = |from: i32| -> Result<Diagonal> {
        Diagonal::new(ops::arange::<_, f32>(from, from + 1024, None)?.as_dtype(Dtype::Float32)?)
    };
    let (a, b) = (diagonal(1)?, diagonal(2)?);
    let x = ops::ones::<f32>(&[1, 1024])?;
    Ok(explain((x, a, b), |(x, a, b)| x.matmul(a.matmul(b)?))?.to_string())
}
// ANCHOR_END: diagonals

pub(crate) fn main() -> Result<()> {
    for (title, section) in SECTIONS {
        println!("{title}\n\n{}\n", section()?);
    }
    Ok(())
}
