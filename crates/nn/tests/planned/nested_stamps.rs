//! Parts of a state with stamps: within one another, and where traces take turns.

use mlx_rs::{Array, ops};
use tacit_core::tree::{Arguments, Labels, Leaf, Node, Reader, Stamp, Visitor};
use tacit_core::{Error, Result, Tree, compile_with_state};

use crate::stamps::{denied, numbers};

/// A weight with a stamp.
struct Inner {
    stamp: Stamp,
    weight: Array,
}

impl Inner {
    fn new(weight: Array) -> Self {
        Self { stamp: Stamp::new(), weight }
    }
}

impl Arguments for Inner {
    type Arrays = Self;

    fn flatten<'a>(&'a self, visitor: &mut dyn Visitor<'a>) -> Result<()> {
        if visitor.stamped(&self.stamp) {
            return Ok(());
        }
        visitor.node(&Node::new("Inner", Labels::Inner));
        visitor.array(&self.weight);
        Ok(())
    }
}

impl Tree for Inner {
    type With<L: Leaf> = L::Fixed<Self>;

    fn unflatten(reader: &mut Reader<'_>) -> Result<Self> {
        reader.enter("Inner")?;
        Ok(Self::new(reader.array()?))
    }

    fn assign(&mut self, reader: &mut Reader<'_>) -> Result<()> {
        if reader.skip_unchanged() {
            return Ok(());
        }
        *self = Self::unflatten(reader)?;
        Ok(())
    }
}

/// Whole numbers, whose sums of products are exact.
fn whole(seed: u64) -> Array {
    Array::from_iter((0..64).map(|i| ((7 * i + 3 * seed) % 5) as f32), &[8, 8])
}

#[test]
fn what_is_known_is_learned_once_where_shapes_take_turns() -> Result<()> {
    let mut compiled = compile_with_state(denied(), |(inner, sum): &mut (Inner, Array), x: Array| {
        let y = x.matmul(&inner.weight)?.abs()?;
        *sum = sum.add(y.max(None)?)?;
        Ok::<_, Error>(y)
    });
    let mut state = (Inner::new(whole(1)), Array::from_f32(0.0));
    for i in 0..40 {
        let x = ops::ones::<f32>(&[1 + i % 2, 8])?;
        compiled.call(&mut state, &x)?.dense()?.eval()?;
    }
    assert_eq!(compiled.stats().traces, 2);
    let kept = format!("{:?}", state.0.stamp).matches("Kept {").count();
    assert!(kept <= 2, "{kept} are kept");
    Ok(())
}

/// A tree with a stamp that holds one with a stamp.
struct Outer {
    stamp: Stamp,
    bias: Array,
    inner: Inner,
}

impl Arguments for Outer {
    type Arrays = Self;

    fn flatten<'a>(&'a self, visitor: &mut dyn Visitor<'a>) -> Result<()> {
        if visitor.stamped(&self.stamp) {
            return Ok(());
        }
        visitor.node(&Node::new("Outer", Labels::Fields(&["bias", "inner"])));
        visitor.array(&self.bias);
        self.inner.flatten(visitor)
    }
}

impl Tree for Outer {
    type With<L: Leaf> = L::Fixed<Self>;

    fn unflatten(reader: &mut Reader<'_>) -> Result<Self> {
        reader.enter("Outer")?;
        Ok(Self { stamp: Stamp::new(), bias: reader.array()?, inner: Inner::unflatten(reader)? })
    }

    fn assign(&mut self, reader: &mut Reader<'_>) -> Result<()> {
        if reader.skip_unchanged() {
            return Ok(());
        }
        self.stamp = Stamp::new();
        reader.enter("Outer")?;
        self.bias = reader.array()?;
        self.inner.assign(reader)
    }
}

#[test]
fn a_stamp_within_another_one_is_known_by_itself() -> Result<()> {
    type Nested = (Outer, Array);
    let run = |(outer, sum): &mut Nested, x: Array| {
        let y = x.matmul(&outer.inner.weight)?.add(&outer.bias)?.abs()?;
        *sum = sum.add(&y)?.multiply(Array::from_f32(0.5))?;
        Ok::<_, Error>(y.max(None)?)
    };
    let start = || (Outer { stamp: Stamp::new(), bias: whole(1), inner: Inner::new(whole(2)) }, whole(3));
    let (mut own, mut eager) = (start(), start());
    let mut compiled = compile_with_state(denied(), run);
    for call in 0..10 {
        if call == 5 {
            for state in [&mut own, &mut eager] {
                state.0.bias = whole(9);
                state.0.stamp = Stamp::new();
            }
        }
        let x = whole(10 + call);
        let found = compiled.call(&mut own, &x)?.dense()?;
        assert_eq!(numbers(&found), numbers(&run(&mut eager, x)?), "call {call}");
        assert_eq!(numbers(&own.1), numbers(&eager.1), "call {call}");
    }
    Ok(())
}
