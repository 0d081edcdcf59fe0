//! Handlers of a user's own kernel, by its type.

use std::sync::Arc;

use expect_test::expect;
use mlx_rs::{Array, ops};
use tacit::compile::CompileOptions;
use tacit::kernel::{self, Applied, GpuBackend, Input, Kernel, NamedKernel, Output, trace_for};
use tacit::{
    Aval, DeviceFallback, Error, ImplicitArray, Materialize, Policy, Primitive, Registry, Result, Value, compile_with,
    explain, handler, implicit,
};

use crate::traced::{denied, ones};
use crate::types::{message, without_lines};

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// `min(x, most)`.
struct Cap {
    most: f32,
    name: &'static str,
}

impl Kernel for Cap {
    fn name(&self) -> &'static str {
        self.name
    }

    fn output_avals(&self, inputs: &[Aval]) -> Result<Vec<Aval>, BoxError> {
        Ok(inputs.to_vec())
    }

    fn eval_cpu(&self, inputs: &[Input<'_>], outputs: &mut [Output<'_>]) -> Result<(), BoxError> {
        let elements = outputs[0].elements::<f32>()?.iter_mut().zip(inputs[0].elements::<f32>()?);
        elements.for_each(|(y, x)| *y = x.min(self.most));
        Ok(())
    }

    fn decompose(&self, inputs: &[Array]) -> Result<Vec<Array>, BoxError> {
        Ok(vec![ops::minimum(&inputs[0], Array::from_f32(self.most))?])
    }

    fn params(&self) -> Option<Vec<(&'static str, tacit::Param)>> {
        Some(vec![("most", tacit::Param::Float(f64::from(self.most)))])
    }
}

impl NamedKernel for Cap {
    const NAME: &'static str = "test.Cap";
}

/// Another kernel, which gives `x`, and says to be of the same name and the same parameters.
struct Impostor;

impl Kernel for Impostor {
    fn name(&self) -> &'static str {
        Cap::NAME
    }

    fn output_avals(&self, inputs: &[Aval]) -> Result<Vec<Aval>, BoxError> {
        Ok(inputs.to_vec())
    }

    fn eval_cpu(&self, inputs: &[Input<'_>], outputs: &mut [Output<'_>]) -> Result<(), BoxError> {
        outputs[0].elements::<f32>()?.copy_from_slice(inputs[0].elements::<f32>()?);
        Ok(())
    }

    fn decompose(&self, inputs: &[Array]) -> Result<Vec<Array>, BoxError> {
        Ok(inputs.to_vec())
    }

    fn params(&self) -> Option<Vec<(&'static str, tacit::Param)>> {
        Cap { most: 2.0, name: Cap::NAME }.params()
    }
}

/// The same number everywhere.
#[derive(ImplicitArray, Clone, Debug)]
#[implicit(name = "test.kernels.Same")]
struct Same {
    number: Array,
    #[implicit(aux)]
    aval: Aval,
}

impl Same {
    fn of(number: f32, shape: &[i32]) -> Value {
        Self { number: Array::from_f32(number), aval: Aval::new(shape, mlx_rs::Dtype::Float32) }.into()
    }
}

impl Materialize for Same {
    fn materialize(&self) -> Result<Value> {
        Ok(ops::broadcast_to(&self.number, &self.aval.shape)?.into())
    }
}

#[handler]
fn cap_same(op: &Applied<Cap>, x: &Same) -> Result<Value> {
    Ok(Same { number: cap(op.most, &x.number)?, aval: x.aval.clone() }.into())
}

#[handler]
fn any_primitive(op: &Primitive, x: &Same) -> Result<Value> {
    Err(Error::decline(format!("{} of {}", op.name(), x.aval)))
}

fn cap(most: f32, x: &Array) -> Result<Array> {
    Ok(kernel::apply(Cap { most, name: Cap::NAME }, std::slice::from_ref(x))?.swap_remove(0))
}

fn registry() -> Arc<Registry> {
    Arc::new(Registry::new().with::<cap_same>().with::<any_primitive>())
}

#[test]
fn a_kernel_of_ones_own_has_typed_handlers() -> Result<()> {
    let _registry = registry().scope();
    let y = {
        let _deny = Policy::Deny.scope();
        implicit(Same::of(3.0, &[2, 4]), |x| cap(2.0, &x))?
    };
    assert_eq!(y.to_string(), "Same(f32[2,4])");
    // Its parameters are those of the call, and dense operands need no handler.
    let _allow = Policy::Allow.scope();
    assert!(y.dense()?.eq(Array::from_f32(2.0))?.all(None)?.item_exact::<bool>());
    assert_eq!(implicit(ones(&[2]), |x| cap(0.5, &x))?.dense()?.as_slice::<f32>(), [0.5; 2]);
    registry().check().expect("no two are equal");
    Ok(())
}

#[test]
fn another_kernel_of_the_name_is_not_taken_for_it() -> Result<()> {
    let _registry = registry().scope();
    let impostor = |x: Array| Ok::<_, Error>(kernel::apply(Impostor, &[x])?.swap_remove(0));
    let error = {
        let _deny = Policy::Deny.scope();
        implicit(Same::of(3.0, &[2]), impostor).expect_err("nobody takes it")
    };
    expect![[r#"
        test.Cap[most=2] of Same(f32[2]) needs Same materialized, which the policy forbids
        declined: cap_same: it is another kernel of the name test.Cap
        declined: any_primitive: test.Cap of f32[2]
        help: write a handler for this primitive and these types, or allow it here with `Policy::Allow.scope()`"#]]
    .assert_eq(&message(&error));
    Ok(())
}

/// Its shape rule is `output_avals`: one trace serves all shapes, with a handler as without.
#[test]
fn a_kernel_of_ones_own_needs_no_shapes() -> Result<()> {
    let _registry = registry().scope();
    let _deny = Policy::Deny.scope();
    let both = |(x, same): (Array, Array)| Ok::<_, Error>((cap(0.5, &x)?, cap(2.0, &same)?));
    let mut f = compile_with(CompileOptions { shapeless: true, ..denied() }, both);
    for rows in [2, 5, 3] {
        let (result, same) = f.call((ones(&[rows, 3]), Same::of(3.0, &[7, 4])))?;
        assert_eq!(result.dense()?.as_slice::<f32>(), vec![0.5; 3 * rows as usize]);
        assert_eq!(same.to_string(), "Same(f32[7,4])");
    }
    assert_eq!((f.stats().traces, f.stats().checked), (1, 2));
    Ok(())
}

/// Handlers and passes would take it for the primitive, and compute what MLX does.
#[test]
fn a_kernel_with_the_name_of_a_primitive_is_refused() {
    for (name, own) in [("Sign", "Sign"), ("Softmax", "Softmax"), ("CompiledCap", "Compiled")] {
        let result = kernel::apply(Cap { most: 1.0, name }, &[Array::from_f32(2.0)]);
        let expected = format!(
            "a kernel is named {name}, which is read as the primitive {own} of MLX\nhelp: give it a name of its own, such as \
             `yourcrate.{name}`"
        );
        assert_eq!(result.map(|_| ()).expect_err(name).to_string(), expected);
    }
}

/// MLX merges equal nodes of a compiled function: kernels of two crates that have one name are not equal.
#[test]
fn kernels_of_two_types_are_not_merged() -> Result<()> {
    let both = |x: Array| {
        let other = kernel::apply(Impostor, std::slice::from_ref(&x))?.swap_remove(0);
        Ok::<_, Error>((cap(2.0, &x)?, other))
    };
    let (capped, other) = compile_with(denied(), both).call(Array::from_slice(&[1.0f32, 3.0], &[2]))?;
    assert_eq!(capped.dense()?.as_slice::<f32>(), [1.0, 2.0]);
    assert_eq!(other.dense()?.as_slice::<f32>(), [1.0, 3.0]);
    Ok(())
}

/// Dense, as plain ops that a GPU has, or on the CPU.
#[test]
fn an_explanation_tells_of_kernels_without_a_source() {
    let _registry = registry().scope();
    let _allow = Policy::Allow.scope();
    let _gpu = trace_for(GpuBackend::Cuda);
    let told = || explain(Same::of(3.0, &[2, 4]), |x| cap(2.0, &x)).expect("runs").to_string();
    let plain = told();
    let _cpu = DeviceFallback::Cpu.scope();
    expect![[r#"
        { lambda a:Same(f32[2,4]) .
            b:f32[2,4] = minimum a f32[2,4]   materialized
            in (b) }   1 ops, 0 handled, 1 materialized (32 B), 1 as plain ops
        { lambda a:Same(f32[2,4]) .
            b:Same(f32[2,4]) = test.Cap[most=2] a   cap_same   crates/core/tests/it/kernels.rs:LINE
            in (b) }   1 ops, 1 handled, 0 materialized (0 B), 2 on the CPU"#]]
    .assert_eq(&without_lines(&format!("{plain}\n{}", told())));
}
