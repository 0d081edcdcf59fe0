//! Which handler takes a call: the contract, clause by clause.
//!
//! 1. Candidates are the handlers whose primitive and operand patterns match. The most specific operands win (a type,
//!    then a family, then any implicit array, then anything); where these are equal, a named primitive goes before a
//!    class and a class before any. `precedence` decides ties.
//! 2. A tie that nothing decides is an error that names both.
//! 3. A handler may decline with a reason; the next candidate is tried.
//! 4. For commutative primitives the swapped order is tried next, unless a type opts out.
//! 5. Then the type's default handler, if exactly one operand type has one; two are an error. It may decline as well.
//! 6. Then an operand that is the result of a [deferred](crate::Materialize::DEFERRED) op is computed and the call is
//!    dispatched again, as if that op had run where it stands.
//! 7. Then the implicit operand of fewest dense bytes is materialized by one layer and the call is dispatched again; when
//!    none is implicit the primitive is emitted.
//! 8. A result whose aval is not the primitive's is an error that names the handler.
//!
//! Operands that are indices, as those of a gather, are checked by [`checked_indices`](crate::extra_ops::checked_indices) before
//! a handler is asked: a handler sees them as `u32`, counted from zero, and none outside.
//!
//! If an operand is used as another value ([`Materialize::used_as`](crate::Materialize::used_as)), all clauses see that value, which
//! is made once in a trace.
//!
//! The contract is the same for the nodes of a trace and for calls outside one, such as [`Primitive::apply`].

use std::sync::atomic::Ordering;

use mlx_rs::Array;
use tacit_bridge::{Aval, NameId};

use crate::counters::Counters;
use crate::handler::{Call, HandlerFn, Results};
use crate::handling::{entered, is_handling};
use crate::indices::{self, Choice};
use crate::lookup::Lookup;
use crate::pattern::OperandType;
use crate::recording::guarded;
use crate::registry::{Candidate, Resolution};
use crate::value::short_name;
use crate::{Decline, Error, Policy, Primitive, Registry, Result, Site, Value, materialize, policy};

/// Who took a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Taker {
    /// A handler.
    Handler(Site),
    /// The default handler of a type.
    Default(&'static str),
    /// Nobody: the operands were materialized, or had been, and the primitive was emitted on dense ones.
    Materialized,
    /// Nobody: the results of deferred ops were computed, and the primitive was emitted on dense ones.
    Computed,
    /// Nobody: all operands were dense.
    Dense,
}

/// A primitive on operands that change while it is dispatched.
pub(crate) trait Node {
    fn name(&self) -> NameId;

    /// Adds the types of the operands as they are now.
    fn types(&self, types: &mut Vec<OperandType>);

    fn primitive(&self) -> Result<Primitive>;

    /// The avals that the primitive makes.
    fn results(&self) -> Result<Vec<Aval>>;

    /// Calls `f` with the operands as they are now.
    fn with_operands<R>(&self, f: impl FnOnce(&[&Value]) -> Result<R>) -> Result<R>;

    /// Makes the operands fit for a handler, which runs outside the interception.
    fn settle(&mut self) -> Result<()>;

    /// Puts the next layer of an operand in its place; the policy was asked.
    fn lower(&mut self, operand: usize) -> Result<()>;

    /// Puts an array in the place of a dense operand, for this call alone.
    fn replace(&mut self, operand: usize, array: Array);
}

/// What came of a call; its memory serves the next.
#[derive(Default)]
pub(crate) struct Outcome {
    /// Who took it; nobody where all operands are dense by now.
    pub(crate) taker: Option<Taker>,
    /// What the taker gave.
    pub(crate) results: Vec<Value>,
    pub(crate) declined: Vec<Decline>,
    /// Whether there was anybody to offer it to.
    pub(crate) offered: bool,
    /// Whether an operand was materialized, now or before.
    pub(crate) materialized: bool,
}

/// Dispatches a call, by all clauses.
pub(crate) fn dispatch(node: &mut impl Node, lookup: &mut Lookup, outcome: &mut Outcome) -> Result<()> {
    outcome.taker = None;
    outcome.results.clear();
    outcome.declined.clear();
    (outcome.offered, outcome.materialized) = (false, false);
    let mut unchecked = Vec::new();
    if indices::are_in(node.name()) {
        let primitive = node.primitive()?;
        unchecked = node.with_operands(|operands| indices::choices(&primitive, operands))?;
    }
    loop {
        check_indices(node, &mut unchecked)?;
        let Some(operands) = lookup.operands(|types| node.types(types)) else { return Ok(()) };
        let (registry, types, resolution) = operands.resolve(node.name());
        if !resolution.is_empty() {
            outcome.offered = true;
            node.settle()?;
            let primitive = node.primitive()?;
            let find = || node.results();
            let results = Results::new(&find);
            let taken = node.with_operands(|operands| {
                Offer { primitive: &primitive, results: &results, declined: &mut outcome.declined }
                    .offered(resolution, operands)
            })?;
            if let Some((results, taker)) = taken {
                (outcome.results, outcome.taker) = (results, Some(taker));
                return Ok(());
            }
        }
        if let Some(deferred) = types.iter().position(|ty| ty.is_some_and(|ty| ty.deferred)) {
            node.lower(deferred)?;
            continue;
        }
        let mut implicit = (0..types.len()).filter(|&operand| types[operand].is_some());
        let chosen = match (implicit.next(), implicit.next()) {
            // The others need not be looked at.
            (Some(only), None) => only,
            _ => node.with_operands(|operands| Ok(cheapest(operands)))?,
        };
        if asks(types[chosen], resolution) {
            node.with_operands(|operands| {
                permit(registry, resolution, &node.primitive()?, operands, operands[chosen], &outcome.declined)
            })?;
        }
        outcome.materialized = true;
        if let Err(error) = node.lower(chosen) {
            let Error::Refused { ty, reason, call: None } = error else { return Err(error) };
            let call = node.with_operands(|operands| Ok(describe(&node.primitive()?, operands)))?;
            return Err(Error::Refused { ty, reason, call: Some(call) });
        }
    }
}

/// Puts checked indices in the place of those that are dense by now.
fn check_indices(node: &mut impl Node, unchecked: &mut Vec<Choice>) -> Result<()> {
    if unchecked.is_empty() {
        return Ok(());
    }
    node.settle()?;
    let mut implicit = Vec::new();
    for choice in unchecked.drain(..) {
        match node.with_operands(|operands| choice.checked(operands))? {
            Some(indices) => node.replace(choice.operand, indices),
            None => implicit.push(choice),
        }
    }
    *unchecked = implicit;
    Ok(())
}

/// The implicit operand of fewest dense bytes, the first of several.
fn cheapest(operands: &[&Value]) -> usize {
    let bytes = |value: &Value| value.aval().map_or(usize::MAX, |aval| aval.nbytes());
    let implicit = (0..operands.len()).filter(|&operand| operands[operand].is_implicit());
    implicit.min_by_key(|&operand| bytes(operands[operand])).unwrap_or_default()
}

/// A call that is offered to those who may take it.
struct Offer<'a> {
    primitive: &'a Primitive,
    results: &'a Results<'a>,
    declined: &'a mut Vec<Decline>,
}

impl Offer<'_> {
    /// Clauses 1 to 5; nothing when nobody takes the call.
    fn offered(&mut self, resolution: &Resolution, operands: &[&Value]) -> Result<Option<(Vec<Value>, Taker)>> {
        if let Some(taken) = self.asked_of(&resolution.direct, operands)? {
            return Ok(Some(taken));
        }
        if let (false, &[left, right]) = (resolution.swapped.is_empty(), operands)
            && let Some(taken) = self.asked_of(&resolution.swapped, &[right, left])?
        {
            return Ok(Some(taken));
        }
        match resolution.defaults.as_slice() {
            [] => Ok(None),
            &[(name, default)] => {
                let site = Site { name, file: "default handler", line: 0 };
                let answer = entered(site, || default(self.primitive, operands));
                Ok(self.judged(site, answer, operands)?.map(|results| (results, Taker::Default(name))))
            }
            &[(first, _), (second, _), ..] => {
                Err(Error::TwoDefaults { call: describe(self.primitive, operands), first, second })
            }
        }
    }

    fn asked_of(&mut self, candidates: &[Candidate], operands: &[&Value]) -> Result<Option<(Vec<Value>, Taker)>> {
        for candidate in candidates {
            let handler = candidate.as_ref().map_err(|(first, second)| Error::Ambiguous {
                call: describe(self.primitive, operands),
                first: first.site,
                second: second.site,
            })?;
            let answer = self.asked(handler.call, handler.site, operands);
            if let Some(results) = self.judged(handler.site, answer, operands)? {
                return Ok(Some((results, Taker::Handler(handler.site))));
            }
        }
        Ok(None)
    }

    fn asked(&self, function: HandlerFn, site: Site, operands: &[&Value]) -> Result<Vec<Value>> {
        let call = Call { primitive: self.primitive, operands, results: self.results };
        entered(site, || function(&call))
    }

    /// Clauses 3 and 8 on the answer of a handler.
    fn judged(&mut self, site: Site, answer: Result<Vec<Value>>, operands: &[&Value]) -> Result<Option<Vec<Value>>> {
        let results = match answer {
            Ok(results) => results,
            Err(Error::Declined(reason)) => {
                Counters { declined: 1, ..Counters::default() }.add();
                self.declined.push(Decline { handler: site, reason });
                return Ok(None);
            }
            Err(error @ Error::Mlx(_)) => {
                let call = describe(self.primitive, operands);
                return Err(Error::Handler { handler: site, call, error: Box::new(error) });
            }
            Err(Error::Cycle { handlers, call }) if call.is_empty() => {
                return Err(Error::Cycle { handlers, call: describe(self.primitive, operands) });
            }
            Err(error) => return Err(error),
        };
        let expected = self.results.avals()?;
        let mut same = expected.len() == results.len();
        for (value, aval) in results.iter().zip(expected) {
            same = same && has_aval(value, aval)?;
        }
        if same {
            return Ok(Some(results));
        }
        let found = results.iter().map(Value::aval).collect::<Result<Vec<_>>>()?;
        Err(Error::HandlerAval {
            handler: site,
            primitive: self.primitive.to_string(),
            expected: listed(expected),
            found: listed(&found),
        })
    }
}

fn has_aval(value: &Value, aval: &Aval) -> Result<bool> {
    match value {
        Value::Dense(array) => Ok(array.dtype() == aval.dtype && array.shape() == aval.shape),
        Value::Implicit(array) => Ok(array.aval()? == *aval),
    }
}

/// Whether the policy has anything to say of a call that nobody takes: [`permit`] need not be called otherwise.
fn asks(chosen: OperandType, resolution: &Resolution) -> bool {
    match chosen.map_or_else(Policy::current, Policy::for_type) {
        Policy::Allow => false,
        Policy::Warn => !resolution.warned.load(Ordering::Relaxed),
        Policy::Deny => true,
    }
}

/// Asks the policy whether `chosen`, an operand of a call, may be materialized.
fn permit(
    registry: &Registry,
    resolution: &Resolution,
    primitive: &Primitive,
    operands: &[&Value],
    chosen: &Value,
    declined: &[Decline],
) -> Result<()> {
    let Value::Implicit(array) = chosen else { return Ok(()) };
    let (call, ty) = (describe(primitive, operands), short_name(&**array));
    match Policy::for_type(array.array_type()) {
        Policy::Allow => Ok(()),
        Policy::Warn => {
            if !resolution.warned.swap(true, Ordering::Relaxed) {
                let reasons: Vec<String> = declined.iter().map(|decline| format!("; {decline}")).collect();
                policy::warn(&format!(
                    "no handler takes {call}: {ty} is materialized{}; write a `#[handler]` for it, or silence this with \
                     `Policy::Allow.scope()`",
                    reasons.concat()
                ));
            }
            Ok(())
        }
        Policy::Deny => {
            let types: Vec<OperandType> = operands.iter().map(|value| operand_type(value)).collect();
            let nearest = registry.nearest(primitive.name(), &types, declined);
            let declined = declined.to_vec();
            Err(Error::MaterializationDenied { call, ty, asked: false, arguments: Vec::new(), declined, nearest })
        }
    }
}

impl Primitive {
    /// Applies the primitive to values: handlers first, materialization where there is none.
    ///
    /// A handler calls it for the values that it holds, so that types of different crates work inside each other.
    ///
    /// # Errors
    ///
    /// A handler fails or panics, or the policy forbids a materialization.
    pub fn apply(&self, operands: &[&Value]) -> Result<Vec<Value>> {
        guarded(|| self.applied(operands))
    }

    fn applied(&self, operands: &[&Value]) -> Result<Vec<Value>> {
        let operands = operands.iter().map(|&value| used(value)).collect::<Result<_>>()?;
        let mut loose = Loose { primitive: self, operands };
        if loose.operands.iter().any(Value::is_implicit) {
            Counters { seen: 1, ..Counters::default() }.add();
            let mut outcome = Outcome::default();
            dispatch(&mut loose, &mut Lookup::current(), &mut outcome)?;
            if outcome.taker.is_some() {
                let results = outcome.results;
                Counters { handled: 1, ..Counters::default() }.add();
                if is_handling() {
                    return Ok(results);
                }
                return results.into_iter().map(materialize::computed).collect();
            }
        }
        let dense: Vec<Array> = loose.operands.iter().filter_map(|value| value.as_dense().cloned()).collect();
        Ok(self.emit(&dense)?.into_iter().map(Value::from).collect())
    }
}

/// What a primitive is applied to for an operand.
fn used(value: &Value) -> Result<Value> {
    let mut value = value.clone();
    while let Value::Implicit(array) = &value
        && let Some(used) = materialize::used_as(&**array)?
    {
        value = used;
    }
    Ok(value)
}

/// A primitive on values outside a trace.
struct Loose<'a> {
    primitive: &'a Primitive,
    operands: Vec<Value>,
}

impl Node for Loose<'_> {
    fn name(&self) -> NameId {
        self.primitive.name_id()
    }

    fn types(&self, types: &mut Vec<OperandType>) {
        types.extend(self.operands.iter().map(operand_type));
    }

    fn primitive(&self) -> Result<Primitive> {
        Ok(self.primitive.clone())
    }

    fn results(&self) -> Result<Vec<Aval>> {
        let prototypes = self.operands.iter().map(|value| Ok(tacit_bridge::prototype(&value.aval()?)?));
        let prototypes = prototypes.collect::<Result<Vec<Array>>>()?;
        Ok(self.primitive.emit(&prototypes)?.iter().map(Aval::from).collect())
    }

    fn with_operands<R>(&self, f: impl FnOnce(&[&Value]) -> Result<R>) -> Result<R> {
        f(&self.operands.iter().collect::<Vec<_>>())
    }

    fn settle(&mut self) -> Result<()> {
        Ok(())
    }

    fn lower(&mut self, operand: usize) -> Result<()> {
        if let Value::Implicit(array) = &self.operands[operand] {
            self.operands[operand] = materialize::build(&**array)?;
        }
        Ok(())
    }

    fn replace(&mut self, operand: usize, array: Array) {
        self.operands[operand] = array.into();
    }
}

pub(crate) fn operand_type(value: &Value) -> OperandType {
    match value {
        Value::Dense(_) => None,
        Value::Implicit(array) => Some(array.array_type()),
    }
}

/// A call in words: `matmul of f32[2,256], Nf4(f32[256,512])`.
pub(crate) fn describe(primitive: &Primitive, operands: &[&Value]) -> String {
    let operands: Vec<String> = operands.iter().map(ToString::to_string).collect();
    format!("{primitive} of {}", operands.join(", "))
}

fn listed(avals: &[Aval]) -> String {
    let avals: Vec<String> = avals.iter().map(ToString::to_string).collect();
    if avals.is_empty() { "nothing".to_owned() } else { avals.join(", ") }
}
