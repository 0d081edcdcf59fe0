//! The buffer of keys or of values, in a stored format.

use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::{Array, Dtype, ops};
use tacit_arrays::format::AnyFormat;
use tacit_core::extra_ops::dynamic_slice_update;
use tacit_core::{Aval, Error, Policy, Result, Tree, Value, implicit};

use super::slots::Run;

/// Tokens whose codes are made at once, and of which a buffer grows.
pub(super) const BLOCK: i32 = 256;

/// Keys or values, `[batch, heads, capacity, width]`: dense inside a step, an implicit array outside.
#[derive(Tree, Clone, Debug)]
pub(super) struct Store {
    pub(super) buffer: Value,
    #[tree(static)]
    format: Option<AnyFormat>,
}

impl Store {
    /// Nothing of floats.
    pub(super) fn new([batch, heads, width]: [i32; 3], dtype: Dtype) -> Result<Self> {
        if ![Dtype::Float32, Dtype::Float16, Dtype::Bfloat16].contains(&dtype) {
            return Err(Error::invalid(
                format!("a cache does not hold {}", Aval::new(&[batch, heads, 0, width], dtype)),
                "use f32, f16 or bf16",
            ));
        }
        Ok(Self { buffer: ops::zeros_dtype(&[batch, heads, 0, width], dtype)?.into(), format: None })
    }

    pub(super) fn aval(&self) -> Result<Aval> {
        self.buffer.aval()
    }

    pub(super) fn format(&self) -> Option<&AnyFormat> {
        self.format.as_ref()
    }

    /// Whether another one is joined with it.
    pub(super) fn is_like(&self, other: &Self) -> Result<bool> {
        let (own, others) = (self.aval()?, other.aval()?);
        let same = own.dtype == others.dtype && own.shape[1] == others.shape[1] && own.shape[3] == others.shape[3];
        Ok(same && self.format == other.format)
    }

    /// The same tokens in another format, or dense without one.
    pub(super) fn stored(&self, format: Option<AnyFormat>) -> Result<Self> {
        if self.format == format {
            return Ok(self.clone());
        }
        let dense = self.buffer.dense()?;
        let Some(format) = format else { return Ok(Self { buffer: dense.into(), format: None }) };
        writable(&format, &self.aval()?)?;
        let buffer = if dense.dim(2) == 0 { dense.into() } else { format.quantize(&dense)? };
        Ok(Self { buffer, format: Some(format) })
    }

    /// Parts of the slots and empty ones, one behind the other.
    pub(super) fn arranged(&self, runs: &[Run]) -> Result<Value> {
        let aval = self.aval()?;
        let [batch, heads, capacity, width] = four(&aval)?;
        if runs == [Run::Kept(0, capacity)] {
            return Ok(self.buffer.clone());
        }
        let zeros = |tokens: i32| -> Result<Value> {
            let zeros = ops::zeros_dtype(&[batch, heads, tokens, width], aval.dtype)?;
            self.format.as_ref().map_or_else(|| Ok(zeros.clone().into()), |format| format.quantize(&zeros))
        };
        let mut parts = Vec::new();
        for &run in runs {
            match run {
                Run::Kept(from, to) if (from, to) == (0, capacity) => parts.push(self.buffer.clone()),
                Run::Kept(from, to) => parts.push(moved(std::slice::from_ref(&self.buffer), |buffers| {
                    Ok(buffers[0].try_index((.., .., from..to, ..))?)
                })?),
                Run::Empty(count) if self.format.is_none() => parts.push(zeros(count)?),
                Run::Empty(count) => {
                    // The same codes again and again: a large buffer of floats is not made.
                    if count >= BLOCK {
                        let block = zeros(BLOCK)?;
                        parts.extend((0..count / BLOCK).map(|_| block.clone()));
                    }
                    if count % BLOCK > 0 {
                        parts.push(zeros(count % BLOCK)?);
                    }
                }
            }
        }
        joined(&parts, 2)
    }

    /// Some of the sequences, in this order.
    pub(super) fn rows(&self, rows: &[i32]) -> Result<Self> {
        let parts = rows
            .iter()
            .map(|&row| moved(std::slice::from_ref(&self.buffer), |buffers| Ok(buffers[0].try_index(row..row + 1)?)));
        Ok(self.with(joined(&parts.collect::<Result<Vec<_>>>()?, 0)?))
    }

    /// Another buffer of the same format.
    pub(super) fn with(&self, buffer: Value) -> Self {
        Self { buffer, format: self.format.clone() }
    }

    /// The buffer as it is inside a step.
    pub(super) fn lent(&self) -> Result<&Array> {
        self.buffer.as_dense().ok_or_else(|| {
            Error::invalid(
                format!("the tokens of {} are codes outside a step", self.buffer),
                "update the cache inside `Model::run_with`, `implicit_with_state` or `compile_with_state`",
            )
        })
    }
}

/// Batch, heads, capacity and width.
pub(super) fn four(aval: &Aval) -> Result<[i32; 4]> {
    aval.shape.as_slice().try_into().map_err(|_| {
        Error::invalid(
            format!("{aval} is no buffer of a cache"),
            "give f32, f16 or bf16 of the shape [batch, heads, tokens, width]",
        )
    })
}

/// Codes moved by plain code, which must not build the dense array.
fn moved(values: &[Value], f: impl FnOnce(Vec<Array>) -> Result<Array>) -> Result<Value> {
    if values.iter().all(|value| !value.is_implicit()) {
        return Ok(f(values.iter().filter_map(|value| value.as_dense().cloned()).collect())?.into());
    }
    let _deny = Policy::Deny.scope();
    implicit(values, f)
}

/// Arrays one behind the other.
pub(super) fn joined(parts: &[Value], axis: i32) -> Result<Value> {
    match parts {
        [] => Err(Error::invalid("there is nothing to join", "write a token first")),
        [one] => Ok(one.clone()),
        parts => moved(parts, |parts| Ok(ops::concatenate(&parts, axis)?)),
    }
}

/// Fails where tokens cannot be written into a buffer of this format.
fn writable(format: &AnyFormat, aval: &Aval) -> Result<()> {
    let [_, heads, _, width] = four(aval)?;
    let refused = |error: &Error| {
        let reason = match error {
            Error::MaterializationDenied { declined, .. } => declined.first().map(|decline| decline.reason.clone()),
            error => Some(error.clause()),
        };
        let reason = reason.unwrap_or_else(|| "nothing writes into its codes".to_owned());
        let groups = [64, 32, 128].into_iter().filter(|group| width % group == 0);
        // A scale for each row fits any width.
        let mut fitting = groups.map(|group| format!("affine:8:{group}")).chain(["int8".to_owned()]);
        let help = match fitting.find(|fitting| *fitting != format.to_string()) {
            Some(fitting) => format!(
                "choose a format whose blocks divide the width {width} and whose scales are numbers of their own, such as {fitting}"
            ),
            None => "keep them dense".to_owned(),
        };
        Error::invalid(
            format!("tokens of {} are not kept in {format}: {reason}", Aval::new(&[1, heads, 1, width], aval.dtype)),
            help,
        )
    };
    let zeros = ops::zeros_dtype(&[1, heads, 2, width], aval.dtype)?;
    let written = format.quantize(&zeros).and_then(|buffer| {
        let _deny = Policy::Deny.scope();
        let token = ops::zeros_dtype(&[1, heads, 1, width], aval.dtype)?;
        implicit((&buffer, &token), |(buffer, token)| {
            dynamic_slice_update(&buffer, &token, &Array::from_slice(&[1i32], &[1]), &[2])
        })
    });
    written.map(drop).map_err(|error| refused(&error))
}
