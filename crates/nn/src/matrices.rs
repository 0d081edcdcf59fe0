//! Which parameters are matrices of products, by their names and shapes.

use tacit_core::Aval;

/// The filters of the convolutions in hybrid decoders by the ends of their paths, in the names of Hugging Face and mlx-lm, and of
/// llama.cpp.
const FILTERS: [&str; 2] = ["linear_attn.conv1d.weight", "ssm_conv1d.weight"];

/// Why a pattern passes by a vector.
pub(crate) const ONE_AXIS: &str = "it has one axis";

/// Why a parameter is not the matrix of a product, if it is not.
pub(crate) fn no_matrix(path: &str, aval: &Aval) -> Option<&'static str> {
    if aval.shape.len() < 2 {
        return Some(ONE_AXIS);
    }
    ends(path, &FILTERS).then_some("it is the filter of a convolution")
}

/// Whether a path is one of these names, or has it behind a dot.
pub(crate) fn ends(path: &str, names: &[&str]) -> bool {
    let front = |name: &&str| path.strip_suffix(name);
    names.iter().filter_map(front).any(|front| front.is_empty() || front.ends_with('.'))
}

#[cfg(test)]
mod tests {
    use mlx_rs::Dtype;

    use super::*;

    #[test]
    fn filters_and_vectors_are_no_matrices() {
        let of = |path: &str, shape: &[i32]| no_matrix(path, &Aval::new(shape, Dtype::Float32));
        for path in ["model.layers.0.linear_attn.conv1d.weight", "linear_attn.conv1d.weight", "blk.1.ssm_conv1d.weight"]
        {
            assert_eq!(of(path, &[64, 4, 1]), Some("it is the filter of a convolution"), "{path}");
        }
        for path in ["model.layers.0.linear_attn.in_proj_qkvz.weight", "conv1d.weight", "my_linear_attn.conv1d.weight"]
        {
            assert_eq!(of(path, &[64, 4, 1]), None, "{path}");
        }
        assert_eq!(of("model.norm.weight", &[64]), Some(ONE_AXIS));
    }
}
