//! The parameters of primitives against what was called.

use mlx_rs::error::Exception;
use mlx_rs::ops::indexing::{self, TryIndexOp};
use mlx_rs::{Array, Dtype, ops};
use tacit_bridge::mlx::VERSION;
use tacit_bridge::typed::{self, TypedPrimitive};
use tacit_bridge::{Scope, Tape};

use crate::arrays::placeholders;

/// The typed view of the node of kind `T` in a graph of two placeholders.
fn view<T: TypedPrimitive>(shapes: [&[i32]; 2], f: impl FnOnce([Array; 2]) -> Result<Array, Exception>) -> T {
    let scope = Scope::new().expect("memory");
    let placeholders = placeholders(&scope, shapes);
    let out = f(placeholders.clone()).expect("builds");
    let tape = Tape::walk(&[out], &placeholders, &[]).expect("memory");
    let node = (0..tape.len()).find(|&node| typed::find(tape.name(node).text()) == Some(T::ID)).expect("is there");
    T::from_params(&tape.primitive(node).expect("memory").params().expect("known")).expect("fits")
}

#[test]
fn shapes() {
    let transpose: typed::Transpose = view([&[2, 3, 4], &[]], |[x, _]| ops::transpose_axes(&x, &[2, 0, 1]));
    assert_eq!(transpose.axes, [2, 0, 1]);
    let reshape: typed::Reshape = view([&[2, 6], &[]], |[x, _]| x.t().reshape(&[4, -1]));
    assert_eq!(reshape.shape, [4, -1], "as it was called");
    let broadcast: typed::Broadcast = view([&[3], &[]], |[x, _]| ops::broadcast_to(&x, &[2, 3]));
    assert_eq!(broadcast.shape, [2, 3]);
    let expand: typed::ExpandDims = view([&[3], &[]], |[x, _]| ops::expand_dims_axes(&x, &[0, 2]));
    assert_eq!(expand.axes, [0, 2]);
    let concatenate: typed::Concatenate = view([&[2, 3], &[2, 1]], |[x, y]| ops::concatenate(&[x, y], 1));
    assert_eq!(concatenate.axis, 1);
    let pad: typed::Pad = view([&[2, 3], &[]], |[x, _]| ops::pad(&x, &[(1, 0), (0, 2)], None, None));
    assert_eq!((pad.axes, pad.low_pad_size, pad.high_pad_size), (vec![0, 1], vec![1, 0], vec![0, 2]));
}

#[test]
fn indexing_and_element_types() {
    let slice: typed::Slice = view([&[5, 6], &[]], |[x, _]| x.try_index((1..4, 2..)));
    assert_eq!((slice.start_indices, slice.end_indices, slice.strides), (vec![1, 2], vec![4, 6], vec![1, 1]));
    let gather: typed::Gather =
        view([&[5, 3], &[]], |[x, _]| indexing::take_axis(&x, Array::from_slice(&[4, 0], &[2]), 0));
    assert_eq!((gather.axes, gather.slice_sizes), (vec![0], vec![1, 3]));
    let cast: typed::AsType = view([&[2], &[]], |[x, _]| x.as_dtype(Dtype::Bfloat16));
    assert_eq!(cast.dtype, Dtype::Bfloat16);
}

#[test]
fn reductions_scans_and_sorts() {
    let sum: typed::Sum = view([&[2, 3, 4], &[]], |[x, _]| ops::sum_axes(&x, &[0, 2], None));
    assert_eq!(sum.axes, [0, 2]);
    let scan: typed::CumProd = view([&[2, 3], &[]], |[x, _]| ops::cumprod(&x, 1, true, false));
    assert_eq!((scan.axis, scan.reverse, scan.inclusive), (1, true, false));
    let sort: typed::Sort = view([&[2, 3], &[]], |[x, _]| ops::sort_axis(&x, 0));
    assert_eq!(sort.axis, 0);
    let partition: typed::Partition = view([&[7], &[]], |[x, _]| ops::partition_axis(&x, 3, 0));
    assert_eq!((partition.kth, partition.axis), (3, 0));
    let softmax: typed::Softmax = view([&[2, 3], &[]], |[x, _]| ops::softmax_axis(&x, -1, true));
    assert!(softmax.precise);
    let argmax: typed::ArgReduce = view([&[2, 3], &[]], |[x, _]| indexing::argmax_axis(&x, 1, None));
    assert_eq!(argmax.axis, 1);
}

#[test]
fn products() {
    let addmm: typed::AddMM = view([&[2, 3], &[3, 4]], |[a, b]| ops::addmm(ops::ones::<f32>(&[4])?, &a, &b, 0.25, 3.0));
    assert_eq!((addmm.alpha, addmm.beta), (0.25, 3.0));
    let convolution: typed::Convolution =
        view([&[1, 8, 9, 4], &[6, 3, 2, 2]], |[x, w]| ops::conv2d(&x, &w, (2, 1), (1, 0), (1, 2), 2));
    assert_eq!(
        (convolution.kernel_strides, convolution.padding_lo, convolution.kernel_dilation, convolution.groups),
        (vec![2, 1], vec![1, 0], vec![1, 2], 2)
    );
    assert!(!convolution.flip);
}

#[test]
fn fused_kernels_and_transforms() {
    let norm: typed::LogSumExp = view([&[2, 3], &[]], |[x, _]| ops::logsumexp_axis(&x, -1, true));
    assert_eq!(norm, typed::LogSumExp);
    let fft: typed::FFT = view([&[2, 8], &[]], |[x, _]| mlx_rs::fft::rfft(&x, None, None));
    assert_eq!((fft.axes, fft.inverse, fft.real), (vec![1], false, true));
    let version: Vec<u32> = VERSION.split('.').map(|part| part.parse().expect("a number")).collect();
    assert_eq!(fft.odd_out, (version >= vec![0, 32, 4]).then_some(false));
    let quantized: typed::QuantizedMatmul = view([&[1, 64], &[]], |[x, _]| {
        let (w, scales, biases) = ops::quantize(ops::ones::<f32>(&[8, 64])?, 32, 4)?;
        ops::quantized_matmul(&x, &w, &scales, &biases, true, 32, 4)
    });
    assert_eq!(
        (quantized.group_size, quantized.bits, quantized.mode.to_lowercase().as_str(), quantized.transpose),
        (32, 4, "affine", true)
    );
}
