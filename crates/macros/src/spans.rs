//! Where errors about what a macro writes are shown.

use proc_macro2::Span;
use syn::spanned::Spanned;

/// The place of a part of the item, with the names of the macro's own call.
///
/// With that part's own span `self` may be another one where a macro wrote the item, and lints take the code for the author's.
pub(crate) fn at(part: &impl Spanned) -> Span {
    Span::call_site().located_at(part.span())
}
