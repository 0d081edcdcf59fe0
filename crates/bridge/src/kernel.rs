//! Host code as an MLX primitive.

use std::ffi::{CString, c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use mlx_rs::{Array, Dtype, Stream, thread_local_default_stream};
use mlx_sys::{mlx_array, mlx_stream};

use crate::arrays::{self, Collector};
use crate::callback::{guarded, guarded_rule};
use crate::error::{BoxError, BridgeError, check, panic_text, raise_text};
use crate::ffi::{self, AxisSink, Buffer, KernelTable, Sink};
use crate::gradients::check_gradients;
use crate::vmap::{Mapped, answer_vmap};
use crate::{Aval, Param, aval};

/// Host code as an MLX primitive.
///
/// It is lazy like any primitive and works under grad, vmap and compile. What MLX cannot know of it comes from
/// [`decompose`](Self::decompose), the same function in plain MLX ops: the fallback on a device without a source, the
/// default vjp, jvp and vmap, and the oracle of its tests.
pub trait Kernel: Send + Sync + 'static {
    /// The primitive's name, in graphs and messages.
    fn name(&self) -> &'static str;

    /// The avals of the results.
    ///
    /// # Errors
    ///
    /// The inputs do not fit the kernel.
    fn output_avals(&self, inputs: &[Aval]) -> Result<Vec<Aval>, BoxError>;

    /// Computes every element of the results from dense row-major inputs, on a thread of MLX's.
    ///
    /// # Errors
    ///
    /// Whatever the kernel refuses; it becomes an error of the eval, and so does a panic. What was computed from the
    /// results is an error from then on, wherever it is read or evaluated.
    fn eval_cpu(&self, inputs: &[Input<'_>], outputs: &mut [Output<'_>]) -> Result<(), BoxError>;

    /// The same function in plain MLX ops.
    ///
    /// # Errors
    ///
    /// MLX refuses one of the ops.
    fn decompose(&self, inputs: &[Array]) -> Result<Vec<Array>, BoxError>;

    /// The static parameters by name, if they say all that there is to say.
    ///
    /// Two kernels of one name and equal parameters must compute the same function: MLX then merges equal nodes, and a
    /// graph recorded a second time is known as the same program. With `None` a kernel equals only itself.
    fn params(&self) -> Option<Vec<(&'static str, Param)>> {
        None
    }

    /// One gradient for each primal that `argnums` names, or `None` for the vjp of the decomposition.
    fn vjp(&self, primals: &[Array], cotangents: &[Array], argnums: &[usize]) -> Option<Result<Vec<Array>, BoxError>> {
        let _ = (primals, cotangents, argnums);
        None
    }

    /// The results on inputs that are mapped along `axes`, and the mapped axis of each result; `None` for the vmap of the
    /// decomposition.
    fn vmap(&self, inputs: &[Array], axes: &[Option<usize>]) -> Option<Result<Mapped, BoxError>> {
        let _ = (inputs, axes);
        None
    }
}

/// An element type that a kernel can read and write.
pub trait Element: Copy + sealed::Sealed + 'static {
    /// The dtype of arrays of it.
    const DTYPE: Dtype;
}

mod sealed {
    pub trait Sealed {}
}

macro_rules! elements {
    ($($ty:ty => $dtype:ident),* $(,)?) => {
        $(
            impl sealed::Sealed for $ty {}
            impl Element for $ty {
                const DTYPE: Dtype = Dtype::$dtype;
            }
        )*
    };
}

elements! {
    u8 => Uint8, u16 => Uint16, u32 => Uint32, u64 => Uint64,
    i8 => Int8, i16 => Int16, i32 => Int32, i64 => Int64,
    half::f16 => Float16, half::bf16 => Bfloat16, f32 => Float32, f64 => Float64,
}

/// The elements of a kernel's array cannot be borrowed as they were asked for.
#[derive(Debug, thiserror::Error)]
pub enum ElementError {
    /// They are of another type.
    #[error("the array is {found}, not {}", aval::dtype_name(*.asked))]
    Dtype {
        /// What was asked for.
        asked: Dtype,
        /// What the array is.
        found: Aval,
    },
    /// They lie where none of their type may: the array views another one's bytes.
    #[error("the array {found} begins at an address that its elements may not have")]
    Alignment {
        /// What the array is.
        found: Aval,
    },
}

/// Checks that `T` is the element type and that its elements may lie at `data`.
fn check_elements<T: Element>(data: *const u8, aval: &Aval) -> Result<(), ElementError> {
    if aval.dtype != T::DTYPE {
        return Err(ElementError::Dtype { asked: T::DTYPE, found: aval.clone() });
    }
    if aval.size() > 0 && !data.cast::<T>().is_aligned() {
        return Err(ElementError::Alignment { found: aval.clone() });
    }
    Ok(())
}

/// A dense row-major array that a kernel reads.
pub struct Input<'a> {
    data: &'a [u8],
    aval: Aval,
}

impl Input<'_> {
    /// Shape and dtype.
    #[must_use]
    pub fn aval(&self) -> &Aval {
        &self.aval
    }

    /// The elements.
    ///
    /// # Errors
    ///
    /// `T` is not the array's element type, or the array is an unaligned view.
    pub fn elements<T: Element>(&self) -> Result<&[T], ElementError> {
        check_elements::<T>(self.data.as_ptr(), &self.aval)?;
        if self.aval.size() == 0 {
            return Ok(&[]);
        }
        // SAFETY: the bytes hold `size` elements of this dtype, and the address was checked.
        Ok(unsafe { std::slice::from_raw_parts(self.data.as_ptr().cast(), self.aval.size()) })
    }

    /// The elements as they lie in memory, whatever their type.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.data
    }
}

/// A dense row-major array that a kernel fills: its elements are unspecified before they are written.
pub struct Output<'a> {
    data: &'a mut [u8],
    aval: Aval,
}

impl Output<'_> {
    /// Shape and dtype.
    #[must_use]
    pub fn aval(&self) -> &Aval {
        &self.aval
    }

    /// The elements, unspecified before the kernel writes them.
    ///
    /// # Errors
    ///
    /// `T` is not the array's element type, or the array is an unaligned view.
    pub fn elements<T: Element>(&mut self) -> Result<&mut [T], ElementError> {
        check_elements::<T>(self.data.as_ptr(), &self.aval)?;
        if self.aval.size() == 0 {
            return Ok(&mut []);
        }
        // SAFETY: as in `Input::elements`; nobody else holds the buffer of an output.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.data.as_mut_ptr().cast(), self.aval.size()) })
    }

    /// The elements as they lie in memory, whatever their type; unspecified before the kernel writes them.
    #[must_use]
    pub fn bytes(&mut self) -> &mut [u8] {
        self.data
    }
}

/// Puts `kernel` into the graph.
///
/// It goes to the stream that mlx-rs's own ops go to here. Inputs that are not row-major are copied first. On a device for which the kernel has no source, its decomposition
/// goes into the graph instead.
///
/// # Errors
///
/// The kernel refuses the avals of the inputs.
pub fn apply(kernel: Arc<dyn Kernel>, inputs: &[Array]) -> Result<Vec<Array>, BridgeError> {
    let name = CString::new(kernel.name()).map_err(|_| BridgeError::Nul(kernel.name().to_owned()))?;
    let handles = arrays::handles(inputs);
    let table = KernelTable { release, eval, decompose, vjp, avals, equal, vmap, failed };
    let mut results = Collector::default();
    let stream = thread_local_default_stream();
    let stream_handle = stream.as_ref().map_or(mlx_stream { ctx: std::ptr::null_mut() }, Stream::as_ptr);
    // SAFETY: the callee takes the box over and frees it by `release`; everything else is live for the call.
    check(unsafe {
        ffi::tacit_kernel_apply(
            table,
            Box::into_raw(Box::new(kernel)).cast(),
            name.as_ptr(),
            stream_handle,
            handles.as_ptr(),
            handles.len(),
            results.sink(),
        )
    })?;
    Ok(results.arrays)
}

/// Fails if `array` is computed from the results of a kernel that failed, as every read and eval of it does. A kernel that
/// has not run yet may still fail.
///
/// # Errors
///
/// The failure, as a [`KernelError`].
pub fn check_intact(array: &Array) -> Result<(), BridgeError> {
    // SAFETY: the array is live for the call.
    check(unsafe { ffi::tacit_array_check(array.as_ptr()) })
}

/// # Safety
///
/// `kernel` must be the box that [`apply`] gave away, still alive.
unsafe fn kernel_of<'a>(kernel: *mut c_void) -> &'a dyn Kernel {
    // SAFETY: as the caller promises.
    unsafe { &**kernel.cast::<Arc<dyn Kernel>>() }
}

extern "C" fn release(kernel: *mut c_void) {
    // SAFETY: this is the box that `apply` gave away, and it is freed once. A destructor that panics must not unwind
    // into C++.
    let _ = catch_unwind(|| drop(unsafe { Box::from_raw(kernel.cast::<Arc<dyn Kernel>>()) }));
}

extern "C" fn eval(
    kernel: *mut c_void,
    inputs: *const Buffer,
    input_count: usize,
    outputs: *const Buffer,
    output_count: usize,
) -> c_int {
    let mut name = "";
    let run = || {
        // SAFETY: the C++ side passes live buffers, each output's its own, for the length of the call.
        let (kernel, inputs, mut outputs) = unsafe {
            let inputs = buffers(inputs, input_count).iter().map(|b| input(b)).collect::<Result<Vec<_>, _>>()?;
            let outputs = buffers(outputs, output_count).iter().map(|b| output(b)).collect::<Result<Vec<_>, _>>()?;
            (kernel_of(kernel), inputs, outputs)
        };
        name = kernel.name();
        kernel.eval_cpu(&inputs, &mut outputs)
    };
    let failure = match catch_unwind(AssertUnwindSafe(run)) {
        Ok(Ok(())) => return 0,
        Ok(Err(failure)) => failure.to_string(),
        Err(payload) => format!("panicked: {}", panic_text(&*payload)),
    };
    // Whoever is told of it gets the error itself by `failed`.
    raise_text(&KernelError { kernel: name, failure }.to_string());
    1
}

/// A kernel failed while MLX evaluated it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("kernel {kernel} failed: {failure}")]
pub struct KernelError {
    /// The kernel.
    pub kernel: &'static str,
    /// The kernel's own words.
    pub failure: String,
}

extern "C" fn failed(kernel: *mut c_void, text: *const c_char, length: usize, later: bool) -> c_int {
    guarded(|| {
        // SAFETY: the kernel and the text, of this length, are live for the call.
        let (kernel, text) = unsafe { (kernel_of(kernel).name(), std::slice::from_raw_parts(text.cast(), length)) };
        let text = String::from_utf8_lossy(text);
        let mut failure = text.strip_prefix(&format!("kernel {kernel} failed: ")).unwrap_or(&text).to_owned();
        if later {
            let (what, help) =
                failure.split_once("\nhelp: ").unwrap_or((&failure, "see to the operands of the kernel"));
            failure = format!("{what}; this array comes of what it left\nhelp: {help}, and build the array again");
        }
        Err(Box::new(KernelError { kernel, failure }) as BoxError)
    })
}

extern "C" fn decompose(kernel: *mut c_void, inputs: *const mlx_array, count: usize, results: Sink) -> c_int {
    guarded(|| {
        // SAFETY: the kernel and the inputs are live for the length of the call.
        let (kernel, inputs) = unsafe { (kernel_of(kernel), arrays::copies(inputs, count)?) };
        Ok(arrays::pour(&kernel.decompose(&inputs)?, &results)?)
    })
}

extern "C" fn vjp(
    kernel: *mut c_void,
    primals: *const mlx_array,
    primal_count: usize,
    cotangents: *const mlx_array,
    cotangent_count: usize,
    argnums: *const i32,
    argnum_count: usize,
    gradients: Sink,
) -> c_int {
    guarded_rule(|| {
        // SAFETY: everything is live for the length of the call.
        let (kernel, primals, cotangents, argnums) = unsafe {
            (
                kernel_of(kernel),
                arrays::copies(primals, primal_count)?,
                arrays::copies(cotangents, cotangent_count)?,
                arrays::integers(argnums, argnum_count),
            )
        };
        let argnums: Vec<usize> = argnums.iter().map(|&argnum| argnum as usize).collect();
        let Some(made) = kernel.vjp(&primals, &cotangents, &argnums).transpose()? else { return Ok(None) };
        check_gradients(kernel.name(), argnums.iter().map(|&argnum| &primals[argnum]), &made)?;
        Ok(Some(arrays::pour(&made, &gradients)?))
    })
}

extern "C" fn vmap(
    kernel: *mut c_void,
    inputs: *const mlx_array,
    axes: *const i32,
    count: usize,
    results: Sink,
    result_axes: AxisSink,
) -> c_int {
    guarded_rule(|| {
        // SAFETY: everything is live for the length of the call, and there is an axis for each input.
        unsafe {
            let kernel = kernel_of(kernel);
            let rule = |inputs: &[Array], axes: &[Option<usize>]| kernel.vmap(inputs, axes);
            answer_vmap(kernel.name(), inputs, axes, count, rule, &results, &result_axes)
        }
    })
}

extern "C" fn avals(kernel: *mut c_void, inputs: *const mlx_array, count: usize, prototypes: Sink) -> c_int {
    guarded(|| {
        // SAFETY: the kernel and the inputs are live for the length of the call.
        let (kernel, inputs) = unsafe { (kernel_of(kernel), arrays::copies(inputs, count)?) };
        let inputs: Vec<Aval> = inputs.iter().map(Aval::from).collect();
        let made = kernel.output_avals(&inputs)?.iter().map(arrays::prototype).collect::<Result<Vec<_>, _>>()?;
        Ok(arrays::pour(&made, &prototypes)?)
    })
}

extern "C" fn equal(a: *mut c_void, b: *mut c_void) -> c_int {
    // SAFETY: both kernels are live for the length of the call.
    let (a, b) = unsafe { (kernel_of(a), kernel_of(b)) };
    let equal = || a.name() == b.name() && a.params().is_some_and(|params| Some(params) == b.params());
    c_int::from(catch_unwind(AssertUnwindSafe(equal)).unwrap_or(false))
}

/// The parameters of the kernel behind a recorded primitive, if that is one and tells them.
///
/// # Safety
///
/// `recorded` must be a live object of `tacit_primitive_of`.
pub(crate) unsafe fn params_of(recorded: *const c_void) -> Option<Vec<(&'static str, Param)>> {
    // SAFETY: as the caller promises; the kernel lives as long as the object.
    unsafe {
        let kernel = ffi::tacit_primitive_kernel(recorded);
        if kernel.is_null() { None } else { kernel_of(kernel).params() }
    }
}

/// # Safety
///
/// `data` must point to `count` live buffers.
unsafe fn buffers<'a>(data: *const Buffer, count: usize) -> &'a [Buffer] {
    if count == 0 {
        return &[];
    }
    // SAFETY: as the caller promises.
    unsafe { std::slice::from_raw_parts(data, count) }
}

/// # Safety
///
/// The buffer must be live and unaliased by a writer for `'a`.
unsafe fn input<'a>(buffer: &Buffer) -> Result<Input<'a>, BoxError> {
    let aval = aval_of(buffer)?;
    let data: &[u8] = if buffer.bytes == 0 {
        &[]
    } else {
        // SAFETY: as the caller promises.
        unsafe { std::slice::from_raw_parts(buffer.data.cast(), buffer.bytes) }
    };
    Ok(Input { data, aval })
}

/// # Safety
///
/// The buffer must be live and nobody else's for `'a`.
unsafe fn output<'a>(buffer: &Buffer) -> Result<Output<'a>, BoxError> {
    let aval = aval_of(buffer)?;
    let data: &mut [u8] = if buffer.bytes == 0 {
        &mut []
    } else {
        // SAFETY: as the caller promises. Nobody has written the bytes since MLX's allocator gave them out; that is code
        // which this compiler does not see and which may have stored any value in each, so to Rust they are
        // initialized, and numbers of every value are valid.
        unsafe { std::slice::from_raw_parts_mut(buffer.data.cast(), buffer.bytes) }
    };
    if cfg!(debug_assertions) {
        // A test sees what its kernel leaves out.
        data.fill(0xff);
    }
    Ok(Output { data, aval })
}

fn aval_of(buffer: &Buffer) -> Result<Aval, BoxError> {
    let shape = if buffer.ndim == 0 {
        &[][..]
    } else {
        // SAFETY: the shape belongs to the array behind the buffer, which is live.
        unsafe { std::slice::from_raw_parts(buffer.shape, buffer.ndim) }
    };
    let dtype = aval::dtype_of(buffer.dtype).ok_or("MLX gave a dtype that this build does not know")?;
    let aval = Aval::new(shape, dtype);
    if aval.nbytes() != buffer.bytes {
        return Err(format!("the buffer of {aval} has {} bytes", buffer.bytes).into());
    }
    Ok(aval)
}
