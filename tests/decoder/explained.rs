//! What is told of a step once it is compiled.

use mlx_rs::Array;
use mlx_rs::ops::indexing::argmax_axis;
use tacit::prelude::*;
use tacit_models::{Formats, Positions, caches, quantize};

use crate::golden::loaded;

#[test]
fn a_decoding_step_is_one_plan_whose_stages_are_told() -> Result<()> {
    let (config, model) = loaded("float/llama")?;
    let mut model = quantize(model, &Formats::read("affine:4:32")?)?;
    let mut caches = caches(&config, 1, mlx_rs::Dtype::Float32)?;
    caches.iter_mut().try_for_each(|cache| cache.reserve(4))?;
    let token = Array::from_slice(&[3_u32], &[1, 1]);
    let told = model.explain(|decoder| {
        let logits = decoder.forward(&token, &mut caches, Positions::Last)?;
        Ok::<_, tacit::Error>(argmax_axis(logits, -1, false)?)
    })?;
    expect_test::expect![[r#"
        compiled: 7 nodes of MLX (cse 9, programs 109, plan 58)
            a plan of 17 stages
                1 AffineGatherRows f32[1,1,32]
                2 RowProgram f32[1,1,32]
                4 AffineMatmul f32[1,32]
                2 RowProgram f32[1,4,1,8]
                2 AffineMatmul f32[1,8]
                1 RowProgram f32[1,1,1,8]
                2 DynamicSliceUpdate f32[1,1,256,8]
                1 Matmul f32[1,1,4,1,256]
                1 RowProgram f32[1,1,4,1,256]
                1 Matmul f32[1,1,4,1,8]
            1 CompiledSigmoidBroadcastBroadcastMultiply f32[1,1,32]: MLX fused it while it was recorded; in a compiled function its ops are stages and programs
            a plan of 18 stages
                3 RowProgram f32[1,1,32]
                5 AffineMatmul f32[1,32]
                2 RowProgram f32[1,4,1,8]
                2 AffineMatmul f32[1,8]
                1 RowProgram f32[1,1,1,8]
                2 DynamicSliceUpdate f32[1,1,256,8]
                1 Matmul f32[1,1,4,1,256]
                1 RowProgram f32[1,1,4,1,256]
                1 Matmul f32[1,1,4,1,8]
            1 CompiledSigmoidBroadcastBroadcastMultiply f32[1,1,32]: MLX fused it while it was recorded; in a compiled function its ops are stages and programs
            a plan of 18 stages
                3 RowProgram f32[1,1,32]
                5 AffineMatmul f32[1,32]
                2 RowProgram f32[1,4,1,8]
                2 AffineMatmul f32[1,8]
                1 RowProgram f32[1,1,1,8]
                2 DynamicSliceUpdate f32[1,1,256,8]
                1 Matmul f32[1,1,4,1,256]
                1 RowProgram f32[1,1,4,1,256]
                1 Matmul f32[1,1,4,1,8]
            1 CompiledSigmoidBroadcastBroadcastMultiply f32[1,1,32]: MLX fused it while it was recorded; in a compiled function its ops are stages and programs
            a plan of 5 stages
                2 RowProgram f32[1,1,32]
                1 AffineMatmul f32[1,32]
                1 AffineMatmul f32[1,128]
                1 ArgReduce u32[1,1,1]"#]]
    .assert_eq(&told.compiled.to_string());
    assert!(told.to_string().ends_with(&format!("(0 B)\n{}", told.compiled)));
    Ok(())
}
