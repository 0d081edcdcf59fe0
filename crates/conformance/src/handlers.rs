//! The handlers of a subject's type, and the primitives that it has none for.

use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};
use tacit_core::{ArrayType, OperandPattern, PrimitivePattern, Registry, Result, compile};

use crate::call::{Call, Depth};
use crate::calls::{Generator, Scene, generators};
use crate::case::{Case, cases};
use crate::report::{Report, guarded};
use crate::shape::Shapes;
use crate::subject::{Subject, type_of};
use crate::sweep::Sweep;

/// Compares calls of every known primitive with dense: in a plain case, and in drawn ones where the type has a handler
/// that names the primitive.
///
/// Cases vary in rank, extents, dtypes and layouts of the dense operands. Calls that a handler takes are compared
/// in value and gradient; those of the plain case also in directional derivatives, mapped over their dense operands, and
/// for a named primitive compiled, as with `TACIT_SWEEP=full` are all. Others must be bit for bit what the primitive gives on dense
/// operands.
#[must_use]
pub fn handlers(subject: &Subject) -> Report {
    let mut report = Report::new(format!("handlers of {}", subject.name()));
    let Some(shapes) = report.shapes(subject) else { return report };
    let plain = Case::plain(&shapes);
    let primitives = Primitives::new(subject, &plain);
    let full = Sweep::current() == Sweep::Full;
    if !full {
        // Each fused kernel costs a run of the C++ compiler, of which a hundred subjects would need thousands.
        compile::disable_fusion();
    }
    for (primitive, generator) in generators() {
        let named = primitives.name(primitive);
        let first = Depth { compiled: named, transformed: true };
        let drawn = Depth { compiled: full, transformed: full };
        for call in calls_in(subject, generator, &plain) {
            report.compare(format_args!("{primitive}: {}", call.name), || call.check(subject, first));
        }
        if named {
            let outcome = each_drawn(&shapes, |case| {
                calls_in(subject, generator, case).iter().try_for_each(|call| {
                    report.compared_one();
                    guarded(|| call.check(subject, drawn)).map_err(|found| format!("{}: {found}", call.name))
                })
            });
            if let Err(found) = outcome {
                report.found(primitive, found);
            }
        }
    }
    report
}

/// The primitives for which a type has handlers.
pub(crate) struct Primitives {
    patterns: Vec<PrimitivePattern>,
    pub(crate) any: bool,
}

impl Primitives {
    pub(crate) fn new(subject: &Subject, plain: &Case) -> Self {
        let ty = subject.normal(&plain.aval, plain.seed).as_ref().and_then(type_of);
        let registry = Registry::global();
        let taking =
            || registry.handlers().iter().filter(|handler| ty.is_some_and(|ty| names(handler.signature.operands, ty)));
        Self {
            patterns: taking()
                .map(|handler| handler.signature.primitive)
                .filter(|pattern| *pattern != PrimitivePattern::Any)
                .collect(),
            any: taking().any(|handler| handler.signature.primitive == PrimitivePattern::Any),
        }
    }

    /// Whether a handler names the primitive or its class.
    pub(crate) fn name(&self, primitive: &str) -> bool {
        self.patterns.iter().any(|pattern| pattern.matches(primitive))
    }
}

/// Whether a type, or a family that it joins, stands among the patterns.
pub(crate) fn names(patterns: &[OperandPattern], ty: &'static ArrayType) -> bool {
    let named = |pattern: &&OperandPattern| matches!(pattern, OperandPattern::Type(_) | OperandPattern::Family(..));
    patterns.iter().filter(named).any(|pattern| pattern.matches(Some(ty)))
}

/// The calls that a generator makes of a case: none where the subject cannot stand for its aval.
pub(crate) fn calls_in(subject: &Subject, generator: Generator, case: &Case) -> Vec<Call> {
    Scene::new(subject, case).map(|scene| generator(&scene)).unwrap_or_default()
}

/// Runs `check` on the drawn cases, the same in every run; the least case that fails stands in the error.
pub(crate) fn each_drawn(shapes: &Shapes, mut check: impl FnMut(&Case) -> Result<(), String>) -> Result<(), String> {
    let config = Config {
        cases: Sweep::current().cases(),
        failure_persistence: None,
        max_shrink_iters: 64,
        ..Config::default()
    };
    let mut runner = TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha));
    let check = std::cell::RefCell::new(&mut check);
    let outcome = runner.run(&cases(shapes), |case| (check.borrow_mut())(&case).map_err(TestCaseError::fail));
    outcome.map_err(|error| match error {
        TestError::Fail(reason, case) => format!("{reason}, in {case:?}"),
        TestError::Abort(reason) => format!("no cases: {reason}"),
    })
}
