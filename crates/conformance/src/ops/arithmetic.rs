//! Elementwise arithmetic: unary, binary, rounding, conversions.

use mlx_rs::{Dtype, ops};

family! {
    "abs" [0] (x: signed[3, 4]) => ops::abs(x);
    "acos" [0] (x: signed[3, 4]) => ops::acos(x);
    "acosh" [0] (x: above_one[3, 4]) => ops::acosh(x);
    "asin" [0] (x: signed[3, 4]) => ops::asin(x);
    "asinh" [0] (x: wide[3, 4]) => ops::asinh(x);
    "atan" [0] (x: wide[3, 4]) => ops::atan(x);
    "atanh" [0] (x: signed[3, 4]) => ops::atanh(x);
    "ceil" [0] (x: wide[3, 4]) => ops::ceil(x);
    "cos" [0] (x: wide[3, 4]) => ops::cos(x);
    "cosh" [0] (x: wide[3, 4]) => ops::cosh(x);
    "degrees" [0] (x: signed[3, 4]) => ops::degrees(x);
    "erf" [0] (x: signed[3, 4]) => ops::erf(x);
    "erfinv" [0] (x: signed[3, 4]) => ops::erfinv(x);
    "exp" [0] (x: signed[3, 4]) => ops::exp(x);
    "expm1" [0] (x: signed[3, 4]) => ops::expm1(x);
    "floor" [0] (x: wide[3, 4]) => ops::floor(x);
    "imag" [0] (x: complex[3, 4]) => ops::imag(x);
    "log" [0] (x: positive[3, 4]) => ops::log(x);
    "log10" [0] (x: positive[3, 4]) => ops::log10(x);
    "log1p" [0] (x: positive[3, 4]) => ops::log1p(x);
    "log2" [0] (x: positive[3, 4]) => ops::log2(x);
    "nan_to_num" [0] (x: special[6]) => x.nan_to_num(0.5, 3.0, -3.0);
    "negative" [0] (x: signed[3, 4]) => ops::negative(x);
    "radians" [0] (x: wide[3, 4]) => ops::radians(x);
    "real" [0] (x: complex[3, 4]) => ops::real(x);
    "reciprocal" [0] (x: signed[3, 4]) => ops::reciprocal(x);
    "round" [0] (x: wide[3, 4]) => ops::round(x, None);
    "round[decimals]" [0] (x: wide[3, 4]) => ops::round(x, 1);
    "rsqrt" [0] (x: positive[3, 4]) => ops::rsqrt(x);
    "sigmoid" [0] (x: wide[3, 4]) => ops::sigmoid(x);
    "sign" [0] (x: signed[3, 4]) => ops::sign(x);
    "sin" [0] (x: wide[3, 4]) => ops::sin(x);
    "sinh" [0] (x: wide[3, 4]) => ops::sinh(x);
    "sqrt" [0] (x: positive[3, 4]) => ops::sqrt(x);
    "square" [0] (x: signed[3, 4]) => ops::square(x);
    "tan" [0] (x: signed[3, 4]) => ops::tan(x);
    "tanh" [0] (x: wide[3, 4]) => ops::tanh(x);
    "trunc" [0] (x: wide[3, 4]) => x.trunc();

    "add" [0, 1] (x: signed[3, 4], y: signed[4]) => ops::add(x, y);
    "atan2" [0, 1] (x: signed[3, 4], y: signed[3, 4]) => ops::atan2(x, y);
    "divide" [0, 1] (x: signed[3, 4], y: signed[3, 1]) => ops::divide(x, y);
    "divmod" [0, 1] (x: wide[3, 4], y: positive[3, 4]) => ops::divmod(x, y);
    "floor_divide" [0, 1] (x: wide[3, 4], y: positive[4]) => ops::floor_divide(x, y);
    "logaddexp" [0, 1] (x: signed[3, 4], y: signed[3, 4]) => ops::logaddexp(x, y);
    "maximum" [0, 1] (x: signed[3, 4], y: signed[3, 4]) => ops::maximum(x, y);
    "minimum" [0, 1] (x: signed[3, 4], y: signed[3, 4]) => ops::minimum(x, y);
    "multiply" [0, 1] (x: signed[3, 4], y: signed[4]) => ops::multiply(x, y);
    "power" [0, 1] (x: positive[3, 4], y: signed[3, 4]) => ops::power(x, y);
    "remainder" [0, 1] (x: wide[3, 4], y: positive[4]) => ops::remainder(x, y);
    "subtract" [0, 1] (x: signed[3, 4], y: signed[3, 1]) => ops::subtract(x, y);

    "clip" [0, 1, 2] (x: wide[3, 4], min: signed[4], max: above_one[4]) => ops::clip(x, (min, max));
    "clip[min]" [0, 1] (x: signed[3, 4], min: signed[4]) => ops::clip(x, (min, ()));
    "diff" [0] (x: signed[3, 4]) => x.diff(1, -1);

    "as_dtype[float16]" [0] (x: signed[3, 4]) => x.as_dtype(Dtype::Float16);
    "as_dtype[bfloat16]" [0] (x: signed[3, 4]) => x.as_dtype(Dtype::Bfloat16);
    "as_dtype[int32]" [] (x: wide[3, 4]) => x.as_dtype(Dtype::Int32);
    "as_dtype[float32]" [] (x: integers[3, 4]) => x.as_dtype(Dtype::Float32);
    "view" [] (x: signed[3, 4]) => x.view_dtype(Dtype::Uint32);
    "to_fp8" [] (x: signed[3, 4]) => ops::to_fp8(x);
    "from_fp8" [] (x: scale_bytes[3, 4]) => ops::from_fp8(x, Dtype::Float32);
}
