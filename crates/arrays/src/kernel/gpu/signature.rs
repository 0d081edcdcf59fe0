//! A launch as a complete function, so that compilers for GPUs check its text on a machine without one.

use std::fmt::Write as _;

use mlx_rs::Dtype;
use tacit_core::Aval;
use tacit_core::kernel::{GpuBackend, Launch};

/// The whole text, for inputs of these avals and results of these dtypes.
pub(super) fn function(launch: &Launch, backend: GpuBackend, inputs: &[Aval], outputs: &[Dtype]) -> String {
    let mut parameters = Vec::new();
    let results = launch.outputs.iter().zip(outputs);
    let named = launch.inputs.iter().zip(inputs.iter().map(|input| input.dtype));
    let mut text = String::new();
    match backend {
        GpuBackend::Cuda => {
            parameters.extend(named.map(|(name, dtype)| format!("const {}* {name}", cuda(dtype))));
            parameters.extend(results.map(|(name, &dtype)| format!("{}* {name}", cuda(dtype))));
            let sizes: Vec<String> = (0..launch.sizes.len()).map(|at| format!("tacit_size_{at}")).collect();
            parameters.extend(sizes.iter().map(|size| format!("int {size}")));
            let shape = match &sizes[..] {
                [] => String::new(),
                sizes => format!("const int sizes_shape[] = {{{}}};\n", sizes.join(", ")),
            };
            let _ = write!(
                text,
                "{}\nextern \"C\" __global__ void {}({}) {{\n{shape}{}\n}}\n",
                launch.header,
                launch.name,
                parameters.join(", "),
                launch.body
            );
        }
        GpuBackend::Metal => {
            let mut at = 0;
            let mut buffer = |parameter: String| {
                at += 1;
                format!("{parameter} [[buffer({})]]", at - 1)
            };
            parameters.push(buffer("const device uint8_t* sizes".to_owned()));
            parameters.push(buffer("const constant int* sizes_shape".to_owned()));
            parameters.extend(named.map(|(name, dtype)| buffer(format!("const device {}* {name}", metal(dtype)))));
            parameters.extend(results.map(|(name, &dtype)| buffer(format!("device {}* {name}", metal(dtype)))));
            for (attribute, kind) in [
                ("simdgroup_index_in_threadgroup", "uint"),
                ("thread_index_in_simdgroup", "uint"),
                ("thread_index_in_threadgroup", "uint"),
                ("threadgroup_position_in_grid", "uint3"),
            ] {
                if launch.body.contains(attribute) {
                    parameters.push(format!("{kind} {attribute} [[{attribute}]]"));
                }
            }
            let _ = write!(
                text,
                "{}\n[[max_total_threads_per_threadgroup({})]]\n[[kernel]] void {}({}) {{\n{}\n}}\n",
                launch.header,
                launch.group.iter().product::<usize>(),
                launch.name,
                parameters.join(", "),
                launch.body
            );
        }
    }
    text
}

fn cuda(dtype: Dtype) -> &'static str {
    match dtype {
        Dtype::Uint8 => "unsigned char",
        Dtype::Int8 => "signed char",
        Dtype::Uint16 | Dtype::Float16 | Dtype::Bfloat16 => "unsigned short",
        Dtype::Uint32 => "unsigned int",
        other => metal(other),
    }
}

fn metal(dtype: Dtype) -> &'static str {
    match dtype {
        Dtype::Bool => "bool",
        Dtype::Uint8 => "uint8_t",
        Dtype::Int8 => "int8_t",
        Dtype::Uint16 => "uint16_t",
        Dtype::Uint32 => "uint32_t",
        Dtype::Float16 => "float16_t",
        Dtype::Bfloat16 => "bfloat16_t",
        Dtype::Float32 => "float",
        other => unreachable!("no input is of {other:?}"),
    }
}
