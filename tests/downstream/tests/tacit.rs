//! An array type and a handler of a crate that depends on the facade alone.

use mlx_rs::{Array, ops};
use tacit::format::{self, Format, Scheme, TextForm};
use tacit::prelude::*;
use tacit::register::register_format;

/// A scalar times the identity.
#[derive(ImplicitArray, Clone, Debug)]
#[implicit(name = "downstream.Scalar")]
struct Scalar {
    factor: Array,
    #[implicit(aux)]
    aval: Aval,
}

impl Materialize for Scalar {
    fn materialize(&self) -> Result<Value> {
        Ok(ops::identity::<f32>(self.aval.shape[0])?.multiply(&self.factor)?.into())
    }
}

#[handler]
fn scalar_matmul(_op: &primitives::Matmul, x: &Array, w: &Scalar) -> Result<Array> {
    Ok(x.multiply(&w.factor)?)
}

#[handler]
fn scalar_gather_mm(_op: &primitives::GatherMM, x: &Scalar, w: &Value, _left: &Array, right: &Array) -> Result<Value> {
    implicit(w, |w| w.take_axis(right, 0)?.multiply(&x.factor))
}

#[test]
fn its_handler_takes_the_product() -> Result<()> {
    let _deny = Policy::Deny.scope();
    let factor = Array::from_f32(3.0);
    let w = Scalar { factor, aval: "f32[2,2]".parse().expect("an aval") };
    let x = Array::from_slice(&[1f32, 2.0], &[1, 2]);
    let y = implicit((x, w), |(x, w)| x.matmul(w))?.dense()?;
    assert_eq!(y.as_slice::<f32>(), [3.0, 6.0]);
    Ok(())
}

/// A family of Tacit's has products of chosen matrices, too, whatever is on their left.
#[test]
fn its_handler_goes_before_that_of_a_family() -> Result<()> {
    let _deny = Policy::Deny.scope();
    let w = Nf4Array::quantize(&ops::ones::<f32>(&[3, 2, 32])?, 64)?;
    let x = Scalar { factor: Array::from_f32(3.0), aval: "f32[2,2]".parse().expect("an aval") };
    let chosen = Array::from_slice(&[2u32, 0], &[2]);
    let y = implicit((x, w), |(x, w)| ops::gather_mm(x, w, None, &chosen, None))?.dense()?;
    assert_eq!(y.shape(), [2, 2, 32]);
    assert!(y.as_slice::<f32>().iter().all(|y| *y == 3.0));
    Ok(())
}

#[test]
fn the_types_of_tacit_have_their_handlers() -> Result<()> {
    let _deny = Policy::Deny.scope();
    let w = Nf4Array::quantize(&ops::ones::<f32>(&[8, 32])?, 64)?;
    let x = ops::ones::<f32>(&[2, 32])?;
    let y = implicit((x, w), |(x, w)| x.matmul(w.t()))?.dense()?;
    assert_eq!(y.as_slice::<f32>(), [32.0; 16]);
    Ok(())
}

/// Formats of one name, as two crates may declare them.
macro_rules! twins {
    ($($ty:ident $saved_as:literal $values:expr;)+) => {$(
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        struct $ty;

        impl Format for $ty {
            const SAVED_AS: &'static str = $saved_as;

            fn scheme(&self) -> Scheme {
                Scheme::codebook(Self::NAME, $values)
            }

            fn block(&self) -> usize {
                32
            }
        }

        impl TextForm for $ty {
            const NAME: &'static str = "twin";
            const FORMS: &'static str = "twin";

            fn options(&self) -> String {
                String::new()
            }

            fn from_options(options: &[&str]) -> Option<Self> {
                options.is_empty().then_some(Self)
            }
        }

        register_format!($ty);
    )+};
}

twins! {
    Signs "downstream.Signs" &[-1.0, 1.0];
    Halves "downstream.Halves" &[-0.5, 1.0];
}

/// The linker's order does not choose one of them.
#[test]
fn a_name_of_two_formats_is_no_format() -> Result<()> {
    let error = format::parse("twin").expect_err("either could be meant").to_string();
    assert!(error.starts_with("several formats of this program are named twin"), "{error}");
    assert_eq!("twin".parse::<Signs>()?, Signs);
    assert_eq!("twin".parse::<Halves>()?, Halves);
    Ok(())
}
