//! The orders in which llama.cpp has the rows of heads.

/// For each row of queries or keys the row of the file, where the two halves of each head are mixed: row by row, one of
/// the first and one of the second, as `permute` of llama.cpp's `conversion/llama.py` mixes them.
pub(super) fn order(rows: usize, heads: usize) -> Option<Vec<u32>> {
    let head = rows.checked_div(heads).filter(|head| head * heads == rows && head.is_multiple_of(2))?;
    let half = head / 2;
    Some((0..rows).map(|row| (row - row % head + row % head % half * 2 + row % head / half) as u32).collect())
}

/// For each row of a delta net's product the row of the file, which has the queries of all heads, their keys, their values and
/// their gates one after the other; in the model these belong together head by head.
pub(super) fn net_order(rows: usize, heads: usize, key: usize) -> Option<Vec<u32>> {
    let head = rows.checked_div(heads).filter(|head| head * heads == rows)?;
    let value = head.checked_sub(key.checked_mul(2)?).filter(|values| values.is_multiple_of(2))? / 2;
    let parts = [(0, key), (key, key), (2 * key, value), (2 * key + value, value)];
    let of_head = |at: usize| {
        parts.into_iter().flat_map(move |(before, width)| {
            let start = before * heads + at * width;
            start..start + width
        })
    };
    Some((0..heads).flat_map(of_head).map(|row| row as u32).collect())
}
