//! What happens when a call needs an array materialized, and where that is set.

use std::cell::RefCell;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use mlx_rs::Array;
use tacit::kernel::{Fallback, permit_dense};
use tacit::{
    Aval, Counters, Error, ImplicitArray, Materialize, POLICY_VARIABLE, Policy, PolicyGuard, Registry, Result, Value,
    compile, implicit,
};

use crate::environment;
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
    let (outcome, counters) = Counters::during(|| implicit(Left::of(&vector(&[1.0])), |x| x.negative()));
    assert!(matches!(error(outcome), Error::MaterializationDenied { .. }));
    assert_eq!((counters.seen, counters.materialized), (1, 0));
}

const REASONS: [Fallback; 4] = [Fallback::Device, Fallback::Vjp, Fallback::Jvp, Fallback::Vmap { examples: 3 }];

#[test]
fn warn_says_it_once_for_each_kernel_and_reason() {
    let (log, _policy) = (Log::default(), Policy::Warn.scope());
    let ((), counters) = Counters::during(|| {
        tracing::subscriber::with_default(log.clone(), || {
            for reason in [REASONS, REASONS].concat() {
                permit_dense("warned", &aval(&[2, 5]), reason).expect("is allowed");
            }
            permit_dense("warned", &aval(&[2, 5]), Fallback::Vmap { examples: 1 }).expect("is allowed");
        });
    });
    expect_test::expect![[r#"
        kernel warned builds a dense f32[2,5] off the CPU; run it on the CPU, or only the kernel with TACIT_DEVICE_FALLBACK=cpu, or silence this with `Policy::Allow.scope()`
        kernel warned builds a dense f32[2,5] for a gradient; leave the children of the implicit array out of the derivative with `grad_wrt`, or hold the array in the closure; to train scales, prepare the weight with `trained_scales`, or silence this with `Policy::Allow.scope()`
        kernel warned builds a dense f32[2,5] for a derivative; leave the children of the implicit array out of the derivative with `grad_wrt`, or hold the array in the closure; to train scales, prepare the weight with `trained_scales`, or silence this with `Policy::Allow.scope()`
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
        help: run it on the CPU, or only the kernel with TACIT_DEVICE_FALLBACK=cpu, or allow it here with `Policy::Allow.scope()`
        kernel products builds a dense f32[2,5] for a gradient, which the policy forbids
        help: leave the children of the implicit array out of the derivative with `grad_wrt`, or hold the array in the closure; to train scales, prepare the weight with `trained_scales`, or allow it here with `Policy::Allow.scope()`
        kernel products builds a dense f32[2,5] for a derivative, which the policy forbids
        help: leave the children of the implicit array out of the derivative with `grad_wrt`, or hold the array in the closure; to train scales, prepare the weight with `trained_scales`, or allow it here with `Policy::Allow.scope()`
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
fn a_guard_that_goes_ends_itself_alone() {
    let outer = Policy::Deny.scope();
    let mut kept = [Policy::Warn.scope()];
    // The new guard is there before the old one goes.
    kept[0] = Policy::Allow.scope();
    assert_eq!(Policy::current(), Policy::Allow);
    drop(outer);
    assert_eq!(Policy::current(), Policy::Allow);
    let inner = Policy::Warn.scope();
    drop(kept);
    assert_eq!(Policy::current(), Policy::Warn);
    let last = Policy::Deny.scope();
    drop(inner);
    assert_eq!(Policy::current(), Policy::Deny);
    drop(last);
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

const TELLS: &str = "policies::tell_the_policy_of_this_process";

/// Standard output and error of a process that tells its policy.
fn told(value: Option<&str>) -> (String, String) {
    environment::told(TELLS, &[(POLICY_VARIABLE, value)])
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
    assert_eq!(line, "warning: TACIT_MATERIALIZE=maybe is not one of allow, warn and deny; warn is in force");
    let no_text = OsStr::from_bytes(b"den\xff");
    let output = environment::command(TELLS, &[]).env(POLICY_VARIABLE, no_text).output().expect("it starts");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains("TACIT_MATERIALIZE=den\u{fffd} is not one of"), "{error}");
    // Scripts set a variable to nothing to unset it.
    let (out, error) = told(Some(""));
    assert!(out.contains("policy Warn") && !error.contains(POLICY_VARIABLE), "{out}{error}");
}

#[test]
fn a_closed_standard_error_is_no_failure() {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let mut command = environment::command(TELLS, &[(POLICY_VARIABLE, Some("maybe"))]);
    let output = command.stderr(writer).output().expect("it starts");
    let out = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && out.contains("policy Warn"), "{out}");
}

/// Types with a policy of their own; with `default` because nothing takes their calls.
macro_rules! with_policy {
    ($($ty:ident $name:literal $word:literal;)*) => {$(
        #[derive(ImplicitArray, Clone, Debug)]
        #[implicit(name = $name, materialize = $word)]
        struct $ty {
            array: Array,
            #[implicit(aux)]
            aval: Aval,
        }

        impl Materialize for $ty {
            fn materialize(&self) -> Result<Value> {
                Ok(self.array.clone().into())
            }
        }

        impl $ty {
            fn of(array: &Array) -> Value {
                Self { array: array.clone(), aval: Aval::from(array) }.into()
            }
        }
    )*};
}

with_policy! {
    Cheap "test.Cheap" "allow";
    Named "test.Named" "warn";
    Vast "test.Vast" "deny";
}

/// What becomes of a call that no handler takes, and of reading the dense array, for each of the four kinds of type.
fn outcomes() -> Vec<&'static str> {
    let (log, x) = (Log::default(), vector(&[1.0]));
    // A registry of its own has warned of nothing yet.
    let _registry = Arc::new(Registry::new()).scope();
    let values = [Left::of(&x), Cheap::of(&x), Named::of(&x), Vast::of(&x)];
    let told = values.into_iter().map(|value| {
        let before = log.lines().len();
        let result = tracing::subscriber::with_default(log.clone(), || implicit(&value, |x| x.negative()));
        assert_eq!(result.is_err(), value.dense().is_err(), "both ask alike");
        match result {
            Err(error) => {
                assert!(matches!(error, Error::MaterializationDenied { .. }), "{error}");
                "denied"
            }
            Ok(_) if log.lines().len() > before => "warned",
            Ok(_) => "allowed",
        }
    });
    told.collect()
}

#[test]
fn a_types_own_policy_holds_where_no_guard_says_one() {
    assert_eq!(outcomes(), ["warned", "allowed", "warned", "denied"]);
}

#[test]
fn a_guard_is_nearer_the_call_than_the_type() {
    for (policy, outcome) in [(Policy::Allow, "allowed"), (Policy::Warn, "warned"), (Policy::Deny, "denied")] {
        let _guard = policy.scope();
        assert_eq!(outcomes(), [outcome; 4], "{policy:?}");
    }
}

#[test]
#[ignore = "the process that another test starts"]
fn tell_the_outcomes_of_this_process() {
    println!("outcomes {:?}", outcomes());
}

#[test]
fn a_types_own_policy_is_nearer_than_the_environment() {
    let test = "policies::tell_the_outcomes_of_this_process";
    for (value, expected) in [("allow", "allowed"), ("deny", "denied")] {
        let (told, _) = environment::told(test, &[(POLICY_VARIABLE, Some(value))]);
        assert!(told.contains(&format!(r#"outcomes ["{expected}", "allowed", "warned", "denied"]"#)), "{told}");
    }
}

#[test]
fn a_trace_under_a_guard_is_not_found_again_without_it() {
    let _registry = Arc::new(Registry::new()).scope();
    let mut f = compile(|x: Array| x.negative());
    let vast = || Vast::of(&vector(&[1.0]));
    {
        let _warn = Policy::Warn.scope();
        f.call(vast()).expect("the guard says so");
    }
    assert!(matches!(f.call(vast()), Err(Error::MaterializationDenied { .. })));
    {
        let _warn = Policy::Warn.scope();
        f.call(vast()).expect("the guard says so");
    }
    assert_eq!(f.stats().traces, 1);
    let mut f = compile(|x: Array| x.negative());
    for _ in 0..2 {
        f.call(Cheap::of(&vector(&[1.0]))).expect("the type says so");
        let _warn = Policy::Warn.scope();
        f.call(Cheap::of(&vector(&[1.0]))).expect("is said");
    }
    assert_eq!(f.stats().traces, 2);
    assert_eq!(f.stats().retraces().collect::<Vec<_>>(), ["policy Warn, the types' -> a guard's"]);
}

#[test]
fn a_guard_may_be_kept_until_its_thread_ends() {
    thread_local! {
        static KEPT: RefCell<Option<PolicyGuard>> = const { RefCell::new(None) };
    }
    // The guard is dropped last: what was first used after `KEPT` goes before it.
    std::thread::spawn(|| KEPT.with_borrow_mut(|kept| *kept = Some(Policy::Deny.scope())))
        .join()
        .expect("the thread ends");
}
