//! A conformance suite for implicit array types: everything that holds for each of them, over a list of subjects.
//!
//! A type joins by one line of [`conformance!`](crate::conformance!), which says how one is made of a dense array. The
//! parts are functions of their own: they take one subject, [`pairs`] the others too, and [`coverage`] all. Calls are compared
//! with the primitive on the materialized operands, and each part reports on the given subjects alone.
//!
//! | part | what it tries |
//! |---|---|
//! | [`handlers`] | every primitive: values, gradients, directional derivatives, vmap, compiled |
//! | [`surface`] | every op of mlx-rs, from [`ops`] |
//! | [`extents`] | sums of thousands of terms in f32, bf16 and f16, against f64 |
//! | [`gradients`] | what is learned beside it and through it |
//! | [`captures`] | transforms around functions that hold it instead of taking it |
//! | [`failures`] | what an error in the middle leaves behind |
//! | [`memory`] | that a product does not build the dense array |
//! | [`values`], [`structure`] | numbers that formats stumble over; children, static fields, storage |
//! | [`pairs`], [`coverage`] | two types in one call; that every handler was tried |
//!
//! [`programs`] runs random graphs over the op surface in every way of running them.
//!
//! Inputs are the same in every run. `TACIT_SWEEP=full` tries more of them; see [`Sweep`]. `TACIT_SUITE_DEVICE=cpu` or `gpu` says on
//! which device of MLX's; see [`DEVICE_VARIABLE`].

// The macros' output names this crate's core as the facade does.
extern crate tacit_core as tacit;

mod call;
mod calls;
mod captures;
mod case;
mod close;
mod coverage;
mod device;
pub mod difference;
mod elements;
mod exact;
mod extents;
mod failures;
mod gradients;
mod handlers;
mod memory;
pub mod opaque;
pub mod ops;
pub mod oracle;
mod pairs;
pub mod programs;
mod report;
mod shape;
mod structure;
mod subject;
mod surface;
mod sweep;
mod values;

pub use captures::captures;
pub use close::{Difference, close};
pub use coverage::{coverage, types_without_a_subject};
pub use device::DEVICE_VARIABLE;
#[doc(hidden)]
pub use device::choose_device;
pub use extents::extents;
pub use failures::failures;
pub use gradients::gradients;
pub use handlers::handlers;
pub use memory::memory;
pub use pairs::pairs;
pub use report::Report;
pub use structure::structure;
pub use subject::Subject;
pub use surface::surface;
pub use sweep::{SWEEP_VARIABLE, Sweep};
pub use values::values;

/// Writes the tests of the suite for a list of subjects, one line each.
///
/// A line is a name, how the implicit array is made of the dense `x: &Array`, and what more is claimed of it: the
/// methods of [`Subject`]. A constructor that cannot stand for `x` returns an error, and the suite goes on with other
/// shapes. One that keeps only the shape and dtype of `x` says `ignores_values()`.
///
/// ```
/// # extern crate tacit_core as tacit;
/// # fn main() {}
/// use mlx_rs::Array;
/// use tacit::{ImplicitArray, Materialize, Result, Value};
/// use tacit_conformance::conformance;
///
/// /// Half of another array.
/// #[derive(ImplicitArray, Clone, Debug)]
/// #[implicit(name = "example.Half")]
/// struct Half {
///     twice: Array,
/// }
///
/// impl Materialize for Half {
///     fn materialize(&self) -> Result<Value> {
///         Ok(self.twice.multiply(Array::from_f32(0.5).as_dtype(self.twice.dtype())?)?.into())
///     }
/// }
///
/// conformance! {
///     half: |x| Ok(Half { twice: x.add(x)? }), within(1e-6);
/// }
/// ```
///
/// A first line `straight_through: ste;` names the function that makes a quantizer pass gradients straight through, such
/// as that of `tacit_arrays`; the part `gradients` then tries each subject behind it too.
///
/// The tests are one for each part of a subject, as `NAME::surface` and `NAME::pairs`, and for the list
/// `every_handler_is_exercised`.
#[macro_export]
macro_rules! conformance {
    (straight_through: $ste:path; $($name:ident: |$x:ident| $make:expr $(, $claim:ident($($argument:expr),*))*;)+) => {
        $crate::__conformance! {
            |subject: $crate::Subject| subject.straight_through(|make, x| $ste(x, |x: &$crate::Array| make(x)));
            $($name: |$x| $make $(, $claim($($argument),*))*;)+
        }
    };
    ($($name:ident: |$x:ident| $make:expr $(, $claim:ident($($argument:expr),*))*;)+) => {
        $crate::__conformance! {
            |subject: $crate::Subject| subject;
            $($name: |$x| $make $(, $claim($($argument),*))*;)+
        }
    };
}

/// Writes the function `subjects` for a list of [`conformance!`](crate::conformance!), and none of its tests.
///
/// Another program of tests may have the same subjects, as [`meetings`](programs::meetings) does.
#[macro_export]
macro_rules! subjects {
    (straight_through: $ste:path; $($rows:tt)+) => {
        $crate::__subjects! {
            |subject: $crate::Subject| subject.straight_through(|make, x| $ste(x, |x: &$crate::Array| make(x)));
            $($rows)+
        }
    };
    ($($rows:tt)+) => {
        $crate::__subjects! {
            |subject: $crate::Subject| subject;
            $($rows)+
        }
    };
}

/// The function that [`conformance!`] and [`subjects!`] write, with the claim that every subject makes.
#[doc(hidden)]
#[macro_export]
macro_rules! __subjects {
    ($all:expr; $($name:ident: |$x:ident| $make:expr $(, $claim:ident($($argument:expr),*))*;)+) => {
        /// The subjects of the suite.
        pub(crate) fn subjects() -> ::std::vec::Vec<$crate::Subject> {
            $crate::choose_device();
            ::std::vec![$(
                ($all)($crate::Subject::new(::core::stringify!($name), |$x: &$crate::Array| $make)
                    $(.$claim($($argument),*))*)
            ),+]
        }
    };
}

/// What [`conformance!`] writes, with the claim that every subject makes.
#[doc(hidden)]
#[macro_export]
macro_rules! __conformance {
    ($all:expr; $($name:ident: |$x:ident| $make:expr $(, $claim:ident($($argument:expr),*))*;)+) => {
        $crate::__subjects! { $all; $($name: |$x| $make $(, $claim($($argument),*))*;)+ }

        $(
            mod $name {
                fn subject() -> $crate::Subject {
                    let mut all = super::subjects();
                    let at = all.iter().position(|subject| subject.name() == ::core::stringify!($name));
                    all.swap_remove(at.expect("the list names it"))
                }

                $crate::__parts!(surface handlers extents gradients captures failures memory values structure);

                #[test]
                fn pairs() {
                    $crate::pairs(&subject(), &super::subjects()).expect_clean();
                }
            }
        )+

        #[test]
        fn every_handler_is_exercised() {
            $crate::coverage(&subjects()).expect_clean();
        }
    };
}

/// One test for each part of the suite that takes a subject.
#[doc(hidden)]
#[macro_export]
macro_rules! __parts {
    ($($part:ident)+) => {
        $(
            #[test]
            fn $part() {
                $crate::$part(&subject()).expect_clean();
            }
        )+
    };
}

/// What the macro's output names.
#[doc(hidden)]
pub use mlx_rs::Array;

#[cfg(test)]
mod tests;
