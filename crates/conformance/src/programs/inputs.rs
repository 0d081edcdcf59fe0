//! The arrays that a program is run on.

use mlx_rs::error::Exception;
use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::{Array, Dtype, ops, transforms};

use super::draw::Rng;
use super::program::{Fill, Input, Layout, State};
use crate::call::bytes;

impl Input {
    /// The array, anew: its numbers are the same in each call, and `salt` chooses others.
    pub(crate) fn array(&self, salt: u64) -> Result<Array, Exception> {
        let mut shape = self.aval.shape.clone();
        let rank = shape.len();
        match self.layout {
            Layout::Columns if rank >= 2 => shape.swap(rank - 1, rank - 2),
            Layout::Strided if rank >= 1 => shape[rank - 1] *= 2,
            Layout::Part if rank >= 1 => shape[0] += 2,
            Layout::Broadcast if rank >= 1 && shape[0] > 0 => shape[0] = 1,
            _ => {}
        }
        let mut array = self.filled(&shape, salt)?;
        if matches!(self.state, State::Lazy | State::InFlight) {
            array = ops::select(&slow_truth(self.state)?, &array, &array)?;
        }
        let array = self.laid_out(array)?;
        match self.state {
            State::Ready | State::Shared => array.eval()?,
            State::Lazy => {}
            State::InFlight => transforms::async_eval([&array])?,
        }
        Ok(array)
    }

    fn laid_out(&self, array: Array) -> Result<Array, Exception> {
        let shape = &self.aval.shape;
        match self.layout {
            Layout::Columns if shape.len() >= 2 => array.swap_axes(-1, -2),
            Layout::Strided if !shape.is_empty() => {
                let rows: i32 = shape.iter().rev().skip(1).product();
                let last = shape[shape.len() - 1];
                array.reshape(&[rows, last, 2])?.try_index((.., .., 0))?.reshape(shape)
            }
            Layout::Reversed if !shape.is_empty() => array.flip(mlx_rs::Axes::Axis(-1)),
            Layout::Part if !shape.is_empty() => array.try_index(1..=shape[0]),
            Layout::Broadcast if !shape.is_empty() => ops::broadcast_to(&array, shape),
            Layout::Misaligned if array.size() > 0 && self.aval.dtype != Dtype::Bool => {
                let stored = bytes(&array).map_err(Exception::custom)?;
                let odd = [&[0u8][..], &stored].concat();
                let odd = Array::from_slice(&odd, &[odd.len() as i32]);
                odd.try_index(1..)?.view_dtype(self.aval.dtype)?.reshape(shape)
            }
            _ => Ok(array),
        }
    }

    fn filled(&self, shape: &[i32], salt: u64) -> Result<Array, Exception> {
        let mut rng = Rng::new(self.seed.wrapping_mul(31).wrapping_add(salt));
        let dtype = self.aval.dtype;
        let size: i32 = shape.iter().product();
        let float = dtype.is_inexact();
        let signed = !matches!(dtype, Dtype::Bool | Dtype::Uint8 | Dtype::Uint16 | Dtype::Uint32 | Dtype::Uint64);
        let equal = rng.normal();
        let number = |rng: &mut Rng| -> f32 {
            let number = match self.fill {
                Fill::Normal => rng.normal(),
                Fill::Whole => rng.below(9) as f32 - 4.0,
                Fill::Equal => equal,
                Fill::Special => SPECIAL[rng.below(SPECIAL.len() as u64) as usize],
                Fill::Wide => rng.normal() * 2f32.powi(rng.below(25) as i32 - 12),
            };
            match (float, signed) {
                (true, _) => number,
                _ if !number.is_finite() => 3.0,
                (false, true) => (2.0 * number).clamp(-100.0, 100.0).trunc(),
                (false, false) => (2.0 * number).abs().min(100.0).trunc(),
            }
        };
        let numbers: Vec<f32> = (0..size).map(|_| number(&mut rng)).collect();
        let array = Array::from_slice(&numbers, shape);
        let array = match dtype {
            Dtype::Bool => array.gt(Array::from_f32(0.0))?,
            Dtype::Float16 | Dtype::Bfloat16 if self.fill == Fill::Special => at_the_edges(&array, dtype)?,
            _ => array.as_dtype(dtype)?,
        };
        array.eval()?;
        Ok(array)
    }
}

/// What formats and rounding stumble over, for `f32`.
const SPECIAL: [f32; 14] = [
    f32::NAN,
    f32::INFINITY,
    f32::NEG_INFINITY,
    0.0,
    -0.0,
    1.0,
    -1.0,
    f32::MAX,
    -f32::MAX,
    f32::MIN_POSITIVE,
    1e-40,
    2049.0,
    0.5,
    -2.5,
];

/// The largest and the smallest numbers of `f32` become those of a half type.
fn at_the_edges(array: &Array, dtype: Dtype) -> Result<Array, Exception> {
    let [largest, smallest] = if dtype == Dtype::Float16 { [65504.0, 6e-8] } else { [3.3895e38, 1e-39] };
    let number = Array::from_f32;
    let finite = ops::select(&array.abs()?.ge(number(f32::MAX))?, ops::sign(array)?.multiply(number(largest))?, array)?;
    let edged = ops::select(&ops::is_inf(array)?, array, &finite)?;
    ops::select(&edged.eq(number(f32::MIN_POSITIVE))?, number(smallest), &edged)?.as_dtype(dtype)
}

/// A truth that takes a while where it is to be in flight.
fn slow_truth(state: State) -> Result<Array, Exception> {
    let extent = if state == State::InFlight { 20_000 } else { 1 };
    let ones = ops::ones::<f32>(&[extent])?;
    ones.exp()?.sum(None)?.gt(Array::from_f32(0.0))
}
