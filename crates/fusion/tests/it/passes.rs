//! Each pass alone, and what is left alone.

use mlx_rs::{Array, Dtype, ops, transforms};
use tacit_core::Result;
use tacit_core::compile::{CompileOptions, compile_with};
use tacit_core::pass::{Pass, Passes};

use crate::same::{assert_close, check, compiled, floats, nodes, normal};

#[test]
fn passes_run_in_their_order() {
    let names: Vec<&str> = Pass::all().iter().map(|pass| pass.name).collect();
    assert_eq!(names, ["identities", "transposed", "cse", "programs", "plan"]);
}

#[test]
fn an_update_of_weights_by_a_transposed_gradient_is_one_program() {
    let update = |inputs: &[Array]| -> Result<Vec<Array>> {
        let [x, w, g] = inputs else { unreachable!() };
        let loss = |w: &Array| x.matmul(w.t())?.multiply(g)?.sum(None);
        let gradient = transforms::grad(loss)(w)?;
        Ok(vec![w.subtract(gradient.multiply(Array::from_f32(0.1))?)?])
    };
    let inputs = [normal(&[32, 48], 0), normal(&[24, 48], 1), normal(&[32, 24], 2)];
    let done = check(&update, &inputs, 1e-5);
    assert_eq!(nodes(&done, "transposed"), 1, "{done:?}");
    assert!(nodes(&done, "programs") >= 2, "{done:?}");
    let (only, done) = compiled(&update, &inputs, Passes::Only(vec!["transposed".to_owned()])).unwrap();
    assert_eq!((nodes(&done, "transposed"), done.len()), (1, 1));
    assert_close(&only[0], &update(&inputs).unwrap()[0], 1e-5);
}

#[test]
fn a_product_whose_transpose_only_goes_into_products_stays() {
    let product = |inputs: &[Array]| -> Result<Vec<Array>> {
        let ab = inputs[0].matmul(&inputs[1])?;
        Ok(vec![inputs[2].matmul(ab.t())?])
    };
    let done = check(&product, &[normal(&[8, 16], 0), normal(&[16, 12], 1), normal(&[4, 12], 2)], 1e-5);
    assert_eq!(nodes(&done, "transposed"), 0);
}

#[test]
fn batched_products_are_transposed() {
    let product = |inputs: &[Array]| -> Result<Vec<Array>> {
        Ok(vec![inputs[0].matmul(&inputs[1])?.swap_axes(-1, -2)?.add(Array::from_f32(1.0))?])
    };
    let done = check(&product, &[normal(&[3, 8, 16], 0), normal(&[3, 16, 12], 1)], 1e-5);
    assert_eq!(nodes(&done, "transposed"), 1);
}

#[test]
fn equal_nodes_at_any_depth_become_one() {
    // As each layer turns the same positions into the same angles.
    let layers = |inputs: &[Array]| -> Result<Vec<Array>> {
        let mut x = inputs[0].clone();
        for _ in 0..6 {
            let powers = ops::arange::<_, f32>(None, 8, None)?.multiply(Array::from_f32(-0.5))?.exp()?;
            let angles = inputs[1].reshape(&[4, 1])?.multiply(powers)?;
            x = x.multiply(ops::cos(&angles)?)?.add(ops::sin(&angles)?)?;
        }
        Ok(vec![x])
    };
    let inputs = [normal(&[4, 8], 0), normal(&[4], 1)];
    let (_, done) = compiled(&layers, &inputs, Passes::Only(vec!["cse".to_owned()])).unwrap();
    assert!(nodes(&done, "cse") >= 5 * 3, "{done:?}");
    check(&layers, &inputs, 1e-5);
}

#[test]
fn draws_from_one_key_are_equal_and_from_two_are_not() {
    let draws = |inputs: &[Array]| -> Result<Vec<Array>> {
        let draw = |key: &Array| mlx_rs::random::uniform::<_, f32>(0.0, 1.0, &[64], key);
        Ok(vec![draw(&inputs[0])?, draw(&inputs[0])?, draw(&inputs[1])?])
    };
    let keys = [mlx_rs::random::key(1).unwrap(), mlx_rs::random::key(2).unwrap()];
    check(&draws, &keys, 0.0);
    let (results, _) = compiled(&draws, &keys, Passes::All).unwrap();
    assert_eq!(floats(&results[0]), floats(&results[1]));
    assert_ne!(floats(&results[0]), floats(&results[2]));
}

#[test]
fn groups_do_not_need_themselves() {
    // The sum needs the square by way of the product, so that both cannot be one program.
    let around = |inputs: &[Array]| -> Result<Vec<Array>> {
        let square = inputs[0].square()?.add(Array::from_f32(1.0))?;
        let product = square.matmul(&inputs[1])?;
        let sum = product.add(&square)?.multiply(&inputs[0])?;
        Ok(vec![sum.matmul(&square)?.add(&sum)?])
    };
    let done = check(&around, &[normal(&[16, 16], 0), normal(&[16, 16], 1)], 1e-5);
    assert!(nodes(&done, "programs") >= 4);
}

#[test]
fn a_shapeless_trace_stays_as_it_is() {
    let options = CompileOptions { shapeless: true, ..CompileOptions::default() };
    let mut f = compile_with(options, |x: Array| x.exp()?.add(Array::from_f32(1.0)));
    for rows in [2, 3] {
        f.call(normal(&[rows, 4], 0)).unwrap().dense().unwrap().eval().unwrap();
    }
    assert!(f.stats().rewritten.is_empty());
}

#[test]
fn results_may_be_inputs_and_each_other() {
    let f = |inputs: &[Array]| -> Result<Vec<Array>> {
        let x = &inputs[0];
        let y = x.exp()?.add(Array::from_f32(1.0))?;
        Ok(vec![
            x.clone(),
            y.clone(),
            y.clone(),
            y.reshape(&[-1])?,
            x.as_dtype(Dtype::Float16)?.as_dtype(Dtype::Float32)?,
        ])
    };
    check(&f, &[normal(&[3, 5], 0)], 1e-6);
}

#[test]
fn groups_are_formed_in_time_by_the_ops() {
    let inputs = [normal(&[8], 0), normal(&[8, 8], 1)];
    let timed = |count: usize| {
        // Each op on the matrix takes a vector that a long chain of other groups makes.
        let f = |inputs: &[Array]| -> Result<Vec<Array>> {
            let (mut vector, mut matrix) = (inputs[0].clone(), inputs[1].clone());
            for _ in 0..count {
                vector = vector.negative()?;
                matrix = matrix.add(&vector)?;
            }
            Ok(vec![vector, matrix])
        };
        let begun = std::time::Instant::now();
        let (found, done) = compiled(&f, &inputs, Passes::All).expect("it compiles");
        let time = begun.elapsed();
        assert_eq!(nodes(&done, "programs"), 2 * count);
        assert_close(&found[1], &inputs[1], 1e-5);
        time
    };
    let many = timed(30_000);
    // Some seconds, and more than a minute if each op looks at all that came before it. On a slow machine it is 225 times as long as
    // for a fifteenth of the ops then, which otherwise take about a fifteenth of the time.
    let in_time = many < std::time::Duration::from_secs(30) || many < 100 * timed(2000);
    assert!(in_time, "{many:?}");
}
