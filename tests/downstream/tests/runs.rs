//! What a downstream crate relies on: MLX loads, computes, compiles, and reports errors as values.

use std::fs;

use mlx_rs::{Array, Dtype};

#[test]
fn matmul_computes() {
    assert_eq!(downstream::gram().unwrap(), [5.0, 11.0, 11.0, 25.0]);
}

#[test]
fn compile_computes() {
    assert_eq!(downstream::fused().unwrap(), [-2.0, 0.0, 6.0]);
}

#[test]
fn percent_signs_in_a_message_are_data() {
    let folder = std::env::temp_dir().join(format!("downstream-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let name = "%s%s%n%d.safetensors";
    fs::write(folder.join(name), b"not a safetensors file").unwrap();
    let result = Array::load_safetensors(folder.join(name));
    fs::remove_dir_all(&folder).unwrap();
    let error = result.unwrap_err().to_string();
    assert!(error.contains(name), "{error}");
}

#[test]
fn half_precision_scalars_are_readable() {
    for dtype in [Dtype::Float16, Dtype::Bfloat16] {
        let half = Array::from_slice(&[1.5f32, -2.0], &[2]).as_dtype(dtype).unwrap();
        let back = half.as_dtype(Dtype::Float32).unwrap();
        assert_eq!(back.as_slice::<f32>(), [1.5, -2.0]);
    }
}
