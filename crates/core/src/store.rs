//! The arrays of a value while serde writes or reads its structure.
//!
//! The structure is JSON and the arrays are not, so an array is serialized as a key: its path in the structure, such as
//! `base.absmax.codes` or `parts.0.packed`. [`collect`] gathers the arrays by key while a function serializes, and
//! [`named`] puts a name before the keys. [`provide`] lends the arrays to a function that deserializes. All three act on the
//! thread that calls them; where calls are nested, the innermost one counts. An array that is read is checked as its constructor
//! checks it.
//!
//! ```
//! # extern crate tacit_core as tacit;
//! # use mlx_rs::Array;
//! # use tacit::{Materialize, Result, Value};
//! use tacit::{ImplicitArray, store};
//!
//! #[derive(ImplicitArray, Clone, Debug)]
//! #[implicit(name = "docs.Doubled")]
//! struct Doubled {
//!     half: Array,
//! }
//! # impl Materialize for Doubled {
//! #     fn materialize(&self) -> Result<Value> { Ok((&self.half + &self.half).into()) }
//! # }
//!
//! # fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
//! let array: Box<dyn ImplicitArray> = Box::new(Doubled { half: Array::from_f32(1.5) });
//! let (json, arrays) = store::collect(|| store::named("weight", || serde_json::to_string(&array)));
//! let json = json?;
//! assert_eq!(json, r#"{"type":"docs.Doubled","half":"weight.half"}"#);
//!
//! let again: Box<dyn ImplicitArray> = store::provide(arrays, || serde_json::from_str(&json))?;
//! assert_eq!(Value::from(again).dense()?.item_exact::<f32>(), 3.0);
//! # Ok(())
//! # }
//! ```

use std::cell::RefCell;
use std::collections::BTreeMap;

use mlx_rs::Array;
use serde::ser::SerializeStruct;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de, ser};

use crate::array_type::count_saved_as;
use crate::{ImplicitArray, Value};

/// The version of serde that implicit arrays are stored with.
pub use serde;

/// Arrays by the key that stands for each in the structure.
pub type Arrays = BTreeMap<String, Array>;

/// Runs `f` and returns the arrays that it serialized, by their paths.
///
/// Of several arrays of one path the later ones have a number, as in `packed#2`.
pub fn collect<R>(f: impl FnOnce() -> R) -> (R, Arrays) {
    let _entered = Entered::new(Store::Collecting { arrays: Arrays::new(), path: Vec::new() });
    let result = f();
    match STORE.take() {
        Some(Store::Collecting { arrays, .. }) => (result, arrays),
        _ => (result, Arrays::new()),
    }
}

/// Runs `f`; the paths of what it serializes begin with `name`.
pub fn named<R>(name: impl Into<String>, f: impl FnOnce() -> R) -> R {
    let _step = Step::new(name.into());
    f()
}

/// Runs `f`, which deserializes a structure whose arrays are `arrays`.
pub fn provide<R>(arrays: Arrays, f: impl FnOnce() -> R) -> R {
    let _entered = Entered::new(Store::Providing(arrays));
    f()
}

/// A field of children, as it is stored.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be stored as children",
    label = "not an array",
    note = "mark the field `#[implicit(aux)]` if it is static"
)]
pub trait StoredChild: Sized {
    /// The field as it is serialized: its arrays go to the store, and their keys into the structure.
    fn stored(&self) -> impl Serialize;

    /// Serializes the field under its name.
    fn write<S: SerializeStruct>(&self, name: &'static str, fields: &mut S) -> Result<(), S::Error> {
        fields.serialize_field(name, &Named(name, self.stored()))
    }

    /// The inverse of [`stored`](Self::stored).
    fn restore<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error>;
}

impl StoredChild for Array {
    fn stored(&self) -> impl Serialize {
        Key(self)
    }

    fn restore<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Key::deserialize(deserializer).map(|key| key.0)
    }
}

impl StoredChild for Value {
    fn stored(&self) -> impl Serialize {
        match self {
            Self::Dense(array) => Kind::Array(Key(array)),
            Self::Implicit(array) => Kind::Implicit(Registered(&**array)),
        }
    }

    fn restore<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(match Kind::<Key<Array>, Box<dyn ImplicitArray>>::deserialize(deserializer)? {
            Kind::Array(key) => Self::Dense(key.0),
            Kind::Implicit(array) => Self::Implicit(array),
        })
    }
}

#[diagnostic::do_not_recommend]
impl<T: StoredChild> StoredChild for Option<T> {
    fn stored(&self) -> impl Serialize {
        self.as_ref().map(StoredChild::stored)
    }

    fn restore<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let child: Option<Restored<T>> = Deserialize::deserialize(deserializer)?;
        Ok(child.map(|child| child.0))
    }
}

#[diagnostic::do_not_recommend]
impl<T: StoredChild> StoredChild for Vec<T> {
    fn stored(&self) -> impl Serialize {
        self.iter().enumerate().map(|(index, child)| Named(index, child.stored())).collect::<Vec<_>>()
    }

    fn restore<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let children: Vec<Restored<T>> = Deserialize::deserialize(deserializer)?;
        Ok(children.into_iter().map(|child| child.0).collect())
    }
}

const OUTSIDE: &str = "the arrays of an implicit array are not part of its structure\n\
                       help: serialize it inside `store::collect` and read it inside `store::provide`, which carry them";

enum Store {
    Collecting { arrays: Arrays, path: Vec<String> },
    Providing(Arrays),
}

thread_local! {
    static STORE: RefCell<Option<Store>> = const { RefCell::new(None) };
}

/// A store in force; the one before it is put back at the end, also when the function panics.
struct Entered(Option<Store>);

impl Entered {
    fn new(store: Store) -> Self {
        Self(STORE.replace(Some(store)))
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        STORE.set(self.0.take());
    }
}

/// A step down the path while it lives.
struct Step;

impl Step {
    fn new(name: String) -> Self {
        STORE.with_borrow_mut(|store| {
            if let Some(Store::Collecting { path, .. }) = store {
                path.push(name);
            }
        });
        Self
    }
}

impl Drop for Step {
    fn drop(&mut self) {
        STORE.with_borrow_mut(|store| {
            if let Some(Store::Collecting { path, .. }) = store {
                path.pop();
            }
        });
    }
}

fn put(array: &Array) -> Option<String> {
    STORE.with_borrow_mut(|store| match store {
        Some(Store::Collecting { arrays, path }) => {
            let path = path.join(".");
            let mut key = path.clone();
            let mut count = 1;
            while arrays.contains_key(&key) {
                count += 1;
                key = format!("{path}#{count}");
            }
            arrays.insert(key.clone(), array.clone());
            Some(key)
        }
        _ => None,
    })
}

fn take(key: &str) -> Result<Array, String> {
    STORE.with_borrow(|store| match store {
        Some(Store::Providing(arrays)) => {
            arrays.get(key).cloned().ok_or_else(|| format!("there is no array for the key {key:?}"))
        }
        _ => Err(OUTSIDE.to_owned()),
    })
}

/// What is serialized one step down the path.
struct Named<N, T>(N, T);

impl<N: ToString, T: Serialize> Serialize for Named<N, T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let _step = Step::new(self.0.to_string());
        self.1.serialize(serializer)
    }
}

/// An array that is serialized as its key.
struct Key<A>(A);

impl Serialize for Key<&Array> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        put(self.0).ok_or_else(|| ser::Error::custom(OUTSIDE))?.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Key<Array> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let key = String::deserialize(deserializer)?;
        take(&key).map(Self).map_err(de::Error::custom)
    }
}

/// What a [`Value`] is stored as.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Kind<A, I> {
    Array(A),
    Implicit(I),
}

/// An implicit array that is serialized only where it can be read again: one type is registered under its name.
struct Registered<'a>(&'a dyn ImplicitArray);

impl Serialize for Registered<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let name = self.0.typetag_name();
        match count_saved_as(name) {
            1 => Serialize::serialize(self.0, serializer),
            0 => Err(ser::Error::custom(format!(
                "no array type is registered under the name {name:?}\nhelp: register it with `register_array!`"
            ))),
            count => Err(ser::Error::custom(format!(
                "{count} array types are registered under the name {name:?}, and a reader would not know which is meant\n\
                 help: give each a name of its own, and register it once"
            ))),
        }
    }
}

/// A child in a list or an option.
struct Restored<T>(T);

impl<'de, T: StoredChild> Deserialize<'de> for Restored<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        T::restore(deserializer).map(Self)
    }
}
