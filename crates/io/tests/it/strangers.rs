//! Array types of a stranger's crate: what is saved of them is read again, and what could not be is refused.

use std::collections::BTreeMap;
use std::{fmt, fs};

use expect_test::expect;
use mlx_rs::{Array, ops};
use tacit_arrays::format::{Nf4, Quantizer, TextForm};
use tacit_arrays::{Prepared, register_format};
use tacit_core::{ImplicitArray, Materialize, Result, Value, register_array};
use tacit_io::{load, save};
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
        3 | 4 => "strange.Twin",
        TYPE => "strange.Dozen",
        _ => "strange.Many",
    };
}

impl<const COUNT: usize> Materialize for Many<COUNT> {
    fn materialize(&self) -> Result<Value> {
        Ok(self.one.clone())
    }
}

/// Has a name that a registration could take for its own.
const TYPE: usize = 12;

register_array!(Many<2>, Many<3>, Many<4>, Many<TYPE>);

fn numbers() -> Value {
    Array::from_slice(&[1.0f32, 2.0], &[2]).into()
}

/// What is said of a value that is not saved.
fn said(value: Value) -> String {
    let folder = Scratch::new();
    let values = Parameters::from([("w".to_owned(), value)]);
    let error = save(folder.join("m.safetensors"), &values).expect_err("it is not saved");
    assert!(folder.names().is_empty());
    error.to_string()
}

#[test]
fn a_type_that_could_not_be_read_again_is_not_saved() {
    expect![[r#"
        w, a Many(f32[2]), cannot be saved: no array type is registered under the name "strange.Many"
        help: register it with `register_array!`"#]]
    .assert_eq(&said(Many::<5> { one: numbers() }.into()));
    expect![[r#"
        w, a Twin(f32[2]), cannot be saved: 2 array types are registered under the name "strange.Twin", and a reader would not know which is meant
        help: give each a name of its own, and register it once"#]]
    .assert_eq(&said(Many::<3> { one: numbers() }.into()));
    // Nor is one that is inside another.
    let inside = Many::<2> { one: Many::<5> { one: numbers() }.into() };
    expect![[r#"
        w, a Pair(f32[2]), cannot be saved: no array type is registered under the name "strange.Many"
        help: register it with `register_array!`"#]]
    .assert_eq(&said(inside.into()));
}

#[test]
fn a_type_whose_name_another_has_as_well_is_not_read() {
    let folder = Scratch::new();
    let path = folder.join("m.safetensors");
    save(&path, &Parameters::from([("w".to_owned(), Many::<2> { one: numbers() }.into())])).expect("saves");
    let mut bytes = fs::read(&path).expect("reads");
    let at = bytes.windows(12).position(|text| text == b"strange.Pair").expect("is named");
    bytes[at..at + 12].copy_from_slice(b"strange.Twin");
    fs::write(&path, bytes).expect("writes");
    let error = load(&path).expect_err("either could be meant").to_string();
    expect![[r#"
        w: 2 array types of this program are registered under the name "strange.Twin"
        help: give each a name of its own, and register it once"#]]
    .assert_eq(error.split_once("m.safetensors: ").expect("names the file").1);
}

/// A format that only quantizes: no text is read as it.
#[derive(Debug)]
struct Unread;

impl fmt::Display for Unread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("unread")
    }
}

impl Quantizer for Unread {
    fn quantize(&self, x: &Array) -> Result<Value> {
        Nf4 { block: 64, double: false }.quantize(x)
    }
}

/// A format that does not read what it writes.
#[derive(Debug)]
struct Misread {
    block: usize,
}

impl Quantizer for Misread {
    fn quantize(&self, x: &Array) -> Result<Value> {
        Nf4 { block: self.block, double: false }.quantize(x)
    }
}

impl TextForm for Misread {
    const NAME: &'static str = "misread";
    const FORMS: &'static str = "misread:BLOCK";

    fn options(&self) -> String {
        format!(":{}", self.block)
    }

    fn from_options(_: &[&str]) -> Option<Self> {
        Some(Self { block: 32 })
    }
}

register_format!(Misread);

#[test]
fn a_format_that_could_not_be_read_again_is_not_saved() {
    let master = ops::ones::<f32>(&[2, 64]).expect("ones");
    expect![[r#"
        w, a Prepared(f32[2,64]), cannot be saved: the format unread could not be read again: no format is named unread
        help: implement `TextForm` so that it reads what it writes, and add `register_format!` once"#]]
    .assert_eq(&said(Prepared::new(&master, Unread).expect("fits").into()));
    let misread = expect![[r#"
        w, a Prepared(f32[2,64]), cannot be saved: the format misread:64 would be read as misread:32
        help: implement `TextForm` so that it reads what it writes, and add `register_format!` once"#]];
    misread.assert_eq(&said(Prepared::new(&master, Misread { block: 64 }).expect("fits").into()));
    assert!(serde_json::to_string(&Misread { block: 64 }).is_err());
    assert_eq!(serde_json::to_string(&Misread { block: 32 }).expect("is read"), r#""misread:32""#);
}

/// Modules with the names of crates that the derive needs.
mod serde {
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, ::serde::Serialize, ::serde::Deserialize)]
    pub(super) enum Order {
        Rising,
        Falling,
    }
}

mod typetag {
    pub(super) use super::serde::Order;
}

#[derive(ImplicitArray, Clone, Debug)]
#[implicit(name = "strange.Ordered")]
struct Ordered {
    array: Value,
    #[implicit(aux)]
    rows: serde::Order,
    #[implicit(aux)]
    columns: typetag::Order,
}

impl Materialize for Ordered {
    fn materialize(&self) -> Result<Value> {
        Ok(self.array.clone())
    }
}

#[test]
fn static_fields_may_lie_in_modules_of_any_name() {
    let folder = Scratch::new();
    let path = folder.join("m.safetensors");
    let array = Many::<TYPE> { one: numbers() }.into();
    let value = Ordered { array, rows: serde::Order::Falling, columns: serde::Order::Rising };
    save(&path, &Parameters::from([("w".to_owned(), value.into())])).expect("saves");
    let values = load(&path).expect("loads");
    let found = values["w"].downcast::<Ordered>().expect("an Ordered");
    assert_eq!((found.rows, found.columns), (serde::Order::Falling, typetag::Order::Rising));
    assert!(found.array.downcast::<Many<TYPE>>().is_some());
}

/// With a map whose keys are numbers, in fields that are before and behind `type` in the order of letters.
#[derive(ImplicitArray, Clone, Debug)]
#[implicit(name = "strange.Placed")]
struct Placed {
    array: Value,
    #[implicit(aux)]
    places: BTreeMap<u32, i64>,
    #[implicit(aux)]
    words: BTreeMap<String, Vec<BTreeMap<i8, bool>>>,
}

impl Materialize for Placed {
    fn materialize(&self) -> Result<Value> {
        Ok(self.array.clone())
    }
}

#[test]
fn keys_of_maps_that_are_numbers_are_read_again() {
    let folder = Scratch::new();
    let path = folder.join("m.safetensors");
    let words = BTreeMap::from([("type".to_owned(), vec![BTreeMap::from([(-1, true)])]), ("a".to_owned(), vec![])]);
    let inner = Placed { array: numbers(), places: BTreeMap::from([(7, -3), (12, 5)]), words };
    let outer = Placed { array: inner.clone().into(), places: BTreeMap::new(), words: BTreeMap::new() };
    save(&path, &Parameters::from([("w".to_owned(), outer.into())])).expect("saves");
    let values = load(&path).expect("loads");
    let outer = values["w"].downcast::<Placed>().expect("a Placed");
    let found = outer.array.downcast::<Placed>().expect("a Placed inside");
    assert_eq!((&found.places, &found.words), (&inner.places, &inner.words));
    assert_eq!(found.array.dense().expect("builds").as_slice::<f32>(), [1.0, 2.0]);
}

/// With a map whose keys JSON has no form of.
#[derive(ImplicitArray, Clone, Debug)]
#[implicit(name = "strange.Paired")]
struct Paired {
    array: Value,
    #[implicit(aux)]
    pairs: BTreeMap<(u8, u8), u8>,
}

impl Materialize for Paired {
    fn materialize(&self) -> Result<Value> {
        Ok(self.array.clone())
    }
}

#[test]
fn fields_that_json_has_no_form_of_are_not_saved() {
    let value = Paired { array: numbers(), pairs: BTreeMap::from([((1, 2), 3)]) };
    expect![[r#"
        w, a Paired(f32[2]), cannot be saved: key must be a string
        help: give its static fields types that JSON has a form of"#]]
    .assert_eq(&said(value.into()));
}
