//! Straight-through gradients.

use std::cell::RefCell;
use std::ops::Range;

use mlx_rs::{Array, Device, DeviceType, Dtype, ops};
use tacit_core::primitives::{self, Derivative, StopGradient, TypedPrimitive};
use tacit_core::transform::{Differentiable, apply, intercept};
use tacit_core::tree::{self, Open};
use tacit_core::{Arguments, Aval, Error, ImplicitArray, Materialize, Primitive, Result, Tree, Value, handler};

use crate::avals::axes::said;
use crate::avals::checks::check_children;
use crate::families::cut::{Cut, cut};
use crate::kernel::derivatives;

/// What `f` makes of float masters, such as quantized arrays, with the gradient passed straight through to the masters.
///
/// The forward pass uses what `f` returns, by the handlers of its type. The backward pass takes the vjp of the plain
/// primitive, again with the implicit operand intercepted, and gives the master the cotangent of the dense weight that
/// neither pass builds. Tangents pass straight through as well, and so do derivatives of derivatives. Under `vmap` each
/// example of a mapped master is quantized by itself.
///
/// `masters` are one array, a value, or a tree of them, and `f` returns the same structure, each result for the master in
/// its place; results of masters that are not float are passed on as they are. Of one master it may also return several
/// results, each of the master's shape and dtype, and the master gets the gradients of all. A master that is implicit is
/// materialized, under the policy: its gradient goes on to its float children.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::{Array, ops, transforms};
/// use tacit_arrays::{Nf4Array, ste};
/// use tacit_core::implicit;
///
/// let x = ops::ones::<f32>(&[1, 32])?;
/// let loss = |master: &Array| -> tacit_core::Result<Array> {
///     let w = ste(master, |w| Nf4Array::quantize(w, 32))?;
///     implicit((&x, w), |(x, w)| x.matmul(w)?.sum(None))?.dense()
/// };
/// let mut gradient = transforms::grad(move |master: &Array| Ok(loss(master)?));
/// let gradient = gradient(&ops::ones::<f32>(&[32, 2])?)?;
/// assert_eq!(gradient.as_slice::<f32>(), [1.0; 64]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// `f` fails, or returns another structure, or another shape or dtype than a master's; or the policy forbids that an
/// implicit master is materialized.
pub fn ste<A, V, E>(masters: A, f: impl FnOnce(&A::Arrays) -> Result<V, E>) -> Result<<V::Arrays as Tree>::With<Value>>
where
    A: Arguments,
    V: Arguments,
    E: Into<Error>,
{
    let (masters, of) = tree::flatten(&masters, Open::Closed)?;
    let masters = masters.iter().map(Value::dense).collect::<Result<Vec<Array>>>()?;
    let stopped = masters.iter().map(|master| Ok(mlx_rs::stop_gradient(master)?.into()));
    let results = f(&tree::unflatten(&of, stopped.collect::<Result<_>>()?)?).map_err(Into::into)?;
    let (results, structure) = tree::flatten(&results, Open::Closed)?;
    let several = masters.len() == 1 && results.len() != 1;
    if let Some(difference) = of.difference(&structure).filter(|_| !several) {
        return Err(Error::invalid(
            format!("the function given to ste made another structure than that of its masters: {difference}"),
            "return one array for each master, in the structure of the masters",
        ));
    }
    let paired = results.into_iter().enumerate().map(|(position, result)| {
        let master = &masters[if several { 0 } else { position }];
        let (expected, found) = (Aval::from(master), result.aval()?);
        if expected != found {
            return Err(Error::invalid(
                format!("the function given to ste made {result} of {expected}"),
                "return an array of the master's own shape and dtype",
            ));
        }
        if expected.dtype.is_inexact() { with_gradient_of(result, master.clone()) } else { Ok(result) }
    });
    tree::unflatten(&structure, paired.collect::<Result<_>>()?)
}

/// A float master whose forward value is another array.
#[derive(ImplicitArray, Clone, Debug)]
#[implicit(name = "tacit.Ste", default = straight_through, family(Cut))]
pub struct Ste {
    /// The float array that the gradient goes to.
    #[implicit(get)]
    master: Array,
    /// The array that the forward pass uses.
    #[implicit(get)]
    inner: Value,
    #[implicit(aux)]
    aval: Aval,
}

impl Materialize for Ste {
    fn materialize(&self) -> Result<Value> {
        with_gradient_of(self.inner.opened()?, self.master.clone())
    }

    fn check(&self) -> Result<()> {
        let inner = self.inner.aval()?;
        check_children(
            "a straight-through array",
            &self.aval,
            &[
                ("its master", self.aval.clone(), Aval::from(&self.master)),
                ("its inner array", self.aval.clone(), inner),
            ],
        )
    }
}

impl Cut for Ste {
    fn cut(&self, axis: usize, range: Range<i32>) -> Result<Value> {
        let master = cut(&(&self.master).into(), axis as i32, range.clone())?.dense()?;
        with_gradient_of(cut(&self.inner, axis as i32, range)?, master)
    }
}

pub(crate) fn with_gradient_of(inner: Value, master: Array) -> Result<Value> {
    match inner {
        Value::Implicit(_) => Ok(Ste { aval: Aval::from(&master), master, inner }.into()),
        Value::Dense(value) => dense_with_gradient_of(&value, &master),
    }
}

pub(crate) fn dense_with_gradient_of(value: &Array, master: &Array) -> Result<Value> {
    Ok(apply(&[master.clone(), value.clone()], Passed)?.swap_remove(0).into())
}

/// The second argument, with the derivative of the first.
struct Passed;

impl Differentiable for Passed {
    fn name(&self) -> &'static str {
        "ste"
    }

    fn forward(&self, args: &[Array]) -> Result<Vec<Array>> {
        Ok(vec![args[1].clone()])
    }

    fn backward(&self, primals: &[Array], cotangents: &[Array], _: &[Array]) -> Result<Vec<Array>> {
        Ok(vec![cotangents[0].clone(), ops::zeros_like(&primals[1])?])
    }

    fn tangents(&self, primals: &[Array], tangents: &[Array], argnums: &[usize]) -> Option<Result<Vec<Array>>> {
        let passed = tangent_at(0, tangents, argnums);
        Some(passed.map_or_else(|| Ok(ops::zeros_like(&primals[1])?), Ok).map(|tangent| vec![tangent]))
    }
}

pub(crate) fn tangent_at(position: usize, tangents: &[Array], argnums: &[usize]) -> Option<Array> {
    argnums.iter().zip(tangents).find(|(argnum, _)| **argnum == position).map(|(_, tangent)| tangent.clone())
}

/// Nothing behind it gets a gradient, the master neither.
#[handler]
pub(crate) fn ste_stop_gradient(op: &StopGradient, array: &Ste) -> Result<Value> {
    match &array.inner {
        Value::Implicit(inner) => crate::families::structural::stop_gradient(op, &**inner),
        Value::Dense(inner) => Ok(mlx_rs::stop_gradient(inner)?.into()),
    }
}

/// Any primitive on a [`Ste`]: applied to `inner`, differentiated on the master.
fn straight_through(primitive: &Primitive, operands: &[&Value]) -> Result<Vec<Value>> {
    let inner: Vec<&Value> =
        operands.iter().map(|value| value.downcast::<Ste>().map_or(*value, |ste| &ste.inner)).collect();
    let results = primitive.apply(&inner)?;
    if let (primitives::Slice::NAME, [array], [result]) = (primitive.name(), operands, &results[..]) {
        said(&primitive.view()?, &array.aval()?.shape, &result.aval()?)?;
    }
    let others = || operands.iter().filter(|value| value.downcast::<Ste>().is_none());
    if results.iter().any(Value::is_implicit) {
        // A view: the master is viewed the same way.
        if !primitives::describe(primitive.name()).is_some_and(|row| row.derivative == Derivative::Linear)
            || others().any(|value| is_differentiable(value))
        {
            return Err(Error::decline(
                "the result is implicit, and its derivative not that of the same view of a master",
            ));
        }
        let master =
            |value: &&Value| value.downcast::<Ste>().map_or_else(|| (*value).clone(), |ste| (&ste.master).into());
        let masters: Vec<Value> = operands.iter().map(master).collect();
        let masters = primitive.apply(&masters.iter().collect::<Vec<_>>())?;
        return masters.iter().zip(results).map(|(master, result)| with_gradient_of(result, master.dense()?)).collect();
    }
    if others().any(|value| value.is_implicit() && is_differentiable(value)) {
        return Err(Error::decline("the children of the other implicit operand would get no gradient"));
    }
    let results = results.iter().map(Value::dense).collect::<Result<Vec<_>>>()?;
    if !results.iter().any(|result| result.dtype().is_inexact()) {
        return Ok(results.into_iter().map(Value::from).collect());
    }
    let (mut args, mut roles) = (Vec::new(), Vec::new());
    for value in operands {
        // Every array is an argument, also what has no gradient: `vmap` maps arguments only.
        roles.push(match (value.downcast::<Ste>(), value) {
            (Some(ste), _) => {
                args.push(ste.master.clone());
                leaves(&ste.inner, &mut args);
                Role::Master(ste.inner.clone())
            }
            (None, Value::Dense(array)) => {
                args.push(array.clone());
                if array.dtype().is_inexact() { Role::Differentiable } else { Role::Constant((*value).clone()) }
            }
            (None, constant) => {
                leaves(constant, &mut args);
                Role::Constant((*constant).clone())
            }
        });
    }
    let avals = results.iter().map(Aval::from).collect();
    let function = StraightThrough { primitive: primitive.clone(), roles, avals, results: RefCell::new(Some(results)) };
    Ok(apply(&args, function)?.into_iter().map(Value::from).collect())
}

/// Whether a gradient may go to a value or a child of it.
fn is_differentiable(value: &Value) -> bool {
    match value {
        Value::Dense(array) => array.dtype().is_inexact(),
        Value::Implicit(array) => array.children().iter().any(|(_, child)| is_differentiable(child)),
    }
}

/// Adds the dense arrays of a value.
fn leaves(value: &Value, found: &mut Vec<Array>) {
    match value {
        Value::Dense(array) => found.push(array.clone()),
        Value::Implicit(array) => array.children().iter().for_each(|(_, child)| leaves(child, found)),
    }
}

/// A value with other dense arrays, in the order of [`leaves`].
fn refilled(value: &Value, arrays: &mut impl Iterator<Item = Array>) -> Result<Value> {
    match value {
        Value::Dense(array) => Ok(arrays.next().unwrap_or_else(|| array.clone()).into()),
        Value::Implicit(array) => {
            let children = array.children();
            let children = children.iter().map(|(_, child)| refilled(child, arrays)).collect::<Result<_>>()?;
            Ok(array.with_children(children)?.into())
        }
    }
}

/// What an operand is to the derivative.
enum Role {
    /// The next argument is a master; the forward pass uses this instead, whose arrays are the arguments after it.
    Master(Value),
    /// The next argument.
    Differentiable,
    /// The next arguments are the arrays of this, and have no gradient.
    Constant(Value),
}

struct StraightThrough {
    primitive: Primitive,
    roles: Vec<Role>,
    /// Those of the results.
    avals: Vec<Aval>,
    /// The results on the first arguments, which are there before the custom function is.
    results: RefCell<Option<Vec<Array>>>,
}

/// An operand as it was given.
struct Operand {
    value: Value,
    /// The argument that has its derivative.
    argument: Option<usize>,
}

impl StraightThrough {
    /// The operands that these are the arguments of.
    fn operands(&self, args: &[Array]) -> Result<Vec<Operand>> {
        let mut args = args.iter().cloned().enumerate();
        let mut operands = Vec::with_capacity(self.roles.len());
        for role in &self.roles {
            operands.push(match role {
                Role::Constant(value) => {
                    Operand { value: refilled(value, &mut args.by_ref().map(|(_, array)| array))?, argument: None }
                }
                Role::Master(_) | Role::Differentiable => {
                    let (argument, array) = args
                        .next()
                        .ok_or_else(|| Error::invalid("an operand has no argument", "give as many as before"))?;
                    let value = match role {
                        Role::Master(inner) => {
                            with_gradient_of(refilled(inner, &mut args.by_ref().map(|(_, array)| array))?, array)?
                        }
                        _ => array.into(),
                    };
                    Operand { value, argument: Some(argument) }
                }
            });
        }
        Ok(operands)
    }

    /// Which operands, of those that are `wanted`, have their derivatives by the primitive itself, and which by
    /// [`gathered_widely`]: those of factors of half floats beside a dense one, of which MLX has no gathered product on a CPU.
    fn parts(&self, operands: &[Operand], wanted: impl Fn(&Operand) -> bool) -> Result<[Vec<bool>; 2]> {
        let is_half = matches!(self.avals[0].dtype, Dtype::Float16 | Dtype::Bfloat16);
        let is_refused = self.primitive.name() == primitives::GatherMM::NAME
            && is_half
            && matches!(Device::try_default()?.get_type()?, DeviceType::Cpu);
        let is_wide = |at: usize| is_refused && at < 2 && !operands[1 - at].value.is_implicit();
        let part = |wide: bool| -> Vec<bool> {
            operands.iter().enumerate().map(|(at, operand)| wanted(operand) && is_wide(at) == wide).collect()
        };
        Ok([part(false), part(true)])
    }

    /// What `derivative` makes of the primitive as a function of the `free` operands alone, of these, and of `more` arrays.
    ///
    /// The operands are intercepted as they were given, so that a derivative of the derivative passes straight through,
    /// too. As arguments the other arrays bound the walk, which would otherwise go through all that made them.
    fn differentiated(
        &self,
        operands: &[Operand],
        (free, widely): (&[bool], bool),
        more: &[Array],
        derivative: impl FnOnce(&[Array], &[Array], &dyn Fn(Vec<Array>) -> Result<Vec<Array>>) -> Result<Vec<Array>>,
    ) -> Result<Vec<Array>> {
        let args: Vec<Value> =
            operands.iter().map(|operand| operand.value.clone()).chain(more.iter().map(Value::from)).collect();
        let results = intercept(&args, |arrays| {
            let (arrays, more) = arrays.split_at(operands.len());
            let at: Vec<Array> = chosen(arrays, free).cloned().collect();
            let function = |chosen: Vec<Array>| {
                let mut chosen = chosen.iter();
                let operand = |(array, free): (_, &bool)| if *free { chosen.next() } else { Some(array) };
                let operands: Vec<Array> = arrays.iter().zip(free).filter_map(operand).cloned().collect();
                if widely { gathered_widely(&operands) } else { self.primitive.emit(&operands) }
            };
            derivative(&at, more, &function)
        })?;
        results.iter().map(Value::dense).collect()
    }

    fn along(&self, primals: &[Array], tangents: &[Array], argnums: &[usize]) -> Result<Vec<Array>> {
        let operands = self.operands(primals)?;
        let tangent = |operand: &Operand| operand.argument.and_then(|place| tangent_at(place, tangents, argnums));
        let mut sum: Option<Vec<Array>> = None;
        for (free, widely) in self.parts(&operands, |operand| tangent(operand).is_some())?.iter().zip([false, true]) {
            let given: Vec<Array> = chosen(&operands, free).filter_map(tangent).collect();
            if given.is_empty() {
                continue;
            }
            let own = self.differentiated(&operands, (&free[..], widely), &given, derivatives::tangents)?;
            sum = Some(match sum {
                None => own,
                Some(before) => before.iter().zip(own).map(|(a, b)| Ok(a.add(b)?)).collect::<Result<_>>()?,
            });
        }
        let zeros = || self.avals.iter().map(|aval| Ok(ops::zeros_dtype(&aval.shape, aval.dtype)?)).collect();
        sum.map_or_else(zeros, Ok)
    }
}

fn chosen<'o, T>(operands: &'o [T], free: &[bool]) -> impl Iterator<Item = &'o T> {
    operands.iter().zip(free).filter(|(_, free)| **free).map(|(operand, _)| operand)
}

fn gathered_widely(operands: &[Array]) -> Result<Vec<Array>> {
    let [a, b, left, right] = operands else {
        return Err(Error::invalid("a gathered product has two factors and two indices", "report this"));
    };
    let wide = |array: &Array| array.as_dtype(Dtype::Float32);
    Ok(vec![ops::gather_mm(wide(a)?, wide(b)?, left, right, None)?.as_dtype(a.dtype())?])
}

impl Differentiable for StraightThrough {
    fn name(&self) -> &str {
        self.primitive.name()
    }

    fn forward(&self, args: &[Array]) -> Result<Vec<Array>> {
        // MLX calls it at once with the first arguments; another call, such as vmap's, has others.
        if let Some(results) = self.results.take() {
            return Ok(results);
        }
        let operands: Vec<Value> = self.operands(args)?.into_iter().map(|operand| operand.value).collect();
        let inner = operands.iter().map(|value| value.downcast::<Ste>().map_or(value, |ste| &ste.inner));
        self.primitive.apply(&inner.collect::<Vec<_>>())?.iter().map(Value::dense).collect()
    }

    fn backward(&self, primals: &[Array], cotangents: &[Array], _: &[Array]) -> Result<Vec<Array>> {
        let operands = self.operands(primals)?;
        let mut gradients = primals.iter().map(|primal| Ok(ops::zeros_like(primal)?)).collect::<Result<Vec<_>>>()?;
        for (free, widely) in self.parts(&operands, |operand| operand.argument.is_some())?.iter().zip([false, true]) {
            if !free.contains(&true) {
                continue;
            }
            let of_operands =
                self.differentiated(&operands, (&free[..], widely), cotangents, derivatives::gradients)?;
            for (argument, gradient) in chosen(&operands, free).filter_map(|operand| operand.argument).zip(of_operands)
            {
                gradients[argument] = gradient;
            }
        }
        Ok(gradients)
    }

    fn tangents(&self, primals: &[Array], tangents: &[Array], argnums: &[usize]) -> Option<Result<Vec<Array>>> {
        Some(self.along(primals, tangents, argnums))
    }
}
