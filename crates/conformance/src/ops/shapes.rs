//! Shapes: views, permutations, joins, splits, padding, diagonals.

use mlx_rs::{
    Array, Axes,
    ops::{self, ContiguousOptions, PadMode},
};

family! {
    "as_strided" [0] (x: signed[3, 4]) => ops::as_strided(x, &[3, 2, 3], &[4, 1, 1], 0);
    "at_least_1d" [0] (x: signed[]) => ops::at_least_1d(x);
    "at_least_2d" [0] (x: signed[4]) => ops::at_least_2d(x);
    "at_least_3d" [0] (x: signed[3, 4]) => ops::at_least_3d(x);
    "broadcast_arrays" [0, 1] (x: signed[3, 1], y: signed[4]) => ops::broadcast_arrays(&[x, y]);
    "broadcast_to" [0] (x: signed[4]) => ops::broadcast_to(x, &[3, 4]);
    "contiguous" [0] (x: signed[3, 4]) => x.contiguous();
    "contiguous[col_major]" [0] (x: signed[3, 4]) => x.contiguous_with_options(ContiguousOptions { allow_col_major: true });
    "expand_dims" [0] (x: signed[3, 4]) => ops::expand_dims(x, 1);
    "expand_dims_axes" [0] (x: signed[3, 4]) => ops::expand_dims_axes(x, &[0, -1]);
    "flatten" [0] (x: signed[2, 3, 4]) => ops::flatten(x, 1, -1);
    "flip" [0] (x: signed[3, 4]) => x.flip(Axes::Axis(-1));
    "move_axis" [0] (x: signed[2, 3, 4]) => ops::move_axis(x, 0, 2);
    "reshape" [0] (x: signed[3, 4]) => ops::reshape(x, &[2, -1]);
    "squeeze" [0] (x: signed[3, 1, 4, 1]) => ops::squeeze(x);
    "squeeze_axes" [0] (x: signed[3, 1, 4, 1]) => ops::squeeze_axes(x, &[1]);
    "swap_axes" [0] (x: signed[2, 3, 4]) => ops::swap_axes(x, 0, 1);
    "t" [0] (x: signed[3, 4]) => Ok(x.t());
    "transpose" [0] (x: signed[3, 4]) => ops::transpose(x);
    "transpose_axes" [0] (x: signed[2, 3, 4]) => ops::transpose_axes(x, &[1, 2, 0]);
    "unflatten" [0] (x: signed[3, 4]) => ops::unflatten(x, 1, &[2, 2]);

    "concatenate" [0, 1] (x: signed[3, 4], y: signed[3, 2]) => ops::concatenate(&[x, y], 1);
    "concatenate_flat" [0, 1] (x: signed[3, 4], y: signed[5]) => ops::concatenate_flat(&[x, y]);
    "stack" [0, 1] (x: signed[3, 4], y: signed[3, 4]) => ops::stack(&[x, y], 1);
    "split_equal" [0] (x: signed[3, 4]) => ops::split_equal(x, 2, 1);
    "split_at_indices" [0] (x: signed[3, 4]) => ops::split_at_indices(x, &[1, 3], -1);
    "unstack" [0] (x: signed[3, 4]) => x.unstack(0);

    "full" [0] (x: signed[4]) => Array::full::<f32>(&[3, 4], x);
    "pad" [0] (x: signed[3, 4]) => ops::pad(x, &[(1, 0), (0, 2)], None, None);
    "pad[value]" [0, 1] (x: signed[3, 4], value: positive[]) => ops::pad(x, 1, value.clone(), PadMode::Constant);
    "pad[edge]" [0] (x: signed[3, 4]) => ops::pad(x, (1, 2), None, PadMode::Edge);
    "repeat" [0] (x: signed[3, 4]) => Array::repeat::<f32>(x.clone(), 2);
    "repeat_axis" [0] (x: signed[3, 4]) => Array::repeat_axis::<f32>(x.clone(), 2, 1);
    "tile" [0] (x: signed[3, 4]) => ops::tile(x, &[2, 2]);

    "diag" [0] (x: signed[4]) => ops::diag(x, 1);
    "diag[matrix]" [0] (x: signed[4, 4]) => ops::diag(x, -1);
    "diagonal" [0] (x: signed[2, 3, 4]) => ops::diagonal(x, 1, 1, 2);
    "tril" [0] (x: signed[4, 4]) => ops::tril(x, -1);
    "triu" [0] (x: signed[4, 4]) => ops::triu(x, 1);
}
