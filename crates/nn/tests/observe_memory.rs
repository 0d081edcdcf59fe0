//! What a model holds while it is observed: this is the only test of its program, as MLX counts the bytes of a whole one.

mod peak;

// Dense products are those of a program with the facade.
use tacit_blas as _;

use mlx_rs::macros::ModuleParameters;
use mlx_rs::module::Param;
use mlx_rs::{Array, ops, random, transforms};
use tacit_arrays::Observed;
use tacit_core::{Result, Value, array_id, implicit};
use tacit_nn::{Model, Observations};

use peak::peak;

const INPUTS: i32 = 2048;

/// Bytes of the sums of one weight.
const GRAM: usize = (4 * INPUTS * INPUTS) as usize;

/// What else is held: rows, results and weights' views.
const SLACK: usize = 4 << 20;

/// Three weights that meet the same rows, and one that meets what they make of them.
#[derive(Clone, Debug, ModuleParameters)]
#[module(root = mlx_rs)]
struct Attention {
    #[param]
    queries: Param<Array>,
    #[param]
    keys: Param<Array>,
    #[param]
    values: Param<Array>,
    #[param]
    output: Param<Array>,
}

impl Attention {
    fn forward(&self, x: &Array) -> Result<Array> {
        let [q, k, v] = [&self.queries, &self.keys, &self.values].map(|w| x.matmul(w.t()));
        Ok(q?.add(k?)?.add(v?)?.matmul(self.output.t())?)
    }
}

fn numbers(seed: u64, shape: &[i32]) -> Array {
    random::normal::<f32>(shape, None, 0.02, &random::key(seed).expect("a key")).expect("numbers")
}

fn model() -> Model<Attention> {
    let weight = |seed, outputs| Param::new(numbers(seed, &[outputs, INPUTS]));
    let module = Attention {
        queries: weight(1, INPUTS),
        keys: weight(2, INPUTS),
        values: weight(3, INPUTS),
        output: weight(4, 8),
    };
    Model::new(module).expect("a model")
}

fn run(model: &mut Model<Attention>, batches: &[Array]) -> Result<()> {
    batches.iter().try_for_each(|x| Ok(model.run(|attention| attention.forward(x))?.eval()?))
}

/// Runs batches through the model: what MLX holds at most, and what was seen.
fn observed(model: &mut Model<Attention>, pattern: &str, batches: &[Array]) -> (usize, Observations) {
    let mut seen = None;
    let held = peak(|| {
        seen = Some(model.observe(pattern, |model| run(model, batches)).expect("runs"));
    });
    (held, seen.expect("was seen"))
}

/// The same of squares alone.
fn of_squares(model: &mut Model<Attention>, batches: &[Array]) -> usize {
    peak(|| drop(model.observe_squares("*", |model| run(model, batches)).expect("runs")))
}

/// The same of 16 experts with half as many inputs, each of which meets some rows of two batches.
fn of_experts() -> usize {
    let k = INPUTS / 2;
    let (weight, x) = (numbers(8, &[16, 8, k]), numbers(9, &[64, 1, k]));
    let chosen = Array::from_iter((0..64u32).map(|row| row % 16), &[64]);
    transforms::eval([&weight, &x, &chosen]).expect("evaluates");
    let experts = Observed::new(weight).expect("a weight");
    peak(|| {
        for _ in 0..2 {
            implicit((&x, &experts), |(x, w)| ops::gather_mm(x, w.swap_axes(1, 2)?, None, &chosen, None))
                .expect("runs");
        }
        assert_eq!(experts.finish().expect("products").rows(), [8; 16]);
    })
}

#[test]
fn what_is_observed_is_held_once() {
    let mut model = model();
    let batches = [5, 6, 7].map(|seed| numbers(seed, &[1, 64, INPUTS]));
    let values = model.values().expect("values");
    transforms::eval(values.values().filter_map(Value::as_dense).chain(&batches)).expect("evaluates");
    drop(values);

    // One weight: its sums, and those of a batch beside them.
    let (held, seen) = observed(&mut model, "output", &batches);
    println!("{held} bytes for a weight whose sums take {GRAM}");
    assert!(held < 2 * GRAM + SLACK, "{held} bytes");
    drop(seen);

    // All four: two sums, and beside them those of a batch, or of three weights that have not met it yet.
    let (held, seen) = observed(&mut model, "*", &batches);
    println!("{held} bytes for four weights, of which three share their sums");
    assert!(held < 3 * GRAM + SLACK, "{held} bytes");
    let id = |path| array_id(seen.get(path).expect("seen").gram().expect("products"));
    assert_eq!([id("keys"), id("values")], [id("queries"); 2]);
    assert_ne!(id("output"), id("queries"));

    drop(seen);
    let held = of_experts();
    println!("{held} bytes for experts whose sums take {}", 4 * GRAM);
    assert!(held < 2 * 4 * GRAM + GRAM / 2, "{held} bytes");

    let alone = peak(|| run(&mut model, &batches).expect("runs"));
    let held = of_squares(&mut model, &batches);
    println!("{held} bytes for the squares of four weights, and {alone} where nothing is observed");
    // The squares and magnitudes of what each of the four meets in a batch, and no matrix.
    assert!(held < alone + 4 * 2 * batches[0].nbytes(), "{held} bytes");
}
