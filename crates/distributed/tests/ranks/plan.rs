//! What is counted on the ranks is what the plan of the book's page says.

#[path = "../../../../examples/splits/plan.rs"]
mod estimates;

use mlx_rs::{Array, random};
use tacit_core::transform::vjp;
use tacit_core::{Result, Value};
use tacit_distributed::{Group, Sharded};

use self::estimates::{Engine, Network, Split, Step};
use crate::case::Case;

pub(crate) const CASES: &[Case] =
    &[Case::new("tensor_parallel", tensor_parallel), Case::new("data_parallel", data_parallel)];

const WIDTH: i32 = 32;
const TOKENS: i32 = 16;
const LAYERS: usize = 3;
const NETWORK: Network = Network { engine: Engine::Ring, latency: 0.0, bandwidth: 1.0 };

fn normal(seed: usize, shape: &[i32]) -> Result<Array> {
    Ok(random::normal::<f32>(shape, None, 0.2, &random::key(seed as u64)?)?)
}

/// Layers of two halves, each of which is a product by columns and one by rows.
fn tensor_parallel(group: &Group) -> Result<()> {
    let split =
        |seed, shape: &[i32], axis| -> Result<Value> { Ok(Sharded::split(normal(seed, shape)?, axis, group)?.into()) };
    let half = |at: usize| -> Result<[Value; 2]> {
        Ok([split(at, &[2 * WIDTH, WIDTH], 0)?, split(at + 100, &[WIDTH, 2 * WIDTH], 1)?])
    };
    let halves = (0..2 * LAYERS).map(half).collect::<Result<Vec<_>>>()?;
    let forward = |(x, halves): (Array, Vec<[Array; 2]>)| -> Result<Array> {
        let mut x = x;
        for [up, down] in &halves {
            x = x.matmul(up.t())?.sin()?.matmul(down.t())?;
        }
        Ok(x)
    };
    let x = normal(1, &[TOKENS, WIDTH])?;
    let before = group.traffic();
    let (y, (gradient, _)) = vjp((Value::from(&x), halves), normal(2, &[TOKENS, WIDTH])?, forward)?;
    mlx_rs::transforms::eval([&y.dense()?, gradient.array()?])?;
    let counted = group.traffic();

    let step = Step {
        layers: LAYERS,
        parameters: f64::from(8 * WIDTH * WIDTH),
        bits: 32.0,
        trained: 0.0,
        width: f64::from(WIDTH),
        tokens: f64::from(TOKENS),
        element: 4.0,
    };
    let planned = step.estimate(Split::Tensor, &NETWORK, 1.0, group.size());
    assert_eq!(counted.collectives - before.collectives, planned.collectives as u64);
    assert_eq!(counted.bytes - before.bytes, planned.given as u64);
    Ok(())
}

/// Gradients that are each a collective of their own.
fn data_parallel(group: &Group) -> Result<()> {
    let parameters = 300_000;
    let gradients = (0..LAYERS).map(|at| normal(at, &[parameters])).collect::<Result<Vec<_>>>()?;
    let before = group.traffic();
    mlx_rs::transforms::eval(&group.mean(&gradients)?)?;
    let counted = group.traffic();

    let parameters = f64::from(parameters);
    let step =
        Step { layers: LAYERS, parameters, bits: 32.0, trained: parameters, width: 1.0, tokens: 1.0, element: 4.0 };
    let planned = step.estimate(Split::Data, &NETWORK, 1.0, group.size());
    assert_eq!(counted.collectives - before.collectives, planned.collectives as u64);
    assert_eq!(counted.bytes - before.bytes, planned.given as u64);
    Ok(())
}
