//! The book's page of error kinds: each kind raised by a few lines, and what it says.
//!
//! The handlers of this program contradict each other on purpose, so it is one of its own.

#[path = "errors/kinds.rs"]
mod kinds;

use std::cell::RefCell;
use std::path::PathBuf;
use std::sync::Arc;

use mlx_rs::error::Exception;
use mlx_rs::{Array, Dtype, nn, ops, transforms};
use tacit::compile::{CompileOptions, Constants, compile_with};
use tacit::dispatch::Registry;
use tacit::distributed::Group;
use tacit::executable::{Executable, Mode};
use tacit::prelude::*;
use tacit::primitives::{AsType, Exp, Negative, Subtract, Transpose};
use tacit::transform::{self, Differentiable};

pub(crate) use self::kinds::kind;

/// The kind, and the function that raises it.
pub(crate) type Case = (&'static str, fn() -> Result<()>);

/// In the order of `tacit::Error`.
pub(crate) const CASES: [Case; 28] = [
    ("Mlx", mlx),
    ("PlaceholderLeaked", placeholder_leaked),
    ("EvalInTrace", eval_in_trace),
    ("OtherThread", other_thread),
    ("Group", group),
    ("PeerLost", peer_lost),
    ("HandlerAval", handler_aval),
    ("Ambiguous", ambiguous),
    ("Duplicate", duplicate),
    ("TwoDefaults", two_defaults),
    ("MaterializationDenied", materialization_denied),
    ("FallbackDenied", fallback_denied),
    ("Handler", handler_failed),
    ("NotGivenBack", not_given_back),
    ("Node", node),
    ("Cycle", cycle),
    ("Refused", refused),
    ("Declined", declined),
    ("NoAval", no_aval),
    ("MaterializedAval", materialized_aval),
    ("Gradient", gradient),
    ("Kernel", kernel),
    ("Constants", constants),
    ("Shapeless", shapeless),
    ("Invalid", invalid),
    ("Checkpoint", checkpoint),
    ("File", file),
    ("Function", function),
];

fn ones() -> Result<Array> {
    Ok(ops::ones::<f32>(&[64, 64])?)
}

fn packed() -> Result<Nf4Array> {
    Nf4Array::quantize(&ones()?, 64)
}

// ANCHOR: Mlx
fn mlx() -> Result<()> {
    implicit((packed()?, ops::ones::<f32>(&[3, 5])?), |(w, x)| x.matmul(w)).map(drop)
}
// ANCHOR_END: Mlx

// ANCHOR: PlaceholderLeaked
fn placeholder_leaked() -> Result<()> {
    let kept = RefCell::new(Vec::new());
    let outcome = implicit(packed()?, |w| {
        kept.borrow_mut().push(w.clone());
        w.sum(None)
    });
    outcome.map(drop)
}
// ANCHOR_END: PlaceholderLeaked

// ANCHOR: EvalInTrace
fn eval_in_trace() -> Result<()> {
    implicit(packed()?, |w| {
        let largest = w.max(None)?;
        largest.eval()?;
        w.divide(largest)
    })
    .map(drop)
}
// ANCHOR_END: EvalInTrace

// ANCHOR: OtherThread
fn other_thread() -> Result<()> {
    let lazy = ones()?.negative()?;
    std::thread::spawn(move || lazy.eval()).join().expect("it does not panic")?;
    Ok(())
}
// ANCHOR_END: OtherThread

// ANCHOR: Group
fn group() -> Result<()> {
    let group = Group::init()?;
    group.send(&ones()?, group.size()).map(drop)
}
// ANCHOR_END: Group

// ANCHOR: PeerLost
fn peer_lost() -> Result<()> {
    // A process alone has no other to lose: this is what a step returns on rank 0 where rank 1 was killed.
    let lost = |during: &str| Error::PeerLost {
        rank: 1,
        address: "10.0.0.2:7000".to_owned(),
        during: Some(during.to_owned()),
        reason: "its connection was closed".to_owned(),
    };
    implicit(packed()?, |_| -> Result<Array> { Err(lost("all_sum f32[512,512]")) }).map(drop)
}
// ANCHOR_END: PeerLost

// ANCHOR: HandlerAval
/// A matrix with handlers that are wrong in many ways.
#[derive(ImplicitArray, Clone, Debug)]
#[implicit(name = "book.Careless")]
struct Careless {
    array: Array,
}

impl Materialize for Careless {
    fn materialize(&self) -> Result<Value> {
        Ok(self.array.clone().into())
    }
}

fn careless() -> Result<Careless> {
    Ok(Careless { array: ones()? })
}

#[handler]
fn negative_sum(_: &Negative, x: &Careless) -> Result<Array> {
    Ok(x.array.sum(None)?)
}

fn handler_aval() -> Result<()> {
    let _handlers = Arc::new(Registry::new().with::<negative_sum>()).scope();
    implicit(careless()?, |x| x.negative()).map(drop)
}
// ANCHOR_END: HandlerAval

// ANCHOR: Ambiguous
#[handler]
fn subtract_from(_: &Subtract, x: &Careless, _y: &Value) -> Result<Array> {
    Ok(x.array.clone())
}

#[handler]
fn subtract_what(_: &Subtract, _x: &Value, y: &Careless) -> Result<Array> {
    Ok(y.array.clone())
}

fn ambiguous() -> Result<()> {
    let _handlers = Arc::new(Registry::new().with::<subtract_from>().with::<subtract_what>()).scope();
    implicit((careless()?, careless()?), |(x, y)| x.subtract(y)).map(drop)
}
// ANCHOR_END: Ambiguous

// ANCHOR: Duplicate
#[handler]
fn negative_again(_: &Negative, x: &Careless) -> Result<Array> {
    Ok(x.array.negative()?)
}

fn duplicate() -> Result<()> {
    let registry = Registry::new().with::<negative_sum>().with::<negative_again>();
    registry.check().map_err(|mut found| found.remove(0))
}
// ANCHOR_END: Duplicate

// ANCHOR: TwoDefaults
/// Takes every primitive as if it were the number 1.
#[derive(ImplicitArray, Clone, Debug)]
#[implicit(name = "book.Eager", default = take_all)]
struct Eager {
    array: Array,
}

impl Materialize for Eager {
    fn materialize(&self) -> Result<Value> {
        Ok(self.array.clone().into())
    }
}

fn take_all(_: &Primitive, _: &[&Value]) -> Result<Vec<Value>> {
    Ok(vec![ones()?.into()])
}

fn two_defaults() -> Result<()> {
    let w = ste(&ones()?, |w| Nf4Array::quantize(w, 64))?;
    implicit((Eager { array: ones()? }, w), |(x, w)| ops::maximum(x, w)).map(drop)
}
// ANCHOR_END: TwoDefaults

// ANCHOR: MaterializationDenied
fn materialization_denied() -> Result<()> {
    let _deny = Policy::Deny.scope();
    implicit(packed()?, |w| w.cumsum(1, None, None)).map(drop)
}
// ANCHOR_END: MaterializationDenied

// ANCHOR: FallbackDenied
fn fallback_denied() -> Result<()> {
    let _deny = Policy::Deny.scope();
    // A sum from the codes has no gradient of scales of its own, as a product has.
    let sum = |w: Value| implicit((ones()?, w), |(x, w)| x.add(w)?.sum(None))?.dense();
    transform::grad(sum).call(packed()?).map(drop)
}
// ANCHOR_END: FallbackDenied

// ANCHOR: Handler
#[handler]
fn transpose_wrongly(_: &Transpose, x: &Careless) -> Result<Array> {
    Ok(x.array.reshape(&[7])?)
}

fn handler_failed() -> Result<()> {
    let _handlers = Arc::new(Registry::new().with::<transpose_wrongly>()).scope();
    implicit(careless()?, |x| Ok::<_, Exception>(x.t())).map(drop)
}
// ANCHOR_END: Handler

// ANCHOR: NotGivenBack
fn not_given_back() -> Result<()> {
    let mut model = Model::new(nn::Linear::new(64, 64)?)?;
    model.run(|linear| {
        linear.bias.value = None;
        Err::<(), _>(Error::invalid("the loss is NaN", "lower the rate"))
    })
}
// ANCHOR_END: NotGivenBack

// ANCHOR: Node
fn node() -> Result<()> {
    let described = Executable::builder("loss").mode(Mode::Eager).output("loss");
    let mut loss = described.input("weight", Aval::new(&[64, 64], Dtype::Float32)).build(|given| {
        let w = Nf4Array::quantize(given.get("weight")?, 64)?;
        Ok(vec![implicit((ones()?, w), |(x, w)| x.matmul(w)?.sum(None))?.dense()?])
    })?;
    // A scalar is broadcast.
    loss.run(&[("weight", &Array::from_f32(f32::NAN))]).map(drop)
}
// ANCHOR_END: Node

// ANCHOR: Cycle
#[handler]
fn exp_by_cast(_: &Exp, x: &Careless) -> Result<Value> {
    implicit(x, |x| x.as_dtype(Dtype::Float16)?.as_dtype(Dtype::Float32))
}

#[handler]
fn cast_by_exp(_: &AsType, x: &Careless) -> Result<Value> {
    implicit(x, |x| x.exp()?.as_dtype(Dtype::Float16))
}

fn cycle() -> Result<()> {
    let _handlers = Arc::new(Registry::new().with::<exp_by_cast>().with::<cast_by_exp>()).scope();
    implicit(careless()?, |x| x.exp()).map(drop)
}
// ANCHOR_END: Cycle

// ANCHOR: Refused
/// What must not become an array.
#[derive(ImplicitArray, Clone, Debug)]
#[implicit(name = "book.Sealed")]
struct Sealed {
    #[implicit(aux)]
    aval: Aval,
}

impl Materialize for Sealed {
    fn materialize(&self) -> Result<Value> {
        Err(Error::refuse("it would be 4 TB"))
    }
}

fn refused() -> Result<()> {
    let sealed = Sealed { aval: Aval::new(&[1 << 20, 1 << 20], Dtype::Float32) };
    implicit(sealed, |x| x.sum(None)).map(drop)
}
// ANCHOR_END: Refused

// ANCHOR: Declined
/// Dispatch goes on to the next handler; only who calls one by hand ever sees it.
fn declined() -> Result<()> {
    Err(Error::decline("the left side has more than two axes"))
}
// ANCHOR_END: Declined

// ANCHOR: NoAval
/// Says nothing of its shape, and cannot be asked for it.
#[derive(ImplicitArray, Clone, Debug)]
#[implicit(name = "book.Nameless")]
struct Nameless {}

impl Materialize for Nameless {
    fn materialize(&self) -> Result<Value> {
        Err(Error::refuse("there is nothing in it"))
    }
}

fn no_aval() -> Result<()> {
    implicit(Nameless {}, |x| x.sum(None)).map(drop)
}
// ANCHOR_END: NoAval

// ANCHOR: MaterializedAval
/// Is not what it says.
#[derive(ImplicitArray, Clone, Debug)]
#[implicit(name = "book.Liar")]
struct Liar {
    #[implicit(aux)]
    aval: Aval,
}

impl Materialize for Liar {
    fn materialize(&self) -> Result<Value> {
        Ok(Array::from_f32(1.0).into())
    }
}

fn materialized_aval() -> Result<()> {
    Value::from(Liar { aval: Aval::new(&[2], Dtype::Float32) }).dense().map(drop)
}
// ANCHOR_END: MaterializedAval

// ANCHOR: Gradient
/// A function with a vjp that forgets an argument.
struct Forgetful;

impl Differentiable for Forgetful {
    fn name(&self) -> &'static str {
        "forgetful"
    }

    fn forward(&self, args: &[Array]) -> Result<Vec<Array>> {
        Ok(vec![args[0].add(&args[1])?])
    }

    fn backward(&self, _: &[Array], cotangents: &[Array], _: &[Array]) -> Result<Vec<Array>> {
        Ok(cotangents.to_vec())
    }
}

fn gradient() -> Result<()> {
    let sum = |x: &Array| transform::apply(&[x.clone(), ones()?], Forgetful)?[0].sum(None);
    transforms::grad(sum)(&ones()?)?;
    Ok(())
}
// ANCHOR_END: Gradient

// ANCHOR: Kernel
fn kernel() -> Result<()> {
    let weight = ops::full::<f32>(&[64, 64], Array::from_f32(f32::NAN))?;
    let y = implicit(Nf4Array::quantize(&weight, 64)?, |w| ones()?.matmul(w))?.dense()?;
    Ok(y.eval()?)
}
// ANCHOR_END: Kernel

// ANCHOR: Constants
fn constants() -> Result<()> {
    let weight = ones()?;
    weight.eval()?;
    let options = CompileOptions { name: "the layer".into(), constants: Constants::Deny, ..CompileOptions::default() };
    let mut layer = compile_with(options, move |x: Array| x.matmul(&weight));
    layer.call(ones()?).map(drop)
}
// ANCHOR_END: Constants

// ANCHOR: Shapeless
fn shapeless() -> Result<()> {
    let mean = |x: Array| x.sum(None)?.divide(Array::from_f32(x.shape()[0] as f32));
    let mut mean =
        compile_with(CompileOptions { name: "the mean".into(), shapeless: true, ..CompileOptions::default() }, mean);
    mean.call(&ops::ones::<f32>(&[2])?)?;
    mean.call(&ops::ones::<f32>(&[4])?).map(drop)
}
// ANCHOR_END: Shapeless

// ANCHOR: Invalid
fn invalid() -> Result<()> {
    "nf5:64".parse::<AnyFormat>().map(drop)
}
// ANCHOR_END: Invalid

// ANCHOR: Checkpoint
fn checkpoint() -> Result<()> {
    let (folder, path) = (folder(), folder().join("model.safetensors"));
    std::fs::create_dir_all(&folder).map_err(Error::file("create", &folder))?;
    std::fs::write(&path, b"half of a download").map_err(Error::file("write", &path))?;
    let read = tacit::io::read(&path).map(drop);
    drop(std::fs::remove_dir_all(&folder));
    read
}
// ANCHOR_END: Checkpoint

// ANCHOR: File
fn file() -> Result<()> {
    tacit::io::read("no/such/model.safetensors").map(drop)
}
// ANCHOR_END: File

// ANCHOR: Function
fn function() -> Result<()> {
    implicit(packed()?, |_| -> Result<Array> { Err(Error::Function("the data ended early".into())) }).map(drop)
}
// ANCHOR_END: Function

/// A folder of this process's own.
pub(crate) fn folder() -> PathBuf {
    std::env::temp_dir().join(format!("tacit-book-{}", std::process::id()))
}

/// What a case raises.
pub(crate) fn raised(case: fn() -> Result<()>) -> Error {
    case().expect_err("each case raises an error")
}

fn main() {
    for (name, case) in CASES {
        let error = raised(case);
        assert_eq!(kind(&error), name);
        println!("== {name}\n{error}\n");
    }
}
