//! How a definition prints, and how one entry of it differs from another.

use std::fmt;
use std::slice::Iter;

use super::entry::{Entry, OwnLabels, OwnNode};
use super::{NodeKind, StaticField};
use crate::short_name;

type Statics = Vec<(&'static str, String)>;

/// Writes the next subtree.
pub(super) fn write(f: &mut fmt::Formatter<'_>, entries: &mut Iter<'_, Entry>) -> fmt::Result {
    match entries.next() {
        None | Some(Entry::Leaf { .. }) => f.write_str("*"),
        Some(entry @ Entry::Implicit { skeleton, .. }) => {
            f.write_str(short_name(&**skeleton))?;
            write_children(f, ["{", "}"], entry, true, &skeleton.aux(), entries)
        }
        Some(entry @ Entry::Node(node)) => {
            let statics = printed(node);
            let labelled = matches!(node.labels, OwnLabels::Fields(_) | OwnLabels::Keys(_));
            let brackets = match node.kind {
                NodeKind::Tuple => ["(", ")"],
                NodeKind::List | NodeKind::Array => ["[", "]"],
                NodeKind::Map => ["{", "}"],
                NodeKind::Some => ["", ""],
                NodeKind::Static => return statics.iter().try_for_each(|(_, value)| f.write_str(value)),
                NodeKind::None | NodeKind::Nothing | NodeKind::Type(_) => {
                    f.write_str(node.kind.short())?;
                    match &node.labels {
                        OwnLabels::Fields(fields) if fields.is_empty() && statics.is_empty() => ["", ""],
                        OwnLabels::Positions(0) if statics.is_empty() => ["", ""],
                        _ if labelled => ["{", "}"],
                        _ => ["(", ")"],
                    }
                }
            };
            write_children(f, brackets, entry, labelled, &statics, entries)
        }
    }
}

fn write_children(
    f: &mut fmt::Formatter<'_>,
    [open, close]: [&str; 2],
    entry: &Entry,
    labelled: bool,
    statics: &Statics,
    entries: &mut Iter<'_, Entry>,
) -> fmt::Result {
    f.write_str(open)?;
    let mut separator = "";
    for child in 0..entry.len() {
        f.write_str(separator)?;
        if let Some(label) = entry.label(child).filter(|_| labelled) {
            write!(f, "{label}: ")?;
        }
        write(f, entries)?;
        separator = ", ";
    }
    for (name, value) in statics {
        write!(f, "{separator}{name}={value}")?;
        separator = ", ";
    }
    f.write_str(close)
}

fn printed(node: &OwnNode) -> Statics {
    let print = |value: &dyn StaticField| format!("{value:?}");
    node.statics.iter().map(|(name, value)| (*name, print(&**value))).collect()
}

/// What differs, as in `static block_size 64 -> 32`.
pub(super) fn difference(entry: &Entry, other: &Entry) -> String {
    let statics = |a: &Statics, b: &Statics| {
        let differing = a.iter().zip(b).find(|(a, b)| a != b)?;
        Some(format!("static {} {} -> {}", differing.0.0, differing.0.1, differing.1.1))
    };
    let found = match (entry, other) {
        (Entry::Implicit { skeleton: a, names: x }, Entry::Implicit { skeleton: b, names: y })
            if a.typetag_name() == b.typetag_name() =>
        {
            if a.aux_eq(&**b) && x != y {
                Some(format!("{} with {} children -> {} children", kind(entry, false), x.len(), y.len()))
            } else {
                statics(&a.aux(), &b.aux())
            }
        }
        (Entry::Node(a), Entry::Node(b)) if a.kind == b.kind && a.labels == b.labels => {
            statics(&printed(a), &printed(b))
        }
        _ => None,
    };
    found.unwrap_or_else(|| {
        let full = kind(entry, false) == kind(other, false);
        format!("{} -> {}", kind(entry, full), kind(other, full))
    })
}

/// What the entry is, without its children.
fn kind(entry: &Entry, full: bool) -> String {
    match entry {
        Entry::Leaf { frozen: true } => "a frozen array".to_owned(),
        Entry::Implicit { skeleton, .. } if !full => short_name(&**skeleton).to_owned(),
        Entry::Leaf { .. } | Entry::Implicit { .. } => entry.name().to_owned(),
        Entry::Node(node) => {
            let name = if full { node.kind.name() } else { node.kind.short() };
            match &node.labels {
                OwnLabels::Positions(count) if *count > 0 => format!("{name} of {count}"),
                OwnLabels::Keys(keys) if keys.is_empty() => format!("{name} without keys"),
                OwnLabels::Keys(keys) => format!("{name} with the keys {}", keys.join(", ")),
                OwnLabels::Positions(_) | OwnLabels::Inner | OwnLabels::Fields(_) => name.to_owned(),
            }
        }
    }
}
