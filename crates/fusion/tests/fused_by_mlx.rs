//! Functions that MLX fused by itself. Apart from other tests of the crate, which tell MLX not to.

use mlx_rs::Array;
use mlx_rs::transforms::compile::compile as fused_by_mlx;
use tacit_core::Result;
use tacit_core::compile::{CompileOptions, Constants, compile_with};
use tacit_core::pass::Passes;
use tacit_fusion as _;

#[test]
fn two_functions_that_mlx_fused_of_the_same_ops_stay_two() -> Result<()> {
    if !tacit_core::compile::is_enabled() {
        return Ok(());
    }
    for passes in [Passes::All, Passes::Off] {
        let a = Array::from_slice(&[1f32, 2.0], &[2]);
        let b = Array::from_slice(&[3f32, 5.0], &[2]);
        // Both are a product and a sum of the same two arrays: `CompiledMultiplyAdd` of `a, b`.
        let whole = move |x: Array| -> Result<Array> {
            let mut first = fused_by_mlx(|(a, b): (&Array, &Array)| a.multiply(b)?.add(a), false);
            let mut second = fused_by_mlx(|(a, b): (&Array, &Array)| a.multiply(b)?.add(b), false);
            Ok(x.multiply(first((&a, &b))?)?.add(second((&a, &b))?)?)
        };
        let x = Array::from_slice(&[1f32, 1.0], &[2]);
        let eager = whole(x.clone())?;
        assert_eq!(eager.as_slice::<f32>(), [10.0, 27.0]);
        let options =
            CompileOptions { constants: Constants::Allow, passes: passes.clone(), ..CompileOptions::default() };
        let compiled = compile_with(options, whole).call(&x)?.dense()?;
        assert_eq!(compiled.as_slice::<f32>(), [10.0, 27.0], "{passes:?}");
    }
    Ok(())
}
