//! Half floats that are stored as they are.

use expect_test::expect;
use half::{bf16, f16};
use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::{Array, Dtype, ops};
use tacit_arrays::format::{Bf16, F16, Nf4, Parts};
use tacit_arrays::{Bf16Array, F16Array, Nf4Array};
use tacit_conformance::oracle::relative_error;
use tacit_core::{Aval, Policy, Value, implicit};

use crate::operands::{normal, normal_of};
use crate::prepared::dense;

#[test]
fn an_array_of_the_same_type_is_not_copied() {
    let x = normal_of(Dtype::Bfloat16, 1, &[8, 64]);
    let w = Bf16Array::quantize(&x, Bf16).expect("fits");
    assert!(w.scales().is_none() && w.codes().shape() == [8, 64]);
    w.codes().eval().expect("evaluates");
    assert_eq!(w.codes().as_slice::<u16>().as_ptr(), x.as_slice::<bf16>().as_ptr().cast());
    assert!(dense(w).eq_exact(&x).expect("compares"));
}

#[test]
fn every_number_that_a_type_has_is_kept_and_others_are_rounded_to_nearest_even() {
    let numbers = [0.0, -0.0, 1e-7, 5.96e-8, 2049.0, 2051.0, 65504.0, 65519.0, 1e-40, -65504.0, 0.1, -3e-5];
    let x = Array::from_slice(&numbers, &[3, 4]);
    let bits = |array: &Array| array.as_slice::<f32>().iter().map(|value| value.to_bits()).collect::<Vec<_>>();
    let narrow = numbers.map(|number| f16::from_f32(number).to_f32().to_bits());
    let wide = numbers.map(|number| bf16::from_f32(number).to_f32().to_bits());
    assert_eq!(bits(&dense(F16Array::quantize(&x, F16).expect("fits"))), narrow);
    assert_eq!(bits(&dense(Bf16Array::quantize(&x, Bf16).expect("fits"))), wide);
}

/// As every other format does; what is of the type already is not looked at.
#[test]
fn what_no_code_can_hold_is_refused() {
    let message = |made: tacit_core::Result<Value>| {
        let error = made.and_then(|made| Ok(dense(made).eval()?)).expect_err("no code holds it").to_string();
        error.lines().next().unwrap_or_default().to_owned()
    };
    let with = |number: f32| Array::from_slice(&[1.0, number], &[2]);
    let f16 = |number| message(F16Array::quantize(&with(number), F16).map(Value::from));
    let bf16 = |number| message(Bf16Array::quantize(&with(number), Bf16).map(Value::from));
    for number in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        assert_eq!(f16(number), format!("kernel F16Quantize failed: element 1 is {number}, which no code can hold"));
        assert_eq!(bf16(number), format!("kernel Bf16Quantize failed: element 1 is {number}, which no code can hold"));
    }
    expect!["kernel F16Quantize failed: element 1 is 1000000, and the greatest number of the format is 65504"]
        .assert_eq(&f16(1e6));
    expect![[r#"kernel Bf16Quantize failed: element 1 is -340000000000000000000000000000000000000, and the greatest number of the format is 338953140000000000000000000000000000000"#]]
        .assert_eq(&bf16(-3.4e38));
    let half = with(f32::INFINITY).as_dtype(Dtype::Float16).expect("casts");
    assert!(dense(F16Array::quantize(&half, F16).expect("fits")).eq_exact(&half).expect("compares"));
}

#[test]
fn products_are_summed_in_f32_and_rounded_to_the_type_of_the_activations() {
    // Sums of 4096 numbers of one sign, which half floats alone would lose.
    let positive = |dtype, seed, shape: &[i32]| normal_of(dtype, seed, shape).abs().expect("magnitudes");
    let wide = |array: &Array| array.as_dtype(Dtype::Float32).expect("f32");
    let _deny = Policy::Deny.scope();
    for (dtype, rounding) in [(Dtype::Float16, 5e-4), (Dtype::Bfloat16, 4e-3)] {
        let w = positive(dtype, 1, &[24, 4096]);
        let stored: Value = match dtype {
            Dtype::Float16 => F16Array::quantize(&w, F16).expect("fits").into(),
            _ => Bf16Array::quantize(&w, Bf16).expect("fits").into(),
        };
        for m in [1, 5, 20, 70] {
            let x = positive(dtype, 2, &[m, 4096]);
            let y = implicit((&x, &stored), |(x, w)| x.matmul(w.t())).and_then(|y| y.dense()).expect("multiplies");
            let exact = wide(&x).matmul(wide(&w).t()).expect("multiplies");
            assert_eq!(y.dtype(), dtype);
            assert!(relative_error(&wide(&y), &exact).expect("floats") < rounding, "{dtype:?} m {m}");
            // MLX promotes the weight, of which no rounding shows.
            let y =
                implicit((wide(&x), &stored), |(x, w)| x.matmul(w.t())).and_then(|y| y.dense()).expect("multiplies");
            assert_eq!(y.dtype(), Dtype::Float32);
            assert!(relative_error(&y, &exact).expect("floats") < 1e-6, "{dtype:?} m {m}");
        }
    }
}

#[test]
fn other_float_types_are_views_without_a_rounding() {
    let x = normal_of(Dtype::Bfloat16, 3, &[4, 32]);
    let w = Bf16Array::quantize(&x, Bf16).expect("fits");
    let read = implicit(w.clone(), |w| w.as_dtype(Dtype::Float32)).expect("is a view");
    assert_eq!(read.to_string(), "Bf16(f32[4,32])");
    assert!(dense(read).eq_exact(x.as_dtype(Dtype::Float32).expect("f32")).expect("compares"));
    // In f16 other digits are lost: what is read again shows that they were.
    let through = implicit(w, |w| w.as_dtype(Dtype::Float16)?.as_dtype(Dtype::Float32)).expect("are views");
    let expected = x.as_dtype(Dtype::Float16).and_then(|x| x.as_dtype(Dtype::Float32)).expect("casts");
    assert!(dense(through).eq_exact(expected).expect("compares"));
}

#[test]
fn they_are_cut_and_joined_anywhere() {
    let x = normal_of(Dtype::Float16, 4, &[7, 33]);
    let w = F16Array::quantize(&x, F16).expect("fits");
    let _deny = Policy::Deny.scope();
    let cut = |w: &Array| -> Result<Array, mlx_rs::error::Exception> {
        let odd = w.try_index((1..6, 3..20))?;
        ops::concatenate(&[odd.clone(), odd.try_index((2.., ..))?], 0)?.reshape(&[4, 34])
    };
    let made = implicit(w, |w| cut(&w)).expect("are codes");
    assert_eq!(made.to_string(), "F16(f16[4,34])");
    assert!(dense(made).eq_exact(cut(&x).expect("cuts")).expect("compares"));
}

#[test]
fn parts_that_do_not_fit() {
    let w = Nf4Array::quantize(&normal(5, &[4, 64]), 64).expect("quantizes");
    let codes = ops::zeros_dtype(&[4, 64], Dtype::Uint16).expect("zeros");
    let aval = || Aval::new(&[4, 64], Dtype::Float32);
    let scales = w.scales().expect("has them").clone();
    let said = [
        F16Array::from_parts(Parts::new(codes.clone(), scales), F16, aval()).map(drop),
        F16Array::from_parts(Parts::unscaled(w.codes().clone()), F16, aval()).map(drop),
        Nf4Array::from_parts(Parts::unscaled(w.codes().clone()), Nf4 { block: 64, double: false }, aval()).map(drop),
        "f16:64".parse::<F16>().map(drop),
    ]
    .map(|result| result.expect_err("is refused").to_string());
    expect![[r#"
        f16 has no scales
        help: leave them out
        codes is u8[128], where f16 of f32[4,64] has u16[4,64]
        help: take the parts of one array, with its shape and block size
        nf4:64 has scales, and none are given
        help: give one for each block
        the format f16:64 has no such options
        help: write f16"#]]
    .assert_eq(&said.join("\n"));
}
