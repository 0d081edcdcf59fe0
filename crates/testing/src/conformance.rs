//! The conformance suite: everything that holds for every implicit array type, over a list of subjects.
//!
//! A type joins by one line of [`conformance!`](crate::conformance!), which says how one is made of a dense array. The
//! parts are functions of their own: [`surface`], [`handlers`], [`values`] and [`structure`] take one subject, [`pairs`]
//! and [`coverage`] take all. Each checks that the intercepted call equals the primitive on the materialized operands.
//!
//! Inputs are the same in every run. `TACIT_CONFORMANCE_CASES` is the number of drawn cases for each handler's
//! primitive, 3 where it is not set.

mod call;
mod calls;
mod case;
mod coverage;
mod handlers;
mod pairs;
mod report;
mod shape;
mod structure;
mod subject;
mod surface;
mod values;

pub use coverage::coverage;
pub use handlers::{CASES_VARIABLE, handlers};
pub use pairs::pairs;
pub use report::Report;
pub use structure::structure;
pub use subject::Subject;
pub use surface::surface;
pub use values::values;

/// Writes the tests of the suite for a list of subjects, one line each.
///
/// A line is a name, how the implicit array is made of the dense `x: &Array`, and what more is claimed of it: the
/// methods of [`Subject`]. A constructor that cannot stand for `x` returns an error, and the suite goes on with other
/// shapes. One that keeps only the shape and dtype of `x` says `ignores_values()`.
///
/// ```
/// use tacit_core::Value;
/// use tacit_testing::conformance;
/// use tacit_testing::opaque::Opaque;
///
/// conformance! {
///     opaque: |x| Ok(Opaque::new(x.clone())), within(0.0), exact_zero();
/// }
/// # fn main() {}
/// ```
///
/// The tests are `NAME::surface`, `NAME::handlers`, `NAME::values` and `NAME::structure` for each subject, and for the
/// list `every_pair` and `every_handler_is_exercised`.
#[macro_export]
macro_rules! conformance {
    ($($name:ident: |$x:ident| $make:expr $(, $claim:ident($($argument:expr),*))*;)+) => {
        /// The subjects of the suite.
        fn subjects() -> ::std::vec::Vec<$crate::conformance::Subject> {
            ::std::vec![$(
                $crate::conformance::Subject::new(::core::stringify!($name), |$x: &$crate::conformance::Array| $make)
                    $(.$claim($($argument),*))*
            ),+]
        }

        $(
            mod $name {
                fn subject() -> $crate::conformance::Subject {
                    let mut all = super::subjects();
                    let at = all.iter().position(|subject| subject.name() == ::core::stringify!($name));
                    all.swap_remove(at.expect("the list names it"))
                }

                #[test]
                fn surface() {
                    $crate::conformance::surface(&subject()).expect_clean();
                }

                #[test]
                fn handlers() {
                    $crate::conformance::handlers(&subject()).expect_clean();
                }

                #[test]
                fn values() {
                    $crate::conformance::values(&subject()).expect_clean();
                }

                #[test]
                fn structure() {
                    $crate::conformance::structure(&subject()).expect_clean();
                }
            }
        )+

        #[test]
        fn every_pair() {
            $crate::conformance::pairs(&subjects()).expect_clean();
        }

        #[test]
        fn every_handler_is_exercised() {
            $crate::conformance::coverage(&subjects()).expect_clean();
        }
    };
}

/// What the macro's output names.
#[doc(hidden)]
pub use mlx_rs::Array;

#[cfg(test)]
mod tests;
