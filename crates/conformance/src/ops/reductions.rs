//! Reductions, scans and sorts.

use mlx_rs::{
    Axes,
    ops::{self, CountNonzeroOptions, LogCumsumExpOptions, SearchSide, TraceOptions, indexing},
};

family! {
    "all" [] (x: flags[3, 4]) => ops::all(x, None);
    "all_axis" [] (x: flags[3, 4]) => ops::all_axis(x, 1, true);
    "any" [] (x: flags[3, 4]) => ops::any(x, None);
    "any_axis" [] (x: flags[3, 4]) => ops::any_axis(x, 0, None);
    "argmax" [] (x: signed[3, 4]) => indexing::argmax(x, None);
    "argmax_axis" [] (x: signed[3, 4]) => indexing::argmax_axis(x, -1, None);
    "argmin" [] (x: signed[3, 4]) => indexing::argmin(x, None);
    "argmin_axis" [] (x: signed[3, 4]) => indexing::argmin_axis(x, 0, true);
    "count_nonzero" [] (x: integers[3, 4]) => x.count_nonzero(CountNonzeroOptions { axes: Axes::Axis(1), keep_dims: false });
    "logsumexp" [0] (x: signed[3, 4]) => ops::logsumexp(x, None);
    "logsumexp_axis" [0] (x: signed[3, 4]) => ops::logsumexp_axis(x, -1, true);
    "max" [0] (x: signed[3, 4]) => ops::max(x, None);
    "max_axis" [0] (x: signed[3, 4]) => ops::max_axis(x, 1, None);
    "mean" [0] (x: signed[3, 4]) => ops::mean(x, None);
    "mean_axes" [0] (x: signed[2, 3, 4]) => ops::mean_axes(x, &[0, 2], None);
    "median" [0] (x: signed[3, 4]) => ops::median(x, None);
    "median_axis" [0] (x: signed[3, 5]) => ops::median_axis(x, -1, None);
    "min" [0] (x: signed[3, 4]) => ops::min(x, None);
    "min_axis" [0] (x: signed[3, 4]) => ops::min_axis(x, 0, true);
    "prod" [0] (x: signed[3, 4]) => ops::prod(x, None);
    "prod_axis" [0] (x: signed[3, 4]) => ops::prod_axis(x, 1, None);
    "std" [0] (x: signed[3, 4]) => ops::std(x, None, None);
    "std_axis" [0] (x: signed[3, 4]) => ops::std_axis(x, -1, None, 1);
    "sum" [0] (x: signed[3, 4]) => ops::sum(x, None);
    "sum_axis" [0] (x: signed[3, 4]) => ops::sum_axis(x, 0, true);
    "sum_axes" [0] (x: signed[2, 3, 4]) => ops::sum_axes(x, &[1, 2], None);
    "trace" [0] (x: signed[4, 4]) => x.trace(TraceOptions::default());
    "var" [0] (x: signed[3, 4]) => ops::var(x, None, None);
    "var_axis" [0] (x: signed[3, 4]) => ops::var_axis(x, 1, true, 1);

    "cummax" [0] (x: signed[3, 4]) => ops::cummax(x, 1, None, None);
    "cummin" [0] (x: signed[3, 4]) => ops::cummin(x, 0, true, None);
    "cumprod" [0] (x: signed[3, 4]) => ops::cumprod(x, 1, None, None);
    "cumsum" [0] (x: signed[3, 4]) => ops::cumsum(x, -1, None, false);
    "logcumsumexp" [0] (x: signed[3, 4]) => x.logcumsumexp(LogCumsumExpOptions { axis: Some(1), ..Default::default() });

    "sort" [0] (x: signed[3, 4]) => ops::sort(x);
    "sort_axis" [0] (x: signed[3, 4]) => ops::sort_axis(x, 0);
    "argsort" [] (x: signed[3, 4]) => ops::argsort(x);
    "argsort_axis" [] (x: signed[3, 4]) => ops::argsort_axis(x, -1);
    "partition" [0] (x: signed[3, 4]) => ops::partition(x, 2);
    "partition_axis" [0] (x: signed[3, 4]) => ops::partition_axis(x, 1, -1);
    "argpartition" [] (x: signed[3, 4]) => ops::argpartition(x, 2);
    "argpartition_axis" [] (x: signed[3, 4]) => ops::argpartition_axis(x, 1, 0);
    "topk" [0] (x: signed[3, 4]) => indexing::topk(x, 2);
    "topk_axis" [0] (x: signed[3, 4]) => indexing::topk_axis(x, 2, 0);
    "search_sorted" [] (x: sorted[8], values: signed[5]) => x.search_sorted(values, SearchSide::Left);
}
