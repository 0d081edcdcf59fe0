//! Rows, tangents and gradients of stored matrices from their children, without the dense matrix.

use mlx_rs::error::Exception;
use mlx_rs::{Array, Dtype, ops};
use tacit_core::kernel::{Fallback, permit_dense};
use tacit_core::{Aval, Result};

use super::host::Fallible;
use super::layout::integers;
use super::{Layout, Scaling, derivatives, nested};

impl Layout {
    /// Asks the policy for the dense matrix, which the decomposition of `kernel` builds.
    pub(super) fn permit(self, kernel: &'static str, reason: Fallback) -> Result<()> {
        permit_dense(kernel, &Aval::new(&[self.n as i32, self.k as i32], Dtype::Float32), reason)
    }

    /// Whether each row has blocks and bytes of its own.
    pub(super) fn has_whole_rows(self) -> bool {
        self.n > 0
            && self.k.is_multiple_of(self.block)
            && (self.k * self.scheme.bits()).is_multiple_of(self.scheme.width())
    }

    /// The matrix of some rows of one that [has whole rows](Self::has_whole_rows), by their codes and scales.
    pub(super) fn taken(mut self, children: &[Array], rows: &Array) -> Result<(Self, Vec<Array>), Exception> {
        let n = self.n as i32;
        let of_rows = |part: &Array| part.reshape(&[n, part.size() as i32 / n])?.take_axis(rows, 0);
        let taken = match (self.scheme.scaling, children) {
            (Scaling::Nested { block }, [codes, scales, absmax, offset]) => {
                // The scales' own blocks straddle rows.
                self.scheme.scaling = Scaling::Float;
                vec![of_rows(codes)?, of_rows(&nested(scales, absmax, offset, block)?)?]
            }
            (Scaling::Integers { block }, [codes, numbers @ ..]) => {
                self.scheme.scaling = Scaling::Float;
                let mut taken = vec![of_rows(codes)?];
                for pair in numbers.as_chunks::<2>().0 {
                    taken.push(of_rows(&integers(&pair[0], &pair[1], block)?)?);
                }
                taken
            }
            (Scaling::E4m3, [codes, scales, factor]) => vec![of_rows(codes)?, of_rows(scales)?, factor.clone()],
            (_, children) => children.iter().map(of_rows).collect::<Result<_, _>>()?,
        };
        self.n = rows.size();
        Ok((self, taken))
    }
}

/// The tangents of `primals[0]`, and of the children that follow it: codes as they are, and zero where a float has none.
/// Every format is linear in its float children, so with these it is the matrix of the tangents.
pub(super) fn tangents_of(
    primals: &[Array],
    tangents: &[Array],
    argnums: &[usize],
) -> Result<(Option<Array>, Option<Vec<Array>>), Exception> {
    let tangent = |at: usize| {
        let given = argnums.iter().position(|&argnum| argnum == at && primals[at].dtype().is_inexact());
        given.map(|given| tangents[given].as_dtype(primals[at].dtype())).transpose()
    };
    let children = (1..primals.len()).map(tangent).collect::<Result<Vec<_>, _>>()?;
    if children.iter().all(Option::is_none) {
        return Ok((tangent(0)?, None));
    }
    let moved = primals[1..].iter().zip(children).map(|(child, tangent)| match tangent {
        Some(tangent) => Ok(tangent),
        None if child.dtype().is_inexact() => ops::zeros_like(child),
        None => Ok(child.clone()),
    });
    Ok((tangent(0)?, Some(moved.collect::<Result<_, _>>()?)))
}

/// The tangent, of this shape where nothing moves, of a `product` of the first operand with the others.
pub(super) fn product_tangent(
    primals: &[Array],
    tangents: &[Array],
    argnums: &[usize],
    shape: &[i32],
    product: impl Fn(&Array, &[Array]) -> Result<Array>,
) -> Fallible<Vec<Array>> {
    let (x, rest) = (&primals[0], &primals[1..]);
    Ok(vec![match tangents_of(primals, tangents, argnums)? {
        (Some(dx), None) => product(&dx, rest)?,
        (None, Some(moved)) => product(x, &moved)?,
        (Some(dx), Some(moved)) => product(&dx, rest)?.add(product(x, &moved)?)?,
        (None, None) => ops::zeros_dtype(shape, x.dtype())?,
    }])
}

/// The gradients of a product with a stored matrix: of its first operand what `of_x` says; of the children, which begin behind
/// `before` operands, what follows from the gradients of the scale and of the bias of each block, which `of_numbers` gives. Integers
/// have none.
pub(super) fn gradients_of(
    layout: Layout,
    before: usize,
    primals: &[Array],
    argnums: &[usize],
    of_x: impl Fn() -> Fallible<Array>,
    of_numbers: impl Fn() -> Fallible<Vec<Array>>,
) -> Fallible<Vec<Array>> {
    let numbers = |inputs: &[Array]| -> Result<Vec<Array>> {
        let numbers = layout.numbers(&inputs[before + 1..])?;
        numbers.iter().map(|numbers| Ok(numbers.flatten(None, None)?)).collect()
    };
    let others: Vec<usize> = argnums.iter().copied().filter(|&argnum| argnum > 0).collect();
    let mut cotangents = Vec::new();
    if others.iter().any(|&argnum| primals[argnum].dtype().is_inexact()) {
        cotangents = of_numbers()?;
        cotangents.truncate(numbers(primals)?.len());
    }
    let mut of_others = derivatives::of_named(primals, &cotangents, &others, numbers)?.into_iter();
    let gradient = |&argnum: &usize| match argnum {
        0 => of_x(),
        _ => of_others.next().ok_or_else(|| "the vjp of the numbers gave too few gradients".into()),
    };
    argnums.iter().map(gradient).collect()
}
