//! What a forward pass takes.

use mlx_rs::Array;

/// What a module's forward pass takes, as the arrays in it.
///
/// They are where the walk of the recorded graph ends, so that a stack of layers costs no more the deeper it is. It is
/// implemented for arrays, options and lists of them, and tuples of these; implement it for an input type of your own.
pub trait Inputs {
    /// Adds the arrays to `all`.
    fn collect(&self, all: &mut Vec<Array>);
}

impl Inputs for Array {
    fn collect(&self, all: &mut Vec<Array>) {
        all.push(self.clone());
    }
}

impl<T: Inputs + ?Sized> Inputs for &T {
    fn collect(&self, all: &mut Vec<Array>) {
        (**self).collect(all);
    }
}

impl<T: Inputs> Inputs for Option<T> {
    fn collect(&self, all: &mut Vec<Array>) {
        if let Some(input) = self {
            input.collect(all);
        }
    }
}

impl<T: Inputs> Inputs for [T] {
    fn collect(&self, all: &mut Vec<Array>) {
        for input in self {
            input.collect(all);
        }
    }
}

impl<T: Inputs> Inputs for Vec<T> {
    fn collect(&self, all: &mut Vec<Array>) {
        self.as_slice().collect(all);
    }
}

macro_rules! tuples {
    ($(($($part:ident $name:ident),+))+) => {
        $(impl<$($part: Inputs),+> Inputs for ($($part,)+) {
            fn collect(&self, all: &mut Vec<Array>) {
                let ($($name,)+) = self;
                $($name.collect(all);)+
            }
        })+
    };
}

tuples! {
    (A a)
    (A a, B b)
    (A a, B b, C c)
    (A a, B b, C c, D d)
    (A a, B b, C c, D d, E e)
}
