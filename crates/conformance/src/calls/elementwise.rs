//! Elementwise primitives.

use mlx_rs::error::Exception;
use mlx_rs::{Array, Dtype, ops};
use tacit_core::primitives::{self, TypedPrimitive};

use super::scene::{Generator, Scene};
use crate::call::Call;

/// Pairs a primitive with the calls of an mlx-rs function of one operand, or of two.
macro_rules! generators {
    (unary { $($one:ident $unary:path;)+ } binary { $($two:ident $binary:path;)+ }) => {
        pub(super) const GENERATORS: &[(&str, Generator)] = &[
            $((primitives::$one::NAME, |scene| vec![scene.alone(primitives::$one::NAME, |w| $unary(w))]),)+
            $((primitives::$two::NAME, |scene| binary(scene, primitives::$two::NAME, |x, y| $binary(x, y))),)+
            (primitives::DivMod::NAME, div_mod),
            (primitives::Select::NAME, select),
            (primitives::StopGradient::NAME, |scene| vec![scene.alone("stop_gradient", |w| mlx_rs::stop_gradient(w))]),
            (primitives::AsType::NAME, as_type),
        ];
    };
}

generators! {
    unary {
        Abs ops::abs;
        ArcCos ops::acos;
        ArcCosh ops::acosh;
        ArcSin ops::asin;
        ArcSinh ops::asinh;
        ArcTan ops::atan;
        ArcTanh ops::atanh;
        Ceil ops::ceil;
        Cos ops::cos;
        Cosh ops::cosh;
        Erf ops::erf;
        ErfInv ops::erfinv;
        Exp ops::exp;
        Expm1 ops::expm1;
        Floor ops::floor;
        Log ops::log;
        Log10 ops::log10;
        Log1p ops::log1p;
        Log2 ops::log2;
        LogicalNot ops::logical_not;
        Negative ops::negative;
        Round round;
        Rsqrt ops::rsqrt;
        Sigmoid ops::sigmoid;
        Sign ops::sign;
        Sin ops::sin;
        Sinh ops::sinh;
        Sqrt ops::sqrt;
        Square ops::square;
        Tan ops::tan;
        Tanh ops::tanh;
    }
    binary {
        Add ops::add;
        ArcTan2 ops::atan2;
        Divide ops::divide;
        Equal ops::eq;
        Greater ops::gt;
        GreaterEqual ops::ge;
        Less ops::lt;
        LessEqual ops::le;
        LogAddExp ops::logaddexp;
        LogicalAnd ops::logical_and;
        LogicalOr ops::logical_or;
        Maximum ops::maximum;
        Minimum ops::minimum;
        Multiply ops::multiply;
        NotEqual ops::ne;
        Power ops::power;
        Remainder ops::remainder;
        Subtract ops::subtract;
    }
}

fn round(x: &Array) -> Result<Array, Exception> {
    ops::round(x, None)
}

fn div_mod(scene: &Scene) -> Vec<Call> {
    binary(scene, primitives::DivMod::NAME, |x, y| ops::divmod(x, y).map(|(quotient, _)| quotient))
}

/// The subject with dense operands that fit or are broadcast, with another subject and with itself.
fn binary(scene: &Scene, name: &str, op: fn(&Array, &Array) -> Result<Array, Exception>) -> Vec<Call> {
    let row = scene.shape.last().copied().unwrap_or(1);
    let operands = [
        ("dense", Some(scene.dense(&scene.shape))),
        ("row", Some(scene.dense(&[row]))),
        ("scalar", Some(scene.dense(&[]))),
        ("wider", Some(scene.dense(&[&[2], scene.shape.as_slice()].concat()))),
        ("another", scene.another(&scene.shape)),
    ];
    let mut calls = vec![scene.alone(&format!("{name} of it and itself"), move |w| op(w, w))];
    for (what, operand) in operands {
        let Some(operand) = operand else { continue };
        let pair = |first, second, order| {
            Call::new(format!("{name} of {order}"), vec![first, second], move |arrays| op(&arrays[0], &arrays[1]))
        };
        calls.push(pair(scene.w.clone(), operand.clone(), format!("it and {what}")));
        calls.push(pair(operand, scene.w.clone(), format!("{what} and it")));
    }
    calls
}

fn select(scene: &Scene) -> Vec<Call> {
    let sizes = scene.shape.iter().product::<i32>();
    let flags: Vec<bool> = (0..sizes).map(|i| i * 7 % 3 == 1).collect();
    let flags = Array::from_slice(&flags, &scene.shape);
    let dense = scene.dense(&scene.shape);
    [(scene.w.clone(), dense.clone()), (dense, scene.w.clone())]
        .into_iter()
        .map(|(first, second)| {
            Call::new("select", vec![flags.clone().into(), first, second], |arrays| {
                ops::select(&arrays[0], &arrays[1], &arrays[2])
            })
        })
        .collect()
}

fn as_type(scene: &Scene) -> Vec<Call> {
    [Dtype::Float32, Dtype::Float16, Dtype::Bfloat16, Dtype::Int32]
        .into_iter()
        .filter(|&dtype| dtype != scene.dtype())
        .map(|dtype| scene.alone(&format!("as_dtype {dtype:?}"), move |w| w.as_dtype(dtype)))
        .collect()
}
