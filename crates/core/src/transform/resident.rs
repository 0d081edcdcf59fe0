//! Values that the nodes of a graph refer to, kept on the thread that made them.
//!
//! MLX may drop a node on any thread, and closures and tree definitions cannot go to another one. So a node holds a
//! [`Resident`], and the value stays in a table of its own thread.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::marker::PhantomData;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};

use crate::{Error, Result};

/// The only reference to a value of the thread that made it; any thread may hold and drop it.
///
/// A value whose reference is dropped by another thread is dropped with the next one of its own thread.
pub(super) struct Resident<T> {
    id: u64,
    dropped: Arc<Dropped>,
    value: PhantomData<fn() -> T>,
}

/// The references that were dropped and whose values are still there.
type Dropped = Mutex<Vec<u64>>;

thread_local! {
    static DROPPED: Arc<Dropped> = Arc::default();
    static NEXT: Cell<u64> = const { Cell::new(0) };
    static VALUES: RefCell<HashMap<u64, Rc<dyn Any>>> = RefCell::default();
}

impl<T: 'static> Resident<T> {
    pub(super) fn new(value: T) -> Self {
        sweep();
        let id = NEXT.replace(NEXT.get() + 1);
        VALUES.with_borrow_mut(|values| values.insert(id, Rc::new(value)));
        Self { id, dropped: DROPPED.with(Arc::clone), value: PhantomData }
    }

    pub(super) fn get(&self) -> Result<Rc<T>> {
        let is_this_thread = DROPPED.with(|dropped| Arc::ptr_eq(dropped, &self.dropped));
        let value = if is_this_thread { VALUES.with_borrow(|values| values.get(&self.id).cloned()) } else { None };
        value.and_then(|value| value.downcast().ok()).ok_or_else(|| {
            Error::invalid(
                "a function of a graph is called on another thread than the one that built the graph",
                "build the graph anew on each thread",
            )
        })
    }
}

impl<T> Drop for Resident<T> {
    fn drop(&mut self) {
        self.dropped.lock().unwrap_or_else(PoisonError::into_inner).push(self.id);
        if DROPPED.try_with(|dropped| Arc::ptr_eq(dropped, &self.dropped)) == Ok(true) {
            sweep();
        }
    }
}

/// Drops the values whose references are dropped. Doing so may drop further references, so nothing is locked meanwhile.
fn sweep() {
    loop {
        let next = DROPPED.try_with(|dropped| dropped.lock().unwrap_or_else(PoisonError::into_inner).pop());
        let Ok(Some(id)) = next else { return };
        let value = VALUES.try_with(|values| values.borrow_mut().remove(&id));
        drop(value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn live() -> usize {
        VALUES.with_borrow(HashMap::len)
    }

    #[test]
    fn a_value_goes_with_its_reference() {
        let value = Rc::new(7);
        let resident = Resident::new(Rc::clone(&value));
        assert_eq!((**resident.get().expect("is here"), Rc::strong_count(&value)), (7, 2));
        drop(resident);
        assert_eq!((live(), Rc::strong_count(&value)), (0, 1));
    }

    #[test]
    fn another_thread_reaches_nothing_and_leaves_the_dropping_to_this_one() {
        let value = Rc::new(7);
        let resident = Resident::new(Rc::clone(&value));
        std::thread::scope(|scope| {
            let refused = scope.spawn(move || resident.get().is_err()).join();
            assert!(refused.expect("does not panic"));
        });
        assert_eq!(Rc::strong_count(&value), 2);
        drop(Resident::new(()));
        assert_eq!((live(), Rc::strong_count(&value)), (0, 1));
    }

    #[test]
    fn dropping_one_may_drop_another() {
        let inner = Resident::new(1);
        let outer = Resident::new(inner);
        drop(outer);
        assert_eq!(live(), 0);
    }
}
