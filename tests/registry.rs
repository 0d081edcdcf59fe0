//! The handlers that a program has by linking Tacit.

use expect_test::expect;
use tacit::dispatch::Registry;

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
        batched_reshape: any reshaping primitive of Batched
        batched_slice: slice of Batched
        broadcast_axes_beside: broadcast_axes of any, any, ..
        broadcast_beside: broadcast of any, any, ..
        checkpointed: any graph primitive of ..
        concat_broadcast: broadcast of Concat, ..
        concat_reshape: any reshaping primitive of Concat
        concat_split: split of Concat
        constant_binary: any binary primitive of Constant, Constant
        constant_moving: any moving primitive of Constant, ..
        constant_reduction: any reduction primitive of Constant
        constant_unary: any unary primitive of Constant
        constant_with_dense: any binary primitive of Constant, dense
        copy: copy of any implicit
        cut_slice: slice of any Cut
        dense_with_constant: any binary primitive of dense, Constant
        diagonal_binary: any binary primitive of Diagonal, Diagonal
        diagonal_matmul: matmul of Diagonal, Diagonal
        diagonal_multiply: multiply of Diagonal, any
        diagonal_sum: sum of Diagonal
        identity_multiply: multiply of Identity, dense
        int8_inputs_moving: any moving primitive of Int8Inputs, ..
        int8_inputs_product: any product primitive of dense, Int8Inputs, ..
        int8_training_broadcast: broadcast of Int8Training, ..
        linear_addmm: addmm of any, any Linear, any
        linear_addmm_left: addmm of any Linear, any, any
        linear_astype: as_type of any implicit
        linear_broadcast: broadcast of any Linear, ..
        linear_broadcast_axes: broadcast_axes of any Linear, ..
        linear_concatenate: concatenate of ..
        linear_divide: divide of any implicit, dense
        linear_gather: gather of any Linear, any
        linear_gather_mm: gather_mm of any, any Linear, dense, dense
        linear_matmul: matmul of any, any Linear
        linear_matmul_left: matmul of any Linear, any
        linear_multiply: multiply of any implicit, dense
        linear_negative: negative of any implicit
        linear_slice: slice of any implicit
        linear_transpose: transpose of any implicit
        low_rank_add: add of LowRank, LowRank
        low_rank_multiply: multiply of LowRank, dense
        low_rank_sum: sum of LowRank
        masked_astype: as_type of Masked
        masked_multiply: multiply of Masked, dense
        packed_add: add of any Packed, dense
        packed_concatenate: concatenate of any Packed, ..
        packed_dynamic_slice: dynamic_slice of any Packed, dense
        packed_dynamic_slice_update: dynamic_slice_update of any Packed, any, dense
        packed_reshape: any reshaping primitive of any Packed
        packed_scatter_axis: scatter_axis of any Packed, dense, any
        packed_slice: slice of any Packed
        packed_slice_update: slice_update of any Packed, any
        repeated_moving: any moving primitive of Repeated, ..
        rotated_concatenate: concatenate of Rotated, ..
        rotated_update: any update primitive of Rotated, ..
        saved_inputs_binary: any binary primitive of SavedInputs, dense
        scaled_add: add of Scaled, dense
        scaled_sum: sum of Scaled
        scores_add: add of Scores, dense
        scores_astype: as_type of Scores
        scores_divide: divide of Scores, dense
        scores_matmul: matmul of Scores, any Linear
        scores_multiply: multiply of Scores, dense
        scores_of: matmul of dense, Batched
        scores_select: select of dense, Scores, dense
        scores_softmax: softmax of Scores
        sharded_addmm: addmm of Sharded, any, any
        sharded_addmm_right: addmm of any, Sharded, any
        sharded_addmm_sum: addmm of dense, dense, Sharded
        sharded_arg_reduce: arg_reduce of Sharded
        sharded_attention: scaled_dot_product_attention of Sharded, ..
        sharded_broadcast: broadcast of Sharded, ..
        sharded_broadcast_axes: broadcast_axes of Sharded, ..
        sharded_broadcast_shape: broadcast of dense, Sharded, ..
        sharded_compiled: any graph primitive of Sharded, ..
        sharded_compiled_second: any graph primitive of any, Sharded, ..
        sharded_concatenate: concatenate of Sharded, ..
        sharded_concatenate_behind: concatenate of dense, Sharded, ..
        sharded_contiguous: contiguous of Sharded
        sharded_dynamic_slice: dynamic_slice of Sharded, dense
        sharded_dynamic_update: dynamic_slice_update of Sharded, any, dense
        sharded_dynamic_update_of: dynamic_slice_update of any, Sharded, dense
        sharded_elementwise: any elementwise primitive of Sharded, ..
        sharded_elementwise_second: any elementwise primitive of any, Sharded, ..
        sharded_elementwise_third: any elementwise primitive of any, any, Sharded
        sharded_gather: gather of Sharded, dense
        sharded_gather_axis: gather_axis of Sharded, any
        sharded_gather_mm: gather_mm of dense, Sharded, dense, dense
        sharded_layer_norm: layer_norm of Sharded, any, any
        sharded_log_sum_exp: log_sum_exp of Sharded
        sharded_matmul: matmul of Sharded, any
        sharded_matmul_right: matmul of any, Sharded
        sharded_pad: pad of Sharded, dense
        sharded_reduction: any reduction primitive of Sharded
        sharded_reshape: any reshaping primitive of Sharded
        sharded_rms_norm: rms_norm of Sharded, any
        sharded_rope: rope of Sharded, ..
        sharded_rowwise: any rowwise primitive of Sharded
        sharded_scan: any scan primitive of Sharded
        sharded_scatter_axis: scatter_axis of Sharded, any, any
        sharded_scatter_axis_of: scatter_axis of any, any, Sharded
        sharded_slice: slice of Sharded
        sharded_slice_update: slice_update of Sharded, any
        sharded_slice_update_of: slice_update of any, Sharded
        sharded_softmax: softmax of Sharded
        sharded_split: split of Sharded
        sharded_transpose: transpose of Sharded
        sliced_slice: slice of Sliced
        sparse24_astype: as_type of Sparse24
        sparse24_gather: gather of Sparse24, dense
        sparse24_multiply: multiply of Sparse24, dense
        sparse24_squeeze: squeeze of Sparse24
        sparse24_sum: sum of Sparse24
        sparse24_transpose: transpose of Sparse24
        stacked_squeeze: squeeze of Stacked
        ste_stop_gradient: stop_gradient of Ste
        stop_gradient: stop_gradient of any implicit
        stored_attention: scaled_dot_product_attention of dense, ..
        view_moving: any moving primitive of any View, ..
    "#]]
    .assert_eq(&lines.concat());
}
