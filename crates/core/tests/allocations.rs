//! What a trace allocates that is not the first: this is the only test of its program, as the allocator is that of a whole
//! one. What MLX allocates, in C++, is not counted.

extern crate tacit_core as tacit;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::hint::black_box;

use mlx_rs::{Array, ops};
use tacit_core::primitives::Matmul;
use tacit_core::{Aval, ImplicitArray, Materialize, Policy, Result, Value, handler, implicit};

struct Counting;

thread_local! {
    static COUNT: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: every call is the system allocator's own; the counter allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.set(COUNT.get() + 1);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        COUNT.set(COUNT.get() + 1);
        // SAFETY: as the caller promises.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// What a later run of `f` allocates.
fn allocations(mut f: impl FnMut()) -> usize {
    for _ in 0..3 {
        f();
    }
    let before = COUNT.get();
    f();
    COUNT.get() - before
}

/// A weight: products go to a handler, and nothing else does.
#[derive(ImplicitArray, Clone, Debug)]
#[implicit(name = "test.Weight")]
struct Weight {
    array: Array,
    #[implicit(aux)]
    aval: Aval,
}

impl Materialize for Weight {
    fn materialize(&self) -> Result<Value> {
        Ok((&self.array).into())
    }
}

#[handler]
fn product(_: &Matmul, x: &Array, w: &Weight) -> Result<Value> {
    Ok(x.matmul(&w.array)?.into())
}

/// What a later trace of so many layers allocates: each is a product that a handler takes, sums of what is dense, and sums
/// with an array that no handler takes.
fn model(layers: usize, dense: usize, materialized: usize) -> usize {
    let x = ops::ones::<f32>(&[4, 4]).expect("ones");
    let weight = Value::from(Weight { aval: Aval::from(&x), array: x.clone() });
    allocations(|| {
        let y = implicit((&x, &weight), |(x, w)| {
            let mut y = x.clone();
            for _ in 0..layers {
                y = y.matmul(&w)?;
                y = (0..dense).try_fold(y, |y, _| y.add(&x))?;
                y = (0..materialized).try_fold(y, |y, _| y.add(&w))?;
            }
            Ok::<_, tacit::Error>(y)
        });
        drop(black_box(y.expect("runs")));
    })
}

#[test]
fn only_what_a_handler_takes_allocates() {
    let _allow = Policy::Allow.scope();
    assert_eq!(model(50, 20, 1), model(50, 2, 1), "for what is dense");
    assert_eq!(model(50, 1, 20), model(50, 1, 2), "for what is materialized");
    // The primitive, the operands, the results and their avals.
    let layer = (model(50, 2, 1) - model(25, 2, 1)) as f64 / 25.0;
    assert!(layer <= 6.0, "{layer} allocations for each node that a handler takes");
}
