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
    /// Any primitive of one operand, element by element, such as [`Exp`](crate::primitives::Exp).
    Unary: Unary;
    /// Any primitive of two operands of one shape, element by element, such as [`Add`](crate::primitives::Add).
    Binary: Binary;
    /// Any primitive whose operands and results have one shape, element by element.
    Elementwise: Unary Binary Ternary;
    /// Any primitive that only moves elements of its first operand, such as [`Transpose`](crate::primitives::Transpose) or
    /// [`Gather`](crate::primitives::Gather).
    Moving: Moving Reshaping;
    /// Any primitive that gives its operand another shape, the elements in the same order, such as
    /// [`Reshape`](crate::primitives::Reshape) or [`Squeeze`](crate::primitives::Squeeze).
    Reshaping: Reshaping;
    /// Any primitive that replaces some elements of its first operand, such as
    /// [`SliceUpdate`](crate::primitives::SliceUpdate) or [`ScatterAxis`](crate::primitives::ScatterAxis).
    Update: Update;
    /// Any primitive that runs along one axis and keeps its extent, such as [`CumSum`](crate::primitives::CumSum).
    Scan: Scan;
    /// Any primitive that compares or normalizes the elements along one axis, such as [`Sort`](crate::primitives::Sort) or
    /// [`Softmax`](crate::primitives::Softmax).
    Rowwise: Rowwise;
    /// Any primitive that a transform leaves in the graph, such as [`Compiled`](crate::primitives::Compiled).
    Graph: Graph;
    /// Any primitive whose results are sums of products, such as [`Matmul`](crate::primitives::Matmul),
    /// [`GatherMM`](crate::primitives::GatherMM) or [`Convolution`](crate::primitives::Convolution).
    Product: Product;
    /// Any reduction along axes that stay with size 1, such as [`Sum`](crate::primitives::Sum).
    Reduction: Reduction;
}
