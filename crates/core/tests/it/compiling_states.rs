//! States that a replay assigns: what it leaves alone, and what cannot be taken.

#![allow(clippy::float_cmp, reason = "the numbers are exact")]

use std::any::Any;
use std::cell::Cell;
use std::rc::Rc;

use mlx_rs::Array;
use tacit::tree::{Arguments, Gradient, Labels, Leaf, Node, Reader, Visitor};
use tacit::{Error, Result, Tree, compile_with_state, implicit_with_state};

use crate::traced::denied;

/// An array that is not assigned where a call left it alone.
struct Kept(Array);

impl Arguments for Kept {
    type Arrays = Self;

    fn flatten<'a>(&'a self, visitor: &mut dyn Visitor<'a>) -> Result<()> {
        visitor.node(&Node::new("Kept", Labels::Inner));
        visitor.array(&self.0);
        Ok(())
    }
}

impl Tree for Kept {
    type With<L: Leaf> = L::Fixed<Self>;

    fn unflatten(reader: &mut Reader<'_>) -> Result<Self> {
        reader.enter("Kept")?;
        Ok(Self(reader.array()?))
    }

    fn assign(&mut self, reader: &mut Reader<'_>) -> Result<()> {
        if reader.skip_unchanged() {
            return Ok(());
        }
        *self = Self::unflatten(reader)?;
        Ok(())
    }
}

#[test]
fn arrays_change_places_behind_a_gradient_that_appears() -> Result<()> {
    let mut step = compile_with_state(denied(), |(gradient, kept, other): &mut (Gradient, Kept, Array), x: Array| {
        *gradient = Gradient::Dense(x.square()?);
        std::mem::swap(&mut kept.0, other);
        x.exp()
    });
    for call in 0..3 {
        let mut state = (Gradient::Nothing, Kept(Array::from_f32(1.0)), Array::from_f32(2.0));
        step.call(&mut state, Array::from_f32(3.0))?;
        let found = (state.1.0.item_exact::<f32>(), state.2.item_exact::<f32>());
        assert_eq!(found, (2.0, 1.0), "call {call}");
    }
    Ok(())
}

/// An array that a step may replace so many times.
struct Counted {
    array: Array,
    used: u32,
    most: u32,
}

impl Arguments for Counted {
    type Arrays = Self;

    fn flatten<'a>(&'a self, visitor: &mut dyn Visitor<'a>) -> Result<()> {
        let counts = (self.used, self.most);
        let template = move || -> Rc<dyn Any> { Rc::new(counts) };
        visitor.node(&Node::new("Counted", Labels::Inner).with_template(&template).that_refuses());
        visitor.array(&self.array);
        Ok(())
    }
}

impl Tree for Counted {
    type With<L: Leaf> = L::Fixed<Self>;

    fn unflatten(_: &mut Reader<'_>) -> Result<Self> {
        Err(Error::invalid("it is not made of its array alone", "pass it as a state"))
    }

    fn assign(&mut self, reader: &mut Reader<'_>) -> Result<()> {
        let is_made = reader.is_made();
        let entered = reader.enter("Counted")?;
        if is_made && self.used == self.most {
            return Err(Error::invalid("it was replaced often enough", "take another one"));
        }
        match entered.template::<(u32, u32)>() {
            Some(&counts) if !is_made => (self.used, self.most) = counts,
            _ => self.used += 1,
        }
        self.array = reader.array()?;
        Ok(())
    }
}

#[test]
fn a_replay_that_cannot_be_taken_leaves_the_whole_state() -> Result<()> {
    let counted = |most| Counted { array: Array::from_f32(1.0), used: 0, most };
    let mut state = (counted(100), counted(3));
    let mut step = compile_with_state(denied(), |(a, b): &mut (Counted, Counted), x: Array| {
        a.array = a.array.add(&x)?;
        b.array = b.array.add(&x)?;
        x.exp()
    });
    for _ in 0..3 {
        step.call(&mut state, Array::from_f32(1.0))?;
    }
    assert!(step.call(&mut state, Array::from_f32(1.0)).is_err());
    let found = [&state.0, &state.1].map(|counted| (counted.used, counted.array.item_exact::<f32>()));
    assert_eq!(found, [(3, 4.0), (3, 4.0)]);
    Ok(())
}

/// An array that counts the steps of a call in its structure, and of all calls beside that, and how often it was copied.
struct Counting {
    array: Array,
    step: u32,
    total: u32,
    copied: Rc<Cell<u32>>,
}

impl Arguments for Counting {
    type Arrays = Self;

    fn flatten<'a>(&'a self, visitor: &mut dyn Visitor<'a>) -> Result<()> {
        let template = || -> Rc<dyn Any> {
            self.copied.set(self.copied.get() + 1);
            Rc::new(())
        };
        let node = Node::new("Counting", Labels::Inner).with_template(&template).that_counts();
        visitor.node(&node.with_statics(&[("step", &self.step)]));
        visitor.array(&self.array);
        Ok(())
    }
}

impl Tree for Counting {
    type With<L: Leaf> = L::Fixed<Self>;

    fn unflatten(_: &mut Reader<'_>) -> Result<Self> {
        Err(Error::invalid("it is not made of its array alone", "pass it as a state"))
    }

    fn assign(&mut self, reader: &mut Reader<'_>) -> Result<()> {
        let is_made = reader.is_made();
        let step = reader.enter("Counting")?.static_field::<u32>("step")?;
        (self.step, self.total) = if is_made { (0, self.total + step) } else { (step, self.total) };
        self.array = reader.array()?;
        Ok(())
    }
}

#[test]
fn a_replay_that_counts_copies_no_state() -> Result<()> {
    let copied = Rc::new(Cell::new(0));
    let array = Array::from_f32(1.0);
    let mut state = Counting { array, step: 0, total: 0, copied: Rc::clone(&copied) };
    let mut step = compile_with_state(denied(), |state: &mut Counting, x: Array| {
        state.step += 1;
        state.array = state.array.add(&x)?;
        x.exp()
    });
    step.call(&mut state, Array::from_f32(1.0))?;
    let (of_trace, total) = (copied.get(), state.total);
    for _ in 0..3 {
        step.call(&mut state, Array::from_f32(1.0))?;
    }
    assert_eq!((copied.get(), step.stats().traces), (of_trace, 1));
    assert_eq!((state.total - total, state.step, state.array.item_exact::<f32>()), (3, 0, 5.0));
    Ok(())
}

/// An array with a mode, which is in its structure.
struct Moded {
    array: Array,
    on: bool,
}

impl Arguments for Moded {
    type Arrays = Self;

    fn flatten<'a>(&'a self, visitor: &mut dyn Visitor<'a>) -> Result<()> {
        visitor.node(&Node::new("Moded", Labels::Inner).with_statics(&[("on", &self.on)]));
        visitor.array(&self.array);
        Ok(())
    }
}

impl Tree for Moded {
    type With<L: Leaf> = L::Fixed<Self>;

    fn unflatten(reader: &mut Reader<'_>) -> Result<Self> {
        let on = reader.enter("Moded")?.static_field("on")?;
        Ok(Self { array: reader.array()?, on })
    }

    fn assign(&mut self, reader: &mut Reader<'_>) -> Result<()> {
        let switches = reader.is_made() || reader.is_given_back();
        let entered = reader.enter("Moded")?;
        if switches {
            self.on = entered.static_field("on")?;
        }
        self.array = reader.array()?;
        Ok(())
    }
}

#[test]
fn a_state_knows_what_is_given_back_to_it() -> Result<()> {
    let fails = Cell::new(true);
    let run = |state: &mut Moded, x: Array| -> Result<Array> {
        state.on = true;
        if fails.get() { Err(Error::invalid("not now", "try again")) } else { Ok(state.array.add(&x)?) }
    };
    let off = || Moded { array: Array::from_f32(1.0), on: false };
    let mut step = compile_with_state(denied(), run);
    for failing in [true, false] {
        fails.set(failing);
        let (mut traced, mut eager) = (off(), off());
        assert_eq!(step.call(&mut traced, Array::from_f32(2.0)).is_err(), failing);
        assert_eq!(implicit_with_state(&mut eager, Array::from_f32(2.0), run).is_err(), failing);
        assert_eq!([traced.on, eager.on], [!failing; 2]);
    }
    let mut replayed = off();
    step.call(&mut replayed, Array::from_f32(2.0))?;
    assert!(replayed.on && step.stats().traces == 1);
    Ok(())
}
