//! Matrices of one shape as one array, such as the experts of a mixture.

use std::ops::Range;

use mlx_rs::{Array, Dtype, ops};
use tacit_core::primitives::{GatherMM, Squeeze};
use tacit_core::{Aval, Error, ImplicitArray, Materialize, Result, Value, handler, implicit};

use crate::avals::checks::{check_made, decline_if};
use crate::families::cut::{Cut, cut};
use crate::families::linear::{Linear, Product, dense_operand};
use crate::views::concat::dense;

/// Arrays of one aval along a new leading axis, such as the experts of a mixture.
///
/// A batched product is that of each expert. `gather_mm`, which multiplies each row by an expert of its own, is
/// computed as the products of all rows with each expert, of which an index keeps one: `E` times the work of a dense
/// layer, without the dense weights, for up to 64 matrices. Experts of one format do better as one packed array of three axes, of
/// which only those that are chosen are multiplied.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::{Array, ops};
/// use tacit_arrays::{Nf4Array, Stacked};
/// use tacit_core::implicit;
///
/// let expert = Nf4Array::quantize(&ops::ones::<f32>(&[32, 8])?, 64)?;
/// let experts = Stacked::new(vec![expert.clone().into(), expert.into()])?;
/// let x = ops::ones::<f32>(&[3, 1, 32])?;
/// let indices = Array::from_slice(&[1u32, 0, 1], &[3]);
/// let y = implicit((x, experts), |(x, w)| ops::gather_mm(x, w, None, &indices, None))?;
/// assert_eq!(y.dense()?.as_slice::<f32>(), [32.0; 24]);
/// # Ok(())
/// # }
/// ```
#[derive(ImplicitArray, Clone, Debug)]
#[implicit(name = "tacit.Stacked", family(Linear, Cut))]
pub struct Stacked {
    /// The arrays that are stacked.
    #[implicit(get)]
    experts: Vec<Value>,
    #[implicit(aux)]
    aval: Aval,
}

/// More experts than this are cheaper to materialize than to multiply one by one.
const MOST: usize = 64;

impl Stacked {
    /// `experts` along a new axis before their own.
    ///
    /// # Errors
    ///
    /// There are no experts, or two of them differ in shape or dtype.
    pub fn new(experts: Vec<Value>) -> Result<Self> {
        let avals = experts.iter().map(Value::aval).collect::<Result<Vec<_>>>()?;
        let Some(first) = avals.first() else {
            return Err(Error::invalid("there are no arrays to stack", "give at least one array"));
        };
        if let Some(other) = avals.iter().find(|&aval| aval != first) {
            return Err(Error::invalid(
                format!("{first} and {other} are not stacked"),
                "give arrays of one shape and dtype",
            ));
        }
        let aval = Aval::new(&[&[experts.len() as i32], &first.shape[..]].concat(), first.dtype);
        Ok(Self { experts, aval })
    }

    /// The stack as a view where there is something to view.
    fn view(experts: Vec<Value>) -> Result<Value> {
        match dense(&experts) {
            Some(arrays) => Ok(ops::stack(&arrays, 0)?.into()),
            None => Ok(Self::new(experts)?.into()),
        }
    }

    fn mapped(&self, mut f: impl FnMut(Array) -> Result<Array>) -> Result<Value> {
        Self::view(self.experts.iter().map(|expert| implicit(expert, &mut f)).collect::<Result<_>>()?)
    }
}

impl Materialize for Stacked {
    fn materialize(&self) -> Result<Value> {
        Self::view(self.experts.iter().map(Value::opened).collect::<Result<_>>()?)
    }

    fn check(&self) -> Result<()> {
        check_made(self, &Self::new(self.experts.clone())?)
    }
}

impl Cut for Stacked {
    fn cut(&self, axis: usize, range: Range<i32>) -> Result<Value> {
        let experts = match axis.checked_sub(1) {
            None => self.experts[range.start as usize..range.end as usize].to_vec(),
            Some(axis) => {
                let parts = self.experts.iter().map(|expert| cut(expert, axis as i32, range.clone()));
                parts.collect::<Result<_>>()?
            }
        };
        Self::view(experts)
    }
}

impl Linear for Stacked {
    /// The product of each matrix of `x` and its expert.
    fn product(&self, product: Product, x: &Value) -> Result<Value> {
        let x = product.operand(x)?;
        decline_if(self.aval.shape.len() < 3, "vectors are stacked")?;
        implicit((x, &self.experts), |(x, experts)| {
            let pieces = x.split_equal(experts.len() as i32, 0)?;
            let products = pieces.iter().zip(&experts).map(|(x, expert)| product.apply(&x.squeeze_axes(&[0])?, expert));
            Ok::<_, Error>(ops::stack(&products.collect::<Result<Vec<_>>>()?, 0)?)
        })
    }

    /// Every expert's product, of which the index keeps one.
    fn gather_mm(&self, _op: &GatherMM, x: &Value, left: &Array, right: &Array) -> Result<Value> {
        let x = dense_operand(x)?;
        if self.aval.shape.len() != 3 || self.experts.len() > MOST {
            return Err(Error::decline(format!("{} is not a stack of at most {MOST} matrices", self.aval)));
        }
        let matrix = &x.shape()[x.ndim() - 2..];
        let matrices = x.reshape(&[&[x.shape()[..x.ndim() - 2].iter().product()], matrix].concat())?;
        let chosen = matrices.take_axis(left, 0)?;
        implicit((chosen, right, &self.experts), |(chosen, right, experts)| {
            let right = right.expand_dims_axes(&[-1, -2])?;
            let mut result: Option<Array> = None;
            for (expert, index) in experts.iter().zip(0..) {
                let product = chosen.matmul(expert)?;
                result = Some(match result {
                    None => product,
                    Some(before) => {
                        let index = Array::from_int(index).as_dtype(right.dtype())?;
                        ops::select(right.eq(index)?, product, before)?
                    }
                });
            }
            result.ok_or_else(|| Error::decline("there are no experts"))
        })
    }

    /// The transposed experts, while they stay first.
    fn transposed(&self, axes: &[i32]) -> Result<Value> {
        let Some((0, axes)) = axes.split_first().map(|(first, axes)| (*first, axes)) else {
            return Err(Error::decline("the experts are no longer along the first axis"));
        };
        let axes: Vec<i32> = axes.iter().map(|axis| axis - 1).collect();
        self.mapped(|expert| Ok(expert.transpose_axes(&axes)?))
    }

    fn cast(&self, dtype: Dtype) -> Result<Value> {
        self.mapped(|expert| Ok(expert.as_dtype(dtype)?))
    }
}

/// The only expert.
#[handler]
pub(crate) fn stacked_squeeze(op: &Squeeze, w: &Stacked) -> Result<Value> {
    match (&w.experts[..], &op.axes[..]) {
        ([expert], [0]) => Ok(expert.clone()),
        _ => Err(Error::decline("only the axis of the experts is squeezed")),
    }
}
