//! Steps of optimizers whose moments are codes: decoded, updated and coded one piece of their elements after the other.
//!
//! These are the only tests of their program, one at a time, as the times of stages are those of a whole one.

use std::sync::{Mutex, MutexGuard, PoisonError};

// Dense products are those of a program with the facade.
use tacit_blas as _;
use tacit_fusion as _;

use mlx_rs::optimizers::{Adam, Lion, Optimizer, Sgd};
use mlx_rs::{Array, Dtype, random};
use tacit_core::compile::{CompileOptions, StageTimes, compile_with_state, disable_fusion};
use tacit_core::pass::Passes;
use tacit_core::{Error, Policy, Result, tree};
use tacit_nn::{QuantizedState, Rules};

type State<O> = (Array, QuantizedState<O>);

fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    // MLX's own kernels would take a C++ compiler for each graph.
    disable_fusion();
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// All passes but that which makes plans.
fn without_plans() -> Passes {
    Passes::Only(["identities", "transposed", "cse", "programs"].map(str::to_owned).to_vec())
}

fn normal(seed: u64, shape: &[i32], dtype: Dtype) -> Result<Array> {
    let array = random::normal::<f32>(shape, None, None, &random::key(seed)?)?.as_dtype(dtype)?;
    array.eval()?;
    Ok(array)
}

/// What steps by some gradients leave.
fn run<O>(optimizer: &QuantizedState<O>, weight: &Array, gradients: &[Array], passes: Passes) -> Result<State<O>>
where
    O: Optimizer + Clone + 'static,
{
    let options = CompileOptions { passes, ..CompileOptions::default() };
    let mut state = (weight.clone(), optimizer.clone());
    let mut step = compile_with_state(options, |(weight, optimizer): &mut State<O>, gradient: Array| {
        let mut stepped = weight.clone();
        optimizer.update_single(&"weight".into(), &gradient, &mut stepped)?;
        *weight = stepped.as_dtype(weight.dtype())?;
        Ok::<_, Error>(())
    });
    for gradient in gradients {
        step.call(&mut state, gradient)?;
        tree::eval(&state)?;
    }
    Ok(state)
}

/// The bytes of all arrays of a state.
fn bits<O: Optimizer + Clone + 'static>(state: &State<O>) -> Result<Vec<Vec<u8>>> {
    let bytes = |array: &Array| -> Result<Vec<u8>> {
        let bytes = array.flatten(None, None)?.view_dtype(Dtype::Uint8)?;
        bytes.eval()?;
        Ok(bytes.as_slice::<u8>().to_vec())
    };
    tree::arrays(state)?.iter().map(bytes).collect()
}

/// Checks that three steps leave the same bits with all passes, without plans and without any.
fn check<O>(name: &str, optimizer: &QuantizedState<O>, shapes: &[&[i32]]) -> Result<()>
where
    O: Optimizer + Clone + 'static,
{
    for &shape in shapes {
        for dtype in [Dtype::Float32, Dtype::Bfloat16] {
            let weight = normal(1, shape, dtype)?;
            let gradients = (2..5).map(|seed| normal(seed, shape, dtype)).collect::<Result<Vec<_>>>()?;
            let found = bits(&run(optimizer, &weight, &gradients, Passes::All)?)?;
            for passes in [without_plans(), Passes::Off] {
                let expected = bits(&run(optimizer, &weight, &gradients, passes.clone())?)?;
                assert!(found == expected, "{name}, {shape:?} of {dtype:?}, not as with {passes:?}");
            }
        }
    }
    Ok(())
}

const ANY: &[&[i32]] = &[&[1], &[255], &[256], &[257], &[100_000], &[96, 1024]];
/// Whose rows are groups of 64.
const GROUPED: &[&[i32]] = &[&[64], &[320], &[99_968], &[96, 1024]];

fn rules(first: &str, second: &str) -> Result<Rules> {
    Rules::new().quantize("*.1", second)?.quantize("*", first)
}

#[test]
fn two_moments_have_the_bits_of_stages_that_run_one_after_the_other() -> Result<()> {
    let _alone = alone();
    let _deny = Policy::Deny.scope();
    let adam = |first: &str, second: &str| {
        Ok::<_, Error>(QuantizedState::new(Adam::new(1e-2), &rules(first, second)?)?.from_elements(1))
    };
    for (first, second) in [
        ("dynamic:8:256+reach", "dynamic:8:256:unsigned"),
        ("dynamic:4:128+reach", "dynamic:4:128:unsigned"),
        ("e4m3:64", "dynamic:8:256:unsigned"),
        ("int8:64", "dynamic:8:256:unsigned"),
        ("dynamic:8:256+stochastic", "dynamic:8:256:unsigned+stochastic"),
    ] {
        check(first, &adam(first, second)?, ANY)?;
    }
    for first in ["affine:8:64", "affine:4:64+stochastic", "affine:3:64"] {
        check(first, &adam(first, "dynamic:8:256:unsigned")?, GROUPED)?;
    }
    Ok(())
}

#[test]
fn one_moment_has_the_bits_of_stages_that_run_one_after_the_other() -> Result<()> {
    let _alone = alone();
    let _deny = Policy::Deny.scope();
    check("lion", &QuantizedState::eight_bits(Lion::new(1e-3))?.from_elements(1), ANY)?;
    let mut sgd = Sgd::new(1e-2);
    sgd.momentum = 0.9;
    check("sgd", &QuantizedState::four_bits(sgd)?.from_elements(1), ANY)
}

#[test]
fn no_stage_makes_a_moment_of_floats() -> Result<()> {
    let _alone = alone();
    let (weight, adam) = (normal(1, &[100_000], Dtype::Float32)?, QuantizedState::eight_bits(Adam::new(1e-2))?);
    let gradients = (2..5).map(|seed| normal(seed, &[100_000], Dtype::Float32)).collect::<Result<Vec<_>>>()?;
    let (ran, times) = StageTimes::during(|| run(&adam, &weight, &gradients, Passes::All));
    ran?;
    assert_eq!(times.stages.get("Pieces").map(|(count, _)| *count), Some(3), "{times:?}");
    let of_codes = times.stages.keys().any(|name| name.ends_with("AddDense") || name.ends_with("Quantize"));
    assert!(!of_codes, "{times:?}");
    Ok(())
}

#[test]
fn a_gradient_without_a_code_leaves_nothing_that_can_be_read() -> Result<()> {
    let _alone = alone();
    let (weight, adam) = (normal(1, &[100_000], Dtype::Float32)?, QuantizedState::eight_bits(Adam::new(1e-2))?);
    let mut numbers = vec![0.5_f32; 100_000];
    numbers[70_000] = f32::NAN;
    let gradients = [normal(2, &[100_000], Dtype::Float32)?, Array::from_slice(&numbers, &[100_000])];
    for passes in [Passes::All, without_plans()] {
        let error = run(&adam, &weight, &gradients, passes).map(drop).expect_err("there is no code").to_string();
        assert!(error.contains("kernel DynamicQuantize failed: element 70000 is NaN"), "{error}");
    }
    let mut step = compile_with_state(CompileOptions::default(), |state: &mut State<Adam>, gradient: Array| {
        let (weight, adam) = state;
        adam.update_single(&"weight".into(), &gradient, weight)?;
        Ok::<_, Error>(())
    });
    let mut state = (weight, adam);
    step.call(&mut state, &gradients[1])?;
    for array in tree::arrays(&state)? {
        assert!(array.eval().is_err(), "{array:?}");
    }
    Ok(())
}
