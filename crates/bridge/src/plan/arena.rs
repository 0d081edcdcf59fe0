//! The memory of the arrays between a plan's kernels.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;
use std::sync::{Mutex, PoisonError};

use crate::error::BoxError;

/// Arrays begin at multiples of this: a line of the cache, and the widest vector.
pub(super) const ALIGNMENT: usize = 64;

/// Arenas that wait for a plan, at most: as many as threads may run plans at once without allocating.
const KEPT: usize = 2;

/// The bytes of an arena that waits, at most: for a larger one, page faults are few beside what its kernels do.
const MOST_KEPT: usize = 1 << 28;

/// The blocks that wait. Fresh memory costs a page fault for each 4 KB, which is more than most kernels take for them.
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
    /// At least so many bytes, if there are. They hold what an earlier run left, or zeros.
    pub(super) fn take(bytes: usize) -> Result<Self, BoxError> {
        if bytes == 0 {
            return Ok(Self(None));
        }
        let mut waiting = WAITING.lock().unwrap_or_else(PoisonError::into_inner);
        let fitting = waiting.iter().enumerate().filter(|(_, block)| block.layout.size() >= bytes);
        if let Some((at, _)) = fitting.min_by_key(|(_, block)| block.layout.size()) {
            return Ok(Self(Some(waiting.swap_remove(at))));
        }
        // One that is too small makes room for one that is not.
        drop(waiting.pop());
        drop(waiting);
        let layout = Layout::from_size_align(bytes, ALIGNMENT)?;
        // SAFETY: the layout has a size.
        let data = NonNull::new(unsafe { alloc_zeroed(layout) });
        let data = data.ok_or_else(|| {
            format!(
                "there is no memory for the {bytes} bytes of a plan\nhelp: compile smaller steps, or set `Passes::Off`"
            )
        })?;
        Ok(Self(Some(Block { data, layout })))
    }

    pub(super) fn as_mut_ptr(&mut self) -> *mut u8 {
        self.0.as_ref().map_or(std::ptr::null_mut(), |block| block.data.as_ptr())
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        let Some(block) = self.0.take() else { return };
        let mut waiting = WAITING.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.len() < KEPT && block.layout.size() <= MOST_KEPT {
            waiting.push(block);
        }
    }
}
