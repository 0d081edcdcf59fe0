//! The calls that exercise a primitive: one generator for each, by the name of the primitive.

mod elementwise;
mod indexing;
mod products;
mod reductions;
mod scene;
mod shapes;

pub(crate) use scene::{Generator, Scene};

/// Every primitive that there are calls for.
pub(crate) fn generators() -> impl Iterator<Item = (&'static str, Generator)> {
    let families = [
        products::GENERATORS,
        elementwise::GENERATORS,
        reductions::GENERATORS,
        shapes::GENERATORS,
        indexing::GENERATORS,
    ];
    families.into_iter().flatten().copied()
}
