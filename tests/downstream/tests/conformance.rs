//! The conformance suite on types of a crate that depends on it and on the facade.

use mlx_rs::{Array, ops};
use tacit::format::{Format, PackedArray, Scheme, TextForm};
use tacit::prelude::*;
use tacit::register::{register_array, register_format};
use tacit_conformance::{Subject, conformance, handlers};

/// A number times the identity.
#[derive(ImplicitArray, Clone, Debug)]
#[implicit(name = "downstream.Scalar")]
struct Scalar {
    factor: Array,
    #[implicit(aux)]
    aval: Aval,
}

impl Scalar {
    /// Of the shape and dtype of `x`, a square.
    fn like(x: &Array) -> Result<Self> {
        match x.shape() {
            [n, k] if n == k => Ok(Self { factor: Array::from_f32(3.0).as_dtype(x.dtype())?, aval: Aval::from(x) }),
            _ => Err(Error::invalid("it is no square", "give a square matrix")),
        }
    }
}

impl Materialize for Scalar {
    fn materialize(&self) -> Result<Value> {
        let identity = ops::identity::<f32>(self.aval.shape[0])?.as_dtype(self.aval.dtype)?;
        Ok(identity.multiply(&self.factor)?.into())
    }
}

#[handler]
fn scalar_matmul(_op: &primitives::Matmul, x: &Array, w: &Scalar) -> Result<Array> {
    Ok(x.multiply(&w.factor)?)
}

/// A codebook of 3 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Powers {
    block: usize,
}

impl Format for Powers {
    const SAVED_AS: &'static str = "downstream.Powers";

    fn scheme(&self) -> Scheme {
        Scheme::codebook(Self::NAME, &[-1.0, -0.5, -0.25, 0.0, 0.125, 0.25, 0.5, 1.0])
    }

    fn block(&self) -> usize {
        self.block
    }
}

impl TextForm for Powers {
    const NAME: &'static str = "powers";
    const FORMS: &'static str = "powers:BLOCK";

    fn options(&self) -> String {
        format!(":{}", self.block)
    }

    fn from_options(options: &[&str]) -> Option<Self> {
        let [block] = options else { return None };
        Some(Self { block: block.parse().ok()? })
    }
}

register_format!(Powers);
register_array!(PackedArray<Powers>);

// ANCHOR: suite
conformance! {
    straight_through: ste;
    scalar: |x| Scalar::like(x), ignores_values(), shared_children(), tolerance(4e-5);
    powers: |x| Powers { block: 32 }.quantize(x), within(0.26), exact_zero(), refuses_non_finite();
}
// ANCHOR_END: suite

/// An array whose handlers are wrong.
#[derive(ImplicitArray, Clone, Debug)]
#[implicit(name = "downstream.Wrong")]
struct Wrong {
    array: Array,
}

impl Materialize for Wrong {
    fn materialize(&self) -> Result<Value> {
        Ok(self.array.clone().into())
    }
}

/// The sign is forgotten.
#[handler]
fn wrong_negative(_op: &primitives::Negative, w: &Wrong) -> Result<Array> {
    Ok(w.array.clone())
}

/// The value is right, and the gradient ends here.
#[handler]
fn wrong_square(_op: &primitives::Square, w: &Wrong) -> Result<Array> {
    Ok(mlx_rs::stop_gradient(w.array.square()?)?)
}

#[test]
fn a_wrong_handler_is_found_and_nothing_else() {
    let report = handlers(&Subject::new("wrong", |x: &Array| Ok(Wrong { array: x.clone() })));
    let found: Vec<&str> = report.findings().iter().map(|finding| finding.split(" on ").next().unwrap_or("")).collect();
    assert!(report.compared() > 300, "{report}");
    let expected = ["Negative: Negative: Negative", "Square: Square: Square"];
    assert!(!found.is_empty() && found.iter().all(|finding| expected.contains(finding)), "{report}");
    assert!(expected.iter().all(|expected| found.contains(expected)), "{report}");
}
