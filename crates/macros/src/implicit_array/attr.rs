//! The `#[implicit(..)]` attributes.

use syn::meta::ParseNestedMeta;
use syn::parse::Parse;
use syn::{Attribute, Error, Expr, Ident, Lit, LitStr, Path, Result, Token};

/// What an array type is saved under.
pub(crate) enum Name {
    /// A name of its own.
    Literal(LitStr),
    /// A constant of the parameters of a generic struct.
    Constant(Expr),
}

/// What stands on the struct.
#[derive(Default)]
pub(crate) struct StructAttr {
    pub(crate) name: Option<Name>,
    pub(crate) default: Option<Path>,
    pub(crate) families: Vec<Path>,
    pub(crate) no_commute: bool,
    pub(crate) policy: Option<Ident>,
}

impl StructAttr {
    pub(crate) fn new(attributes: &[Attribute]) -> Result<Self> {
        let mut read = Self::default();
        for_each_meta(attributes, |meta| {
            if meta.path.is_ident("name") {
                let name = name(&meta)?;
                if read.name.replace(name).is_some() {
                    return Err(meta.error("two names: keep one of them"));
                }
            } else if meta.path.is_ident("default") {
                let default = meta.value()?.parse().map_err(|error| {
                    Error::new(error.span(), "expected the path of a function: `default = my_default`")
                })?;
                if read.default.replace(default).is_some() {
                    return Err(meta.error("two defaults: keep one of them"));
                }
            } else if meta.path.is_ident("family") {
                let list;
                syn::parenthesized!(list in meta.input);
                read.families.extend(list.parse_terminated(Path::parse, Token![,])?);
            } else if meta.path.is_ident("materialize") {
                let policy = policy(&meta)?;
                if read.policy.replace(policy).is_some() {
                    return Err(meta.error("two policies: keep one of them"));
                }
            } else if meta.path.is_ident("no_commute") {
                if read.no_commute {
                    return Err(meta.error("`no_commute` is there twice: remove one of them"));
                }
                read.no_commute = true;
            } else if meta.path.is_ident("aux") {
                return Err(meta.error("`aux` marks a field as static: move it to the field"));
            } else {
                return Err(meta.error(
                    "expected `name = \"..\"`, `family(..)`, `default = path`, `materialize = \"..\"` or `no_commute`",
                ));
            }
            Ok(())
        })?;
        Ok(read)
    }
}

/// What stands on a field.
#[derive(Default)]
pub(crate) struct FieldAttr {
    /// Whether it is static.
    pub(crate) aux: bool,
    /// Whether it has a getter.
    pub(crate) get: bool,
}

impl FieldAttr {
    pub(crate) fn new(attributes: &[Attribute]) -> Result<Self> {
        let mut read = Self::default();
        for_each_meta(attributes, |meta| {
            let (word, flag) = if meta.path.is_ident("aux") {
                ("aux", &mut read.aux)
            } else if meta.path.is_ident("get") {
                ("get", &mut read.get)
            } else {
                return Err(
                    meta.error("expected `aux` or `get`: a field is a child, or static with `#[implicit(aux)]`")
                );
            };
            if std::mem::replace(flag, true) {
                return Err(meta.error(format!("`{word}` is there twice: remove one of them")));
            }
            Ok(())
        })?;
        Ok(read)
    }
}

fn for_each_meta(attributes: &[Attribute], mut read: impl FnMut(ParseNestedMeta) -> Result<()>) -> Result<()> {
    attributes
        .iter()
        .filter(|attribute| attribute.path().is_ident("implicit"))
        .try_for_each(|attribute| attribute.parse_nested_meta(&mut read))
}

/// The variant of `Policy` that a word names.
fn policy(meta: &ParseNestedMeta) -> Result<Ident> {
    let expected = |span| Error::new(span, "expected `materialize = \"allow\"`, `\"warn\"` or `\"deny\"`");
    let word: LitStr = meta.value()?.parse().map_err(|error| expected(error.span()))?;
    let variant = match &*word.value() {
        "allow" => "Allow",
        "warn" => "Warn",
        "deny" => "Deny",
        _ => return Err(expected(word.span())),
    };
    Ok(Ident::new(variant, word.span()))
}

fn name(meta: &ParseNestedMeta) -> Result<Name> {
    let value = meta.value()?;
    if !value.peek(Lit) {
        return value.parse().map(Name::Constant);
    }
    let name: LitStr = value
        .parse()
        .map_err(|error| Error::new(error.span(), "expected a string literal: `name = \"yourcrate.Type\"`"))?;
    let text = name.value();
    if text.split('.').count() < 2 || text.split('.').any(str::is_empty) {
        let bare = text.trim_matches('.');
        let message =
            format!("the name has no namespace: write `yourcrate.{bare}`, so that no other crate's type has it");
        return Err(Error::new(name.span(), message));
    }
    Ok(Name::Literal(name))
}
