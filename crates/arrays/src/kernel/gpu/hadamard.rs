//! The Hadamard transform of rows, on a GPU.

use tacit_core::Aval;
use tacit_kernels::hadamard_matrix;

use super::source::{Parts, Target, float, size};
use super::weight::short;

/// The launch of the kernel that [`hadamard`](crate::kernel::hadamard) runs on rows of `n` numbers, with a small matrix of this
/// `order`: a group has a row. The result is the CPU's bit for bit. `None` for rows that no group has room for, and for an
/// array without rows.
pub(crate) fn hadamard([n, order]: [usize; 2], x: &Aval, target: Target) -> Option<Parts> {
    let kind = float(x.dtype)?;
    let rows = x.size().checked_div(n)?;
    let threads = (n / 2).next_power_of_two().clamp(32, 256);
    if rows == 0 {
        return None;
    }
    size(rows * threads)?;
    let bytes = 4 * n;
    let (array, memory) = if bytes <= target.memory() {
        ("GROUP", 0)
    } else {
        // Where the array begins is not known.
        let memory = bytes + 1024;
        target.group().filter(|(_, granted)| memory <= *granted)?;
        ("LAUNCH", memory)
    };
    let signs = if order > 1 { signs(order) } else { String::new() };
    let is_negative = if order > 1 { "(tacit_signs[at / 32] >> (at % 32) & 1) != 0" } else { "false" };
    let factor = (1.0 / (n as f32).sqrt()).to_bits();
    Some(Parts {
        label: format!("hadamard{n}_{}", short(x.dtype)),
        common: vec![include_str!("source/hadamard.h")],
        description: format!(
            "{signs}struct Signs {{\n  TACIT_FN bool is_negative(tacit::u32 at) const {{ return {is_negative}; }}\n}};\n"
        ),
        body: format!(
            "  enum {{ THREADS = {threads} }};\n  TACIT_{array}_ARRAY(float, tacit_row, {n});\n  tacit::hadamard<{order}, {n}>(Signs(), (const \
             TACIT_DEVICE {kind}*)x, (TACIT_DEVICE {kind}*)out, tacit::from_bits(0x{factor:08x}u), at, THREADS, tacit_row);\n"
        ),
        inputs: vec!["x".to_owned()],
        outputs: vec!["out".to_owned()],
        sizes: Vec::new(),
        groups: [rows, 1, 1],
        threads,
        memory,
        target,
    })
}

/// The table of the small matrix, a bit for each of its numbers.
fn signs(order: usize) -> String {
    let matrix = hadamard_matrix(order);
    let word = |signs: &[f32]| {
        let bits = signs.iter().enumerate().map(|(at, &sign)| u32::from(sign < 0.0) << at);
        format!("0x{:08x}u", bits.sum::<u32>())
    };
    let words: Vec<String> = matrix.chunks(32).map(word).collect();
    format!("TACIT_TABLE(tacit_signs, {}) = {{{}}};\n", words.len(), words.join(", "))
}
