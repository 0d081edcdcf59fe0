//! Where another array is kept.

use tacit_core::ImplicitArray;

/// The family of arrays that say where another one is kept, such as in parts in several processes, and are nothing besides.
///
/// What a member holds is to a model what it would be by itself: its dense child is a parameter, and is trained as one, and
/// the children of an implicit one have the roles that they have there.
pub trait Placed: ImplicitArray {}
