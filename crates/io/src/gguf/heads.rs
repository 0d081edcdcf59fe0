//! The order in which llama.cpp has the rows of queries and keys.

/// For each row of queries or keys the row of the file, where the two halves of each head are mixed: row by row, one of
/// the first and one of the second, as `permute` of llama.cpp's `convert_hf_to_gguf.py` mixes them.
pub(super) fn order(rows: usize, heads: usize) -> Option<Vec<u32>> {
    let head = rows.checked_div(heads).filter(|head| head * heads == rows && head.is_multiple_of(2))?;
    let half = head / 2;
    Some((0..rows).map(|row| (row - row % head + row % head % half * 2 + row % head / half) as u32).collect())
}
