//! Kernels as source for the GPUs that MLX runs on.

use std::ffi::{CString, c_char, c_int};

use crate::arrays;
use crate::error::{BoxError, BridgeError};
use crate::ffi::{self, Span};

/// The language of a kernel's source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GpuBackend {
    /// The Metal Shading Language.
    Metal,
    /// CUDA C++.
    Cuda,
}

impl GpuBackend {
    /// The backend of the GPU that MLX runs on here, if there is one.
    #[must_use]
    pub fn available() -> Option<Self> {
        // SAFETY: asks the library.
        Self::from_code(unsafe { ffi::tacit_gpu() }).ok()
    }

    /// The compute capability of the GPU that MLX runs on here by CUDA, such as 90 for 9.0, if there is one.
    ///
    /// # Errors
    ///
    /// MLX does not tell it of that GPU.
    pub fn cuda_capability() -> Result<Option<u32>, BridgeError> {
        // SAFETY: asks the library, which writes the number.
        let capability = arrays::written(0, |capability| unsafe { ffi::tacit_cuda_capability(capability) })?;
        Ok((capability > 0).then_some(capability))
    }

    pub(super) fn from_code(code: c_int) -> Result<Self, BoxError> {
        match code {
            0 => Ok(Self::Metal),
            1 => Ok(Self::Cuda),
            other => Err(format!("the GPU backend {other} is not known to this build").into()),
        }
    }
}

/// How a kernel is placed where it may not be the CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    /// Where a GPU has no source of the kernel, it runs on the CPU, and its fallback does not stand for it.
    pub host: bool,
    /// No GPU has a source of the kernel, whatever its [`launch`](super::Kernel::launch) says.
    pub sourceless: bool,
    /// The graph becomes what it would be on such a GPU, although the CPU runs it.
    pub traced_for: Option<GpuBackend>,
}

/// Where a kernel went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placed {
    /// To the CPU, where everything else runs.
    Cpu,
    /// To the GPU, as its source.
    Gpu,
    /// To the CPU, while everything else runs on a GPU.
    Host,
    /// Plain ops stand for it.
    Plain,
}

impl Placed {
    pub(super) fn from_code(code: c_int) -> Self {
        match code {
            1 => Self::Gpu,
            2 => Self::Host,
            3 => Self::Plain,
            _ => Self::Cpu,
        }
    }
}

/// One launch of a kernel's source on a GPU.
///
/// The head of the function is written for it: a pointer for each name of `inputs` and `outputs`, in their dtypes. Half floats are
/// `half` and `bfloat16_t` on Metal; on CUDA they are their bits, `unsigned short`, since their types need headers. What changes
/// from call to call and shall not be compiled into the text is in `sizes`. CUDA's text has no headers before it, and may include
/// those of CUDA's toolkit where that is installed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    /// The name of the function: letters, digits and `_`. Equal names must mean equal texts.
    pub name: String,
    /// What stands before the function: types, tables and functions.
    pub header: String,
    /// The body of the function. On Metal it names the attributes that it reads, such as `thread_position_in_grid`.
    pub body: String,
    /// The names of the inputs, of which rows lie one behind the other.
    pub inputs: Vec<String>,
    /// The names of the results.
    pub outputs: Vec<String>,
    /// At most 8 integers, which the body reads as `sizes_shape[0]` and so on. On Metal an input that has elements carries them: where
    /// there is none, the eval is an error.
    pub sizes: Vec<i32>,
    /// Threads along each of three axes, in all. Where it is no multiple of `group`, CUDA starts whole groups.
    pub grid: [usize; 3],
    /// Threads of one group. On Metal the text says how many, so that their registers have room.
    pub group: [usize; 3],
    /// Bytes of a group's memory that CUDA adds to what the body declares, for an array that is `extern`. Metal has no such memory.
    pub memory: usize,
}

impl Launch {
    pub(super) fn give(&self, backend: GpuBackend, sink: &ffi::LaunchSink) -> Result<(), BoxError> {
        if self.sizes.len() > 8 {
            return Err(format!("a GPU source takes at most 8 sizes, and {} are given", self.sizes.len()).into());
        }
        let (name, header, body) =
            (CString::new(self.name.as_str())?, CString::new(self.head(backend))?, CString::new(self.body.as_str())?);
        let (inputs, outputs) = (Names::new(&self.inputs)?, Names::new(&self.outputs)?);
        let launch = ffi::Launch {
            name: name.as_ptr(),
            header: header.as_ptr(),
            body: body.as_ptr(),
            inputs: Span::new(&inputs.pointers),
            outputs: Span::new(&outputs.pointers),
            sizes: Span::new(&self.sizes),
            grid: threads(self.grid)?,
            group: threads(self.group)?,
            memory: i32::try_from(self.memory)?,
        };
        (sink.give)(sink.ctx, &raw const launch);
        Ok(())
    }

    /// What stands before the function. Metal's compiler is told how many threads a group has: left alone it may give each of them
    /// so many registers that a group has no room, and MLX refuses the launch.
    fn head(&self, backend: GpuBackend) -> String {
        match backend {
            // MLX writes the function right behind it.
            GpuBackend::Metal => {
                let threads = self.group.iter().fold(1, |product: usize, &along| product.saturating_mul(along));
                format!("{}\n[[max_total_threads_per_threadgroup({threads})]]\n", self.header)
            }
            GpuBackend::Cuda => self.header.clone(),
        }
    }
}

/// Texts as C takes them.
struct Names {
    pointers: Vec<*const c_char>,
    /// What they point to.
    _texts: Vec<CString>,
}

impl Names {
    fn new(names: &[String]) -> Result<Self, BoxError> {
        let texts = names.iter().map(|name| CString::new(name.as_str())).collect::<Result<Vec<_>, _>>()?;
        Ok(Self { pointers: texts.iter().map(|text| text.as_ptr()).collect(), _texts: texts })
    }
}

fn threads(count: [usize; 3]) -> Result<[i32; 3], BoxError> {
    let [x, y, z] = count.map(i32::try_from);
    Ok([x?, y?, z?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metal_is_told_how_many_threads_a_group_has() {
        let launch = Launch {
            name: "one".to_owned(),
            header: "// Ends in a comment.".to_owned(),
            body: String::new(),
            inputs: Vec::new(),
            outputs: Vec::new(),
            sizes: Vec::new(),
            grid: [512, 4, 1],
            group: [256, 2, 1],
            memory: 0,
        };
        assert_eq!(launch.head(GpuBackend::Cuda), launch.header);
        let told = "// Ends in a comment.\n[[max_total_threads_per_threadgroup(512)]]\n";
        assert_eq!(launch.head(GpuBackend::Metal), told);
    }
}
