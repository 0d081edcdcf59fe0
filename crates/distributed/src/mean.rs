//! Sums and means of whole trees over the ranks, such as the gradients of data parallelism.

use std::collections::BTreeMap;

use mlx_rs::{Array, Dtype, ops};
use tacit_arrays::accumulator_dtype;
use tacit_core::tree::{self, Open};
use tacit_core::{Aval, Error, Result, Tree, Value};

use crate::Group;

/// Bytes from which on an array is summed by itself; smaller ones share a collective, whose cost is mostly its latency.
const BUCKET: usize = 1 << 20;

impl Group {
    /// The sum over all ranks of every array of a tree, replicated.
    ///
    /// Arrays of less than a mebibyte share collectives with others of their dtype; each collective begins when what it sums is
    /// computed. The arrays are those that the tree opens into; all ranks must give the same shapes and dtypes.
    ///
    /// # Errors
    ///
    /// An array that is summed is not of a number type, or MLX has no memory left.
    pub fn sum<T: Tree>(&self, tree: &T) -> Result<T> {
        let (leaves, def) = tree::flatten(tree, Open::Fully)?;
        let arrays =
            leaves.iter().map(|leaf| leaf.as_dense().cloned().ok_or_else(closed)).collect::<Result<Vec<_>>>()?;
        let summed = self.summed(&arrays)?;
        tree::unflatten(&def, summed.into_iter().map(Value::from).collect())
    }

    /// The mean over all ranks of every float array of a tree, as [`sum`](Self::sum); half floats are summed in `f32`, where
    /// they neither overflow nor round at each rank, and travel so.
    ///
    /// Every rank has the same weight. For others, such as with batches of unequal lengths, take
    /// [`weighted_mean`](Self::weighted_mean).
    ///
    /// ```
    /// use mlx_rs::Array;
    /// use tacit_distributed::Group;
    ///
    /// # fn main() -> tacit_core::Result<()> {
    /// let group = Group::init()?;
    /// let gradients = vec![Array::from_f32(2.0), Array::from_slice(&[1f32, 3.0], &[2])];
    /// let gradients = group.mean(&gradients)?;
    /// assert_eq!(gradients[1].as_slice::<f32>(), [1.0, 3.0]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`sum`](Self::sum), or an array is not float.
    pub fn mean<T: Tree>(&self, tree: &T) -> Result<T> {
        let size = Array::from_f32(self.size() as f32);
        self.averaged(tree, |array| Ok(array.clone()), |sum| Ok(sum.divide(size.as_dtype(sum.dtype())?)?))
    }

    /// The mean over all ranks of every float array of a tree, weighted by the `weight` of each rank, such as the number of its rows
    /// or tokens.
    ///
    /// What a rank of weight zero gives does not count, whatever it is, such as the mean of no tokens. Where all weights are
    /// zero there is no mean, and every element is NaN. Gradients of parameters that are split have a mean of their own,
    /// [`mean_gradients`](crate::FullyShard::mean_gradients).
    ///
    /// ```
    /// use mlx_rs::Array;
    /// use tacit_distributed::Group;
    ///
    /// # fn main() -> tacit_core::Result<()> {
    /// let group = Group::init()?;
    /// let (gradients, tokens) = (vec![Array::from_f32(2.0)], Array::from_int(17));
    /// let gradients = group.weighted_mean(&gradients, &tokens)?;
    /// assert_eq!(gradients[0].item_exact::<f32>(), 2.0);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`mean`](Self::mean), or the weight is not one real number.
    pub fn weighted_mean<T: Tree>(&self, tree: &T, weight: &Array) -> Result<T> {
        if weight.size() != 1 || weight.dtype() == Dtype::Complex64 {
            return Err(Error::invalid(
                format!("a weight is {}", Aval::from(weight)),
                "give one number, such as the count of this rank's rows",
            ));
        }
        // Its share is as precise as the arrays are.
        let precise = tree::leaves(tree, Open::Fully)?
            .iter()
            .filter_map(Value::as_dense)
            .any(|array| array.dtype() == Dtype::Float64);
        let dtype = if precise { Dtype::Float64 } else { Dtype::Float32 };
        let weight = weight.as_dtype(dtype)?.reshape(&[])?;
        // A part of one, so that no sum is larger than what is in it.
        let share = weight.divide(self.all_sum(&weight)?)?;
        let counts = share.ne(Array::from_f32(0.0).as_dtype(dtype)?)?;
        let weighted = |array: &Array| {
            let zero = Array::from_f32(0.0).as_dtype(array.dtype())?;
            Ok(ops::select(&counts, array.multiply(share.as_dtype(array.dtype())?)?, zero)?)
        };
        self.averaged(tree, weighted, |sum| Ok(sum.clone()))
    }

    /// What `after` makes of the sums of what `before` makes of each float array, half floats as `f32`.
    fn averaged<T: Tree>(
        &self,
        tree: &T,
        before: impl Fn(&Array) -> Result<Array>,
        after: impl Fn(&Array) -> Result<Array>,
    ) -> Result<T> {
        let (leaves, def) = tree::flatten(tree, Open::Fully)?;
        let arrays = leaves.iter().map(|leaf| {
            let array = leaf.as_dense().ok_or_else(closed)?;
            if !array.dtype().is_inexact() {
                return Err(Error::invalid(
                    format!("{} has no mean of its dtype", Aval::from(array)),
                    "give float arrays, or take `Group::sum`",
                ));
            }
            Ok(array)
        });
        let arrays = arrays.collect::<Result<Vec<&Array>>>()?;
        let wide = arrays.iter().map(|array| before(&array.as_dtype(accumulator_dtype(array.dtype()))?));
        let sums = self.summed(&wide.collect::<Result<Vec<_>>>()?)?;
        let means = sums.iter().zip(&arrays).map(|(sum, array)| Ok(after(sum)?.as_dtype(array.dtype())?.into()));
        tree::unflatten(&def, means.collect::<Result<Vec<Value>>>()?)
    }

    fn summed(&self, arrays: &[Array]) -> Result<Vec<Array>> {
        if self.size() == 1 {
            return Ok(arrays.to_vec());
        }
        let mut sums: Vec<Option<Array>> = vec![None; arrays.len()];
        let mut small: BTreeMap<&str, Bucket> = BTreeMap::new();
        // Gradients are made from the last layer to the first.
        for (place, array) in arrays.iter().enumerate().rev() {
            if array.size() == 0 {
                sums[place] = Some(array.clone());
                continue;
            }
            if array.nbytes() >= BUCKET {
                sums[place] = Some(self.all_sum(array)?);
                continue;
            }
            let bucket = small.entry(tacit_core::dtype_name(array.dtype())).or_default();
            bucket.places.push(place);
            bucket.bytes += array.nbytes();
            if bucket.bytes >= BUCKET {
                self.emptied(std::mem::take(bucket), arrays, &mut sums)?;
            }
        }
        for bucket in small.into_values() {
            self.emptied(bucket, arrays, &mut sums)?;
        }
        sums.into_iter().map(|sum| sum.ok_or_else(closed)).collect()
    }

    /// Sums the arrays of a bucket as one.
    fn emptied(&self, bucket: Bucket, arrays: &[Array], sums: &mut [Option<Array>]) -> Result<()> {
        let flat = bucket.places.iter().map(|&place| Ok(arrays[place].reshape(&[-1])?)).collect::<Result<Vec<_>>>()?;
        let sum = match &flat[..] {
            [] => return Ok(()),
            [only] => self.all_sum(only)?,
            _ => self.all_sum(&ops::concatenate(&flat, 0)?)?,
        };
        let ends = flat.iter().scan(0, |end, part| {
            *end += part.size() as i32;
            Some(*end)
        });
        let ends: Vec<i32> = ends.take(flat.len() - 1).collect();
        for (place, part) in bucket.places.into_iter().zip(sum.split_at_indices(&ends, 0)?) {
            sums[place] = Some(part.reshape(arrays[place].shape())?);
        }
        Ok(())
    }
}

#[derive(Default)]
struct Bucket {
    places: Vec<usize>,
    bytes: usize,
}

fn closed() -> Error {
    Error::invalid("a tree does not open into dense arrays", "give trees of arrays")
}
