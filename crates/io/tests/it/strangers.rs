//! Array types of a stranger's crate: what is saved of them is read again, and what could not be is refused.

use expect_test::expect;
use mlx_rs::Array;
use tacit_core::{ImplicitArray, Materialize, Result, Value, register_array};
use tacit_io::save;
use tacit_nn::Parameters;

use crate::scratch::Scratch;

/// A generic type, of which two have one name and some are not registered.
#[derive(ImplicitArray, Clone, Debug)]
#[implicit(name = Self::NAME)]
struct Many<const COUNT: usize> {
    one: Value,
}

impl<const COUNT: usize> Many<COUNT> {
    const NAME: &'static str = match COUNT {
        2 => "strange.Pair",
        3 | 4 => "strange.Few",
        _ => "strange.Many",
    };
}

impl<const COUNT: usize> Materialize for Many<COUNT> {
    fn materialize(&self) -> Result<Value> {
        Ok(self.one.clone())
    }
}

register_array!(Many<2>, Many<3>, Many<4>);

fn numbers() -> Value {
    Array::from_slice(&[1.0f32, 2.0], &[2]).into()
}

#[test]
fn a_type_that_could_not_be_read_again_is_not_saved() {
    let folder = Scratch::new();
    let said = |value: Value| {
        let values = Parameters::from([("w".to_owned(), value)]);
        let error = save(folder.join("m.safetensors"), &values).expect_err("it is not saved");
        assert!(folder.names().is_empty());
        error.to_string()
    };
    expect![[r#"
        w, a Many(f32[2]), cannot be saved: no array type is registered under the name "strange.Many"
        help: register it with `register_array!`"#]]
    .assert_eq(&said(Many::<5> { one: numbers() }.into()));
    expect![[r#"
        w, a Few(f32[2]), cannot be saved: 2 array types are registered under the name "strange.Few", and a reader would not know which is meant
        help: give each a name of its own, and register it once"#]]
    .assert_eq(&said(Many::<3> { one: numbers() }.into()));
    // Nor is one that is inside another.
    let inside = Many::<2> { one: Many::<5> { one: numbers() }.into() };
    expect![[r#"
        w, a Pair(f32[2]), cannot be saved: no array type is registered under the name "strange.Many"
        help: register it with `register_array!`"#]]
    .assert_eq(&said(inside.into()));
}
