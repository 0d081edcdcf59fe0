//! Placeholders and how many of them live.

use mlx_rs::Dtype;
use tacit_bridge::{Aval, Scope, array_id, prototype};

use crate::arrays::{aval, placeholders};

#[test]
fn a_placeholder_has_an_aval_and_no_data() {
    let scope = Scope::new().expect("memory");
    for shape in [&[][..], &[3], &[2, 0, 5]] {
        for dtype in [Dtype::Float32, Dtype::Bfloat16, Dtype::Int64, Dtype::Bool, Dtype::Complex64] {
            let aval = Aval::new(shape, dtype);
            let placeholder = scope.placeholder(&aval).expect("a shape");
            assert_eq!(Aval::from(&placeholder), aval);
            assert!(placeholder.eval().is_err());
        }
    }
    assert_eq!(scope.live(), 0);
}

#[test]
fn it_lives_as_long_as_somebody_holds_it() {
    let scope = Scope::new().expect("memory");
    let [x, y] = placeholders(&scope, [&[2], &[2]]);
    assert_eq!(scope.live(), 2);
    let other_handle = x.clone();
    let graph = x.add(&y).expect("builds").exp().expect("builds");
    drop((x, y));
    assert_eq!(scope.live(), 2);
    drop(graph);
    assert_eq!(scope.live(), 1);
    drop(other_handle);
    assert_eq!(scope.live(), 0);
}

#[test]
fn it_may_outlive_its_scope_without_harm() {
    let scope = Scope::new().expect("memory");
    let [x] = placeholders(&scope, [&[2]]);
    drop(scope);
    assert_eq!(x.negative().expect("builds").shape(), [2]);
}

#[test]
fn a_negative_extent_is_an_error() {
    let scope = Scope::new().expect("memory");
    let message = "the shape [2, -1] has a negative extent";
    assert_eq!(scope.placeholder(&aval(&[2, -1])).expect_err("negative").to_string(), message);
    assert_eq!(prototype(&aval(&[2, -1])).expect_err("negative").to_string(), message);
}

#[test]
fn two_handles_of_one_array_have_one_id() {
    let x = prototype(&aval(&[2])).expect("a shape");
    let y = prototype(&aval(&[2])).expect("a shape");
    assert_eq!(array_id(&x), array_id(&x.clone()));
    assert_ne!(array_id(&x), array_id(&y));
}
