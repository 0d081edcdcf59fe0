//! The public names of the facade, found as the compiler finds them: through the `pub use` and the `pub mod` of each crate.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::{fs, iter};

use syn::{Attribute, Ident, Item, UseTree, Visibility};

use crate::sources::{Sources, first_sentence, is_hidden};

/// A module of a crate.
#[derive(Clone)]
pub(crate) struct Module {
    /// The folder of the files of its own modules.
    folder: PathBuf,
    items: Rc<Vec<Item>>,
    attributes: Rc<Vec<Attribute>>,
    root: Option<Rc<Module>>,
}

/// What a name stands for; a module and a function may share one.
#[derive(Default)]
pub(crate) struct Named {
    /// As it is written: `load()`, `register_array!`, `Model`.
    pub(crate) written: Option<String>,
    pub(crate) sentence: Option<String>,
    pub(crate) module: Option<Module>,
}

impl Module {
    /// The facade itself.
    pub(crate) fn facade() -> Self {
        Self::read(&repository().join("crates/tacit/lib.rs"), None)
    }

    /// The root of a crate of this repository.
    fn crate_named(name: &Ident) -> Option<Self> {
        let name = name.to_string();
        let file = repository().join("crates").join(name.strip_prefix("tacit_")?).join("src/lib.rs");
        file.is_file().then(|| Self::read(&file, None))
    }

    fn read(file: &Path, root: Option<Rc<Self>>) -> Self {
        let text = fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let parsed = syn::parse_file(&text).unwrap();
        let folder = if file.ends_with("lib.rs") { file.parent().unwrap().into() } else { file.with_extension("") };
        Self { folder, items: Rc::new(parsed.items), attributes: Rc::new(parsed.attrs), root }
    }

    fn root(&self) -> Self {
        self.root.as_deref().unwrap_or(self).clone()
    }

    /// Where it is, by which two paths to one module are told from paths to two.
    pub(crate) fn place(&self) -> PathBuf {
        self.folder.clone()
    }

    /// The first sentence of its documentation.
    pub(crate) fn sentence(&self) -> Option<String> {
        first_sentence(&self.attributes)
    }

    /// The module of this name in it, public or not.
    pub(crate) fn child(&self, name: &Ident) -> Option<Self> {
        let root = Some(Rc::new(self.root()));
        self.items.iter().find_map(|item| match item {
            Item::Mod(of) if of.ident == *name => Some(match &of.content {
                None => {
                    let mut module = Self::read(&self.folder.join(format!("{name}.rs")), root.clone());
                    Rc::make_mut(&mut module.attributes).extend(of.attrs.iter().cloned());
                    module
                }
                Some((_, items)) => Self {
                    folder: self.folder.join(name.to_string()),
                    items: Rc::new(items.clone()),
                    attributes: Rc::new(of.attrs.clone()),
                    root: root.clone(),
                },
            }),
            _ => None,
        })
    }

    /// Its public names.
    pub(crate) fn names(&self) -> BTreeMap<String, Named> {
        let mut names = BTreeMap::new();
        for item in &*self.items {
            match item {
                Item::Use(of) if is_public(&of.vis, &of.attrs) => {
                    for (name, path) in leaves(&of.tree) {
                        let Some(name) = name else {
                            names.extend(self.module_at(&path).expect("a glob is of a module").names());
                            continue;
                        };
                        names.insert(name.to_string(), self.named(&path));
                    }
                }
                Item::Mod(of) if is_public(&of.vis, &of.attrs) => {
                    names.entry(of.ident.to_string()).or_insert_with(Named::default).module = self.child(&of.ident);
                }
                _ => {
                    let Some((name, written, true, attributes)) = described(item) else { continue };
                    let own = names.entry(name.to_string()).or_insert_with(Named::default);
                    (own.written, own.sentence) = (Some(written), first_sentence(attributes));
                }
            }
        }
        names
    }

    /// The names that it imports from other modules of the facade, with their paths there.
    pub(crate) fn imports(&self) -> Vec<(String, String)> {
        let trees = self.items.iter().filter_map(|item| if let Item::Use(of) = item { Some(&of.tree) } else { None });
        let of = |(name, from): (Option<Ident>, Vec<Ident>)| {
            let parts: Vec<String> = from[1..].iter().map(ToString::to_string).collect();
            (name.expect("no glob").to_string(), format!("tacit::{}", parts.join("::")))
        };
        trees.flat_map(leaves).map(of).collect()
    }

    fn module_at(&self, path: &[Ident]) -> Option<Self> {
        path.iter().enumerate().try_fold(self.clone(), |module, (place, name)| match place {
            0 if name == "crate" => Some(module.root()),
            0 if name == "self" => Some(module),
            0 => module.child(name).or_else(|| Self::crate_named(name)).or_else(|| module.imported(name).module),
            _ => module.child(name).or_else(|| module.imported(name).module),
        })
    }

    /// What a path from this module stands for.
    fn named(&self, path: &[Ident]) -> Named {
        let (name, before) = path.split_last().expect("a path has a name");
        let Some(module) = self.module_at(before) else { return Named::default() };
        let found = module.items.iter().filter_map(described).find(|(own, ..)| *own == name);
        let imported = module.imported(name);
        Named {
            written: found.as_ref().map(|(_, written, ..)| written.clone()).or(imported.written),
            sentence: found.and_then(|(.., attributes)| first_sentence(attributes)).or(imported.sentence),
            module: if module.hides(name) { None } else { module.module_at(std::slice::from_ref(name)) },
        }
    }

    /// Whether a module of this name in it is its own alone: an import brings the function of that name without it.
    fn hides(&self, name: &Ident) -> bool {
        let is_own = |item: &Item| matches!(item, Item::Mod(of) if of.ident == *name && !is_public(&of.vis, &of.attrs));
        self.items.iter().any(is_own)
    }

    /// What an import of this module brings under this name.
    fn imported(&self, name: &Ident) -> Named {
        let mut named = Named::default();
        // A macro that is exported is at the root, wherever it is written.
        if self.root.is_none() {
            named.sentence = Sources::of(&self.folder).exported(name);
            named.written = named.sentence.as_ref().map(|_| format!("{name}!"));
        }
        for item in &*self.items {
            let Item::Use(of) = item else { continue };
            for (_, path) in leaves(&of.tree).into_iter().filter(|(own, _)| own.as_ref() == Some(name)) {
                // The name of a crate of others leads nowhere.
                let other = if path[..] == [name.clone()] { Named::default() } else { self.named(&path) };
                named.module = named.module.or(other.module);
                named.written = named.written.or(other.written);
                named.sentence = named.sentence.or_else(|| first_sentence(&of.attrs)).or(other.sentence);
            }
        }
        named
    }
}

fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn is_public(vis: &Visibility, attributes: &[Attribute]) -> bool {
    let hidden = |attribute: &Attribute| attribute.path().is_ident("doc") && is_hidden(attribute);
    matches!(vis, Visibility::Public(_)) && !attributes.iter().any(hidden)
}

/// An item's name, how it is written, whether others see it, and what is said of it.
fn described(item: &Item) -> Option<(&Ident, String, bool, &[Attribute])> {
    let (name, end, vis, attributes) = match item {
        Item::Struct(of) => (&of.ident, "", &of.vis, &of.attrs),
        Item::Enum(of) => (&of.ident, "", &of.vis, &of.attrs),
        Item::Trait(of) => (&of.ident, "", &of.vis, &of.attrs),
        Item::Type(of) => (&of.ident, "", &of.vis, &of.attrs),
        Item::Const(of) => (&of.ident, "", &of.vis, &of.attrs),
        Item::Static(of) => (&of.ident, "", &of.vis, &of.attrs),
        Item::Fn(of) => (&of.sig.ident, "()", &of.vis, &of.attrs),
        Item::Macro(of) => {
            let name = of.ident.as_ref()?;
            return Some((name, format!("{name}!"), false, &of.attrs));
        }
        _ => return None,
    };
    Some((name, format!("{name}{end}"), is_public(vis, attributes), attributes))
}

/// The names that a tree of imports brings, with their paths; no name stands for all of a module's.
fn leaves(tree: &UseTree) -> Vec<(Option<Ident>, Vec<Ident>)> {
    let behind = |name: &Ident, tree: &UseTree| {
        let inside = leaves(tree).into_iter();
        // `self` within braces is what stands before them.
        let own = |own: Option<Ident>| own.map(|own| if own == "self" { name.clone() } else { own });
        inside.map(|(name_of, path)| (own(name_of), iter::once(name.clone()).chain(path).collect())).collect()
    };
    match tree {
        UseTree::Path(of) => behind(&of.ident, &of.tree),
        UseTree::Name(of) if of.ident == "self" => vec![(Some(of.ident.clone()), Vec::new())],
        UseTree::Name(of) => vec![(Some(of.ident.clone()), vec![of.ident.clone()])],
        UseTree::Rename(of) if of.ident == "self" => vec![(Some(of.rename.clone()), Vec::new())],
        UseTree::Rename(of) => vec![(Some(of.rename.clone()), vec![of.ident.clone()])],
        UseTree::Glob(_) => vec![(None, Vec::new())],
        UseTree::Group(of) => of.items.iter().flat_map(leaves).collect(),
    }
}
