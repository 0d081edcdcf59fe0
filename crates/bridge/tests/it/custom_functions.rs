//! Functions with transforms of their own.

use std::sync::atomic::{AtomicBool, Ordering};

use mlx_rs::transforms::{fallible_jvp, fallible_vjp};
use mlx_rs::{Array, ops, stop_gradient};
use tacit_bridge::{BoxError, CustomFunction, Mapped, TangentError, checkpoint, custom_function, recover, vjp, vmap};

use crate::arrays::{matrix, numbers, vector};

type Made = Result<Vec<Array>, BoxError>;
type Jvp = fn(&[Array], &[Array], &[usize]) -> Made;
type Results = fn(&Array) -> Made;
type Vjp = fn(&[Array], &[Array]) -> Made;
type Vmap = fn(&[Array], &[Option<usize>]) -> Result<Mapped, BoxError>;

/// `x * y` and `x`; its jvp and vmap are told by its fields.
#[derive(Default)]
struct Product {
    jvp: Option<Jvp>,
    vmap: Option<Vmap>,
    vjp: Option<Vjp>,
}

impl CustomFunction for Product {
    fn name(&self) -> &'static str {
        "product"
    }

    fn forward(&self, args: &[Array]) -> Made {
        Ok(vec![args[0].multiply(&args[1])?, args[0].clone()])
    }

    fn vjp(&self, primals: &[Array], cotangents: &[Array], _: &[Array]) -> Option<Made> {
        self.vjp.map(|rule| rule(primals, cotangents))
    }

    fn jvp(&self, primals: &[Array], tangents: &[Array], argnums: &[usize]) -> Option<Made> {
        self.jvp.map(|rule| rule(primals, tangents, argnums))
    }

    fn vmap(&self, inputs: &[Array], axes: &[Option<usize>]) -> Option<Result<Mapped, BoxError>> {
        self.vmap.map(|rule| rule(inputs, axes))
    }
}

fn applied(product: Product, args: &[Array]) -> mlx_rs::error::Result<Vec<Array>> {
    custom_function(product, args).map_err(|error| mlx_rs::error::Exception::custom(error.to_string()))
}

fn tangents(jvp: Option<Jvp>) -> mlx_rs::error::Result<Vec<Vec<f32>>> {
    let f = |args: &[Array]| applied(Product { jvp, ..Product::default() }, args);
    let primals = [vector(&[3.0]), vector(&[5.0])];
    let (_, tangents) = fallible_jvp(f, &primals, &[vector(&[1.0]), vector(&[10.0])])?;
    Ok(tangents.iter().map(numbers).collect())
}

#[test]
fn without_rules_its_transforms_are_those_of_the_function() {
    assert_eq!(tangents(None).expect("differentiates"), [[35.0], [1.0]]);
    let f = |args: &[Array]| applied(Product::default(), args);
    let cotangents = [vector(&[1.0]), vector(&[100.0])];
    let (_, gradients) = fallible_vjp(f, &[vector(&[3.0]), vector(&[5.0])], &cotangents).expect("differentiates");
    assert_eq!(gradients.iter().map(numbers).collect::<Vec<_>>(), [[105.0], [3.0]]);
    let mut f = |args: Vec<Array>| Ok(custom_function(Product::default(), &args)?);
    let results = vmap(&[matrix(2, 2), vector(&[1.0, 10.0])], &[Some(0), None], |n| vec![0; n], &mut f).expect("maps");
    assert_eq!(numbers(&results[0]), [1.0, 20.0, 3.0, 40.0]);
}

#[test]
fn codes_have_zeros_for_gradients() {
    let f = |args: &[Array]| {
        let codes = Array::from_slice(&[2_i32], &[1]);
        applied(Product::default(), &[args[0].clone(), codes])
    };
    let cotangents = [vector(&[1.0]), vector(&[0.0])];
    let (_, gradients) = fallible_vjp(f, &[vector(&[3.0])], &cotangents).expect("differentiates");
    assert_eq!(numbers(&gradients[0]), [2.0]);
}

#[test]
fn each_rule_is_the_functions_own() {
    let own: Jvp = |primals, tangents, argnums| {
        assert_eq!((primals.len(), argnums), (2, &[0, 1][..]));
        Ok(vec![tangents[1].clone(), primals[0].clone()])
    };
    assert_eq!(tangents(Some(own)).expect("differentiates"), [[10.0], [3.0]]);
    let vjp = Some((|primals: &[Array], _: &[Array]| Ok(primals.to_vec())) as Vjp);
    let f = |args: &[Array]| applied(Product { vjp, ..Product::default() }, args);
    let ones = [vector(&[1.0]), vector(&[1.0])];
    let (_, gradients) = fallible_vjp(f, &[vector(&[3.0]), vector(&[5.0])], &ones).expect("differentiates");
    assert_eq!(gradients.iter().map(numbers).collect::<Vec<_>>(), [[3.0], [5.0]]);
    let mut f = |args: Vec<Array>| -> Made {
        let rule: Vmap = |inputs, axes| {
            assert_eq!(axes, [Some(1), None]);
            Ok((vec![inputs[0].negative()?, inputs[0].clone()], vec![1, 1]))
        };
        Ok(custom_function(Product { vmap: Some(rule), ..Product::default() }, &args)?)
    };
    let results = vmap(&[matrix(2, 2), vector(&[1.0, 2.0])], &[Some(1), None], |n| vec![0; n], &mut f).expect("maps");
    assert_eq!(numbers(&results[0]), [-1.0, -3.0, -2.0, -4.0]);
}

#[test]
fn tangents_that_do_not_fit_are_errors() {
    let cases: [(Jvp, &str); 4] = [
        (|_, _, _| Ok(vec![]), "the jvp of product gave 0 tangents for 2 results"),
        (|primals, _, _| Ok(vec![primals[0].clone(); 3]), "the jvp of product gave 3 tangents for 2 results"),
        (
            |primals, _, _| Ok(vec![primals[0].clone(), primals[0].sum(None)?]),
            "the jvp of product gave f32[] as the tangent of result 1, which is f32[1]",
        ),
        (|_, _, _| panic!("the jvp's own"), "panicked: the jvp's own"),
    ];
    for (rule, message) in cases {
        let error = tangents(Some(rule)).expect_err("does not fit");
        assert!(error.what().contains(message), "{error}");
        assert_eq!(recover(error.what()).expect("kept").is::<TangentError>(), !message.contains("panicked"));
    }
}

#[test]
fn mapped_results_that_do_not_fit_are_errors() {
    let cases: [(Vmap, &str); 3] = [
        (|inputs, _| Ok((vec![inputs[0].clone()], vec![0])), "1 results, f32[2,3], with the mapped axes [0]"),
        (
            |inputs, _| Ok((vec![inputs[0].clone(); 3], vec![0; 3])),
            "3 results, f32[2,3] f32[2,3] f32[2,3], with the mapped axes [0, 0, 0]",
        ),
        (
            |inputs, _| Ok((vec![inputs[0].clone(); 2], vec![0, 1])),
            "2 results, f32[2,3] f32[2,3], with the mapped axes [0, 1]",
        ),
    ];
    for (rule, given) in cases {
        let mut f = |args: Vec<Array>| -> Made {
            Ok(custom_function(Product { vmap: Some(rule), ..Product::default() }, &args)?)
        };
        let axes = [Some(0), Some(0)];
        let error = vmap(&[matrix(2, 3), matrix(2, 3)], &axes, |n| vec![0; n], &mut f).expect_err("does not fit");
        let expected = format!(
            "the vmap of product gave {given}\nhelp: give what each of 2 examples has, f32[3] f32[3], with an axis more for them"
        );
        assert_eq!(error.to_string(), expected);
    }
}

#[test]
fn a_function_gives_the_same_results_when_it_is_called_again() {
    struct Fickle(AtomicBool, Results);
    impl CustomFunction for Fickle {
        fn name(&self) -> &'static str {
            "fickle"
        }

        fn forward(&self, args: &[Array]) -> Made {
            if self.0.swap(true, Ordering::Relaxed) { (self.1)(&args[0]) } else { Ok(args.to_vec()) }
        }
    }
    let cases: [(Results, &str); 3] = [
        (|x| Ok(vec![x.clone(); 2]), "f32[2] f32[2]"),
        (|x| Ok(vec![x.sum(None)?]), "f32[]"),
        (|x| Ok(vec![x.as_dtype(mlx_rs::Dtype::Int32)?]), "i32[2]"),
    ];
    for (later, given) in cases {
        let fickle = |args: &[Array]| custom_function(Fickle(AtomicBool::new(false), later), args);
        let help = "let it give the same shapes and dtypes in each call";
        let expected = format!("fickle gave {given} when it was called again, and f32[2] before\nhelp: {help}");
        let mut f = |args: Vec<Array>| -> Made { Ok(fickle(&args)?) };
        let error = vmap(&[matrix(3, 2)], &[Some(0)], |n| vec![0; n], &mut f).expect_err("does not fit");
        assert!(error.to_string().starts_with(&expected), "{error}");
        let f = |args: &[Array]| fickle(args).map_err(|error| mlx_rs::error::Exception::custom(error.to_string()));
        let x = [vector(&[1.0, 2.0])];
        let error = fallible_jvp(f, &x, &x).expect_err("does not fit");
        assert!(error.what().contains(&expected), "{error}");
    }
}

#[test]
fn a_quantized_product_within_it_is_mapped() {
    struct Quantized;
    impl CustomFunction for Quantized {
        fn name(&self) -> &'static str {
            "quantized"
        }

        fn forward(&self, args: &[Array]) -> Made {
            Ok(vec![ops::quantized_matmul(&args[0], &args[1], &args[2], &args[3], true, 32, 4)?])
        }
    }
    let (codes, scales, biases) = ops::quantize(ops::ones::<f32>(&[2, 32]).expect("builds"), 32, 4).expect("quantizes");
    let args = [ops::ones::<f32>(&[3, 1, 32]).expect("builds"), codes, scales, biases];
    let mut f = |args: Vec<Array>| Ok(custom_function(Quantized, &args)?);
    let results = vmap(&args, &[Some(0), None, None, None], |n| vec![0; n], &mut f).expect("maps");
    assert_eq!((results[0].shape(), numbers(&results[0])), (&[3, 1, 2][..], vec![32.0; 6]));
}

#[test]
fn a_cotangent_goes_to_its_result() {
    struct Pair(Results);
    impl CustomFunction for Pair {
        fn name(&self) -> &'static str {
            "pair"
        }

        fn forward(&self, args: &[Array]) -> Made {
            (self.0)(&args[0])
        }
    }
    let cases: [(Results, f32); 3] = [
        (|x| x.square().map(|y| vec![y.clone(), y]).map_err(Into::into), 66.0),
        (|x| Ok(vec![stop_gradient(x)?, x.square()?]), 60.0),
        (|x| Ok(vec![x.clone(), x.clone()]), 11.0),
    ];
    let primals = [vector(&[3.0])];
    let cotangents = [vector(&[1.0]), vector(&[10.0])];
    for (function, expected) in cases {
        let gradients = [
            vjp(&primals, &cotangents, &mut |args| Ok(custom_function(Pair(function), &args)?)),
            vjp(&primals, &cotangents, &mut |args| Ok(checkpoint(move |args| function(&args[0]), &args)?)),
            vjp(&primals, &cotangents, &mut |args| function(&args[0])),
        ];
        for gradient in gradients {
            assert_eq!(numbers(&gradient.expect("differentiates")[0]), [expected]);
        }
    }
}

/// A product whose rules give 100 times what the plain ones do.
fn exaggerated(own_vmap: bool) -> Product {
    let vjp: Vjp = |primals, cotangents| {
        let scaled = cotangents[0].multiply(Array::from_f32(100.0))?;
        Ok(vec![scaled.multiply(&primals[1])?, scaled.multiply(&primals[0])?])
    };
    let jvp: Jvp =
        |_, tangents, _| Ok(vec![tangents[0].multiply(Array::from_f32(100.0))?, ops::zeros_like(&tangents[0])?]);
    let vmap: Vmap = |inputs, axes| {
        let x = inputs[0].move_axis(axes[0].ok_or("x is mapped")? as i32, 0)?;
        let last = x.ndim() - 1;
        let results = vec![x.multiply(&inputs[1])?, x];
        Ok((results.into_iter().map(|array| array.move_axis(0, last as i32)).collect::<Result<_, _>>()?, vec![last; 2]))
    };
    Product { vjp: Some(vjp), jvp: Some(jvp), vmap: own_vmap.then_some(vmap) }
}

/// The function mapped over the last axis of `x`, and over the first one where there are three.
fn mapped(own_vmap: bool, args: &[Array]) -> mlx_rs::error::Result<Vec<Array>> {
    let mut one = |args: Vec<Array>| -> Made { Ok(custom_function(exaggerated(own_vmap), &args)?) };
    let mut inner = |args: Vec<Array>| -> Made { Ok(vmap(&args, &[Some(-1), None], |n| vec![0; n], &mut one)?) };
    let result = match args[0].ndim() {
        2 => inner(args.to_vec()),
        _ => vmap(args, &[Some(0), None], |n| vec![0; n], &mut inner).map_err(Into::into),
    };
    result.map_err(|error| mlx_rs::error::Exception::custom(error.to_string()))
}

#[test]
fn a_mapped_function_keeps_its_vjp() {
    for own_vmap in [false, true] {
        let f = |args: &[Array]| mapped(own_vmap, args);
        let y = vector(&[1.0, 10.0]);
        let cotangents = |shape: &[i32]| {
            [ops::ones::<f32>(shape).expect("builds"), ops::full::<f32>(shape, Array::from_f32(7.0)).expect("builds")]
        };
        let (results, gradients) =
            fallible_vjp(f, &[matrix(2, 3), y.clone()], &cotangents(&[3, 2])).expect("differentiates");
        assert_eq!(numbers(&results[0]), [1.0, 40.0, 2.0, 50.0, 3.0, 60.0]);
        assert_eq!(numbers(&gradients[0]), [100.0, 100.0, 100.0, 1000.0, 1000.0, 1000.0]);
        assert_eq!(numbers(&gradients[1]), [600.0, 1500.0]);

        let x = ops::stack(&[matrix(2, 3), matrix(2, 3)], 0).expect("stacks");
        let (_, gradients) = fallible_vjp(f, &[x, y], &cotangents(&[2, 3, 2])).expect("differentiates");
        assert_eq!(numbers(&gradients[0])[..6], [100.0, 100.0, 100.0, 1000.0, 1000.0, 1000.0]);
        assert_eq!(numbers(&gradients[1]), [1200.0, 3000.0]);
    }
}

#[test]
fn a_mapped_function_keeps_its_jvp() {
    for own_vmap in [false, true] {
        let y = vector(&[1.0, 10.0]);
        let f = |args: &[Array]| mapped(own_vmap, &[args[0].clone(), y.clone()]);
        let (_, tangents) = fallible_jvp(f, &[matrix(2, 3)], &[matrix(2, 3)]).expect("differentiates");
        assert_eq!(numbers(&tangents[0]), [100.0, 400.0, 200.0, 500.0, 300.0, 600.0]);
        assert_eq!(numbers(&tangents[1]), [0.0; 6]);
    }
}
