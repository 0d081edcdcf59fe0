//! Whether every registered handler was tried.

use tacit_core::{ArrayType, Handler, Pattern, PrimitivePattern, Registry, Signature};

use super::call::{Call, text};
use super::calls::generators;
use super::case::Case;
use super::handlers::{Primitives, calls_in, each_drawn, names};
use super::pairs::pair_calls;
use super::report::{Report, guarded};
use super::shape::Shapes;
use super::subject::{Subject, type_of};

/// Demands that each handler that names an array type takes a call of [`handlers`](super::handlers()) or
/// [`pairs`](super::pairs()), and that the registry is free of duplicates and ambiguities.
///
/// Nothing is computed: who takes a call is known when it is traced. A handler for a primitive without calls, and one for
/// a type without a subject, are findings of their own.
#[must_use]
pub fn coverage(subjects: &[Subject]) -> Report {
    let mut report = Report::new("coverage");
    let registry = Registry::global();
    for error in registry.check().err().into_iter().flatten() {
        report.found("registry", error);
    }
    let named = registry.handlers().iter().filter(|handler| types(&handler.signature).next().is_some());
    let mut left: Vec<Handler> = named.copied().collect();
    for _ in &left {
        report.compared_one();
    }

    let mut standing: Vec<&'static ArrayType> = Vec::new();
    for subject in subjects {
        let Ok(shapes) = Shapes::of(subject) else { continue };
        let plain = Case::plain(&shapes);
        let Some(ty) = subject.normal(&plain.aval, plain.seed).as_ref().and_then(type_of) else { continue };
        standing.push(ty);
        let own = Primitives::of(subject, &plain);
        for (primitive, generator) in generators().filter(|(primitive, _)| own.contain(primitive)) {
            let wanted = |left: &[Handler]| {
                left.iter().any(|handler| {
                    handler.signature.primitive.matches(primitive) && names(handler.signature.operands, ty)
                })
            };
            let mut try_case = |case: &Case| {
                if wanted(&left) {
                    for call in calls_in(subject, generator, case) {
                        exercise(&mut left, &call);
                    }
                }
                Ok(())
            };
            let _: Result<(), String> = try_case(&plain);
            if let Err(found) = each_drawn(&shapes, try_case) {
                report.found(primitive, found);
            }
        }
    }
    for (first, second) in subjects.iter().flat_map(|first| subjects.iter().map(move |second| (first, second))) {
        if left.iter().any(|handler| types(&handler.signature).count() > 1) {
            for call in pair_calls(first, second) {
                exercise(&mut left, &call);
            }
        }
    }

    let known: Vec<&str> = generators().map(|(primitive, _)| primitive).collect();
    left.retain(|handler| !subjects.iter().any(|subject| subject.elsewhere.contains(&handler.site.name)));
    for handler in left {
        let primitive = handler.signature.primitive;
        let stranger = types(&handler.signature).any(|own| !standing.iter().any(|&ty| own.matches(Some(ty))));
        report.found(
            handler.site,
            match primitive {
                _ if stranger => "it names a type without a subject: give the suite a line for it".to_owned(),
                PrimitivePattern::Named(name) if !known.contains(&name) => {
                    format!("there are no calls of {name}: write a generator")
                }
                _ => format!("no call of the suite reaches it: it takes {}", handler.signature),
            },
        );
    }
    report
}

/// Takes the handlers that take part in a call out of those that are left.
fn exercise(left: &mut Vec<Handler>, call: &Call) {
    // What goes wrong here is a finding of `handlers`.
    if let Ok(takers) = guarded(|| call.takers().map_err(text)) {
        left.retain(|handler| !takers.handlers.contains(&handler.site));
    }
}

/// The types and families that a signature names.
fn types(signature: &Signature) -> impl Iterator<Item = &Pattern> {
    signature.operands.iter().filter(|pattern| matches!(pattern, Pattern::Type(_) | Pattern::Family(..)))
}
