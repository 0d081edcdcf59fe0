//! Types as they are written.

use syn::Type;

/// The type without parentheses and the invisible groups around what a macro was given.
pub(crate) fn plain(ty: &Type) -> &Type {
    match ty {
        Type::Paren(inner) => plain(&inner.elem),
        Type::Group(inner) => plain(&inner.elem),
        ty => ty,
    }
}
