//! A launch's text, put together from its parts.

use std::hash::{DefaultHasher, Hash, Hasher};

use mlx_rs::Dtype;
use tacit_core::kernel::{GpuBackend, Launch};

/// How the text calls the types and memories of a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// A GPU, through MLX.
    Gpu(GpuBackend),
    /// A CPU that plays one.
    #[cfg(test)]
    Host,
}

impl From<GpuBackend> for Target {
    fn from(backend: GpuBackend) -> Self {
        Self::Gpu(backend)
    }
}

impl Target {
    /// The text before the description of a kernel.
    pub(super) fn header(self) -> String {
        let language = match self {
            Self::Gpu(GpuBackend::Cuda) => include_str!("source/cuda.h"),
            Self::Gpu(GpuBackend::Metal) => include_str!("source/metal.h"),
            #[cfg(test)]
            Self::Host => include_str!("source/host.h"),
        };
        [language, include_str!("source/weight.h")].concat()
    }

    /// The products of a warp.
    pub(super) fn matrix(self) -> &'static str {
        match self {
            Self::Gpu(GpuBackend::Cuda) => include_str!("source/matrix_cuda.h"),
            Self::Gpu(GpuBackend::Metal) => include_str!("source/matrix_metal.h"),
            #[cfg(test)]
            Self::Host => include_str!("source/matrix_loops.h"),
        }
    }

    /// Pairs of half floats, which no simdgroup of Metal shows.
    pub(super) fn pairs(self) -> Option<&'static str> {
        match self {
            Self::Gpu(GpuBackend::Cuda) => Some(include_str!("source/pairs_cuda.h")),
            Self::Gpu(GpuBackend::Metal) => None,
            #[cfg(test)]
            Self::Host => Some(include_str!("source/pairs_host.h")),
        }
    }

    /// The products of a group, where it can have tiles in its memory, and how many bytes these may have.
    pub(super) fn group(self) -> Option<(&'static str, usize)> {
        match self {
            Self::Gpu(GpuBackend::Cuda) => {
                // What CUDA's guide grants to a group: on Hopper, which graphs that are only traced are for, and on each GPU from Ampere on.
                let granted = match GpuBackend::cuda_capability().ok()? {
                    None | Some(90) => 227,
                    Some(80..) => 99,
                    Some(_) => return None,
                };
                Some((include_str!("source/group_cuda.h"), granted << 10))
            }
            Self::Gpu(GpuBackend::Metal) => None,
            #[cfg(test)]
            Self::Host => Some((include_str!("source/group_loops.h"), 227 << 10)),
        }
    }

    /// Bytes that a group may have without asking at its launch.
    pub(super) fn memory(self) -> usize {
        if self == Self::Gpu(GpuBackend::Metal) { 32 << 10 } else { 48 << 10 }
    }

    /// About as many groups as run beside each other.
    pub(super) fn groups_at_once(self) -> usize {
        match self {
            Self::Gpu(GpuBackend::Cuda) => 128,
            Self::Gpu(GpuBackend::Metal) => 32,
            #[cfg(test)]
            Self::Host => 4,
        }
    }

    /// The start of a body: where the thread is.
    fn place(self) -> &'static str {
        match self {
            Self::Gpu(GpuBackend::Metal) => {
                "  const tacit::Place at = {threadgroup_position_in_grid.x, threadgroup_position_in_grid.y,\n    \
                 threadgroup_position_in_grid.z, thread_index_in_threadgroup, thread_index_in_simdgroup,\n    \
                 simdgroup_index_in_threadgroup};\n"
            }
            #[cfg(test)]
            Self::Host => "  const tacit::Place at = TACIT_PLACE();\n",
            Self::Gpu(GpuBackend::Cuda) => "  const tacit::Place at = TACIT_PLACE();\n",
        }
    }
}

/// A float type by its name in the text.
pub(super) fn float(dtype: Dtype) -> Option<&'static str> {
    match dtype {
        Dtype::Float32 => Some("float"),
        Dtype::Float16 => Some("tacit::f16"),
        Dtype::Bfloat16 => Some("tacit::bf16"),
        _ => None,
    }
}

pub(super) fn size(value: usize) -> Option<i32> {
    i32::try_from(value).ok()
}

/// What a launch consists of beside its name.
pub(crate) struct Parts {
    /// What the kernel is, for whoever reads its name.
    pub label: String,
    /// Texts of `source` that it needs, in order.
    pub common: Vec<&'static str>,
    /// The description of what it reads.
    pub description: String,
    /// The body after the place of the thread.
    pub body: String,
    pub inputs: Vec<String>,
    pub outputs: Vec<String>,
    pub sizes: Vec<i32>,
    /// Groups along each axis.
    pub groups: [usize; 3],
    /// Threads of a group.
    pub threads: usize,
    /// Bytes of a group's memory that the launch asks for.
    pub memory: usize,
    pub target: Target,
}

impl Parts {
    /// The launch. Its name ends in a hash of the text, so that equal names are equal texts: MLX keeps compiled kernels by their
    /// names. The hash is the same in every process.
    pub(crate) fn launch(self) -> Launch {
        let header = [self.target.header(), self.common.concat(), self.description].concat();
        let body = [self.target.place(), &self.body].concat();
        let mut hasher = DefaultHasher::new();
        (&header, &body, &self.inputs, &self.outputs).hash(&mut hasher);
        let [x, y, z] = self.groups;
        Launch {
            name: format!("tacit_{}_{:016x}", self.label, hasher.finish()),
            header,
            body,
            inputs: self.inputs,
            outputs: self.outputs,
            sizes: self.sizes,
            grid: [x * self.threads, y, z],
            group: [self.threads, 1, 1],
            memory: self.memory,
        }
    }
}
