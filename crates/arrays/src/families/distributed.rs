//! The family of arrays that stand for an array in parts, such as shards on several ranks.

use tacit_core::{ImplicitArray, Result, Value};

/// The family of arrays that stand for an array that is kept elsewhere, such as in parts on several ranks.
///
/// A model treats what a member holds as if it stood alone: a dense child is a parameter, and is trained as one, and the
/// children of an implicit child have the roles that they have there.
pub trait Distributed: ImplicitArray {
    /// The same array around the results of `f` on the values that this one holds; `None` where `f` changes none of them.
    ///
    /// Its children are what it holds, unless it says otherwise: one whose children are not the array itself, such as flat parts
    /// of it, gives `f` the array.
    ///
    /// # Errors
    ///
    /// `f` fails, or what it makes cannot be kept so.
    fn with_held(&self, f: &mut dyn FnMut(&Value) -> Result<Option<Value>>) -> Result<Option<Value>> {
        let (mut children, mut changed) = (Vec::new(), false);
        for (_, child) in self.children() {
            let other = f(&child)?;
            changed |= other.is_some();
            children.push(other.unwrap_or(child));
        }
        if changed { Ok(Some(self.with_children(children)?.into())) } else { Ok(None) }
    }

    /// The whole array on this rank, for a caller that uses it many times, such as once for each chunk of rows; `None` where a use
    /// moves no part of it.
    ///
    /// # Errors
    ///
    /// It cannot be brought here.
    fn brought(&self) -> Result<Option<Value>> {
        Ok(None)
    }
}
