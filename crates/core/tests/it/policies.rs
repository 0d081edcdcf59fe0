//! What happens when a call needs an array materialized, and where that is set.

use std::process::Command;
use std::sync::Arc;

use tacit::kernel::{Fallback, permit_dense};
use tacit::{Counters, Error, POLICY_VARIABLE, Policy, Registry, implicit};

use crate::log::Log;
use crate::types::{Left, Right, aval, dense, error, vector};

fn use_both() {
    implicit((Left::of(&vector(&[1.0])), Right::of(&vector(&[2.0]))), |(x, y)| {
        x.add(&x)?.add(&y)?.add(&x)?.multiply(y.negative()?)
    })
    .expect("runs");
}

#[test]
fn warn_says_it_once_for_each_primitive_and_types() {
    let (log, _registry, _policy) = (Log::default(), Arc::new(Registry::new()).scope(), Policy::Warn.scope());
    tracing::subscriber::with_default(log.clone(), || {
        use_both();
        use_both();
    });
    expect_test::expect![[r#"
        no handler takes add of Left(f32[1]), Left(f32[1]): Left is materialized; write a `#[handler]` for it, or silence this with `Policy::Allow.scope()`
        no handler takes add of f32[1], Left(f32[1]): Left is materialized; write a `#[handler]` for it, or silence this with `Policy::Allow.scope()`
        no handler takes add of f32[1], Right(f32[1]): Right is materialized; write a `#[handler]` for it, or silence this with `Policy::Allow.scope()`
        no handler takes negative of Right(f32[1]): Right is materialized; write a `#[handler]` for it, or silence this with `Policy::Allow.scope()`"#]]
    .assert_eq(&log.lines().join("\n"));
}

#[test]
fn allow_and_deny_say_nothing() {
    let (log, _registry) = (Log::default(), Arc::new(Registry::new()).scope());
    tracing::subscriber::with_default(log.clone(), || {
        let _policy = Policy::Allow.scope();
        use_both();
        let _policy = Policy::Deny.scope();
        error(implicit(Left::of(&vector(&[1.0])), |x| x.negative()));
    });
    assert_eq!(log.lines(), [""; 0]);
}

#[test]
fn deny_is_an_error_before_anything_is_built() {
    let (_registry, _policy) = (Arc::new(Registry::new()).scope(), Policy::Deny.scope());
    let (outcome, counters) = Counters::of(|| implicit(Left::of(&vector(&[1.0])), |x| x.negative()));
    assert!(matches!(error(outcome), Error::MaterializationDenied { .. }));
    assert_eq!((counters.seen, counters.materialized), (1, 0));
}

const REASONS: [Fallback; 4] = [Fallback::Device, Fallback::Vjp, Fallback::Jvp, Fallback::Vmap { examples: 3 }];

#[test]
fn warn_says_it_once_for_each_kernel_and_reason() {
    let (log, _policy) = (Log::default(), Policy::Warn.scope());
    let ((), counters) = Counters::of(|| {
        tracing::subscriber::with_default(log.clone(), || {
            for reason in [REASONS, REASONS].concat() {
                permit_dense("warned", &aval(&[2, 5]), reason).expect("is allowed");
            }
            permit_dense("warned", &aval(&[2, 5]), Fallback::Vmap { examples: 1 }).expect("is allowed");
        });
    });
    expect_test::expect![[r#"
        kernel warned builds a dense f32[2,5] off the CPU; run it on the CPU, or silence this with `Policy::Allow.scope()`
        kernel warned builds a dense f32[2,5] for a gradient; leave the children of the implicit array out of the derivative, with `Wrt`, or silence this with `Policy::Allow.scope()`
        kernel warned builds a dense f32[2,5] for a derivative; leave the children of the implicit array out of the derivative, with `Wrt`, or silence this with `Policy::Allow.scope()`
        kernel warned builds a dense f32[2,5] mapped over 3 examples; map the other operands and not the children of the implicit array, or silence this with `Policy::Allow.scope()`"#]].assert_eq(&log.lines().join("\n"));
    // One for each example.
    assert_eq!((counters.materialized, counters.materialized_bytes), (9, 2 * 5 * 4 * (3 + 3 + 3 + 3 + 1)));
}

#[test]
fn deny_says_what_stands_for_a_kernel_and_why() {
    let _policy = Policy::Deny.scope();
    let denied = REASONS.map(|reason| error(permit_dense("products", &aval(&[2, 5]), reason)).to_string());
    expect_test::expect![[r#"
        kernel products builds a dense f32[2,5] off the CPU, which the policy forbids
        help: run it on the CPU, or allow it here with `Policy::Allow.scope()`
        kernel products builds a dense f32[2,5] for a gradient, which the policy forbids
        help: leave the children of the implicit array out of the derivative, with `Wrt`, or allow it here with `Policy::Allow.scope()`
        kernel products builds a dense f32[2,5] for a derivative, which the policy forbids
        help: leave the children of the implicit array out of the derivative, with `Wrt`, or allow it here with `Policy::Allow.scope()`
        kernel products builds a dense f32[2,5] mapped over 3 examples, which the policy forbids
        help: map the other operands and not the children of the implicit array, or allow it here with `Policy::Allow.scope()`"#]].assert_eq(&denied.join("\n"));
}

#[test]
fn guards_nest_and_give_back_what_was_in_force() {
    let outer = Policy::Deny.scope();
    {
        let _inner = Policy::Allow.scope();
        assert_eq!(Policy::current(), Policy::Allow);
        let _registry = Arc::new(Registry::new()).scope();
        let value = implicit(Left::of(&vector(&[1.0])), |x| x.negative()).expect("allowed");
        assert_eq!(dense(&value), [-1.0]);
    }
    assert_eq!(Policy::current(), Policy::Deny);
    drop(outer);
}

#[test]
fn registries_nest_too() {
    let (outer, inner) = (Arc::new(Registry::new()), Arc::new(Registry::new()));
    let _outer = outer.scope();
    {
        let _inner = inner.scope();
        assert!(Arc::ptr_eq(&Registry::current(), &inner));
    }
    assert!(Arc::ptr_eq(&Registry::current(), &outer));
}

#[test]
#[ignore = "the process that another test starts"]
fn tell_the_policy_of_this_process() {
    println!("policy {:?}", Policy::current());
}

/// Standard output and error of a process that tells its policy.
fn told(value: Option<&str>) -> (String, String) {
    let mut command = Command::new(std::env::current_exe().expect("a test has a file"));
    command.args(["--exact", "--ignored", "--nocapture", "policies::tell_the_policy_of_this_process"]);
    command.env_remove(POLICY_VARIABLE);
    if let Some(value) = value {
        command.env(POLICY_VARIABLE, value);
    }
    let output = command.output().expect("it starts");
    (String::from_utf8_lossy(&output.stdout).into_owned(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn the_environment_sets_the_policy() {
    let cases = [
        (None, "Warn"),
        (Some("allow"), "Allow"),
        (Some("warn"), "Warn"),
        (Some("deny"), "Deny"),
        (Some("DENY"), "Deny"),
    ];
    for (value, policy) in cases {
        let (out, _) = told(value);
        assert!(out.contains(&format!("policy {policy}")), "{value:?}: {out}");
    }
}

#[test]
fn a_value_that_is_no_policy_is_said_and_warn_is_in_force() {
    let (out, error) = told(Some("maybe"));
    assert!(out.contains("policy Warn"), "{out}");
    let line = error.lines().find(|line| line.contains(POLICY_VARIABLE)).unwrap_or_default();
    assert_eq!(line, "warning: TACIT_MATERIALIZE=maybe is none of allow, warn and deny; warn is in force");
}
