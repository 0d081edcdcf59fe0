//! Gradients taken inside an executable, of the leading rows alone.

use mlx_rs::{Array, transforms};
use tacit::transform::{Differentiable, apply, checkpoint};
use tacit::{Error, Result};
use tacit_arrays::ste;
use tacit_executable::{Executable, Mode};

use crate::types::{aval, dense, matrix, numbers};

const ROWS: i32 = 4;

/// The gradient of the sum of `f` on 1 and 3 of 4 rows is the leading part of the gradient on all, and is not zero.
fn keeps(f: fn(&Array) -> Result<Array>) {
    let x = matrix(ROWS, 3).multiply(Array::from_f32(0.3)).expect("builds");
    for mode in [Mode::Lazy, Mode::Compiled] {
        let mut gradient = Executable::builder("gradient")
            .input("x", aval(&[ROWS, 3]))
            .output("dx")
            .mode(mode)
            .build(move |given| {
                let mut gradient = transforms::grad(move |x: &Array| f(x)?.sum(None));
                Ok(vec![gradient(given.get("x")?)?])
            })
            .expect("builds");
        let mut on_rows = |actual| {
            gradient.active_extent(actual, ROWS).expect("rows keep apart");
            dense(gradient.run(&[("x", &x)]).expect("runs").get("dx").expect("is returned"))
        };
        let whole = on_rows(ROWS);
        assert!(whole.iter().all(|dx| dx.abs() > 1e-3), "{whole:?}");
        for actual in [1, 3] {
            for (dx, expected) in on_rows(actual).iter().zip(&whole[..3 * actual as usize]) {
                assert!((dx - expected).abs() < 1e-5, "{dx} {expected}");
            }
        }
    }
    assert_eq!(numbers(&f(&x).expect("runs")).len(), 12);
}

#[test]
fn through_a_straight_through_estimator() {
    keeps(|x| Ok(ste(x, |x| Ok::<_, Error>(x.round(0)?.add(Array::from_f32(1.0))?))?.dense()?.square()?));
}

#[test]
fn through_a_checkpoint() {
    keeps(|x| {
        let mut inner = checkpoint(|x: Array| Ok::<_, Error>(x.cos()?.add(x.square()?)?.exp()?));
        inner.call(x)?.dense()
    });
}

pub(crate) struct Square;

impl Differentiable for Square {
    fn name(&self) -> &'static str {
        "square"
    }

    fn forward(&self, args: &[Array]) -> Result<Vec<Array>> {
        Ok(vec![args[0].square()?])
    }

    fn backward(&self, args: &[Array], cotangents: &[Array], _: &[Array]) -> Result<Vec<Array>> {
        Ok(vec![cotangents[0].multiply(args[0].add(Array::from_f32(7.0))?)?])
    }
}

#[test]
fn through_a_derivative_of_its_own() {
    keeps(|x| Ok(apply(&[x.exp()?], Square)?.remove(0)));
}
