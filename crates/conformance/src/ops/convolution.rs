//! Convolutions, channels last.

use mlx_rs::ops;

family! {
    "conv1d" [0, 1] (x: signed[1, 8, 2], w: signed[3, 3, 2]) => ops::conv1d(x, w, 2, 1, None, None);
    "conv1d[groups]" [0, 1] (x: signed[1, 8, 2], w: signed[2, 3, 1]) => ops::conv1d(x, w, None, None, None, 2);
    "conv2d" [0, 1] (x: signed[1, 4, 5, 2], w: signed[2, 3, 2, 2]) => ops::conv2d(x, w, (1, 2), (1, 0), None, None);
    "conv3d" [0, 1] (x: signed[1, 3, 3, 3, 1], w: signed[2, 2, 2, 2, 1]) => ops::conv3d(x, w, None, None, None, None);
    "conv_general" [0, 1] (x: signed[1, 6, 2], w: signed[2, 3, 2]) =>
        ops::conv_general(x, w, &[1], &[2], &[2], &[1], 1, true);
    "conv_transpose1d" [0, 1] (x: signed[1, 4, 2], w: signed[3, 3, 2]) =>
        ops::conv_transpose1d(x, w, 2, None, None, None, None);
    "conv_transpose2d" [0, 1] (x: signed[1, 3, 3, 2], w: signed[2, 2, 2, 2]) =>
        ops::conv_transpose2d(x, w, None, (1, 0), None, None, None);
    "conv_transpose3d" [0, 1] (x: signed[1, 2, 3, 2, 1], w: signed[2, 2, 2, 2, 1]) =>
        ops::conv_transpose3d(x, w, None, None, None, None, None);
}
