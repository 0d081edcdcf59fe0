//! Parameters of a model, split over ranks.

use mlx_rs::module::ModuleParameters;
use tacit_core::tree::{self, Open};
use tacit_core::{Error, Result, Tree};
use tacit_nn::{Model, Pattern};

use crate::put_in_parts::put_in_parts;
use crate::{Group, Sharded};

/// How the weight of a layer is split.
#[derive(Clone, Copy, Debug)]
pub enum Split<'a> {
    /// By columns of the product, the rows of the weight `[out, in]`: each rank computes some of the outputs.
    Columns(&'a Group),
    /// By rows of the product, the columns of the weight `[out, in]`: each rank takes some of the inputs, and the ranks'
    /// products are summed. A bias, which has one axis, is added to that sum, and stays whole.
    Rows(&'a Group),
    /// Along an axis, such as that of the experts of a stack.
    Axis(i32, &'a Group),
}

impl Split<'_> {
    fn group(&self) -> &Group {
        match self {
            Self::Columns(group) | Self::Rows(group) | Self::Axis(_, group) => group,
        }
    }

    /// The axis of a parameter of so many axes; none of a bias that is added to what rows give.
    fn axis(&self, rank: usize) -> Option<i32> {
        match self {
            Self::Columns(_) => Some(rank.saturating_sub(2) as i32),
            Self::Rows(_) => (rank >= 2).then(|| rank as i32 - 1),
            Self::Axis(axis, _) => Some(*axis),
        }
    }
}

/// Splits parameters of a model over the ranks of a group.
pub trait Shard: Sized {
    /// The model whose parameters that the pattern names are [`Sharded`]; the code of the model stays as it is.
    ///
    /// Every rank gives the same model, and all ranks call this together. The parts are computed, and the wholes are gone. The
    /// random state that mlx-rs draws from where no key is given, as `nn::Dropout` does, is then the first rank's on all of them,
    /// since they compute one result. The result of a product with weights that are split by columns is split, and is best given
    /// to a product with weights that are split by rows:
    ///
    /// ```
    /// use mlx_rs::module::Module;
    /// use mlx_rs::{nn, ops};
    /// use tacit_distributed::{Group, Shard, Split};
    /// use tacit_nn::Model;
    ///
    /// # fn main() -> tacit_core::Result<()> {
    /// let group = Group::init()?;
    /// let mlp = nn::Sequential::new().append(nn::Linear::new(8, 32)?).append(nn::Linear::new(32, 8)?);
    /// let mut mlp = Model::new(mlp)?
    ///     .shard("layers.0.*", Split::Columns(&group))?
    ///     .shard("layers.1.*", Split::Rows(&group))?;
    /// assert_eq!(mlp.forward(&ops::ones::<f32>(&[2, 8])?)?.shape(), [2, 8]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// The pattern names no parameter, or one cannot be cut there or computed; the model is dropped then.
    fn shard(self, pattern: impl TryInto<Pattern, Error: Into<Error>>, split: Split<'_>) -> Result<Self>;
}

/// Splits the buffers `[batch, heads, tokens, width]` of a cache of keys and values, or of a tree of caches, by heads.
///
/// It goes with weights of keys and values that are split by columns: each rank stores and reads its own heads, in whatever
/// format. The positions of tokens are the same on every rank.
///
/// ```
/// use mlx_rs::Dtype;
/// use tacit_arrays::format::Affine;
/// use tacit_distributed::{Group, split_heads};
/// use tacit_nn::KvCache;
///
/// # fn main() -> tacit_core::Result<()> {
/// let group = Group::init()?;
/// let mut cache = KvCache::new([1, 8, 64], Dtype::Float32)?
///     .quantized(Affine { bits: 8, group: 64 }, Affine { bits: 4, group: 64 })?;
/// cache.reserve(16)?;
/// let cache = split_heads(&cache, &group)?;
/// assert!(cache.keys().to_string().starts_with("Sharded(f32[1,8,"));
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// A buffer's heads are not divided by the ranks.
pub fn split_heads<T: Tree>(caches: &T, group: &Group) -> Result<T> {
    tree::map(caches, Open::Closed, |leaf| match leaf.aval()?.shape.len() {
        4 => Ok(Sharded::split(leaf, 1, group)?.into()),
        _ => Ok(leaf),
    })
}

impl<M: ModuleParameters> Shard for Model<M> {
    fn shard(mut self, pattern: impl TryInto<Pattern, Error: Into<Error>>, split: Split<'_>) -> Result<Self> {
        put_in_parts(&mut self, pattern, |whole| {
            let axis = split.axis(whole.aval()?.shape.len());
            axis.map(|axis| Ok(Sharded::split(whole, axis, split.group())?.into())).transpose()
        })?;
        split.group().draw_alike()?;
        Ok(self)
    }
}
