//! The handlers that a program has by linking Tacit.

use expect_test::expect;
use tacit::Registry;

#[test]
fn no_call_is_ambiguous_and_no_handler_is_there_twice() {
    let findings = Registry::global().check().err().unwrap_or_default();
    assert!(findings.is_empty(), "{}", findings.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"));
}

/// A crate that is linked but never named registers nothing, and then its handlers are missing here.
#[test]
#[allow(clippy::too_many_lines, reason = "the snapshot stands in the call")]
fn every_handler_is_registered() {
    let registry = Registry::global();
    let mut lines: Vec<String> =
        registry.handlers().iter().map(|handler| format!("{}: {}\n", handler.site.name, handler.signature)).collect();
    lines.sort();
    expect![[r#"
        affine_addmm: addmm of dense, AffineArray, dense
        affine_addmm_left: addmm of AffineArray, dense, dense
        affine_astype: as_type of AffineArray
        affine_concatenate: concatenate of AffineArray, ..
        affine_divide: divide of AffineArray, dense
        affine_expand_dims: expand_dims of AffineArray
        affine_flatten: flatten of AffineArray
        affine_gather: gather of AffineArray, dense
        affine_matmul: matmul of dense, AffineArray
        affine_matmul_left: matmul of AffineArray, dense
        affine_multiply: multiply of AffineArray, dense
        affine_negative: negative of AffineArray
        affine_reshape: reshape of AffineArray
        affine_slice: slice of AffineArray
        affine_squeeze: squeeze of AffineArray
        affine_transpose: transpose of AffineArray
        affine_unflatten: unflatten of AffineArray
        binary_addmm: addmm of dense, BinaryArray, dense
        binary_addmm_left: addmm of BinaryArray, dense, dense
        binary_astype: as_type of BinaryArray
        binary_concatenate: concatenate of BinaryArray, ..
        binary_divide: divide of BinaryArray, dense
        binary_expand_dims: expand_dims of BinaryArray
        binary_flatten: flatten of BinaryArray
        binary_gather: gather of BinaryArray, dense
        binary_matmul: matmul of dense, BinaryArray
        binary_matmul_left: matmul of BinaryArray, dense
        binary_multiply: multiply of BinaryArray, dense
        binary_negative: negative of BinaryArray
        binary_reshape: reshape of BinaryArray
        binary_slice: slice of BinaryArray
        binary_squeeze: squeeze of BinaryArray
        binary_transpose: transpose of BinaryArray
        binary_unflatten: unflatten of BinaryArray
        cast_addmm: addmm of dense, Cast, dense
        cast_addmm_left: addmm of Cast, dense, dense
        cast_astype: as_type of Cast
        cast_gather: gather of Cast, dense
        cast_matmul: matmul of dense, Cast
        cast_matmul_left: matmul of Cast, dense
        cast_slice: slice of Cast
        cast_transpose: transpose of Cast
        concat_addmm: addmm of dense, Concat, dense
        concat_addmm_left: addmm of Concat, dense, dense
        concat_astype: as_type of Concat
        concat_gather: gather of Concat, dense
        concat_matmul: matmul of dense, Concat
        concat_matmul_left: matmul of Concat, dense
        concat_slice: slice of Concat
        concat_split: split of Concat
        concat_transpose: transpose of Concat
        constant_addmm: addmm of any, Constant, any
        constant_addmm_left: addmm of Constant, any, any
        constant_binary: any primitive of Constant, Constant
        constant_matmul: matmul of any, Constant
        constant_matmul_left: matmul of Constant, any
        constant_unary: any primitive of Constant
        constant_with_dense: any primitive of Constant, dense
        copy: copy of any implicit
        dense_with_constant: any primitive of dense, Constant
        diagonal_add: add of Diagonal, Diagonal
        diagonal_addmm: addmm of any, Diagonal, any
        diagonal_addmm_left: addmm of Diagonal, any, any
        diagonal_astype: as_type of Diagonal
        diagonal_divide: divide of Diagonal, dense
        diagonal_matmul: matmul of any, Diagonal
        diagonal_matmul_both: matmul of Diagonal, Diagonal
        diagonal_matmul_left: matmul of Diagonal, any
        diagonal_multiply: multiply of Diagonal, dense
        diagonal_multiply_both: multiply of Diagonal, Diagonal
        diagonal_negative: negative of Diagonal
        diagonal_subtract: subtract of Diagonal, Diagonal
        diagonal_sum: sum of Diagonal
        diagonal_transpose: transpose of Diagonal
        fp4_addmm: addmm of dense, Fp4Array, dense
        fp4_addmm_left: addmm of Fp4Array, dense, dense
        fp4_astype: as_type of Fp4Array
        fp4_concatenate: concatenate of Fp4Array, ..
        fp4_divide: divide of Fp4Array, dense
        fp4_expand_dims: expand_dims of Fp4Array
        fp4_flatten: flatten of Fp4Array
        fp4_gather: gather of Fp4Array, dense
        fp4_matmul: matmul of dense, Fp4Array
        fp4_matmul_left: matmul of Fp4Array, dense
        fp4_multiply: multiply of Fp4Array, dense
        fp4_negative: negative of Fp4Array
        fp4_reshape: reshape of Fp4Array
        fp4_slice: slice of Fp4Array
        fp4_squeeze: squeeze of Fp4Array
        fp4_transpose: transpose of Fp4Array
        fp4_unflatten: unflatten of Fp4Array
        identity_addmm: addmm of any, Identity, any
        identity_addmm_left: addmm of Identity, any, any
        identity_astype: as_type of Identity
        identity_matmul: matmul of any, Identity
        identity_matmul_left: matmul of Identity, any
        identity_multiply: multiply of Identity, dense
        identity_transpose: transpose of Identity
        int8_addmm: addmm of dense, Int8Array, dense
        int8_addmm_left: addmm of Int8Array, dense, dense
        int8_astype: as_type of Int8Array
        int8_concatenate: concatenate of Int8Array, ..
        int8_divide: divide of Int8Array, dense
        int8_expand_dims: expand_dims of Int8Array
        int8_flatten: flatten of Int8Array
        int8_gather: gather of Int8Array, dense
        int8_matmul: matmul of dense, Int8Array
        int8_matmul_left: matmul of Int8Array, dense
        int8_multiply: multiply of Int8Array, dense
        int8_negative: negative of Int8Array
        int8_reshape: reshape of Int8Array
        int8_slice: slice of Int8Array
        int8_squeeze: squeeze of Int8Array
        int8_transpose: transpose of Int8Array
        int8_unflatten: unflatten of Int8Array
        lora_addmm: addmm of any, Lora, any
        lora_addmm_left: addmm of Lora, any, any
        lora_astype: as_type of Lora
        lora_gather: gather of Lora, dense
        lora_matmul: matmul of any, Lora
        lora_matmul_left: matmul of Lora, any
        lora_multiply: multiply of Lora, dense
        lora_transpose: transpose of Lora
        low_rank_add: add of LowRank, LowRank
        low_rank_addmm: addmm of any, LowRank, any
        low_rank_addmm_left: addmm of LowRank, any, any
        low_rank_astype: as_type of LowRank
        low_rank_gather: gather of LowRank, dense
        low_rank_matmul: matmul of any, LowRank
        low_rank_matmul_left: matmul of LowRank, any
        low_rank_multiply: multiply of LowRank, dense
        low_rank_sum: sum of LowRank
        low_rank_transpose: transpose of LowRank
        masked_astype: as_type of Masked
        masked_expand_dims: expand_dims of Masked
        masked_flatten: flatten of Masked
        masked_gather: gather of Masked, dense
        masked_multiply: multiply of Masked, dense
        masked_reshape: reshape of Masked
        masked_slice: slice of Masked
        masked_squeeze: squeeze of Masked
        masked_transpose: transpose of Masked
        masked_unflatten: unflatten of Masked
        mxfp4_addmm: addmm of dense, Mxfp4Array, dense
        mxfp4_addmm_left: addmm of Mxfp4Array, dense, dense
        mxfp4_astype: as_type of Mxfp4Array
        mxfp4_concatenate: concatenate of Mxfp4Array, ..
        mxfp4_expand_dims: expand_dims of Mxfp4Array
        mxfp4_flatten: flatten of Mxfp4Array
        mxfp4_gather: gather of Mxfp4Array, dense
        mxfp4_matmul: matmul of dense, Mxfp4Array
        mxfp4_matmul_left: matmul of Mxfp4Array, dense
        mxfp4_reshape: reshape of Mxfp4Array
        mxfp4_slice: slice of Mxfp4Array
        mxfp4_squeeze: squeeze of Mxfp4Array
        mxfp4_transpose: transpose of Mxfp4Array
        mxfp4_unflatten: unflatten of Mxfp4Array
        mxfp8_addmm: addmm of dense, Mxfp8Array, dense
        mxfp8_addmm_left: addmm of Mxfp8Array, dense, dense
        mxfp8_astype: as_type of Mxfp8Array
        mxfp8_concatenate: concatenate of Mxfp8Array, ..
        mxfp8_expand_dims: expand_dims of Mxfp8Array
        mxfp8_flatten: flatten of Mxfp8Array
        mxfp8_gather: gather of Mxfp8Array, dense
        mxfp8_matmul: matmul of dense, Mxfp8Array
        mxfp8_matmul_left: matmul of Mxfp8Array, dense
        mxfp8_reshape: reshape of Mxfp8Array
        mxfp8_slice: slice of Mxfp8Array
        mxfp8_squeeze: squeeze of Mxfp8Array
        mxfp8_transpose: transpose of Mxfp8Array
        mxfp8_unflatten: unflatten of Mxfp8Array
        nf4_addmm: addmm of dense, Nf4Array, dense
        nf4_addmm_left: addmm of Nf4Array, dense, dense
        nf4_astype: as_type of Nf4Array
        nf4_concatenate: concatenate of Nf4Array, ..
        nf4_divide: divide of Nf4Array, dense
        nf4_expand_dims: expand_dims of Nf4Array
        nf4_flatten: flatten of Nf4Array
        nf4_gather: gather of Nf4Array, dense
        nf4_matmul: matmul of dense, Nf4Array
        nf4_matmul_left: matmul of Nf4Array, dense
        nf4_multiply: multiply of Nf4Array, dense
        nf4_negative: negative of Nf4Array
        nf4_reshape: reshape of Nf4Array
        nf4_slice: slice of Nf4Array
        nf4_squeeze: squeeze of Nf4Array
        nf4_transpose: transpose of Nf4Array
        nf4_unflatten: unflatten of Nf4Array
        nvfp4_addmm: addmm of dense, Nvfp4Array, dense
        nvfp4_addmm_left: addmm of Nvfp4Array, dense, dense
        nvfp4_astype: as_type of Nvfp4Array
        nvfp4_concatenate: concatenate of Nvfp4Array, ..
        nvfp4_divide: divide of Nvfp4Array, dense
        nvfp4_expand_dims: expand_dims of Nvfp4Array
        nvfp4_flatten: flatten of Nvfp4Array
        nvfp4_gather: gather of Nvfp4Array, dense
        nvfp4_matmul: matmul of dense, Nvfp4Array
        nvfp4_matmul_left: matmul of Nvfp4Array, dense
        nvfp4_multiply: multiply of Nvfp4Array, dense
        nvfp4_negative: negative of Nvfp4Array
        nvfp4_reshape: reshape of Nvfp4Array
        nvfp4_slice: slice of Nvfp4Array
        nvfp4_squeeze: squeeze of Nvfp4Array
        nvfp4_transpose: transpose of Nvfp4Array
        nvfp4_unflatten: unflatten of Nvfp4Array
        scale: multiply of any implicit, dense
        scaled_addmm: addmm of dense, Scaled, dense
        scaled_addmm_left: addmm of Scaled, dense, dense
        scaled_astype: as_type of Scaled
        scaled_linear: any primitive of Scaled, ..
        scaled_matmul: matmul of dense, Scaled
        scaled_matmul_left: matmul of Scaled, dense
        scaled_negative: negative of Scaled
        sliced_addmm: addmm of dense, Sliced, dense
        sliced_addmm_left: addmm of Sliced, dense, dense
        sliced_astype: as_type of Sliced
        sliced_gather: gather of Sliced, dense
        sliced_matmul: matmul of dense, Sliced
        sliced_matmul_left: matmul of Sliced, dense
        sliced_slice: slice of Sliced
        sliced_transpose: transpose of Sliced
        sparse24_astype: as_type of Sparse24
        sparse24_gather: gather of Sparse24, dense
        sparse24_multiply: multiply of Sparse24, dense
        sparse24_squeeze: squeeze of Sparse24
        sparse24_sum: sum of Sparse24
        sparse24_transpose: transpose of Sparse24
        stacked_addmm: addmm of dense, Stacked, dense
        stacked_addmm_left: addmm of Stacked, dense, dense
        stacked_astype: as_type of Stacked
        stacked_gather_mm: gather_mm of dense, Stacked, dense, dense
        stacked_matmul: matmul of dense, Stacked
        stacked_matmul_left: matmul of Stacked, dense
        stacked_slice: slice of Stacked
        stacked_squeeze: squeeze of Stacked
        stacked_transpose: transpose of Stacked
        ste_stop_gradient: stop_gradient of Ste
        stop_gradient: stop_gradient of any implicit
        ternary_addmm: addmm of dense, TernaryArray, dense
        ternary_addmm_left: addmm of TernaryArray, dense, dense
        ternary_astype: as_type of TernaryArray
        ternary_concatenate: concatenate of TernaryArray, ..
        ternary_divide: divide of TernaryArray, dense
        ternary_expand_dims: expand_dims of TernaryArray
        ternary_flatten: flatten of TernaryArray
        ternary_gather: gather of TernaryArray, dense
        ternary_matmul: matmul of dense, TernaryArray
        ternary_matmul_left: matmul of TernaryArray, dense
        ternary_multiply: multiply of TernaryArray, dense
        ternary_negative: negative of TernaryArray
        ternary_reshape: reshape of TernaryArray
        ternary_slice: slice of TernaryArray
        ternary_squeeze: squeeze of TernaryArray
        ternary_transpose: transpose of TernaryArray
        ternary_unflatten: unflatten of TernaryArray
        transposed_addmm: addmm of dense, Transposed, dense
        transposed_addmm_left: addmm of Transposed, dense, dense
        transposed_astype: as_type of Transposed
        transposed_matmul: matmul of dense, Transposed
        transposed_matmul_left: matmul of Transposed, dense
        transposed_transpose: transpose of Transposed
        unscale: divide of any implicit, dense
    "#]]
    .assert_eq(&lines.concat());
}
