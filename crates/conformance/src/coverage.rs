//! Whether every registered handler was tried.

use tacit_core::{ArrayType, Error, Handler, OperandPattern, PrimitivePattern, Registry, Signature, array_types};

use crate::call::{Call, text};
use crate::calls::generators;
use crate::case::Case;
use crate::handlers::{Primitives, calls_in, each_drawn, names};
use crate::pairs::pair_calls;
use crate::report::{Report, guarded};
use crate::shape::Shapes;
use crate::subject::{Subject, type_of};

/// Demands that each handler of the subjects' own types takes a call of [`handlers`](crate::handlers()) or
/// [`pairs`](crate::pairs()), and that no two of these handlers are duplicates or ambiguous.
///
/// A handler is theirs if it names types of the subjects and no others, and families without other members; those that a subject
/// has [elsewhere](Subject::elsewhere) are left out. Nothing is computed: who takes a call is known when it is traced. A handler for
/// a primitive without calls is a finding of its own, and so is a name there that no handler has.
#[must_use]
pub fn coverage(subjects: &[Subject]) -> Report {
    let mut report = Report::new("coverage");
    let registry = Registry::global();
    let standing: Vec<&'static ArrayType> = subjects.iter().filter_map(type_of_subject).collect();
    let is_own = |ty: &OperandPattern| {
        array_types().into_iter().all(|array_type| !ty.matches(Some(array_type)) || standing.contains(&array_type))
    };
    let is_of_subjects =
        |handler: &&Handler| types(&handler.signature).next().is_some() && types(&handler.signature).all(is_own);
    let mut unreached: Vec<Handler> = registry.handlers().iter().filter(is_of_subjects).copied().collect();
    for error in registry.check().err().into_iter().flatten() {
        if let Error::Duplicate { first, second, .. } | Error::Ambiguous { first, second, .. } = &error
            && unreached.iter().any(|handler| [first, second].contains(&&handler.site))
        {
            report.found("registry", error);
        }
    }
    report.compared_one();
    for _ in &unreached {
        report.compared_one();
    }

    for subject in subjects {
        if let Some((primitive, found)) = exercise_alone(&mut unreached, subject) {
            report.found(primitive, found);
        }
    }
    for (first, second) in subjects.iter().flat_map(|first| subjects.iter().map(move |second| (first, second))) {
        if unreached.iter().any(|handler| types(&handler.signature).count() > 1) {
            for call in pair_calls(first, second) {
                exercise(&mut unreached, &call);
            }
        }
    }

    for subject in subjects {
        let is_unknown = |name: &&&str| registry.handlers().iter().all(|handler| handler.site.name != **name);
        for name in subject.elsewhere.iter().filter(is_unknown) {
            report.found(subject.name(), format_args!("there is no handler {name} to try elsewhere"));
        }
    }
    let known: Vec<&str> = generators().map(|(primitive, _)| primitive).collect();
    unreached.retain(|handler| !subjects.iter().any(|subject| subject.elsewhere.contains(&handler.site.name)));
    for handler in unreached {
        let what = match handler.signature.primitive {
            PrimitivePattern::Named(name) if !known.contains(&name) => {
                format!("there are no calls of {name}: write a generator")
            }
            _ => format!("no call of the suite reaches it: it takes {}", handler.signature),
        };
        report.found(handler.site, what);
    }
    report
}

/// Demands that each type that a handler in this program names has a subject.
///
/// [`coverage`] reports on the caller's own types alone; this is for a workspace that owns all of them.
#[must_use]
pub fn types_without_a_subject(subjects: &[Subject]) -> Report {
    let mut report = Report::new("types");
    let standing: Vec<&'static ArrayType> = subjects.iter().filter_map(type_of_subject).collect();
    for handler in Registry::global().handlers() {
        report.compared_one();
        if types(&handler.signature)
            .any(|pattern| matches!(pattern, OperandPattern::Type(ty) if !standing.contains(ty)))
        {
            report.found(handler.site, "it names a type without a subject: give the suite a line for it");
        }
    }
    report
}

fn type_of_subject(subject: &Subject) -> Option<&'static ArrayType> {
    let plain = Case::plain(&Shapes::find(subject).ok()?);
    type_of(&subject.normal(&plain.aval, plain.seed)?)
}

/// Traces the calls of a subject that may reach one of the handlers that no call has reached.
fn exercise_alone(unreached: &mut Vec<Handler>, subject: &Subject) -> Option<(&'static str, String)> {
    let shapes = Shapes::find(subject).ok()?;
    let plain = Case::plain(&shapes);
    let ty = type_of_subject(subject)?;
    let primitives = Primitives::new(subject, &plain);
    let mut failed = None;
    for (primitive, generator) in generators().filter(|(primitive, _)| primitives.any || primitives.name(primitive)) {
        let wanted = |unreached: &[Handler]| {
            unreached
                .iter()
                .any(|handler| handler.signature.primitive.matches(primitive) && names(handler.signature.operands, ty))
        };
        let mut try_case = |case: &Case| {
            if wanted(unreached) {
                for call in calls_in(subject, generator, case) {
                    exercise(unreached, &call);
                }
            }
            Ok(())
        };
        let _: Result<(), String> = try_case(&plain);
        if let Err(found) = each_drawn(&shapes, try_case) {
            failed = Some((primitive, found));
        }
    }
    failed
}

/// Takes the handlers that take part in a call out of those that no call has reached.
fn exercise(unreached: &mut Vec<Handler>, call: &Call) {
    // What goes wrong here is a finding of `handlers`.
    if let Ok(takers) = guarded(|| call.takers().map_err(text)) {
        unreached.retain(|handler| !takers.handlers.contains(&handler.site));
    }
}

/// The types and families that a signature names.
fn types(signature: &Signature) -> impl Iterator<Item = &OperandPattern> {
    signature.operands.iter().filter(|pattern| matches!(pattern, OperandPattern::Type(_) | OperandPattern::Family(..)))
}
