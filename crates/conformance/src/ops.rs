//! The op surface: mlx-rs's ops as data, for tests that must hold for every one of them.
//!
//! Interception needs no list of ops, but a claim about every op needs one to be tested over: that no op
//! escapes (a type that refuses to materialize makes each of them report its primitive), and that an op
//! on materialized operands equals the dense one, value and gradient.
//!
//! A row names the op as mlx-rs does (functions of `mlx_rs::ops` and methods of `Array` bare, the others with
//! their module, a variant in brackets), makes its operands and calls it. The rows stand by family: elementwise
//! arithmetic, logic, reductions with scans and sorts, shapes, indexing, linear algebra, convolutions, Fourier
//! transforms, quantization, random draws, and neural networks (fast ops, activations, pooling, losses).

use mlx_rs::{Array, Dtype, error::Exception, ops};

/// Declares a family as `OPS`: a row is the op's name, its differentiable operands, its operands as
/// `name: kind[data]` where `kind` is a method of [`Draw`](operands::Draw), and the call.
macro_rules! family {
    ($($name:literal $differentiable:tt ($($operand:ident: $kind:ident [$($data:expr),*]),+) => $call:expr;)+) => {
        pub(super) const OPS: &[super::Op] = &[$(super::Op {
            name: $name,
            operands: || {
                let mut draw = super::operands::Draw::default();
                Ok(vec![$(draw.$kind(&[$($data),*])),+])
            },
            run: |operands| {
                let [$($operand),+] = operands else {
                    return Err(super::wrong_count($name, operands.len()));
                };
                $call.map(super::IntoOutputs::into_outputs)
            },
            differentiable: &$differentiable,
        }),+];
    };
}

mod arithmetic;
mod convolution;
mod fourier;
mod indexing;
mod linear_algebra;
mod logic;
mod nn;
mod operands;
mod quantization;
mod random;
mod reductions;
mod shapes;

/// One mlx-rs op on ready-made operands.
#[derive(Clone, Copy, Debug)]
pub struct Op {
    /// Name as in mlx-rs, e.g. `matmul`, `fft::rfft` or `pad[edge]`; distinct over the surface.
    pub name: &'static str,
    /// Makes the operands: the same values at each call, in the op's domain, away from kinks and ties.
    pub operands: fn() -> Result<Vec<Array>, Exception>,
    /// Calls the op; it only builds the graph, so operands may be placeholders without data.
    ///
    /// The outputs depend on each operand, so any of them may be made implicit, alone or with others.
    pub run: fn(&[Array]) -> Result<Vec<Array>, Exception>,
    /// Operands with respect to which MLX differentiates the float outputs; empty where MLX has no gradient.
    pub differentiable: &'static [usize],
}

impl Op {
    /// Returns a scalar function of the outputs, whose gradient tells the elements of each output apart.
    ///
    /// It is the sum of the float outputs, each element weighted by its position (`1/n`, `2/n`, ... `1`
    /// in row-major order); a complex output counts as its real and imaginary part. A plain sum would
    /// leave `softmax` or `sort` with a constant gradient.
    ///
    /// # Errors
    ///
    /// What [`Op::run`] reports, or an op without float outputs.
    pub fn loss(&self, operands: &[Array]) -> Result<Array, Exception> {
        let mut terms = Vec::new();
        for output in (self.run)(operands)? {
            match output.dtype() {
                Dtype::Complex64 => terms.extend([weighted_sum(&output.real()?)?, weighted_sum(&output.imag()?)?]),
                dtype if dtype.is_float() => terms.push(weighted_sum(&output)?),
                _ => {}
            }
        }
        if terms.is_empty() {
            return Err(Exception::custom(format!("`{}` has no float output", self.name)));
        }
        ops::sum(ops::stack(&terms, 0)?, None)
    }
}

/// Every op of the surface, family by family.
#[must_use]
pub fn all() -> Vec<Op> {
    families().concat()
}

pub(crate) fn named(name: &str) -> Option<&'static Op> {
    families().into_iter().flatten().find(|op| op.name == name)
}

/// The families: what is elementwise, reduces and reshapes first.
pub(crate) fn families() -> [&'static [Op]; 11] {
    [
        arithmetic::OPS,
        logic::OPS,
        reductions::OPS,
        shapes::OPS,
        indexing::OPS,
        linear_algebra::OPS,
        convolution::OPS,
        fourier::OPS,
        quantization::OPS,
        random::OPS,
        nn::OPS,
    ]
}

/// What moves elements: shapes and indices.
pub(crate) fn moving() -> Vec<&'static Op> {
    shapes::OPS.iter().chain(indexing::OPS).collect()
}

/// Products and linear algebra.
pub(crate) fn products() -> Vec<&'static Op> {
    linear_algebra::OPS.iter().collect()
}

/// The results that mlx-rs's ops return.
trait IntoOutputs {
    fn into_outputs(self) -> Vec<Array>;
}

impl IntoOutputs for Array {
    fn into_outputs(self) -> Vec<Array> {
        vec![self]
    }
}

impl IntoOutputs for (Array, Array) {
    fn into_outputs(self) -> Vec<Array> {
        vec![self.0, self.1]
    }
}

impl IntoOutputs for (Array, Array, Array) {
    fn into_outputs(self) -> Vec<Array> {
        vec![self.0, self.1, self.2]
    }
}

impl IntoOutputs for Vec<Array> {
    fn into_outputs(self) -> Vec<Array> {
        self
    }
}

/// What the elements of an output weigh in a loss that tells them apart.
pub(crate) fn weights(n: usize) -> impl Iterator<Item = f32> {
    (1..=n).map(move |i| i as f32 / n as f32)
}

/// The sum of the elements weighted by their position, in f32.
pub(crate) fn weighted_sum(output: &Array) -> Result<Array, Exception> {
    let weights: Vec<f32> = weights(output.size()).collect();
    let weighted = output.as_dtype(Dtype::Float32)?.multiply(Array::from_slice(&weights, output.shape()))?;
    ops::sum(&weighted, None)
}

fn wrong_count(name: &str, count: usize) -> Exception {
    Exception::custom(format!("`{name}` was called with {count} operands, which is not what its row makes"))
}

#[cfg(test)]
mod tests;
