//! Who takes a call: the contract, clause by clause.
//!
//! 1. Candidates are the handlers whose primitive and operand patterns match; the most specific wins, and
//!    `precedence` decides ties.
//! 2. A tie that nothing decides is an error that names both.
//! 3. A handler may decline with a reason; the next candidate is tried.
//! 4. For commutative primitives the swapped order is tried next, unless a type opts out.
//! 5. Then the type's default handler, if exactly one operand type has one; two are an error.
//! 6. Then every implicit operand is materialized by one layer and the call is dispatched again; when none is implicit
//!    the primitive is emitted.
//! 7. A result whose aval is not the primitive's is an error that names the handler.

use std::any::TypeId;
use std::sync::atomic::Ordering;

use mlx_rs::Array;
use tacit_bridge::Aval;

use crate::counters::Counters;
use crate::handler::{Handler, HandlerFn, Site};
use crate::pattern::OperandType;
use crate::registry::{Candidate, Resolution};
use crate::value::short_name;
use crate::{Error, Policy, Primitive, Registry, Result, Value, materialize, policy};

/// Who took a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Taker {
    /// A handler.
    Handler(Site),
    /// The default handler of a type.
    Default(&'static str),
    /// Nobody: the operands were materialized, or had been, and the primitive was emitted on dense ones.
    Materialized,
    /// Nobody was needed: all operands are dense.
    Dense,
}

/// The results of a call and who gave them.
pub(crate) type Taken = (Vec<Value>, Taker);

pub(crate) fn operand_type(value: &Value) -> OperandType {
    match value {
        Value::Dense(_) => None,
        Value::Implicit(array) => Some(array.as_any().type_id()),
    }
}

/// Clauses 1 to 5 and 7; `None` when nobody takes the call.
pub(crate) fn offer(
    resolution: &Resolution,
    primitive: &Primitive,
    operands: &[&Value],
    expected: &dyn Fn() -> Result<Vec<Aval>>,
) -> Result<Option<Taken>> {
    let call = Call { primitive, operands, expected };
    if let Some(results) = call.first(&resolution.direct, operands)? {
        return Ok(Some(results));
    }
    if let (false, &[left, right]) = (resolution.swapped.is_empty(), operands) {
        let commute = implicit(operands).all(super::implicit_array::ImplicitArray::commutes);
        if let Some(results) = call.swapped(resolution, left, right, commute)? {
            return Ok(Some(results));
        }
    }
    call.default()
}

struct Call<'a> {
    primitive: &'a Primitive,
    operands: &'a [&'a Value],
    expected: &'a dyn Fn() -> Result<Vec<Aval>>,
}

impl Call<'_> {
    fn first(&self, candidates: &[Candidate], operands: &[&Value]) -> Result<Option<Taken>> {
        for candidate in candidates {
            let handler = candidate.as_ref().map_err(|(first, second)| Error::Ambiguous {
                call: describe(self.primitive, operands),
                first: first.site,
                second: second.site,
            })?;
            if let Some(results) = self.attempt(handler, operands)? {
                return Ok(Some((results, Taker::Handler(handler.site))));
            }
        }
        Ok(None)
    }

    fn swapped(&self, resolution: &Resolution, left: &Value, right: &Value, commute: bool) -> Result<Option<Taken>> {
        if commute { self.first(&resolution.swapped, &[right, left]) } else { Ok(None) }
    }

    fn attempt(&self, handler: &Handler, operands: &[&Value]) -> Result<Option<Vec<Value>>> {
        self.call(handler.call, handler.site, operands)
    }

    fn call(&self, function: HandlerFn, site: Site, operands: &[&Value]) -> Result<Option<Vec<Value>>> {
        match function(self.primitive, operands) {
            Ok(results) => match self.checked(site, results) {
                // MLX stores a stride of 1 where a slice leaves one element, so that its parameters do not tell its extent
                // from that of the whole range.
                Err(Error::HandlerAval { .. }) if self.primitive.name() == "Slice" => Ok(declined()),
                checked => checked.map(Some),
            },
            Err(Error::Declined(_)) => Ok(declined()),
            Err(error) => Err(error),
        }
    }

    fn default(&self) -> Result<Option<Taken>> {
        let mut found: Option<(TypeId, &'static str, HandlerFn)> = None;
        for array in implicit(self.operands) {
            let Some(function) = array.default_handler() else { continue };
            let (ty, name) = (array.as_any().type_id(), array.typetag_name());
            match found {
                Some((first, first_name, _)) if first != ty => {
                    return Err(Error::TwoDefaults {
                        call: describe(self.primitive, self.operands),
                        first: first_name,
                        second: name,
                    });
                }
                _ => found = Some((ty, name, function)),
            }
        }
        let Some((_, name, function)) = found else { return Ok(None) };
        let site = Site { name, file: "default handler", line: 0 };
        let results = self.call(function, site, self.operands)?;
        Ok(results.map(|results| (results, Taker::Default(name))))
    }

    fn checked(&self, site: Site, results: Vec<Value>) -> Result<Vec<Value>> {
        let expected = (self.expected)()?;
        let found = results.iter().map(Value::aval).collect::<Result<Vec<_>>>()?;
        if expected == found {
            return Ok(results);
        }
        Err(Error::HandlerAval {
            handler: site,
            primitive: self.primitive.to_string(),
            expected: listed(&expected),
            found: listed(&found),
        })
    }
}

/// A handler's answer that is none, counted.
fn declined() -> Option<Vec<Value>> {
    Counters { declined: 1, ..Counters::default() }.add();
    None
}

/// Whether some implicit operand has a default handler.
pub(crate) fn has_default(operands: &[&Value]) -> bool {
    implicit(operands).any(|array| array.default_handler().is_some())
}

fn implicit<'a>(operands: &'a [&Value]) -> impl Iterator<Item = &'a dyn crate::ImplicitArray> {
    operands.iter().filter_map(|value| match value {
        Value::Implicit(array) => Some(&**array),
        Value::Dense(_) => None,
    })
}

/// Whether the policy has anything to say of a call that nobody takes: [`permit`] need not be called otherwise.
pub(crate) fn asks(resolution: &Resolution) -> bool {
    match Policy::current() {
        Policy::Allow => false,
        Policy::Warn => !resolution.warned.load(Ordering::Relaxed),
        Policy::Deny => true,
    }
}

/// Asks the policy whether the implicit operands of a call may be materialized.
pub(crate) fn permit(
    registry: &Registry,
    resolution: &Resolution,
    primitive: &dyn Fn() -> Result<Primitive>,
    operands: &[&Value],
) -> Result<()> {
    match Policy::current() {
        Policy::Allow => Ok(()),
        Policy::Warn => {
            if !resolution.warned.swap(true, Ordering::Relaxed) {
                policy::warn(&format!(
                    "no handler takes {}: {} is materialized; write a `#[handler]` for it, or silence this with \
                     `Policy::Allow.scope()`",
                    describe(&primitive()?, operands),
                    type_names(operands)
                ));
            }
            Ok(())
        }
        Policy::Deny => {
            let primitive = primitive()?;
            let types: Vec<OperandType> = operands.iter().map(|value| operand_type(value)).collect();
            Err(Error::MaterializationDenied {
                call: describe(&primitive, operands),
                types: type_names(operands),
                nearest: registry.nearest(primitive.name(), &types),
            })
        }
    }
}

/// Materializes an operand of a call by one layer; the policy was asked.
pub(crate) fn lower(operand: &Value, call: &dyn Fn() -> Result<String>) -> Result<Value> {
    let Value::Implicit(array) = operand else { return Ok(operand.clone()) };
    materialize::build(&**array).or_else(|error| match error {
        Error::Refused { ty, reason, call: None } => Err(Error::Refused { ty, reason, call: Some(call()?) }),
        other => Err(other),
    })
}

/// Applies a primitive to values outside a trace, by all clauses.
pub(crate) fn apply(primitive: &Primitive, operands: &[&Value]) -> Result<Vec<Value>> {
    let registry = Registry::current();
    let mut owned: Vec<Value> = Vec::new();
    let mut first = true;
    loop {
        let now: Vec<&Value> = if first { operands.to_vec() } else { owned.iter().collect() };
        let types: Vec<OperandType> = now.iter().map(|value| operand_type(value)).collect();
        if types.iter().all(Option::is_none) {
            let dense: Vec<Array> = now.iter().filter_map(|value| value.as_dense().cloned()).collect();
            return Ok(primitive.emit(&dense)?.into_iter().map(Value::from).collect());
        }
        Counters { seen: u64::from(first), ..Counters::default() }.add();
        let resolution = registry.resolve(primitive.name_id(), &types);
        if let Some((results, _)) = offer(&resolution, primitive, &now, &|| expected(primitive, &now))? {
            Counters { handled: 1, ..Counters::default() }.add();
            return Ok(results);
        }
        permit(&registry, &resolution, &|| Ok(primitive.clone()), &now)?;
        let call = || Ok(describe(primitive, &now));
        owned = now.iter().map(|value| lower(value, &call)).collect::<Result<_>>()?;
        first = false;
    }
}

/// The avals that a primitive makes of these operands, worked out on arrays without data.
fn expected(primitive: &Primitive, operands: &[&Value]) -> Result<Vec<Aval>> {
    let prototypes =
        operands.iter().map(|value| Ok(tacit_bridge::prototype(&value.aval()?)?)).collect::<Result<Vec<Array>>>()?;
    Ok(primitive.emit(&prototypes)?.iter().map(Aval::from).collect())
}

/// A call in words: `matmul of f32[2,256], Nf4(f32[256,512])`.
pub(crate) fn describe(primitive: &Primitive, operands: &[&Value]) -> String {
    let operands: Vec<String> = operands.iter().map(ToString::to_string).collect();
    format!("{primitive} of {}", operands.join(", "))
}

fn type_names(operands: &[&Value]) -> String {
    let mut names: Vec<&str> = implicit(operands).map(short_name).collect();
    names.dedup();
    names.join(" and ")
}

fn listed(avals: &[Aval]) -> String {
    let avals: Vec<String> = avals.iter().map(ToString::to_string).collect();
    if avals.is_empty() { "nothing".to_owned() } else { avals.join(", ") }
}
