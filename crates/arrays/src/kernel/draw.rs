//! Floats to codes by given scales, rounded at random by a key.

use half::slice::HalfBitsSliceExt;
use mlx_rs::error::Exception;
use mlx_rs::{Array, Dtype, ops, random, stop_gradient};
use tacit_core::kernel::{GpuBackend, Input, Kernel, Launch, Mapped, Output, Pieces, apply};
use tacit_core::{Aval, Param, Result};
use tacit_kernels::half_floats;
use tacit_kernels::stochastic::{Levels, Stochastic};

use super::encode::{blocks, number, packed};
use super::host::{Fallible, int, single};
use super::layout::looked_up;
use super::pieces::{Unit, counted};
use super::quantize::one_by_one;
use super::{Coding, Layout, Scheme, gpu};

/// Codes `x: f32` of any shape, in blocks, each element to one of the two values around it, by `key: u32[2]`; `children` are what
/// the layout has behind the codes. They have no gradient.
///
/// The random number of an element is that which MLX's `uniform` of the shape of `x` has in its place. Elements that are not finite
/// are refused as [`quantize`](super::quantize()) refuses them.
pub(crate) fn draw(layout: &Layout, x: &Array, key: &Array, children: &[Array]) -> Result<Array> {
    let Layout { scheme, block, .. } = *layout;
    let mut inputs = vec![stop_gradient(x)?, key.clone()];
    if scheme.is_scaled() {
        inputs.extend(layout.numbers(children)?.iter().map(stop_gradient).collect::<Result<Vec<_>, _>>()?);
    }
    Ok(stop_gradient(single(apply(Draw { scheme, block }, &inputs)?)?)?)
}

pub(super) struct Draw {
    pub(super) scheme: Scheme,
    pub(super) block: usize,
}

impl Kernel for Draw {
    fn name(&self) -> &'static str {
        self.scheme.kernel("Draw")
    }

    fn params(&self) -> Option<Vec<(&'static str, Param)>> {
        Some([("block", int(self.block))].into_iter().chain(self.scheme.params()).collect())
    }

    fn output_avals(&self, inputs: &[Aval]) -> Fallible<Vec<Aval>> {
        Ok(vec![Aval::new(&self.scheme.children(&inputs[0].shape, self.block).0, self.scheme.storage)])
    }

    fn eval_cpu(&self, inputs: &[Input<'_>], outputs: &mut [Output<'_>]) -> Fallible<()> {
        let ([x, key, numbers @ ..], [codes]) = (inputs, outputs) else {
            return Err("an array, a key and its scales are expected".into());
        };
        let x = x.elements()?;
        let &[first, second] = key.elements::<u32>()? else { return Err("a key is two words".into()) };
        let key = [first, second];
        match (self.scheme.coding, numbers) {
            (_, [scales, biases @ ..]) => {
                let levels = self.scheme.levels()?;
                self.rounding(&levels, scales, biases)?.encode(x, key, codes.bytes())?;
            }
            (Coding::F16, []) => {
                half_floats::to_f16_by_key(x, key, codes.elements::<u16>()?.reinterpret_cast_mut())?;
            }
            (Coding::Bf16, []) => {
                half_floats::to_bf16_by_key(x, key, codes.elements::<u16>()?.reinterpret_cast_mut())?;
            }
            _ => return Err("scales are expected".into()),
        }
        Ok(())
    }

    /// None of half floats, whose numbers are those of all elements at once.
    fn pieces(&self, inputs: &[Aval]) -> Option<Pieces> {
        let Self { scheme, block } = *self;
        let [x, _, numbers @ ..] = inputs else { return None };
        let (count, unit) = (x.size(), Unit::new(&scheme, block).filter(|_| scheme.is_scaled())?);
        let (levels, numbers) = (scheme.levels().ok()?, numbers.iter().map(|numbers| Some(unit.numbers(numbers))));
        Some(Pieces {
            elements: count,
            unit: unit.elements,
            inputs: [Some(unit.element_bytes(x)), None].into_iter().chain(numbers).collect(),
            outputs: vec![unit.codes],
            eval: Box::new(move |piece, inputs, outputs| {
                let ([x, key, scales, biases @ ..], [codes]) = (inputs, outputs) else {
                    return Err("an array, a key and its scales are expected".into());
                };
                let &[first, second] = key.elements::<u32>()? else { return Err("a key is two words".into()) };
                let rounding = Self { scheme, block }.rounding(&levels, scales, biases)?;
                let place = (piece.start, count);
                counted(piece.start, rounding.encode_part(x.elements()?, [first, second], place, codes.bytes()))
            }),
        })
    }

    fn launch(&self, inputs: &[Aval], backend: GpuBackend) -> Option<Launch> {
        gpu::draw(&self.scheme, self.block, inputs, backend.into()).map(gpu::Parts::launch)
    }

    fn decompose(&self, inputs: &[Array]) -> Fallible<Vec<Array>> {
        let [x, key, numbers @ ..] = inputs else { return Err("an array and a key are expected".into()) };
        let uniform = random::uniform::<_, f32>(0.0, 1.0, x.shape(), key)?;
        if let Some(dtype) = self.scheme.half() {
            return Ok(vec![halves(dtype, x, &uniform)?]);
        }
        let numbers = numbers.iter().map(|number| number.reshape(&[-1, 1])).collect::<Result<Vec<_>, _>>()?;
        let codes = self.drawn(&blocks(x, self.block)?, &blocks(&uniform, self.block)?, &numbers)?;
        let (shape, _) = self.scheme.children(x.shape(), self.block);
        Ok(vec![packed(&codes, &self.scheme, x.size())?.reshape(&shape)?])
    }

    fn vmap(&self, inputs: &[Array], axes: &[Option<usize>]) -> Option<Fallible<Mapped>> {
        Some(one_by_one(|| Self { scheme: self.scheme, block: self.block }, inputs, axes))
    }
}

impl Draw {
    fn rounding<'a>(
        &self,
        levels: &'a Levels,
        scales: &'a Input<'_>,
        biases: &'a [Input<'_>],
    ) -> Fallible<Stochastic<'a>> {
        Ok(Stochastic {
            levels,
            bits: self.scheme.bits() as u32,
            order: self.scheme.order(),
            padding: self.scheme.padding(),
            block: self.block,
            scales: scales.elements()?,
            biases: biases.first().map(Input::elements).transpose()?,
        })
    }

    /// The codes of blocks as bytes, one an element.
    fn drawn(&self, x: &Array, uniform: &Array, numbers: &[Array]) -> Fallible<Array> {
        let [scale, bias @ ..] = numbers else { return Err("scales are expected".into()) };
        let levels = self.scheme.levels()?;
        let divisor = ops::select(scale.eq(number(0.0))?, number(1.0), scale)?;
        let units = match bias {
            [bias, ..] => x.subtract(bias)?.divide(divisor)?,
            [] => x.divide(divisor)?,
        };
        let rank = rank(&units, levels.thresholds())?;
        let value = |values: &[f32]| -> Result<Array, Exception> {
            let values = looked_up(values, &rank)?.multiply(scale)?;
            match bias {
                [bias, ..] => values.add(bias),
                [] => Ok(values),
            }
        };
        let (low, high) = (value(levels.values())?, value(&levels.values()[1..])?);
        let part = x.subtract(&low)?.divide(high.subtract(&low)?)?;
        let rank = rank.add(part.gt(uniform)?.as_dtype(Dtype::Uint32)?)?;
        let codes = Array::from_slice(levels.codes(), &[levels.codes().len() as i32]).take_axis(rank, 0)?;
        Ok(if matches!(self.scheme.coding, Coding::Signed) { codes.view_dtype(Dtype::Int8)? } else { codes })
    }
}

/// How many of the ascending thresholds each element is above, by a binary search: they may be many.
fn rank(x: &Array, thresholds: &[f32]) -> Result<Array, Exception> {
    let mut step = (thresholds.len() + 1).next_power_of_two();
    let mut padded = thresholds.to_vec();
    padded.resize(step, f32::INFINITY);
    let mut rank = ops::zeros_dtype(x.shape(), Dtype::Uint32)?;
    while step > 1 {
        step /= 2;
        let words = |word: usize| Array::from_slice(&[word as u32], &[]);
        let above = x.gt(looked_up(&padded, &rank.add(words(step - 1))?)?)?;
        rank = rank.add(above.as_dtype(Dtype::Uint32)?.multiply(words(step))?)?;
    }
    Ok(rank)
}

fn halves(dtype: Dtype, x: &Array, uniform: &Array) -> Result<Array, Exception> {
    let magnitude = |bits: &Array| bits.view_dtype(dtype)?.as_dtype(Dtype::Float32)?.abs();
    let (nearest, x) = (x.as_dtype(dtype)?.view_dtype(Dtype::Uint16)?, x.abs()?);
    // Bits of magnitudes order as these do, below the sign.
    let lower = nearest.subtract(magnitude(&nearest)?.gt(&x)?.as_dtype(Dtype::Uint16)?)?;
    let low = magnitude(&lower)?;
    let high = magnitude(&lower.add(Array::from_slice(&[1_u16], &[]))?)?;
    let part = x.subtract(&low)?.divide(high.subtract(&low)?)?;
    lower.add(part.gt(uniform)?.as_dtype(Dtype::Uint16)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::quantize;
    use crate::kernel::tests::{normal, schemes};

    /// The kernel makes what plain ops make, with numbers that MLX draws.
    #[test]
    fn it_equals_its_decomposition_bit_for_bit() {
        let key = random::key(3).expect("a key");
        for (scheme, block, _) in schemes() {
            let sizes = if scheme.is_grouped() { &[32, 96, 20_000][..] } else { &[1, 31, 33, 100, 20_001] };
            for &size in sizes {
                let x = normal(size as u64, &[size]);
                let x = if size > 90 {
                    x.reshape(&[-1, if scheme.is_grouped() { 32 } else { 1 }]).expect("rows")
                } else {
                    x
                };
                // By scales of other numbers: some are beyond what these reach.
                let other = normal(7, x.shape());
                let results = quantize(scheme, block, std::slice::from_ref(&other)).expect("quantizes");
                let layout = Layout { scheme, n: x.dim(0) as usize, k: x.size() / x.dim(0) as usize, block };
                let found = draw(&layout, &x, &key, &results[1..]).expect("draws");
                let mut inputs = vec![x, key.clone()];
                if scheme.is_scaled() {
                    inputs.extend(layout.numbers(&results[1..]).expect("has some"));
                }
                let expected = Draw { scheme, block }.decompose(&inputs).expect("runs").swap_remove(0);
                assert_eq!(Aval::from(&found), Aval::from(&expected));
                assert!(found.eq_exact(&expected).expect("evaluates"), "{} of {size}", scheme.label);
            }
        }
    }
}
