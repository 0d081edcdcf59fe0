//! Classes of primitives, for handlers of all primitives of a class.

use std::ops::Deref;

use tacit_bridge::typed::Class;

use crate::handler::HandlerPrimitive;
use crate::pattern::PrimitivePattern;
use crate::{Primitive, Result};

/// Declares the view of the primitives of some classes.
macro_rules! views {
    ($($(#[$doc:meta])* $name:ident: $($class:ident)+;)+) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Debug)]
            pub struct $name(Primitive);

            impl Deref for $name {
                type Target = Primitive;

                fn deref(&self) -> &Primitive {
                    &self.0
                }
            }

            impl HandlerPrimitive for $name {
                const PATTERN: PrimitivePattern = PrimitivePattern::Classes(stringify!($name), &[$(Class::$class),+]);

                fn with<R>(primitive: &Primitive, f: impl FnOnce(&Self) -> Result<R>) -> Result<R> {
                    f(&Self(primitive.clone()))
                }
            }
        )+
    };
}

views! {
    /// Any primitive of one operand, element by element, such as [`Exp`](crate::op::Exp).
    Unary: Unary;
    /// Any primitive of two operands of one shape, element by element, such as [`Add`](crate::op::Add).
    Binary: Binary;
    /// Any primitive whose operands and results have one shape, element by element.
    Elementwise: Unary Binary Ternary;
    /// Any primitive that only moves elements of its first operand, such as [`Transpose`](crate::op::Transpose) or
    /// [`Gather`](crate::op::Gather).
    Moving: Moving Reshaping;
    /// Any primitive that gives its operand another shape, the elements in the same order, such as
    /// [`Reshape`](crate::op::Reshape) or [`Squeeze`](crate::op::Squeeze).
    Reshaping: Reshaping;
    /// Any primitive that replaces some elements of its first operand, such as
    /// [`SliceUpdate`](crate::op::SliceUpdate) or [`ScatterAxis`](crate::op::ScatterAxis).
    Update: Update;
    /// Any primitive that runs along one axis and keeps its extent, such as [`CumSum`](crate::op::CumSum).
    Scan: Scan;
    /// Any primitive that compares or normalizes the elements along one axis, such as [`Sort`](crate::op::Sort) or
    /// [`Softmax`](crate::op::Softmax).
    Rowwise: Rowwise;
    /// Any primitive that a transform leaves in the graph, such as [`Compiled`](crate::op::Compiled).
    Graph: Graph;
    /// Any reduction along axes that stay with size 1, such as [`Sum`](crate::op::Sum).
    Reduction: Reduction;
}
