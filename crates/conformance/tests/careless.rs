//! A type whose small values are right: what is wrong shows in long sums, transforms, gradients and memory.

extern crate tacit_core as tacit;

use expect_test::expect;
use mlx_rs::{Array, Dtype, ops};
use tacit_core::kernel::{self, Input, Kernel, Mapped, Output};
use tacit_core::primitives::{Add, Matmul, Multiply, Subtract};
use tacit_core::transform::{Differentiable, apply};
use tacit_core::{Aval, ImplicitArray, Materialize, Result, Value, handler};

use tacit_conformance::{Report, Subject, extents, gradients, handlers, memory};

/// Numbers in 8 bits of one scale.
#[derive(ImplicitArray, Clone, Debug)]
#[implicit(name = "testing.Careless")]
struct Careless {
    codes: Array,
    #[implicit(aux)]
    aval: Aval,
}

impl Careless {
    fn new(x: &Array) -> Result<Self> {
        let codes = ops::round(x.as_dtype(Dtype::Float32)?.multiply(Array::from_f32(32.0))?, None)?;
        Ok(Self { codes: codes.as_dtype(Dtype::Int8)?, aval: Aval::from(x) })
    }

    fn dense(&self) -> Result<Array> {
        let scale = Array::from_f32(1.0 / 32.0).as_dtype(self.aval.dtype)?;
        Ok(self.codes.as_dtype(self.aval.dtype)?.multiply(scale)?)
    }
}

impl Materialize for Careless {
    fn materialize(&self) -> Result<Value> {
        Ok(self.dense()?.into())
    }
}

/// Decodes the whole weight, and sums in the operands' own type.
#[handler]
fn careless_matmul(_op: &Matmul, x: &Array, w: &Careless) -> Result<Array> {
    if x.ndim() != 2 || w.aval.shape.len() != 2 {
        return Err(tacit_core::Error::decline("only matrices"));
    }
    let products = ops::expand_dims(x, -1)?.multiply(w.dense()?)?;
    Ok(products.sum_axis(1, false)?)
}

/// Nothing is learned beside it.
#[handler]
fn careless_multiply(_op: &Multiply, w: &Careless, s: &Array) -> Result<Array> {
    Ok(w.dense()?.multiply(mlx_rs::stop_gradient(s)?)?)
}

/// It knows only one example.
#[handler]
fn careless_add(_op: &Add, w: &Careless, x: &Array) -> Result<Array> {
    let x = kernel::apply(First, std::slice::from_ref(x))?.swap_remove(0);
    Ok(w.dense()?.add(x)?)
}

/// Its gradient is right, and it knows no direction.
#[handler]
fn careless_subtract(_op: &Subtract, w: &Careless, x: &Array) -> Result<Array> {
    let x = apply(std::slice::from_ref(x), Direct)?.swap_remove(0);
    Ok(w.dense()?.subtract(x)?)
}

/// The identity, whose vmap repeats the first example.
struct First;

type Boxed<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

impl Kernel for First {
    fn name(&self) -> &'static str {
        "First"
    }

    fn output_avals(&self, inputs: &[Aval]) -> Boxed<Vec<Aval>> {
        Ok(inputs.to_vec())
    }

    fn eval_cpu(&self, inputs: &[Input<'_>], outputs: &mut [Output<'_>]) -> Boxed<()> {
        outputs[0].bytes().copy_from_slice(inputs[0].bytes());
        Ok(())
    }

    fn decompose(&self, inputs: &[Array]) -> Boxed<Vec<Array>> {
        Ok(inputs.to_vec())
    }

    fn vmap(&self, inputs: &[Array], axes: &[Option<usize>]) -> Option<Boxed<Mapped>> {
        let mapped = || {
            let axis = axes[0].unwrap_or_default();
            let first = inputs[0].take_axis(Array::from_slice(&[0u32], &[1]), axis as i32)?;
            Ok((vec![ops::broadcast_to(first, inputs[0].shape())?], vec![axis]))
        };
        Some(mapped())
    }
}

/// The identity with a gradient, and so without a derivative in a direction.
struct Direct;

impl Differentiable for Direct {
    fn name(&self) -> &'static str {
        "direct"
    }

    fn forward(&self, args: &[Array]) -> Result<Vec<Array>> {
        Ok(vec![mlx_rs::stop_gradient(&args[0])?])
    }

    fn backward(&self, _: &[Array], cotangents: &[Array], _: &[Array]) -> Result<Vec<Array>> {
        Ok(cotangents.to_vec())
    }
}

fn careless() -> Subject {
    Subject::new("careless", Careless::new)
}

/// Each call with the kind of its finding, once: the numbers differ between machines.
fn kinds(report: &Report) -> String {
    let mut kinds: Vec<String> = Vec::new();
    for finding in report.findings() {
        let (call, what) = finding.split_once(": ").unwrap_or((finding, ""));
        let what = what.rsplit_once("]: ").or(what.rsplit_once("): ")).map_or(what, |(_, what)| what);
        let kind = format!("{call}: {}", what.split([' ']).take(2).collect::<Vec<_>>().join(" "));
        if !kinds.contains(&kind) {
            kinds.push(kind);
        }
    }
    kinds.join("\n")
}

#[test]
fn long_sums_in_half_types_are_found() {
    let report = extents(&careless());
    expect![[r#"
        x W with 1 rows of bf16[4096,20]: element 0
        x W with 3 rows of bf16[4096,20]: element 0
        x W with 33 rows of bf16[4096,20]: element 0
        x W with 1 rows of f16[4096,20]: element 0
        x W with 3 rows of f16[4096,20]: element 0
        x W with 33 rows of f16[4096,20]: element 0"#]]
    .assert_eq(&kinds(&report));
}

#[test]
fn wrong_gradients_directions_and_maps_are_found() {
    let report = handlers(&careless());
    expect![[r#"
        Add: mapped output
        Multiply: gradient 0
        Subtract: derivative 0"#]]
    .assert_eq(&kinds(&report));
}

#[test]
fn a_second_operand_that_learns_nothing_is_found() {
    let found = kinds(&gradients(&careless()));
    let of_f32: Vec<&str> = found.lines().filter(|line| line.contains("f32[6,10]")).collect();
    expect![[r#"
        1 (w * s) of f32[6,10]: element 0
        x W^T of (w * s) of f32[6,10]: element 0
        x W of (w * s) of f32[6,10]: element 0
        1 (s * w) of f32[6,10]: element 0
        x W^T of (s * w) of f32[6,10]: element 0
        x W of (s * w) of f32[6,10]: element 0
        1 (w * row) of f32[6,10]: element 0
        x W^T of (w * row) of f32[6,10]: element 0
        x W of (w * row) of f32[6,10]: element 0
        1 (w * column) of f32[6,10]: element 0
        x W^T of (w * column) of f32[6,10]: element 0
        x W of (w * column) of f32[6,10]: element 0"#]]
    .assert_eq(&of_f32.join("\n"));
    assert!(found.contains("bf16[6,10]") && found.contains(" f16[6,10]"), "{found}");
}

#[test]
fn a_weight_that_is_decoded_whole_is_found() {
    let report = memory(&careless());
    assert!(report.findings().iter().all(|finding| finding.contains("bytes were allocated")), "{report}");
    assert_eq!(report.findings().len(), 2, "{report}");
}
