//! Files mapped into memory, arrays that are parts of them, and the bytes of arrays.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::{io, ptr, slice};

use mlx_rs::Array;

use crate::arrays::{NONE, filled, optional, viewed};
use crate::callback::release;
use crate::kernel::check_intact;
use crate::{Aval, BridgeError, ffi};

/// A file in memory, whose parts become arrays without being copied.
///
/// The pages are read when an array of them is, and are the system's to drop again. They are private: MLX may write into
/// the buffer of an array that nobody else holds, and the file does not see it. The memory lasts as long as any array
/// of it.
///
/// A file that another program *overwrites in place* changes under the arrays, and one that is cut short ends the program
/// with the signal SIGBUS when a page behind its end is read, as with every memory-mapped file. Replacing the file by
/// renaming another one over it is safe.
#[derive(Debug)]
pub struct MappedFile {
    region: Arc<Region>,
    /// Holds the memory for as long as `self` lives, so that MLX never takes it for an array's alone and writes into it.
    /// None where MLX takes no memory but its own.
    base: Option<Array>,
}

// SAFETY: `base` is what `array` makes parts of, which copies pointers whose counts are atomic; nothing else is done with it
// until it is dropped, which any thread may do.
unsafe impl Sync for MappedFile {}

impl MappedFile {
    /// Opens a file to be mapped. A pipe is opened as well, so that it can be refused: nobody waits until it is written to.
    ///
    /// # Errors
    ///
    /// The system refuses.
    pub fn open_file(path: &Path) -> io::Result<File> {
        File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path)
    }

    /// Maps the whole of `file`.
    ///
    /// # Errors
    ///
    /// The system refuses, or the file is no regular one.
    pub fn new(file: &File) -> io::Result<Self> {
        let region = Arc::new(Region::new(file)?);
        let mut known = REGIONS.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|_, region| region.strong_count() > 0);
        known.insert(region.start().addr(), Arc::downgrade(&region));
        drop(known);
        let payload = Box::into_raw(Box::new(Arc::clone(&region))).cast();
        let release = release::<Arc<Region>>;
        // SAFETY: the region has whole pages from the file's start on and more than a word before them, all of which may
        // be written; the payload is given away, and `release` takes back what it is.
        let base = optional(|base| unsafe {
            ffi::tacit_mapped_new(region.start().cast(), region.pages(), payload, release, base)
        })
        .map_err(io::Error::other)?;
        Ok(Self { region, base })
    }

    /// The bytes of the file.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the region has the file's bytes, and nothing writes into them while `self`, which the slice borrows,
        // holds `base`: MLX writes into a buffer that one array holds alone.
        unsafe { slice::from_raw_parts(self.region.start(), self.region.length) }
    }

    /// The array of this aval whose elements begin at byte `offset` of the file, row by row and little-endian.
    ///
    /// It is not copied where the offset is a multiple of the item size. What the bytes are is not looked at: those of a
    /// `bool` must be 0 or 1.
    ///
    /// # Errors
    ///
    /// An extent is negative, or the elements are not all within the file.
    pub fn array(&self, offset: usize, aval: &Aval) -> Result<Array, BridgeError> {
        let view = viewed(aval)?;
        let within = aval.checked_nbytes().and_then(|bytes| offset.checked_add(bytes));
        if within.is_none_or(|end| end > self.region.length) {
            let length = self.region.length;
            return Err(BridgeError::OutsideFile { aval: aval.clone(), offset, length });
        }
        let base = self.base.as_ref().map_or(NONE, Array::as_ptr);
        let data = self.bytes()[offset..].as_ptr();
        // SAFETY: the elements are within the file, as checked, and the shape is a live slice.
        filled(|out| unsafe { ffi::tacit_mapped_array(base, data.cast(), offset, view, out) })
    }
}

/// The array of this aval whose elements are these bytes, row by row and as they are in memory. They are copied.
///
/// They may be more than MLX counts along one axis. What they are is not looked at: those of a `bool` must be 0 or 1.
///
/// # Errors
///
/// An extent is negative, or the elements have another number of bytes.
pub fn array_of_bytes(bytes: &[u8], aval: &Aval) -> Result<Array, BridgeError> {
    let view = viewed(aval)?;
    if aval.checked_nbytes() != Some(bytes.len()) {
        return Err(BridgeError::OtherLength { aval: aval.clone(), length: bytes.len() });
    }
    // SAFETY: the bytes are those of the elements, as checked, and are copied; the shape is a live slice.
    filled(|out| unsafe { ffi::tacit_mapped_array(NONE, bytes.as_ptr().cast(), 0, view, out) })
}

/// Calls `f` with the elements of `array`, row by row and as they are in memory, once it is evaluated.
///
/// # Errors
///
/// It cannot be evaluated.
pub fn with_bytes<R>(array: &Array, f: impl FnOnce(&[u8]) -> R) -> Result<R, BridgeError> {
    array.eval().map_err(|error| BridgeError::Mlx(error.what().to_owned()))?;
    check_intact(array)?;
    let mut data = ptr::null();
    // SAFETY: the array is live and evaluated.
    let rows = filled(|rows| unsafe { ffi::tacit_array_rows(array.as_ptr(), rows, &raw mut data) })?;
    if data.is_null() {
        return Ok(f(&[]));
    }
    // SAFETY: the data are those of `rows`, which lives longer than the slice and has its elements without gaps.
    Ok(f(unsafe { slice::from_raw_parts(data.cast(), rows.nbytes()) }))
}

/// Gives the system back the memory of an array that is a part of a mapped file. It is read again from the file when it is used
/// again. Nothing happens to any other array, nor to one that MLX made in the memory of a part that nobody held any longer.
///
/// # Errors
///
/// It cannot be evaluated.
pub fn forget_pages(array: &Array) -> Result<(), BridgeError> {
    with_bytes(array, forget_bytes)
}

/// Gives the system back the memory of bytes of a mapped file, as [`forget_pages`] does that of an array. Nothing happens to others.
pub fn forget_bytes(bytes: &[u8]) {
    let regions = REGIONS.lock().unwrap_or_else(PoisonError::into_inner);
    let below = regions.range(..=bytes.as_ptr().addr()).next_back();
    if let Some(region) = below.and_then(|(_, region)| region.upgrade()) {
        region.forget(bytes);
    }
}

/// The mapped files by where they begin.
static REGIONS: Mutex<BTreeMap<usize, Weak<Region>>> = Mutex::new(BTreeMap::new());

/// A page that holds no part of the file, and the pages of the file behind it.
///
/// MLX's allocator for the CPU has the size of a buffer in the word before it, which is the end of that page.
#[derive(Debug)]
struct Region {
    reserved: *mut c_void,
    page: usize,
    length: usize,
}

// SAFETY: the region is memory that nobody changes but MLX, in arrays of its own; the pointer is to nothing of a thread.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    fn new(file: &File) -> io::Result<Self> {
        use std::os::fd::AsRawFd;

        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file"));
        }
        // SAFETY: it only asks.
        let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).map_err(io::Error::other)?;
        let too_long = || io::Error::new(io::ErrorKind::FileTooLarge, "it is longer than memory can be");
        let length = usize::try_from(metadata.len()).map_err(|_| too_long())?;
        let pages = length.checked_next_multiple_of(page).and_then(|pages| pages.checked_add(page));
        let pages = pages.filter(|&pages| isize::try_from(pages).is_ok()).ok_or_else(too_long)?;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let private = libc::MAP_PRIVATE | libc::MAP_NORESERVE;
        // SAFETY: a new mapping at a place that the system chooses.
        let reserved = unsafe { libc::mmap(ptr::null_mut(), pages, access, private | libc::MAP_ANON, -1, 0) };
        if reserved == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // From here on it is unmapped by its drop.
        let region = Self { reserved, page, length };
        if length > 0 {
            // SAFETY: the place is within the region, which nothing else uses yet.
            let start = unsafe {
                libc::mmap(region.start().cast(), length, access, private | libc::MAP_FIXED, file.as_raw_fd(), 0)
            };
            if start == libc::MAP_FAILED {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(region)
    }

    /// Where the file's bytes begin.
    fn start(&self) -> *mut u8 {
        // SAFETY: the region is longer than its first page by what is read of it, or ends there.
        unsafe { self.reserved.cast::<u8>().add(self.page) }
    }

    /// Drops the pages that lie within `bytes`, if these are of the region and still the file's.
    fn forget(&self, bytes: &[u8]) {
        let offset = bytes.as_ptr().addr() - self.start().addr();
        let (begin, end) = (offset.next_multiple_of(self.page), (offset + bytes.len()) / self.page * self.page);
        if offset + bytes.len() > self.length || begin >= end {
            return;
        }
        // SAFETY: the place is within the region.
        let start = unsafe { self.start().add(begin) };
        // Linux alone drops what was written, too. Where it does not tell, the pages stay.
        if cfg!(target_os = "linux") && !self.are_of_the_file(start, end - begin).unwrap_or(false) {
            return;
        }
        // SAFETY: the pages are of the region and have bytes that are borrowed, of an array or a file that is held meanwhile, so
        // that MLX does not write into them: they are those of the file, and are read from it again. If the system refuses, they
        // stay.
        unsafe { libc::madvise(start.cast(), end - begin, libc::MADV_DONTNEED) };
    }

    /// Whether nothing was written into these pages: MLX writes what it makes of the last array of a buffer into that buffer.
    ///
    /// Linux describes each page by a [word](https://docs.kernel.org/admin-guide/mm/pagemap.html).
    fn are_of_the_file(&self, start: *const u8, length: usize) -> io::Result<bool> {
        use std::os::unix::fs::FileExt;

        const PRESENT: u64 = 1 << 63;
        const SWAPPED: u64 = 1 << 62;
        const OF_FILE: u64 = 1 << 61;
        let mut words = vec![0u8; length / self.page * size_of::<u64>()];
        let offset = start.addr() / self.page * size_of::<u64>();
        File::open("/proc/self/pagemap")?.read_exact_at(&mut words, offset as u64)?;
        let mut words = words.as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word));
        Ok(words.all(|word| word & SWAPPED == 0 && (word & PRESENT == 0 || word & OF_FILE != 0)))
    }

    /// The bytes of the file's pages.
    fn pages(&self) -> usize {
        self.length.next_multiple_of(self.page)
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and no array of it is left: each holds the payload that holds this. It can only
        // fail for an empty range.
        unsafe { libc::munmap(self.reserved, self.page + self.pages()) };
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use mlx_rs::Dtype;

    use super::*;
    use crate::mlx::Feature;

    #[test]
    fn what_mlx_wrote_into_the_memory_of_a_part_stays() {
        let path = std::env::temp_dir().join(format!("tacit-written-{}", std::process::id()));
        fs::write(&path, 1f32.to_le_bytes().repeat(16_384)).expect("writes");
        let part = {
            let file = MappedFile::new(&File::open(&path).expect("opens")).expect("maps");
            file.array(0, &Aval::new(&[16_384], Dtype::Float32)).expect("is within the file")
        };
        let place = |array: &Array| with_bytes(array, |bytes| bytes.as_ptr().addr()).expect("evaluates");
        let before = place(&part);
        // The last array of the memory: MLX writes the sum into it, where it donates what is not its own.
        let sum = part + Array::from_slice(&[1f32], &[1]);
        assert_eq!(place(&sum) != before, Feature::OwnedData.is_there());
        forget_pages(&sum).expect("evaluates");
        assert!(sum.as_slice::<f32>().iter().all(|x| x.total_cmp(&2.0).is_eq()));
        fs::remove_file(path).ok();
    }
}
