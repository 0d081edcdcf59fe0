//! What an explanation tells of the graph that passes leave.

use mlx_rs::ops::indexing::argmax_axis;
use mlx_rs::{Array, Stream, ops, transforms};
use tacit_core::compile::StageTimes;
use tacit_core::{Result, compile, explain, tree};

use crate::same::normal;

#[test]
fn the_stages_of_a_training_step_are_told() -> Result<()> {
    let args = (
        normal(&[6, 16], 0),
        normal(&[6], 1),
        normal(&[8, 16], 2),
        Array::from_slice(&[0_u32, 1, 2, 3, 4, 5, 0, 1], &[8]),
    );
    let told = explain(args, |(w, b, x, labels): (Array, Array, Array, Array)| {
        let loss = |args: &[Array]| -> mlx_rs::error::Result<Vec<Array>> {
            let logits = ops::addmm(&args[1], &x, args[0].t(), 1.0, 1.0)?;
            let picked = logits.take_along_axis(labels.expand_dims(1)?, 1)?.squeeze_axes(&[1])?;
            Ok(vec![ops::logsumexp_axis(&logits, -1, false)?.subtract(picked)?.mean(None)?])
        };
        let (losses, gradients) = transforms::value_and_grad_with_argnums(loss, &[0, 1][..])(&[w.clone(), b.clone()])?;
        let rate = Array::from_f32(0.1);
        let w = w.subtract(gradients[0].multiply(&rate)?)?;
        Ok::<_, tacit_core::Error>((losses[0].clone(), w, b.subtract(gradients[1].multiply(&rate)?)?))
    })?;
    expect_test::expect![[r#"
        compiled: 1 node of MLX (transposed 1, programs 11, plan 10)
            a plan of 10 stages
                1 AddMM f32[8,6]
                1 GatherAxis f32[8,1]
                1 RowProgram f32[8]
                1 RowProgram f32[]
                1 ScatterAxis Sum f32[8,6]
                1 RowProgram f32[8,6]
                1 Matmul f32[6,16]
                1 RowProgram f32[6,16]
                1 Sum f32[1,6]
                1 RowProgram f32[6]"#]]
    .assert_eq(&told.compiled.to_string());
    Ok(())
}

#[test]
fn what_no_stage_computes_is_told_with_the_reason() -> Result<()> {
    let other = Stream::new_with_device(&mlx_rs::Device::cpu());
    let told = explain((normal(&[4, 6], 0), normal(&[6, 4], 1)), |(x, w)| {
        let y = x.add(&x)?.transpose_axes(&[1, 0])?.multiply(&w)?;
        let y = y.cummax(-1, None, None)?.add(&y)?.swap_axes(0, 1)?.square()?;
        let far = mlx_rs::with_stream(&other, || y.sum_axes(&[0], false))?;
        let wide = y.as_dtype(mlx_rs::Dtype::Float64)?.square()?;
        let part = ops::broadcast_to(&y.sum_axes(&[0], true)?, &[4, 6])?.matmul(&w)?;
        Ok::<_, tacit_core::Error>([far.add(y.sum_axes(&[1], true)?)?, wide, part.exp()?])
    })?;
    expect_test::expect![[r#"
        { lambda a:f32[4,6] b:f32[6,4] .
            c:f32[4,6] = add a a
            d:f32[6,4] = transpose[axes=(1,0)] c
            e:f32[6,4] = multiply d b
            f:f32[6,4] = cum_max[axis=1,reverse=false,inclusive=true] e
            g:f32[6,4] = add f e
            h:f32[4,6] = transpose[axes=(1,0)] g
            i:f32[4,6] = square h
            j:f32[1,6] = sum[axes=(0)] i
            k:f32[6]   = squeeze[axes=(0)] j
            l:f32[4,6] = broadcast[shape=(4,6)] k
            m:f32[4,1] = sum[axes=(1)] i
            n:f32[4,6] = broadcast[shape=(4,6)] m
            o:f32[4,6] = add l n
            p:f64[4,6] = as_type[dtype=f64] i
            q:f64[4,6] = square p
            r:f32[1,6] = sum[axes=(0)] i
            s:f32[4,6] = broadcast[shape=(4,6)] r
            t:f32[4,4] = matmul s b
            u:f32[4,4] = exp t
            in (o q u) }   19 ops, 0 handled, 0 materialized (0 B)
        compiled: 9 nodes of MLX (programs 7, plan 7)
            a plan of 3 stages
                1 RowProgram f32[4,6]
                1 Transpose f32[6,4]
                1 RowProgram f32[6,4]
            1 CumMax f32[6,4]: no stage computes it
            a plan of 4 stages
                1 RowProgram f32[6,4]
                1 Transpose f32[4,6]
                1 RowProgram f32[4,6]
                1 Sum f32[1,6]
            1 Sum f32[1,6]: it runs on another device or stream
            1 Broadcast f32[4,6]: it only says how an array lies
            1 Matmul f32[4,4]: an operand is broadcast or lies in steps, and MLX reads it where it is
            a plan of 2 stages
                1 RowProgram f32[4,6]
                1 RowProgram f32[4,4]
            1 AsType f64[4,6]: no stage computes it of these dtypes, and no program of these shapes, or of rows as long
            1 Square f64[4,6]: no stage computes it of these dtypes, and no program of these shapes, or of rows as long"#]].assert_eq(&told.to_string());
    expect_test::expect![[r#"
        compiled: 9 nodes of MLX (programs 7, plan 7)
            a plan of 3 stages
            1 CumMax f32[6,4]: no stage computes it
            a plan of 4 stages
            1 Sum f32[1,6]: it runs on another device or stream
            1 Broadcast f32[4,6]: it only says how an array lies
            1 Matmul f32[4,4]: an operand is broadcast or lies in steps, and MLX reads it where it is
            a plan of 2 stages
            1 AsType f64[4,6]: no stage computes it of these dtypes, and no program of these shapes, or of rows as long
            1 Square f64[4,6]: no stage computes it of these dtypes, and no program of these shapes, or of rows as long"#]].assert_eq(&format!("{:#}", told.compiled));
    Ok(())
}

#[test]
fn what_stages_do_not_take_is_told_by_axes_and_places() -> Result<()> {
    let args = (normal(&[2, 3, 4], 0), normal(&[4, 4], 1), Array::from_slice(&[2_u32, 0], &[2]));
    let told = explain(args, |(x, w, at): (Array, Array, Array)| {
        let first = argmax_axis(&x, 0, false)?;
        let (taken, whole) = (x.take_axis(&at, 2)?, x.as_dtype(mlx_rs::Dtype::Int32)?.sum_axes(&[1], false)?);
        let sorted = ops::sort_axis(w.as_dtype(mlx_rs::Dtype::Float64)?, 0)?;
        Ok::<_, tacit_core::Error>([first, taken, whole, sorted, w.matmul(&w)?.cummax(-1, None, None)?.negative()?])
    })?;
    expect_test::expect![[r#"
        compiled: 13 nodes of MLX (programs 1)
            1 ArgReduce u32[1,3,4]: no stage computes it of this dtype along these axes
            1 Squeeze u32[3,4]: it only says how an array lies
            1 Gather f32[2,2,3,1]: no stage computes it of these dtypes and places
            1 Transpose f32[2,3,2,1]: it only says how an array lies
            1 Squeeze f32[2,3,2]: it only says how an array lies
            1 AsType i32[2,3,4]: no stage computes it of these dtypes, and no program of these shapes, or of rows as long
            1 Sum i32[2,1,4]: no stage computes it of this dtype along these axes
            1 Squeeze i32[2,4]: it only says how an array lies
            1 AsType f64[4,4]: no stage computes it of these dtypes, and no program of these shapes, or of rows as long
            1 Sort f64[4,4]: no stage computes it of these dtypes
            1 Matmul f32[4,4]: no other stage is beside it
            1 CumMax f32[4,4]: no stage computes it
            1 RowProgram f32[4,4]: no other stage is beside it"#]].assert_eq(&told.compiled.to_string());
    Ok(())
}

#[test]
fn explaining_leaves_the_arguments_as_they_are() -> Result<()> {
    let x = normal(&[4, 6], 0);
    let before = x.as_slice::<f32>().to_vec();
    let told = explain(&x, |x| x.add(&x)?.transpose_axes(&[1, 0])?.square())?;
    assert_eq!(told.compiled.nodes.len(), 1);
    let y = x.add(&x)?;
    y.eval()?;
    assert_eq!(x.as_slice::<f32>(), before);
    Ok(())
}

/// Other tests may run plans meanwhile, of which some have the same stages.
#[test]
fn the_stages_of_plans_are_timed_while_somebody_asks() -> Result<()> {
    let args = (normal(&[6, 16], 0), normal(&[16, 6], 1));
    let mut step = compile(|(a, b): (Array, Array)| a.matmul(&b)?.matmul(&a)?.exp());
    let mut call = || -> Result<()> { tree::eval(&step.call((&args.0, &args.1))?) };
    call()?;
    let (called, times) = StageTimes::during(|| (0..3).try_for_each(|_| call()));
    called?;
    assert!(times.plans >= 3, "{times:?}");
    let (count, time) = times.stages["Matmul"];
    assert!(count >= 6 && time > std::time::Duration::ZERO, "{times:?}");
    assert!(times.stages.values().map(|(_, time)| *time).sum::<std::time::Duration>() <= times.total, "{times:?}");
    Ok(())
}
