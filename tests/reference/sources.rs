//! What the sources of the crates say of their public names: documentation, methods, fields.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use syn::{Attribute, Expr, Fields, FnArg, Ident, ImplItem, Item, Lit, Meta, Pat, Signature, TraitItem, Visibility};

/// The sources under a folder, or of one file.
#[derive(Clone)]
pub(crate) struct Sources(Rc<Vec<Item>>);

thread_local! {
    /// Those that were read before.
    static READ: RefCell<BTreeMap<PathBuf, Sources>> = RefCell::default();
}

impl Sources {
    /// Those at a place of the repository.
    pub(crate) fn of(place: impl AsRef<Path>) -> Self {
        let place = Path::new(env!("CARGO_MANIFEST_DIR")).join(place);
        if let Some(known) = READ.with_borrow(|read| read.get(&place).cloned()) {
            return known;
        }
        let sources = Self::read(&place);
        READ.with_borrow_mut(|read| read.insert(place, sources.clone()));
        sources
    }

    fn read(place: &Path) -> Self {
        let mut files = vec![place.to_owned()];
        let mut items = Vec::new();
        while let Some(file) = files.pop() {
            if file.is_dir() {
                let mut inside: Vec<PathBuf> =
                    fs::read_dir(&file).unwrap().map(|entry| entry.unwrap().path()).collect();
                inside.sort_by(|a, b| b.cmp(a));
                files.extend(inside);
            } else if file.extension().is_some_and(|kind| kind == "rs") && !file.ends_with("tests.rs") {
                items.extend(syn::parse_file(&fs::read_to_string(&file).unwrap()).unwrap().items);
            }
        }
        Self(Rc::new(items))
    }

    /// The first sentence of what is documented under a public name.
    pub(crate) fn sentence(&self, name: &str) -> Option<String> {
        self.0.iter().find_map(|item| {
            let (public, own, attributes) = match item {
                Item::Struct(of) => (&of.vis, &of.ident, &of.attrs),
                Item::Enum(of) => (&of.vis, &of.ident, &of.attrs),
                Item::Trait(of) => (&of.vis, &of.ident, &of.attrs),
                Item::Type(of) => (&of.vis, &of.ident, &of.attrs),
                Item::Mod(of) => (&of.vis, &of.ident, &of.attrs),
                Item::Fn(of) => (&of.vis, &of.sig.ident, &of.attrs),
                _ => return None,
            };
            (own == name && matches!(public, Visibility::Public(_))).then(|| first_sentence(attributes))?
        })
    }

    /// The first sentence of what is documented under an exported macro.
    pub(crate) fn exported(&self, name: &Ident) -> Option<String> {
        let is_export = |attribute: &Attribute| attribute.path().is_ident("macro_export");
        self.0.iter().find_map(|item| match item {
            Item::Macro(of) if of.ident.as_ref() == Some(name) && of.attrs.iter().any(is_export) => {
                first_sentence(&of.attrs)
            }
            _ => None,
        })
    }

    /// The public fields or variants of a type and its methods, or the methods of a trait, with the first sentence of each.
    pub(crate) fn members(&self, name: &str) -> BTreeMap<String, String> {
        let mut members = BTreeMap::new();
        let mut add = |call: String, attributes: &[Attribute]| {
            let sentence = first_sentence(attributes);
            members.insert(call.clone(), sentence.unwrap_or_else(|| panic!("{name}: {call} has no documentation")));
        };
        for item in &*self.0 {
            match item {
                Item::Struct(of) if of.ident == name => {
                    let Fields::Named(fields) = &of.fields else { continue };
                    for field in &fields.named {
                        let name = field.ident.as_ref().unwrap();
                        if matches!(field.vis, Visibility::Public(_)) {
                            add(format!(".{name}"), &field.attrs);
                        } else if field.attrs.iter().any(is_get) {
                            add(format!(".{name}()"), &field.attrs);
                        }
                    }
                }
                Item::Enum(of) if of.ident == name => {
                    of.variants.iter().for_each(|variant| add(format!("::{}", variant.ident), &variant.attrs));
                }
                Item::Trait(of) if of.ident == name => {
                    for method in &of.items {
                        let TraitItem::Fn(method) = method else { continue };
                        add(call(&method.sig), &method.attrs);
                    }
                }
                Item::Impl(of) if of.trait_.is_none() && self_name(of).is_some_and(|own| own == name) => {
                    for method in &of.items {
                        let ImplItem::Fn(method) = method else { continue };
                        let hidden = method
                            .attrs
                            .iter()
                            .any(|attribute| attribute.path().is_ident("doc") && is_hidden(attribute));
                        if matches!(method.vis, Visibility::Public(_)) && !hidden {
                            add(call(&method.sig), &method.attrs);
                        }
                    }
                }
                _ => {}
            }
        }
        members
    }
}

fn self_name(of: &syn::ItemImpl) -> Option<String> {
    let syn::Type::Path(path) = &*of.self_ty else { return None };
    Some(path.path.segments.last()?.ident.to_string())
}

/// Whether the derive of implicit arrays makes a getter of the field.
fn is_get(attribute: &Attribute) -> bool {
    let Meta::List(list) = &attribute.meta else { return false };
    list.path.is_ident("implicit") && list.tokens.clone().into_iter().any(|token| token.to_string() == "get")
}

pub(crate) fn is_hidden(attribute: &Attribute) -> bool {
    let Meta::List(list) = &attribute.meta else { return false };
    list.tokens.to_string() == "hidden"
}

/// A method as it is called: `.run(f)` on a value, or `::new(module)` on the type; the names of its arguments stand for their types.
fn call(signature: &Signature) -> String {
    let mut receiver = "::";
    let mut arguments = Vec::new();
    for input in &signature.inputs {
        match input {
            FnArg::Receiver(_) => receiver = ".",
            FnArg::Typed(argument) => arguments.push(match &*argument.pat {
                Pat::Ident(name) => name.ident.to_string(),
                Pat::Slice(parts) => {
                    let names = parts
                        .elems
                        .iter()
                        .map(|part| if let Pat::Ident(name) = part { name.ident.to_string() } else { "_".to_owned() });
                    format!("[{}]", names.collect::<Vec<_>>().join(", "))
                }
                _ => "_".to_owned(),
            }),
        }
    }
    format!("{receiver}{}({})", signature.ident, arguments.join(", "))
}

/// The first sentence of a documentation, in the Markdown of a table.
pub(crate) fn first_sentence(attributes: &[Attribute]) -> Option<String> {
    let lines = attributes.iter().filter_map(|attribute| match &attribute.meta {
        Meta::NameValue(of) if of.path.is_ident("doc") => match &of.value {
            Expr::Lit(of) => match &of.lit {
                Lit::Str(text) => Some(text.value().trim().to_owned()),
                _ => None,
            },
            _ => None,
        },
        _ => None,
    });
    let paragraph = lines.take_while(|line| !line.is_empty()).collect::<Vec<_>>().join(" ");
    let end = paragraph.find(". ").map_or(paragraph.len(), |end| end + 1);
    (end > 0).then(|| without_links(&paragraph[..end]).replace('|', "\\|"))
}

/// The text with the words of its links alone.
pub(crate) fn without_links(text: &str) -> String {
    let mut plain = String::new();
    let mut rest = text;
    while let Some((before, link)) = rest.split_once('[') {
        plain += before;
        // A bracket in code, such as that of `f32[4,8]`, begins no link.
        if plain.matches('`').count() % 2 == 1 {
            plain.push('[');
            rest = link;
            continue;
        }
        let (words, after) = link.split_once(']').unwrap_or((link, ""));
        plain += words;
        rest = if after.starts_with('(') { &after[target(after)..] } else { after };
    }
    plain + rest
}

/// The length of the target of a link, whose own parentheses are in pairs.
fn target(text: &str) -> usize {
    let mut open = 0;
    for (place, letter) in text.char_indices() {
        match letter {
            '(' => open += 1,
            ')' if open == 1 => return place + 1,
            ')' => open -= 1,
            _ => {}
        }
    }
    text.len()
}
