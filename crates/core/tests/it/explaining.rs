//! What a trace tells about itself.

use mlx_rs::error::Exception;
use mlx_rs::{Array, ops};
use tacit::primitives::{AddMM, Transpose};
use tacit::{Explanation, Registry, Result, Taker, Value, explain, handler};

use crate::types::{Left, Outer, Willing, matrix, vector, with_handlers, without_handlers, without_lines};

#[handler]
fn left_transpose(op: &Transpose, x: &Left) -> Result<Value> {
    Ok(Left::of(&ops::transpose_axes(&x.array, &op.axes)?))
}

#[handler]
fn left_addmm(op: &AddMM, a: &Array, b: &Left, c: &Array) -> Result<Value> {
    Ok(ops::addmm(c, a, &b.array, op.alpha, op.beta)?.into())
}

fn layer() -> Explanation {
    let _scopes = with_handlers(Registry::new().with::<left_transpose>().with::<left_addmm>());
    let (x, w, b) = (ops::ones::<f32>(&[2, 3, 4]).expect("builds"), Left::of(&matrix(5, 4)), vector(&[0.0; 5]));
    explain((x, w, b), |(x, w, b)| ops::addmm(&b, &x, w.t(), None, None)).expect("runs")
}

#[test]
fn it_prints_like_a_jaxpr_with_who_took_each_node() {
    expect_test::expect![[r"
        { lambda a:f32[2,3,4] b:Left(f32[5,4]) c:f32[5] .
            d:f32[6,4]       = reshape[shape=(-1,4)] a
            e:Left(f32[4,5]) = transpose[axes=(1,0)] b       left_transpose   crates/core/tests/it/explaining.rs:LINE
            f:f32[6,5]       = broadcast[shape=(6,5)] c
            g:f32[6,5]       = addmm[alpha=1,beta=1] d e f   left_addmm   crates/core/tests/it/explaining.rs:LINE
            h:f32[2,3,5]     = reshape[shape=(2,3,5)] g
            in (h) }   5 ops, 2 handled, 0 materialized (0 B)"]]
    .assert_eq(&without_lines(&layer().to_string()));
}

#[test]
fn it_is_data() {
    let explanation = layer();
    let forms: Vec<&str> = explanation.inputs.iter().map(|input| input.form.as_str()).collect();
    assert_eq!(forms, ["f32[2,3,4]", "Left(f32[5,4])", "f32[5]"]);
    let handled: Vec<&str> = explanation
        .equations
        .iter()
        .filter_map(|equation| match &equation.taker {
            Taker::Handler(site) => Some(site.name),
            _ => None,
        })
        .collect();
    assert_eq!(handled, ["left_transpose", "left_addmm"]);
    let transpose = explanation.equations.iter().find(|equation| equation.primitive.starts_with("transpose"));
    let transpose = transpose.expect("is there");
    assert_eq!((transpose.primitive.as_str(), transpose.operands.len()), ("transpose[axes=(1,0)]", 1));
    assert_eq!(transpose.operands[0], explanation.inputs[1].name);
    assert_eq!(transpose.results[0].form, "Left(f32[4,5])");
    let last = explanation.equations.last().expect("is there");
    assert_eq!(explanation.outputs, [last.results[0].name.clone()]);
    assert_eq!((explanation.counters.handled, explanation.counters.materialized), (2, 0));
}

#[test]
fn every_kind_of_taker_and_several_results_are_told() {
    let _scopes = without_handlers();
    let args = (Outer::of(Left::of(&vector(&[7.0]))), Willing::of(&vector(&[1.0])), vector(&[2.0]));
    let explanation = explain(args, |(x, y, z)| {
        let (quotient, rest) = ops::divmod(&x, Array::from_f32(3.0))?;
        Ok::<_, Exception>([quotient.add(&y)?, rest.exp()?, z, Array::from_f32(7.0)])
    });
    expect_test::expect![[r"
        { lambda a:Outer(f32[1]) b:Willing(f32[1]) c:f32[1] .
            d:f32[1] e:f32[1] = div_mod a f32[1]   materialized
            f:f32[1]          = add d b            default of test.Willing
            g:f32[1]          = exp e
            in (f g c f32[]) }   3 ops, 1 handled, 2 materialized (8 B)"]]
    .assert_eq(&explanation.expect("runs").to_string());
}

/// A model of thirty layers is drawn and printed as one of them; of the weights, those that it takes itself.
#[test]
fn layers_that_repeat_are_shown_once_with_their_weights() {
    let _scopes = without_handlers();
    let weights: Vec<Value> = (0..30).map(|_| Willing::of(&vector(&[1.0]))).collect();
    let told = explain((vector(&[2.0]), weights), |(x, weights): (Array, Vec<Array>)| {
        weights.iter().try_fold(x, |x, w| x.add(w)?.exp()?.square()?.sqrt())
    });
    let told = told.expect("runs");
    assert!(told.to_string().lines().count() > 120);
    expect_test::expect![[r#"
        { lambda a:f32[1] b:Willing(f32[1]) .
            af:f32[1] = add a b     default of test.Willing
            ag:f32[1] = exp af
            ah:f32[1] = square ag
            ai:f32[1] = sqrt ah
            .. the last 4 ops 29 times more
            in (eu) }   120 ops, 30 handled, 0 materialized (0 B)"#]]
    .assert_eq(&format!("{told:#}"));
    let svg = told.to_svg();
    let count = |part: &str| svg.matches(part).count();
    assert_eq!((count(">exp<"), count("<g class=\"input\">"), count("&#215; 30")), (1, 2, 1), "{svg}");
    assert!(!svg.contains("NaN"));
}
