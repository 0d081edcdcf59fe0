//! All handlers, and which of them take a call.

use std::any::TypeId;
use std::cmp::Ordering;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, LazyLock, PoisonError, RwLock};

use tacit_bridge::{NameId, typed};

use crate::array_type::{ArrayType, array_types};
use crate::handler::{Handler, HandlerDef, Registration};
use crate::pattern::{OperandPattern, OperandType, PrimitivePattern, Signature};
use crate::{Decline, DefaultHandler, Error, NearMiss, Result};

/// The handlers that dispatch chooses from.
///
/// [`Registry::global`] holds everything that `#[handler]` registered anywhere in the program. A registry that is built by hand
/// holds the handlers that it is given, and is current on a thread while the guard of [`scope`](Self::scope) lives.
///
/// ```
/// use std::sync::Arc;
///
/// use tacit_core::Registry;
///
/// let _without_handlers = Arc::new(Registry::new()).scope();
/// assert!(Registry::current().handlers().is_empty());
/// ```
#[derive(Default)]
pub struct Registry {
    handlers: Vec<Handler>,
    /// Found resolutions, by the index of the primitive's name.
    cache: RwLock<Vec<Resolutions>>,
}

type Resolutions = HashMap<Box<[OperandType]>, Arc<Resolution>, BuildHasherDefault<TypeHasher>>;

/// Who may take a call, found once for a primitive and the types of its operands.
#[derive(Debug, Default)]
pub struct Resolution {
    /// The handlers, best first. `Err` holds two that nothing tells apart; it counts only when those before it decline.
    pub(crate) direct: Vec<Candidate>,
    /// The handlers for the swapped operands, where that may be tried.
    pub(crate) swapped: Vec<Candidate>,
    /// The default handlers of the operands' types, each once.
    pub(crate) defaults: Vec<(&'static str, DefaultHandler)>,
    /// Whether the user was warned that these types are materialized for this primitive.
    pub(crate) warned: AtomicBool,
}

/// One place in the order of candidates.
pub(crate) type Candidate = Result<Handler, (Handler, Handler)>;

impl Resolution {
    /// Whether nothing takes the call.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.direct.is_empty() && self.swapped.is_empty() && self.defaults.is_empty()
    }
}

impl Registry {
    /// A registry without handlers.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the handler of a function that `#[handler]` marks.
    #[must_use]
    pub fn with<H: HandlerDef>(self) -> Self {
        self.with_handler(H::HANDLER)
    }

    /// Adds a handler.
    #[must_use]
    pub fn with_handler(mut self, handler: Handler) -> Self {
        self.handlers.push(handler);
        self.cache = RwLock::default();
        self
    }

    /// Everything that `#[handler]` registered in this program.
    #[must_use]
    pub fn global() -> Arc<Self> {
        static GLOBAL: LazyLock<Arc<Registry>> = LazyLock::new(|| {
            let mut handlers: Vec<Handler> = inventory::iter::<Registration>().map(|entry| entry.0).collect();
            // The linker decides the order of inventory; messages and tests need one that stays.
            handlers.sort_by_key(|handler| (handler.site.file, handler.site.line, handler.site.name));
            Arc::new(Registry { handlers, cache: RwLock::default() })
        });
        Arc::clone(&GLOBAL)
    }

    /// The handlers, in a stable order.
    #[must_use]
    pub fn handlers(&self) -> &[Handler] {
        &self.handlers
    }

    /// Finds every duplicate and every pair of handlers that some call cannot choose between, without a call.
    ///
    /// Calls are drawn from the implicit types of the program, and a stranger to all of them. A pair that a third handler
    /// decides is not reported, though the tie comes back where that handler declines.
    ///
    /// # Errors
    ///
    /// All findings.
    pub fn check(&self) -> Result<(), Vec<Error>> {
        let mut found = Vec::new();
        let types = self.types();
        for (i, first) in self.handlers.iter().enumerate() {
            for second in &self.handlers[i + 1..] {
                if first.precedence != second.precedence {
                    continue;
                }
                match first.signature.compare(&second.signature) {
                    Some(Ordering::Equal) => found.push(Error::Duplicate {
                        signature: first.signature.to_string(),
                        first: first.site,
                        second: second.site,
                    }),
                    None if self.is_undecided(first, second, &types) => found.push(Error::Ambiguous {
                        call: format!("{} and {}", first.signature, second.signature),
                        first: first.site,
                        second: second.site,
                    }),
                    _ => {}
                }
            }
        }
        if found.is_empty() { Ok(()) } else { Err(found) }
    }

    /// What an operand may be: dense, of a type that is known, or of one that is not.
    fn types(&self) -> Vec<OperandType> {
        let named =
            self.handlers.iter().flat_map(|handler| handler.signature.operands).filter_map(|pattern| match pattern {
                OperandPattern::Type(ty) => Some(*ty),
                _ => None,
            });
        let mut types: Vec<OperandType> = vec![None, Some(&STRANGER)];
        for ty in array_types().into_iter().chain(named) {
            if !types.contains(&Some(ty)) {
                types.push(Some(ty));
            }
        }
        types
    }

    /// Whether some call is taken by both and by nothing better.
    fn is_undecided(&self, first: &Handler, second: &Handler, types: &[OperandType]) -> bool {
        let better: Vec<&Handler> =
            self.handlers.iter().filter(|third| better(third, first) && better(third, second)).collect();
        first
            .signature
            .shared(&second.signature, types)
            .iter()
            .any(|call| !better.iter().any(|third| third.signature.covers(&first.signature, &second.signature, call)))
    }

    /// The handlers that take a primitive on these operand types; found once and remembered.
    #[must_use]
    pub fn resolve(&self, primitive: NameId, operands: &[OperandType]) -> Arc<Resolution> {
        let cache = self.cache.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = cache.get(primitive.index()).and_then(|known| known.get(operands)) {
            return Arc::clone(found);
        }
        drop(cache);
        let result = Arc::new(self.search(canonical(primitive.text()), operands));
        let mut cache = self.cache.write().unwrap_or_else(PoisonError::into_inner);
        if cache.len() <= primitive.index() {
            cache.resize_with(primitive.index() + 1, Resolutions::default);
        }
        cache[primitive.index()].insert(operands.into(), Arc::clone(&result));
        result
    }

    fn search(&self, primitive: &str, operands: &[OperandType]) -> Resolution {
        let types = || operands.iter().flatten();
        let swappable = operands.len() == 2
            && typed::describe(primitive).is_some_and(|entry| entry.commutative)
            && types().all(|ty| ty.commutes);
        // Types of different crates may have one name.
        let mut defaults: Vec<(&ArrayType, DefaultHandler)> = Vec::new();
        for &ty in types() {
            if let Some(default) = ty.default
                && !defaults.iter().any(|(known, _)| *known == ty)
            {
                defaults.push((ty, default));
            }
        }
        Resolution {
            direct: self.ordered(primitive, operands),
            swapped: if swappable { self.ordered(primitive, &[operands[1], operands[0]]) } else { Vec::new() },
            defaults: defaults.into_iter().map(|(ty, default)| (ty.saved_as, default)).collect(),
            warned: AtomicBool::new(false),
        }
    }

    /// The matching handlers, best first: each place holds the one that nothing left is better than.
    fn ordered(&self, primitive: &str, operands: &[OperandType]) -> Vec<Candidate> {
        let mut unordered: Vec<Handler> =
            self.handlers.iter().copied().filter(|h| h.signature.matches(primitive, operands)).collect();
        let mut order = Vec::with_capacity(unordered.len());
        while !unordered.is_empty() {
            let best: Vec<usize> =
                (0..unordered.len()).filter(|&i| !unordered.iter().any(|other| better(other, &unordered[i]))).collect();
            let top = best.iter().map(|&i| unordered[i].precedence).max().unwrap_or_default();
            let mut top = best.into_iter().filter(|&i| unordered[i].precedence == top);
            let (first, second) = (top.next().unwrap_or_default(), top.next());
            order.push(match second {
                None => Ok(unordered[first]),
                Some(second) => Err((unordered[first], unordered[second])),
            });
            unordered.remove(first);
        }
        order
    }

    /// Up to three handlers that a call comes close to: those for the primitive first, then those for its types. One that
    /// matched it and declined is not among them.
    pub(crate) fn nearest(&self, primitive: &str, operands: &[OperandType], declined: &[Decline]) -> Vec<NearMiss> {
        let primitive = canonical(primitive);
        let score = |signature: &Signature| {
            let takes_type = |pattern: &OperandPattern| match pattern {
                OperandPattern::Type(_) | OperandPattern::Family(..) => {
                    operands.iter().any(|&ty| ty.is_some() && pattern.matches(ty))
                }
                _ => false,
            };
            2 * usize::from(matches!(signature.primitive, PrimitivePattern::Named(own) if own == primitive))
                + usize::from(signature.operands.iter().any(takes_type))
        };
        let mut near: Vec<&Handler> = self
            .handlers
            .iter()
            .filter(|h| score(&h.signature) > 0 && !declined.iter().any(|decline| decline.handler == h.site))
            .collect();
        near.sort_by_key(|handler| std::cmp::Reverse(score(&handler.signature)));
        near.iter()
            .take(3)
            .map(|handler| NearMiss { handler: handler.site, signature: handler.signature.to_string() })
            .collect()
    }
}

/// A type that no handler knows and that joins no family.
static STRANGER: ArrayType = ArrayType {
    policy: None,
    id: TypeId::of::<()>(),
    saved_as: "any other",
    name: || "any other",
    families: &[],
    default: None,
    commutes: true,
    deferred: false,
};

/// The name that handlers know a primitive by: MLX calls each view `View` with its dtype, and so on.
pub(crate) fn canonical(name: &str) -> &str {
    typed::describe(name).map_or(name, |entry| entry.name)
}

/// Whether `a` is tried before `b`: it is strictly more specific.
fn better(a: &Handler, b: &Handler) -> bool {
    a.signature.compare(&b.signature) == Some(Ordering::Less)
}

/// Hashes type ids, which are hashes already.
#[derive(Default)]
struct TypeHasher(u64);

impl Hasher for TypeHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(5) ^ word).wrapping_mul(0x517c_c1b7_2722_0a95);
    }

    fn write_usize(&mut self, word: usize) {
        self.write_u64(word as u64);
    }

    fn write_isize(&mut self, word: isize) {
        self.write_u64(word as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Primitive, Value};

    fn takes(_: &Primitive, _: &[&Value]) -> Result<Vec<Value>> {
        Ok(Vec::new())
    }

    const fn of_one_name(id: TypeId) -> ArrayType {
        ArrayType {
            policy: None,
            id,
            saved_as: "test.Twin",
            name: || "Twin",
            families: &[],
            default: Some(takes),
            commutes: true,
            deferred: false,
        }
    }

    #[test]
    fn types_of_one_name_have_each_their_default() {
        static FIRST: ArrayType = of_one_name(TypeId::of::<u8>());
        static SECOND: ArrayType = of_one_name(TypeId::of::<u16>());
        let defaults = |operands: [OperandType; 2]| Registry::new().search("Add", &operands).defaults.len();
        assert_eq!(defaults([Some(&FIRST), Some(&FIRST)]), 1);
        assert_eq!(defaults([Some(&FIRST), Some(&SECOND)]), 2);
    }
}
