//! Arrays that are split over the ranks, and gathered only for each use.

use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::{Array, ops};
use tacit_arrays::{Distributed, Linear, Packed, Product, TrainedCodes};
use tacit_core::extra_ops::copied;
use tacit_core::transform::checkpoint;
use tacit_core::tree::{self, Open, TreeDef};
use tacit_core::{Aval, Error, ImplicitArray, Materialize, Primitive, Result, Value, array_id, implicit};

use crate::Group;
use crate::placed::check_whole;

/// A value of which each rank holds an equal part of every array, and which is gathered where an op uses it.
///
/// What is gathered is what is stored: a weight in 4 bits travels and lies in 4 bits, and its own handlers take the op. That
/// is no materialization, and no policy is asked; [`Group::traffic`] counts it. A product gathers once for the forward pass and
/// once more for the gradient, so that nothing of the whole is kept between the two; what is gathered goes when the op
/// is done. Only a compiled gradient keeps the codes of packed arrays from the one to the other. Every other op gathers for
/// itself.
///
/// Ranks may each compute on a batch of their own, as in data parallelism: the gradient of a float part is the sum of the
/// ranks' gradients, and has the shape of the part, as an optimizer's state then has.
///
/// ```
/// use mlx_rs::ops;
/// use tacit_arrays::Nf4Array;
/// use tacit_core::{Policy, implicit};
/// use tacit_distributed::{FullySharded, Group};
///
/// # fn main() -> tacit_core::Result<()> {
/// let group = Group::init()?;
/// let w = FullySharded::new(Nf4Array::quantize(&ops::ones::<f32>(&[8, 64])?, 64)?, &group)?;
/// let x = ops::ones::<f32>(&[2, 64])?;
/// let _deny = Policy::Deny.scope();
/// let y = implicit((x, w), |(x, w)| x.matmul(w.t()))?;
/// assert_eq!(y.dense()?.as_slice::<f32>(), [64.0; 16]);
/// # Ok(())
/// # }
/// ```
///
/// An array of `n` elements is flattened and filled up with zeros: each of `r` ranks holds `ceil(n / r)` elements. The method is
/// the third stage of `ZeRO` (Rajbhandari et al., 2020). [`save_run`](crate::save_run) saves it; files of one process have the
/// whole, [`gathered`](Self::gathered).
#[derive(ImplicitArray, Clone, Debug)]
#[implicit(name = "tacit.FullySharded", default = on_gathered, family(Linear, Distributed))]
pub struct FullySharded {
    /// The value with this rank's part of each array, a vector, in the place of the array.
    #[implicit(get)]
    local: Value,
    /// The shapes and dtypes of the whole value's arrays, in order.
    #[implicit(aux, get)]
    arrays: Vec<Aval>,
    /// The ranks that hold the parts.
    #[implicit(aux, get)]
    group: Group,
    #[implicit(aux)]
    aval: Aval,
}

impl FullySharded {
    /// Keeps this rank's part of a value, which is the same on every rank.
    ///
    /// # Errors
    ///
    /// The value, or something inside it, is split over ranks already or trained as its codes, or MLX refuses an op.
    pub fn new(whole: impl Into<Value>, group: &Group) -> Result<Self> {
        Self::with_parts(&whole.into(), group, |_| None)
    }

    /// The same, where `known` gives the parts of some arrays.
    fn with_parts(whole: &Value, group: &Group, known: impl Fn(&Array) -> Option<Array>) -> Result<Self> {
        check_whole(whole)?;
        if is_coded(whole) {
            return Err(Error::invalid(
                format!("{whole} is trained as its codes, which a step rounds as a whole"),
                "keep it whole on every rank, or split its floats and train these",
            ));
        }
        let aval = whole.aval()?;
        let mut arrays = Vec::new();
        let local = tree::map(whole, Open::Fully, |leaf| {
            let leaf = array_of(&leaf)?.clone();
            arrays.push(Aval::from(&leaf));
            let part = known(&leaf).map_or_else(|| own_part(&leaf, group.rank(), group.size()), Ok)?;
            Ok(part.into())
        })?;
        Ok(Self { local, arrays, group: group.clone(), aval })
    }

    /// The whole value, as it was.
    ///
    /// It is lazy, and its evaluation is a collective, so that every rank must evaluate it.
    ///
    /// # Errors
    ///
    /// MLX refuses an op.
    pub fn gathered(&self) -> Result<Value> {
        let (recipe, parts) = self.recipe()?;
        recipe.gathered(&parts)
    }

    /// How the whole is made of the parts, without these.
    fn recipe(&self) -> Result<(Recipe, Vec<Array>)> {
        let (parts, def) = tree::flatten(&self.local, Open::Fully)?;
        let parts = parts.iter().map(|part| array_of(part).cloned()).collect::<Result<_>>()?;
        Ok((Recipe { def, arrays: self.arrays.clone(), group: self.group.clone() }, parts))
    }

    /// A product with the whole, which is gathered again for the gradient.
    fn multiplied(&self, x: &Value, product: Product) -> Result<Value> {
        let Value::Dense(_) = x else {
            return implicit((x, self.gathered()?), |(x, w)| product.apply(&x, &w));
        };
        let (recipe, parts) = self.recipe()?;
        let mut frozen = Vec::new();
        mark_frozen(&self.local, false, &mut frozen);
        // Codes and scales have no gradient as a rule, and a product that is computed again would be asked for it. Where one is
        // taken all the same, `checkpoint` finds what is captured, and the product is as it is.
        let trained =
            frozen.iter().zip(&parts).filter(|(frozen, _)| !**frozen).map(|(_, part)| part.clone()).collect::<Vec<_>>();
        let mut gathered = checkpoint(move |(x, trained): (Array, Vec<Array>)| {
            let mut trained = trained.into_iter();
            let part = |(frozen, part): (&bool, &Array)| if *frozen { Some(part.clone()) } else { trained.next() };
            let whole = recipe.gathered(&frozen.iter().zip(&parts).filter_map(part).collect::<Vec<_>>())?;
            implicit((x, whole), |(x, w)| product.apply(&x, &w))?.dense()
        });
        gathered.call((x.clone(), trained))
    }
}

/// Whether a value, or something inside it, is trained as its codes: a step lends it an array that its parts have no place for.
fn is_coded(value: &Value) -> bool {
    let Value::Implicit(array) = value else { return false };
    value.downcast::<TrainedCodes>().is_some() || array.children().iter().any(|(_, child)| is_coded(child))
}

/// Which arrays of a value are those of a packed one.
fn mark_frozen(value: &Value, packed: bool, frozen: &mut Vec<bool>) {
    let Value::Implicit(array) = value else {
        frozen.push(packed);
        return;
    };
    let packed = packed || array.family::<dyn Packed>().is_some();
    array.children().iter().for_each(|(_, child)| mark_frozen(child, packed, frozen));
}

/// What makes the whole of parts.
#[derive(Clone)]
struct Recipe {
    def: TreeDef,
    arrays: Vec<Aval>,
    group: Group,
}

impl Recipe {
    fn gathered(&self, parts: &[Array]) -> Result<Value> {
        let whole = parts
            .iter()
            .zip(&self.arrays)
            .map(|(part, aval)| Ok(whole_of(&self.group.gather_parts(part)?, aval)?.into()));
        tree::unflatten(&self.def, whole.collect::<Result<_>>()?)
    }
}

/// How many elements each of `size` ranks holds.
pub(crate) fn part_size(aval: &Aval, size: usize) -> usize {
    aval.size().div_ceil(size)
}

/// The part of an array that a rank holds: `[ceil(n / size)]`, in memory of its own.
///
/// # Errors
///
/// All parts together have more elements than an axis of MLX.
pub(crate) fn own_part(array: &Array, rank: usize, size: usize) -> Result<Array> {
    let length = part_size(&Aval::from(array), size);
    if length.saturating_mul(size) > i32::MAX as usize {
        return Err(Error::invalid(
            format!("{} has more elements than an axis of MLX, {}", Aval::from(array), i32::MAX),
            "make it of several arrays, such as a `Concat` or a `Stacked` of them",
        ));
    }
    let flat = array.reshape(&[-1])?;
    if size == 1 {
        return Ok(flat);
    }
    let [from, to] = [rank, rank + 1].map(|rank| (rank * length).min(array.size()));
    let part = flat.try_index(from as i32..to as i32)?;
    let rest = (length - (to - from)) as i32;
    // Either is a copy: a slice of an evaluated array would hold all of it.
    if rest > 0 {
        return Ok(ops::concatenate(&[&part, &ops::zeros_dtype(&[rest], array.dtype())?], 0)?);
    }
    copied(&part)
}

/// The array of all parts, one after the other.
pub(crate) fn whole_of(parts: &Array, aval: &Aval) -> Result<Array> {
    let size = aval.size();
    let flat = if parts.size() == size { parts.clone() } else { parts.try_index(..size as i32)? };
    Ok(flat.reshape(&aval.shape)?)
}

fn array_of(leaf: &Value) -> Result<&Array> {
    leaf.as_dense()
        .ok_or_else(|| Error::invalid(format!("{leaf} does not open into dense arrays"), "give another value"))
}

impl Distributed for FullySharded {
    /// Made of the whole, since the parts of its arrays are no arrays of its shape. Ranks gather what it is made of, and of an array
    /// that stays as it is each keeps its part.
    fn with_held(&self, f: &mut dyn FnMut(&Value) -> Result<Option<Value>>) -> Result<Option<Value>> {
        let (recipe, parts) = self.recipe()?;
        let whole = recipe.gathered(&parts)?;
        let Some(result) = f(&whole)? else { return Ok(None) };
        let gathered = tree::leaves(&whole, Open::Fully)?;
        let known = |array: &Array| {
            let is = |whole: &Value| whole.as_dense().is_some_and(|whole| array_id(whole) == array_id(array));
            gathered.iter().zip(&parts).find(|(whole, _)| is(whole)).map(|(_, part)| part.clone())
        };
        let result = Value::from(Self::with_parts(&result, &self.group, known)?);
        // Whoever reads a part later reads it alone, as before.
        tree::eval(&result)?;
        Ok(Some(result))
    }

    fn brought(&self) -> Result<Option<Value>> {
        self.gathered().map(Some)
    }
}

impl Materialize for FullySharded {
    fn materialize(&self) -> Result<Value> {
        self.gathered()
    }

    fn check(&self) -> Result<()> {
        check_whole(&self.local)?;
        let (_, parts) = self.recipe()?;
        // What is read may be of any extents.
        let expected = self.arrays.iter().map(|aval| {
            aval.checked_nbytes()?;
            let length = i32::try_from(part_size(aval, self.group.size())).ok()?;
            Some(Aval::new(&[length], aval.dtype))
        });
        let is_whole = self.local.is_implicit() || self.arrays == [self.aval.clone()];
        if is_whole && parts.iter().map(|part| Some(Aval::from(part))).eq(expected) {
            return Ok(());
        }
        Err(Error::invalid(
            format!("the parts of {} are not those of one of {} ranks", self.aval, self.group.size()),
            "split the whole by `FullySharded::new`",
        ))
    }
}

impl Linear for FullySharded {
    fn product(&self, product: Product, x: &Value) -> Result<Value> {
        if product == Product::Rows {
            return Err(Error::decline("rows are taken of what is gathered"));
        }
        self.multiplied(x, product)
    }
}

/// Any other primitive, on what is gathered.
fn on_gathered(primitive: &Primitive, operands: &[&Value]) -> Result<Vec<Value>> {
    let gathered = operands.iter().map(|&value| match value.downcast::<FullySharded>() {
        Some(array) => array.gathered(),
        None => Ok(value.clone()),
    });
    let gathered = gathered.collect::<Result<Vec<_>>>()?;
    primitive.apply(&gathered.iter().collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use expect_test::expect;
    use mlx_rs::module::Module;
    use mlx_rs::{Dtype, nn, random};
    use tacit_arrays::{Adapter, Lora, Nf4Array};
    use tacit_blas as _;
    use tacit_conformance::Subject;
    use tacit_core::Policy;
    use tacit_nn::{LoraConfig, Model, ParameterFilter, undropped};

    use super::*;
    use crate::FullyShard;

    fn normal(seed: u64, shape: &[i32]) -> Array {
        let key = random::key(seed).expect("a key");
        random::normal::<f32>(shape, None, None, Some(&key)).expect("normal numbers")
    }

    #[test]
    fn one_rank_computes_as_the_whole_does() {
        let dense = |x: &Array| FullySharded::new(x, &Group::alone());
        let nf4 = |x: &Array| FullySharded::new(Nf4Array::quantize(x, 32)?, &Group::alone());
        tacit_conformance::handlers(&Subject::new("fully_sharded", dense)).expect_clean();
        tacit_conformance::gradients(&Subject::new("fully_sharded", dense)).expect_clean();
        // Of `W / W` each side is gathered for itself, and gives the scales gradients of its own, which cancel.
        tacit_conformance::handlers(&Subject::new("fully_sharded_nf4", nf4).tolerance(1e-4)).expect_clean();
    }

    #[test]
    fn what_a_file_says_is_checked() {
        let right = FullySharded::new(normal(1, &[4, 6]), &Group::alone()).expect("splits");
        right.check().expect("is right");
        let aval = |shape: &[i32]| Aval::new(shape, Dtype::Float32);
        let huge = aval(&[i32::MAX; 3]);
        for (whole, arrays) in [
            (aval(&[4, 7]), vec![aval(&[4, 7])]),
            (aval(&[3, 8]), vec![aval(&[4, 6])]),
            (aval(&[4, 6]), vec![aval(&[3, 8])]),
            (aval(&[4, 6]), vec![]),
            (huge.clone(), vec![huge]),
        ] {
            let array = FullySharded { arrays, aval: whole, ..right.clone() };
            let error = array.check().expect_err("is refused").to_string();
            let help = "help: split the whole by `FullySharded::new`";
            assert_eq!(error, format!("the parts of {} are not those of one of 1 ranks\n{help}", array.aval));
        }
    }

    #[test]
    fn what_is_trained_as_its_codes_is_not_split() {
        let key = random::key(1).expect("a key");
        let codes = TrainedCodes::from_value(&normal(1, &[64, 64]).into(), "int8+stochastic", &key).expect("codes");
        let error = FullySharded::new(codes, &Group::alone()).expect_err("is refused").to_string();
        expect![[r"
            TrainedCodes(f32[64,64]) is trained as its codes, which a step rounds as a whole
            help: keep it whole on every rank, or split its floats and train these"]]
        .assert_eq(&error);
    }

    #[test]
    fn what_a_model_makes_of_a_weight_it_makes_of_the_whole() -> Result<()> {
        type Layer = Model<nn::Linear>;
        let linear = || -> Result<Layer> {
            let mut model = Model::new(nn::Linear::new(32, 16)?)?;
            model.set_leaves([("weight".to_owned(), normal(1, &[16, 32])), ("bias".to_owned(), normal(2, &[16]))])?;
            Ok(model)
        };
        let adapted = || -> Result<Layer> {
            let mut model = linear()?.lora("weight", LoraConfig { rank: 2, ..LoraConfig::default() })?;
            model.set_leaves([("weight.b".to_owned(), normal(3, &[16, 2]))])?;
            Ok(model)
        };
        let check = |mut whole: Layer, change: fn(&mut Layer) -> Result<()>| -> Result<()> {
            let mut split = whole.clone().fully_shard("weight", &Group::alone())?;
            change(&mut split)?;
            change(&mut whole)?;
            let (found, expected) = (split.get("weight")?, whole.get("weight")?);
            let parts = found.downcast::<FullySharded>().expect("it stays in parts");
            parts.check()?;
            let found = parts.gathered()?;
            assert_eq!(found.to_string(), expected.to_string());
            assert!(found.dense()?.eq_exact(&expected.dense()?)?, "{found}");
            Ok(())
        };
        let _allow = Policy::Allow.scope();
        check(linear()?.prepare("weight", "int8")?, |model| model.convert().map(drop))?;
        check(linear()?.quantize("weight", "affine:4:32")?, |model| model.cast_scales(Dtype::Bfloat16).map(drop))?;
        check(adapted()?, |model| model.merge("int8").map(drop))?;
        check(adapted()?, |model| model.merge_exactly().map(drop))?;
        check(adapted()?, |model| model.without_adapters().map(drop))
    }

    #[test]
    fn an_adapter_in_parts_that_drops_nothing_stays_as_it_is() -> Result<()> {
        let lora = Lora::new(normal(1, &[8, 8]), normal(2, &[2, 8]), normal(3, &[8, 2]), 2.0)?;
        let lora = Adapter::with_key(&lora.with_dropout(0.5, random::key(0)?)?, None)?;
        let split = Value::from(FullySharded::new(lora, &Group::alone())?);
        let still = undropped(&split)?;
        assert_eq!(tree::flatten(&still, Open::Fully)?.1, tree::flatten(&split, Open::Fully)?.1);
        Ok(())
    }

    #[test]
    fn parameters_are_trained_as_they_would_be_by_themselves() {
        let group = Group::alone();
        let loss = |model: &mut Model<nn::Linear>, (x, y): (Array, Array)| -> Result<Array> {
            Ok(model.forward(&x)?.subtract(y)?.square()?.mean(None)?)
        };
        let gradients = |split: bool| {
            let mut model = Model::new(nn::Linear::new(16, 33)?)?;
            model.set_leaves([("weight".to_owned(), normal(1, &[33, 16])), ("bias".to_owned(), normal(2, &[33]))])?;
            let mut model = if split { model.fully_shard("*", &group)? } else { model };
            let (_, gradients) =
                model.value_and_grad(ParameterFilter::default(), (normal(3, &[8, 16]), normal(4, &[8, 33])), loss)?;
            let mut gradients: Vec<(Rc<str>, Array)> = gradients.into_iter().collect();
            gradients.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
            Ok::<_, Error>(gradients)
        };
        let (found, expected) = (gradients(true).expect("trains"), gradients(false).expect("trains"));
        assert_eq!(found.iter().map(|(path, _)| &**path).collect::<Vec<_>>(), ["bias.local", "weight.local"]);
        for ((path, found), (_, expected)) in found.iter().zip(&expected) {
            let expected = expected.reshape(&[-1]).expect("a vector");
            let most = found.subtract(&expected).and_then(|it| it.abs()?.max(None)).expect("subtracts");
            assert!(most.item_exact::<f32>() < 1e-5, "{path} is {found}, not {expected}");
        }
    }
}
