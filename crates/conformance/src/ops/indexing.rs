//! Indexing: slices, gathers, scatters and functional updates.

use mlx_rs::{
    error::Exception,
    ops::indexing::{
        self, Ellipsis, IndexUpdateError, IntoStrideBy, NewAxis, TryIndexMutOp, TryIndexOp, TryIndexUpdateOp,
        UpdateMode,
    },
};

family! {
    "try_index[integer]" [0] (x: signed[3, 4]) => x.try_index(1);
    "try_index[range]" [0] (x: signed[3, 4]) => x.try_index((1.., ..3));
    "try_index[stride]" [0] (x: signed[3, 5]) => x.try_index((.., (..).stride_by(2)));
    "try_index[one]" [0] (x: signed[3, 2]) => x.try_index((.., (..).stride_by(2)));
    "try_index[reverse]" [0] (x: signed[3, 4]) => x.try_index((..).stride_by(-1));
    "try_index[ellipsis]" [0] (x: signed[2, 3, 4]) => x.try_index((Ellipsis, 1));
    "try_index[new_axis]" [0] (x: signed[3, 4]) => x.try_index((.., NewAxis, 1..3));
    "try_index[array]" [0] (x: signed[4, 3], rows: list[2, 0, 2]) => x.try_index(rows);
    "try_index[arrays]" [0] (x: signed[4, 3], rows: list[2, 0], columns: list[1, 2]) => x.try_index((rows, columns));
    "try_index[mixed]" [0] (x: signed[4, 3], rows: list[3, 1]) => x.try_index((rows, 1..));

    "take" [0] (x: signed[3, 4], indices: list[5, 0, 11]) => indexing::take(x, indices);
    "take_axis" [0] (x: signed[3, 4], indices: list[3, 0, 3]) => indexing::take_axis(x, indices, 1);
    "take_along_axis" [0] (x: signed[3, 4], indices: permutations[4, 3, 4]) => indexing::take_along_axis(x, indices, 1);
    "gather_single" [0] (x: signed[5, 3], indices: list[4, 1]) => indexing::gather_single(x, indices, 0, &[1, 3]);

    "put_along_axis" [0, 2] (x: signed[3, 4], indices: permutations[4, 3, 2], values: signed[3, 2]) =>
        indexing::put_along_axis(x, indices, values, 1);
    "scatter_single" [0, 2] (x: signed[5, 3], indices: list[4, 1], updates: signed[2, 1, 3]) =>
        indexing::scatter_single(x, indices, updates, 0);
    "scatter_add_single" [0, 2] (x: signed[5, 3], indices: list[4, 4], updates: signed[2, 1, 3]) =>
        indexing::scatter_add_single(x, indices, updates, 0);
    "scatter_max_single" [0, 2] (x: signed[5, 3], indices: list[4, 1], updates: signed[2, 1, 3]) =>
        indexing::scatter_max_single(x, indices, updates, 0);
    "scatter_min_single" [0, 2] (x: signed[5, 3], indices: list[4, 1], updates: signed[2, 1, 3]) =>
        indexing::scatter_min_single(x, indices, updates, 0);
    "scatter_prod_single" [] (x: signed[5, 3], indices: list[4, 1], updates: signed[2, 1, 3]) =>
        indexing::scatter_prod_single(x, indices, updates, 0);
    "masked_scatter" [0, 2] (x: signed[3, 4], mask: flags[3, 4], source: signed[12]) =>
        indexing::masked_scatter(x, mask, source);

    "try_index_mut[range]" [0, 1] (x: signed[3, 4], values: signed[2]) => {
        let mut x = x.clone();
        x.try_index_mut((1, 1..3), values).map(|()| x)
    };
    "try_index_mut[one]" [0, 1] (x: signed[3, 2], values: signed[3, 1]) => {
        let mut x = x.clone();
        x.try_index_mut((.., (..).stride_by(2)), values).map(|()| x)
    };
    "try_index_mut[array]" [0, 2] (x: signed[4, 3], rows: list[2, 0], values: signed[2, 3]) => {
        let mut x = x.clone();
        x.try_index_mut(rows.clone(), values).map(|()| x)
    };
    "try_index_update[replace]" [0, 1] (x: signed[3, 4], values: signed[2, 4]) =>
        x.try_index_update((1..,), values, UpdateMode::Replace).map_err(refused);
    "try_index_update[add one]" [0, 1] (x: signed[3, 2], values: signed[3, 1]) =>
        x.try_index_update((.., (..).stride_by(2)), values, UpdateMode::Add).map_err(refused);
    "try_index_update[add]" [0, 2] (x: signed[4, 3], rows: list[2, 2], values: signed[2, 3]) =>
        x.try_index_update((rows,), values, UpdateMode::Add).map_err(refused);
    "try_index_update[max]" [0, 2] (x: signed[4, 3], rows: list[2, 0], values: signed[2, 3]) =>
        x.try_index_update((rows,), values, UpdateMode::Max).map_err(refused);
}

fn refused(error: IndexUpdateError) -> Exception {
    match error {
        IndexUpdateError::Exception(exception) => exception,
        error @ IndexUpdateError::ZeroStride { .. } => Exception::custom(error.to_string()),
    }
}
