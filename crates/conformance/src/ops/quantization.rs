//! Quantized weights: affine codes of four bits in groups of 32, and microscaled floats.

use mlx_rs::ops;

family! {
    "quantize" [0] (w: signed[2, 32]) => ops::quantize(w, 32, 4);
    "dequantize" [1, 2] (w: packed[3, 32], scales: positive[3, 1], biases: signed[3, 1]) =>
        ops::dequantize(w, scales, biases, 32, 4);
    "quantized_matmul" [0, 2, 3] (x: signed[2, 32], w: packed[3, 32], scales: positive[3, 1], biases: signed[3, 1]) =>
        ops::quantized_matmul(x, w, scales, biases, true, 32, 4);
    "quantized_matmul[plain]" [0, 2, 3] (x: signed[2, 3], w: packed[3, 32], scales: positive[3, 1], biases: signed[3, 1]) =>
        ops::quantized_matmul(x, w, scales, biases, false, 32, 4);
    "gather_qmm" [0, 2, 3] (
        x: signed[2, 1, 32], w: packed[3, 4, 32], scales: positive[3, 4, 1], biases: signed[3, 4, 1],
        lhs: list[1, 0], rhs: list[2, 1]
    ) => ops::gather_qmm(x, w, scales, biases, lhs, rhs, true, 32, 4, None);
    "qqmm" [] (x: signed[1, 32], w: packed[4, 32], scales: scale_bytes[4, 2]) => ops::qqmm(x, w, scales, 16, 4, "nvfp4");
}
