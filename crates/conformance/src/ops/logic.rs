//! Comparisons, logic and selection.

use mlx_rs::ops;

family! {
    "eq" [] (x: integers[3, 4], y: integers[3, 4]) => ops::eq(x, y);
    "ne" [] (x: integers[3, 4], y: integers[4]) => ops::ne(x, y);
    "le" [] (x: integers[3, 4], y: integers[3, 4]) => ops::le(x, y);
    "lt" [] (x: signed[3, 4], y: signed[3, 1]) => ops::lt(x, y);
    "ge" [] (x: integers[3, 4], y: integers[3, 4]) => ops::ge(x, y);
    "gt" [] (x: signed[3, 4], y: signed[4]) => ops::gt(x, y);
    "array_eq" [] (x: integers[3, 4], y: integers[3, 4]) => ops::array_eq(x, y, None);
    "is_close" [] (x: signed[3, 4], y: signed[3, 4]) => ops::is_close(x, y, 0.5, 0.1, None);

    "is_finite" [] (x: special[6]) => x.is_finite();
    "is_inf" [] (x: special[6]) => ops::is_inf(x);
    "is_nan" [] (x: special[6]) => ops::is_nan(x);
    "is_neg_inf" [] (x: special[6]) => ops::is_neg_inf(x);
    "is_pos_inf" [] (x: special[6]) => ops::is_pos_inf(x);

    "logical_and" [] (x: flags[3, 4], y: flags[3, 4]) => ops::logical_and(x, y);
    "logical_not" [] (x: flags[3, 4]) => ops::logical_not(x);
    "logical_or" [] (x: flags[3, 4], y: flags[4]) => ops::logical_or(x, y);
    "logical_xor" [] (x: flags[3, 4], y: flags[3, 4]) => ops::logical_xor(x, y);

    "select" [1, 2] (condition: flags[3, 4], x: signed[3, 4], y: signed[4]) => ops::select(condition, x, y);
    "select[broadcast]" [1, 2] (condition: flags[4], x: signed[3, 4], y: signed[3, 4]) => ops::select(condition, x, y);
}
