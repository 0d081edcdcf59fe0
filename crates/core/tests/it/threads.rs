//! Threads: each has its policy, registry, counters and traces.

use std::sync::{Arc, Barrier};
use std::thread;

use mlx_rs::Array;
use tacit::primitives::Negative;
use tacit::{Counters, Policy, Registry, Result, Value, compile, handler, implicit};

use crate::types::{Left, dense, vector};

#[handler]
fn negate(_: &Negative, x: &Left) -> Result<Value> {
    Ok(x.array.negative()?.into())
}

#[test]
fn two_threads_trace_at_once() {
    let (registry, barrier) = (Arc::new(Registry::new().with::<negate>()), Arc::new(Barrier::new(2)));
    let work = |first: f32| {
        let (registry, barrier) = (Arc::clone(&registry), Arc::clone(&barrier));
        move || {
            let (_registry, _policy) = (registry.scope(), Policy::Allow.scope());
            let ((), counters) = Counters::during(|| {
                for i in 0..50 {
                    let args = [first + i as f32, 0.0].map(|number| Left::of(&vector(&[number])));
                    let value = implicit(args, |[x, y]| {
                        barrier.wait();
                        x.negative()?.add(y.exp()?)?.add(&x)
                    });
                    assert_eq!(dense(&value.expect("runs")), [1.0]);
                }
            });
            counters
        }
    };
    let threads = [thread::spawn(work(1.0)), thread::spawn(work(100.0))];
    for thread in threads {
        let counters = thread.join().expect("it does not panic");
        assert_eq!((counters.seen, counters.handled, counters.materialized), (150, 50, 100));
    }
}

#[test]
fn guards_of_one_thread_are_not_in_force_on_another() {
    let (registry, policy) = (Arc::new(Registry::new()), Policy::Deny.scope());
    let guard = registry.scope();
    let other = Arc::clone(&registry);
    let seen = thread::spawn(move || (Policy::current(), Arc::ptr_eq(&Registry::current(), &other), Counters::total()));
    let (policy_there, same, counters) = seen.join().expect("it does not panic");
    assert!(policy_there != Policy::Deny && !same);
    assert_eq!(counters, Counters::default());
    drop((guard, policy));
}

#[test]
fn an_implicit_array_of_evaluated_children_goes_to_another_thread() {
    let value = Left::of(&vector(&[1.0, 2.0]));
    let handle = thread::spawn(move || {
        let _policy = Policy::Allow.scope();
        dense(&implicit(value, |x| x.exp()?.log()).expect("runs")).len()
    });
    assert_eq!(handle.join().expect("it does not panic"), 2);
}

#[test]
fn each_thread_compiles_for_itself() {
    let barrier = Arc::new(Barrier::new(2));
    let work = |by: f32| {
        let barrier = Arc::clone(&barrier);
        move || {
            let mut f = compile(|x: Array| {
                barrier.wait();
                x.multiply(Array::from_f32(by))
            });
            for i in 0..50 {
                let result = f.call(vector(&[i as f32])).expect("runs");
                assert_eq!(dense(&result), [by * i as f32]);
            }
            f.stats().traces
        }
    };
    for thread in [thread::spawn(work(2.0)), thread::spawn(work(3.0))] {
        assert_eq!(thread.join().expect("it does not panic"), 1);
    }
}
