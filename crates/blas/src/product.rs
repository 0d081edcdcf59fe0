//! From CBLAS's arguments to a product of strided matrices.

use std::io::{self, Write};
use std::{borrow::Cow, ffi::c_int, ptr, slice};

use tacit_kernels::{
    Complex, Dense, Factors, KernelError, Operand, Orientation, complex_matmul, dense_matmul, double_matmul,
};

/// `A` or `B` as the caller describes it.
#[derive(Clone, Copy)]
pub(super) struct Given<T> {
    pub(super) trans: c_int,
    pub(super) data: *const T,
    pub(super) ld: c_int,
}

/// The arguments of a `cblas_?gemm`.
#[derive(Clone, Copy)]
pub(super) struct Arguments<T> {
    pub(super) order: c_int,
    pub(super) m: c_int,
    pub(super) n: c_int,
    pub(super) k: c_int,
    pub(super) alpha: T,
    pub(super) a: Given<T>,
    pub(super) b: Given<T>,
    pub(super) beta: T,
    pub(super) c: *mut T,
    pub(super) ldc: c_int,
}

/// The numbers that BLAS has functions for.
pub(super) trait Number: Copy + 'static {
    const MULTIPLY: Multiply<Self>;
}

/// An operand, and whether its numbers are conjugated.
pub(super) type Side<'a, T> = (Operand<'a, T>, bool);

/// A product of such numbers.
pub(super) type Multiply<T> = fn(Side<'_, T>, Side<'_, T>, Dense<&mut [T]>, Factors<T>) -> Result<(), KernelError>;

impl Number for f32 {
    const MULTIPLY: Multiply<Self> = |(a, _), (b, _), out, factors| dense_matmul(a, b, out, factors);
}

impl Number for f64 {
    const MULTIPLY: Multiply<Self> = |(a, _), (b, _), out, factors| double_matmul(a, b, out, factors);
}

impl Number for Complex {
    const MULTIPLY: Multiply<Self> = complex_matmul;
}

/// Reports the illegal argument at this position, counted from 1.
pub(super) fn report(function: &str, position: usize) {
    // Who closed the standard error does not read it, and the caller is not ended for that.
    drop(writeln!(io::stderr(), "{function}: argument {position} has an illegal value; nothing was computed"));
}

/// # Safety
/// The pointers are to matrices of the stated sizes and leading dimensions, `c` to writable memory that overlaps
/// neither operand.
pub(super) unsafe fn multiply<T: Number>(function: &str, arguments: Arguments<T>) {
    if let Err(position) = arguments.check() {
        return report(function, position);
    }
    // By columns, the product is that of the transposed operands the other way round, by rows.
    let Arguments { m, n, k, alpha, a, b, beta, c, ldc, .. } =
        if arguments.order == ROW_MAJOR { arguments } else { arguments.transposed() };
    // None is negative once checked.
    let (m, n, k, ldc) = (m as usize, n as usize, k as usize, ldc as usize);
    if m == 0 || n == 0 {
        return;
    }
    // SAFETY: the caller's promise.
    let (own_a, own_b) = unsafe { (a.numbers(m, k), b.numbers(k, n)) };
    let (a, b) = (a.matrix(&own_a, m, k), b.matrix(&own_b, k, n));
    let size = (m - 1) * ldc + n;
    let mut copy = None;
    let values = if c.is_aligned() {
        // SAFETY: the memory is aligned, writable and the caller's alone.
        unsafe { slice::from_raw_parts_mut(c, size) }
    } else {
        // SAFETY: the memory is as long.
        copy.insert(unsafe { copied(c, size) }).as_mut_slice()
    };
    let out = Dense { values, rows: m, columns: n, stride: ldc };
    if let Err(error) = (T::MULTIPLY)(a, b, out, Factors { alpha, beta }) {
        drop(writeln!(io::stderr(), "{function}: {error}"));
    }
    if let Some(copy) = copy {
        // SAFETY: the copy is as long as the memory, which is writable and not a part of it.
        unsafe { ptr::copy_nonoverlapping(copy.as_ptr().cast::<u8>(), c.cast(), size_of_val(copy.as_slice())) };
    }
}

/// The numbers from this address on, which may be any: MLX passes on views that begin between two numbers.
///
/// # Safety
/// So many numbers can be read there.
unsafe fn copied<T: Number>(data: *const T, size: usize) -> Vec<T> {
    let mut copy = Vec::<T>::with_capacity(size);
    // SAFETY: bytes have no alignment, the memory is as long and the copy has room for it; then all of it is written.
    unsafe {
        ptr::copy_nonoverlapping(data.cast::<u8>(), copy.as_mut_ptr().cast(), size * size_of::<T>());
        copy.set_len(size);
    }
    copy
}

impl<T: Number> Given<T> {
    /// Its numbers from the first to the last, with so many rows and columns as it is multiplied.
    ///
    /// # Safety
    /// The matrix was checked, and is memory from its first element to its last for as long as the result is used.
    unsafe fn numbers<'a>(&self, rows: usize, columns: usize) -> Cow<'a, [T]> {
        if rows == 0 || columns == 0 {
            return Cow::Borrowed(&[]);
        }
        let (rows, columns) = self.stored(rows, columns);
        let size = (rows - 1) * self.ld as usize + columns;
        // SAFETY: the caller's promise.
        unsafe {
            if self.data.is_aligned() {
                Cow::Borrowed(slice::from_raw_parts(self.data, size))
            } else {
                Cow::Owned(copied(self.data, size))
            }
        }
    }

    /// These numbers as the kernels see them.
    fn matrix<'a>(&self, values: &'a [T], rows: usize, columns: usize) -> Side<'a, T> {
        let orientation = if self.trans == PLAIN { Orientation::Plain } else { Orientation::Transposed };
        let (rows, columns) = self.stored(rows, columns);
        let matrix = Dense { values, rows, columns, stride: self.ld as usize };
        (Operand { matrix, orientation }, self.trans == CONJUGATED)
    }

    /// The rows and columns as they are stored.
    fn stored(&self, rows: usize, columns: usize) -> (usize, usize) {
        if self.trans == PLAIN { (rows, columns) } else { (columns, rows) }
    }
}

const ROW_MAJOR: c_int = 101;
const COLUMN_MAJOR: c_int = 102;
const PLAIN: c_int = 111;
const TRANSPOSED: c_int = 112;
const CONJUGATED: c_int = 113;

impl<T> Arguments<T> {
    /// The same product by rows, if this is by columns.
    fn transposed(self) -> Self {
        Self { order: ROW_MAJOR, m: self.n, n: self.m, a: self.b, b: self.a, ..self }
    }

    /// The position of the first illegal argument.
    fn check(&self) -> Result<(), usize> {
        let row_major = match self.order {
            ROW_MAJOR => true,
            COLUMN_MAJOR => false,
            _ => return Err(1),
        };
        for (position, trans) in [(2, self.a.trans), (3, self.b.trans)] {
            if ![PLAIN, TRANSPOSED, CONJUGATED].contains(&trans) {
                return Err(position);
            }
        }
        for (position, size) in [(4, self.m), (5, self.n), (6, self.k)] {
            if size < 0 {
                return Err(position);
            }
        }
        let empty = self.m == 0 || self.n == 0;
        let operand = |operand: &Given<T>, rows: c_int, columns: c_int, position: usize| {
            // The side that is contiguous as the matrix is stored, before `op`.
            let contiguous = if (operand.trans == PLAIN) == row_major { columns } else { rows };
            if operand.data.is_null() && !empty && self.k > 0 {
                return Err(position);
            }
            if operand.ld < contiguous.max(1) { Err(position + 1) } else { Ok(()) }
        };
        operand(&self.a, self.m, self.k, 8)?;
        operand(&self.b, self.k, self.n, 10)?;
        if self.c.is_null() && !empty {
            return Err(13);
        }
        if self.ldc < (if row_major { self.n } else { self.m }).max(1) {
            return Err(14);
        }
        Ok(())
    }
}
