//! Memory for what the kernels of a plan leave to each other.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;
use std::sync::{Mutex, PoisonError};

/// Arrays begin at multiples of this: a line of the cache, and the widest vector.
pub(super) const ALIGNMENT: usize = 64;

/// Arenas that wait for a plan, at most: as many as threads may run plans at once without allocating.
const KEPT: usize = 2;

/// Those that wait. Fresh memory costs a page fault for each 4 KB, which is more than most kernels take for them.
static WAITING: Mutex<Vec<Block>> = Mutex::new(Vec::new());

/// The memory of one run, which waits for the next one afterwards.
pub(super) struct Arena(Option<Block>);

struct Block {
    data: NonNull<u8>,
    layout: Layout,
}

// SAFETY: the block owns its memory.
unsafe impl Send for Block {}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: the memory is of this layout and is freed once.
        unsafe { dealloc(self.data.as_ptr(), self.layout) };
    }
}

impl Arena {
    /// At least so many bytes. They hold what an earlier run left, or zeros.
    pub(super) fn take(bytes: usize) -> Self {
        if bytes == 0 {
            return Self(None);
        }
        let mut waiting = WAITING.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = waiting.iter().position(|block| block.layout.size() >= bytes) {
            return Self(Some(waiting.swap_remove(at)));
        }
        // One that is too small makes room for one that is not.
        drop(waiting.pop());
        drop(waiting);
        let Ok(layout) = Layout::from_size_align(bytes, ALIGNMENT) else { unreachable!("a builder checks the sum") };
        // SAFETY: the layout has a size.
        let data = unsafe { alloc_zeroed(layout) };
        Self(Some(Block { data: NonNull::new(data).unwrap_or_else(|| handle_alloc_error(layout)), layout }))
    }

    pub(super) fn as_mut_ptr(&mut self) -> *mut u8 {
        self.0.as_ref().map_or(std::ptr::null_mut(), |block| block.data.as_ptr())
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        let Some(block) = self.0.take() else { return };
        let mut waiting = WAITING.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.len() < KEPT {
            waiting.push(block);
        }
    }
}
