//! The launch of a product, with one matrix or with several of a stack.

use std::fmt::Write as _;

use mlx_rs::Dtype;
use tacit_core::Aval;
use tacit_kernels::Orientation;

use super::matrices::{Sequence, table};
use super::source::{Parts, Target, float, size};
use super::weight::{Weight, short};
use crate::kernel::Layout;

/// The most rows of activations for which every element of the matrix is decoded by one thread alone.
const FEW: usize = 8;

/// Summands from which on the rounding of each weight to a half float is less than that of the sum.
const LONG: usize = 256;

/// Bytes of the largest table that a format has in a group's memory.
const MOST_TABLE: usize = 4 << 10;

/// Rows of a matrix from which on a warp multiplies four of them.
const MANY_ROWS: usize = 8192;

/// Groups along the second axis of a grid: CUDA has no more there.
const MOST_BANDS: usize = 65535;

/// Groups along the last axis of a grid: CUDA has not many more there.
const MOST_ENTRIES: usize = 32768;

pub(super) struct Product<'a> {
    /// All matrices as one.
    pub layout: &'a Layout,
    /// Rows of each matrix.
    pub n: usize,
    pub orientation: Orientation,
    /// Rows of activations for each matrix.
    pub m: usize,
    /// Products.
    pub entries: usize,
    pub x: &'a Aval,
    pub children: &'a [Aval],
    pub selection: Selection<'a>,
    /// What a number that a code stands for is worth in units of its scale, where rows of activations are rounded to integers.
    pub unit: Option<f32>,
}

/// Which matrix and which rows of activations an entry multiplies.
pub(super) enum Selection<'a> {
    /// The only ones.
    Only,
    /// Its own rows, and the matrix of this number.
    Matrices(&'a [usize]),
    /// Those that two inputs say, rows and then matrix, which may be wrong: how many there are of each.
    Indices { groups: usize, count: usize, inputs: [&'a Aval; 2] },
}

/// How a group computes its part.
struct Way {
    text: Vec<&'static str>,
    label: String,
    /// The group's memory, which Metal declares in a function's outermost scope only.
    memory: String,
    /// Bytes of it that the launch asks for.
    launched: usize,
    call: String,
    threads: usize,
    /// Groups along the result's columns and rows.
    groups: [usize; 2],
}

impl Product<'_> {
    /// The parts of its launch. None where there is nothing to compute, or where the kernel of a CPU would refuse what it is
    /// given.
    pub(super) fn parts(&self, what: &str, target: Target) -> Option<Parts> {
        if !self.fits() {
            return None;
        }
        let weight = Weight::new(self.layout, self.children)?;
        let kind = float(self.x.dtype)?;
        let way = if let Some(way) = self.few_halves(kind, &weight, target) {
            way
        } else if self.m <= FEW {
            self.few(kind, &weight)
        } else {
            self.wide(kind, &weight, target).unwrap_or_else(|| self.many(kind, target))
        };
        let entries = self.entries.min(MOST_ENTRIES);
        if way.groups.contains(&0) || entries == 0 || self.depth() == 0 {
            return None;
        }
        let mut texts = vec![include_str!("source/no_product.h"), include_str!("source/rows.h")];
        texts.extend(self.unit.map(|_| include_str!("source/int8_rows.h")));
        let (mut header, mut names) = (weight.text.clone(), vec!["x".to_owned()]);
        let mut body = format!("  enum {{ THREADS = {} }};\n{}{}", way.threads, way.memory, weight.bind);
        body += "  const tacit::u32 n = sizes_shape[0], k = sizes_shape[1], m = sizes_shape[2];\n";
        let (depth, columns) = match self.orientation {
            Orientation::Transposed => ("k", "n"),
            Orientation::Plain => ("n", "k"),
        };
        let entry_of = |x: &str, matrix: &str| {
            format!(
                "    const TACIT_DEVICE {kind}* rows = (const TACIT_DEVICE {kind}*)x + (tacit::u64){x} * m * {depth};\n    \
                 TACIT_DEVICE {kind}* result = (TACIT_DEVICE {kind}*)out + (tacit::u64)entry * m * {columns};\n    \
                 const tacit::u64 start = (tacit::u64){matrix} * n * k;\n"
            )
        };
        let many = "  for (tacit::u32 entry = at.z; entry < (tacit::u32)sizes_shape[3]; entry += 32768) {\n";
        let sequence =
            if let Selection::Matrices(matrices) = self.selection { Sequence::from_numbers(matrices) } else { None };
        match &self.selection {
            Selection::Only => {
                body += "  {\n    const tacit::u32 entry = 0;\n";
                body += &entry_of("entry", "0");
            }
            Selection::Matrices(matrices) => {
                body += many;
                let matrix = if sequence.is_some() {
                    "((tacit::u32)sizes_shape[6] + entry / (tacit::u32)sizes_shape[4] % (tacit::u32)sizes_shape[5])"
                } else {
                    header += &table(matrices);
                    "tacit_matrices[entry]"
                };
                body += &entry_of("entry", matrix);
            }
            Selection::Indices { .. } => {
                names.extend(["left".to_owned(), "right".to_owned()]);
                body += many;
                let _ = write!(
                    body,
                    "    const tacit::u32 group = left[entry], matrix = right[entry];\n    \
                     if (group >= (tacit::u32)sizes_shape[4] || matrix >= (tacit::u32)sizes_shape[5]) {{\n      \
                     tacit::no_product((TACIT_DEVICE {kind}*)out + (tacit::u64)entry * m * {columns}, (tacit::u64)m * \
                     {columns}, at, THREADS);\n      continue;\n    }}\n"
                );
                body += &entry_of("group", "matrix");
            }
        }
        body += "    const bool aligned = tacit::is_aligned(w.codes) && tacit::is_aligned(rows);\n";
        body += &way.call;
        body += "  }\n";
        names.extend(weight.inputs);
        let [groups, count, first] = match (&self.selection, sequence) {
            (Selection::Indices { groups, count, .. }, _) => [*groups, *count, 0],
            (_, Some(Sequence { first, each, count })) => [each, count, first],
            _ => [0; 3],
        };
        let sizes = [self.n, self.layout.k, self.m, self.entries, groups, count, first, weight.block];
        Some(Parts {
            label: format!("{what}_{}_{}_{}", weight.label, short(self.x.dtype), way.label),
            common: [texts, way.text].concat(),
            description: header,
            body,
            inputs: names,
            outputs: vec!["out".to_owned()],
            sizes: sizes.into_iter().map(size).collect::<Option<_>>()?,
            groups: [way.groups[0], way.groups[1], entries],
            threads: way.threads,
            memory: way.launched,
            target,
        })
    }

    /// Whether all that is read is there: a GPU would read beyond it.
    fn fits(&self) -> bool {
        let matrices = self.layout.n.checked_div(self.n).unwrap_or(0);
        let (entries, is_selected) = match &self.selection {
            Selection::Only => (1, true),
            Selection::Matrices(indices) => (indices.len(), indices.iter().all(|&matrix| matrix < matrices)),
            Selection::Indices { groups, count, inputs } => {
                let is_index = |input: &&Aval| input.dtype == Dtype::Uint32 && input.size() == self.entries;
                (*groups, *count == matrices && inputs.iter().all(is_index))
            }
        };
        let is_row = self.x.shape.last().is_some_and(|&last| last as usize == self.depth());
        is_selected && self.layout.n == matrices * self.n && is_row && self.x.size() == entries * self.m * self.depth()
    }

    fn depth(&self) -> usize {
        if self.orientation == Orientation::Transposed { self.layout.k } else { self.n }
    }

    /// Whether half floats may be multiplied. Products of integers are exact.
    fn is_in_halves(&self, kind: &str) -> bool {
        kind != "float" && self.unit.is_none()
    }

    /// The rows of activations from one on, of which a group multiplies so many: as they are, or rounded.
    fn rows(&self, first: &str, count: usize) -> String {
        self.unit.map_or_else(
            || "rows".to_owned(),
            |unit| {
                let unit = unit.to_bits();
                format!(
                    "tacit::rounded_rows<{count}>(rows, {first}, m, k, tacit::from_bits(0x{unit:08x}u), at, THREADS, tacit_rounded)"
                )
            },
        )
    }

    /// The memory that so many rows take.
    fn room(&self, count: usize) -> String {
        self.unit.map_or_else(String::new, |_| format!("  TACIT_GROUP_ARRAY(float, tacit_rounded, {});\n", 3 * count))
    }

    /// The matrix units multiply what each lane decodes, where rows are long; for a single row that is no gain.
    fn few_halves(&self, kind: &str, weight: &Weight, target: Target) -> Option<Way> {
        let k = self.layout.k;
        let fits =
            self.is_in_halves(kind) && self.orientation == Orientation::Transposed && k >= 512 && k.is_multiple_of(128);
        if !fits || !(2..=16).contains(&self.m) || weight.span < 8 {
            return None;
        }
        let tiles = self.m.div_ceil(8);
        Some(Way {
            text: vec![
                target.matrix(),
                target.pairs()?,
                include_str!("source/few_rows.h"),
                include_str!("source/few_halves.h"),
            ],
            label: format!("h{tiles}"),
            memory: format!(
                "  typedef tacit::FewHalves<Weight, {kind}, {tiles}> Tile;\n  TACIT_GROUP_ARRAY(float, tacit_meeting, Tile::MEMORY);\n"
            ),
            launched: 0,
            call: "    Tile::multiply(w, rows, result, start, n, k, m, at.x * 16, at, tacit_meeting, aligned);\n"
                .to_owned(),
            threads: 256,
            groups: [self.n.div_ceil(16), 1],
        })
    }

    /// Each element is decoded once, by the thread that multiplies it with all rows.
    fn few(&self, kind: &str, weight: &Weight) -> Way {
        let rows = self.m.next_power_of_two();
        let k = self.layout.k;
        match self.orientation {
            Orientation::Transposed => {
                // A warp reads 32 times so many octets of a row at once.
                let steps = if k.is_multiple_of(32) && k >= 512 { 4 } else { usize::from(k.is_multiple_of(8)) };
                // Rows of the matrix that share what is read of x. Where codes are looked up, the GPU's memory is not what limits it.
                let each = if rows == 1 && weight.table > 0 && self.n >= MANY_ROWS { 4 } else { 2 };
                let x = self.rows("0", rows);
                let multiply = |aligned: &str| {
                    format!(
                        "tacit::Transposed<Weight, {kind}, {steps}, {each}, {rows}>::multiply(w, {x}, result, start, n, k, m, \
                         (at.x * (THREADS / 32) + at.warp) * {each}, at.lane, {aligned});"
                    )
                };
                Way {
                    text: vec![include_str!("source/few_rows.h")],
                    label: format!("t{rows}_s{steps}"),
                    memory: self.room(rows),
                    launched: 0,
                    call: format!("    if (aligned) {}\n    else {}\n", multiply("true"), multiply("false")),
                    threads: 256,
                    groups: [self.n.div_ceil(each * 256 / 32), 1],
                }
            }
            Orientation::Plain => {
                let steps = usize::from(k.is_multiple_of(8));
                let width = if steps == 1 { 64 } else { 32 };
                Way {
                    text: vec![include_str!("source/few_rows.h")],
                    label: format!("p{rows}_s{steps}"),
                    memory: "  TACIT_GROUP_ARRAY(float, tacit_meeting, THREADS);\n".to_owned(),
                    launched: 0,
                    call: format!(
                        "    \
                         tacit::Plain<Weight, {kind}, {steps}, {rows}>::multiply(w, rows, result, start, n, k, m, at.x, at.id, \
                         THREADS, tacit_meeting, aligned);\n"
                    ),
                    threads: 256,
                    groups: [k.div_ceil(width), 1],
                }
            }
        }
    }

    /// Wide tiles are decoded while the matrix units multiply those before, where rows are long.
    fn wide(&self, kind: &str, weight: &Weight, target: Target) -> Option<Way> {
        let k = self.layout.k;
        let fits =
            self.is_in_halves(kind) && self.orientation == Orientation::Transposed && k >= LONG && k.is_multiple_of(64);
        if !fits || self.m <= 16 || weight.span < 8 {
            return None;
        }
        let (group, granted) = target.group()?;
        // Two and three tiles of 64 halves a row, or a result of floats; where they begin is not known.
        let memory =
            |rows: usize, columns: usize| (128 * (2 * rows + 3 * columns)).max(4 * columns * (rows + 4)) + 1024;
        // The larger a tile is, the fewer times an element of either operand is read; small ones leave no part of the GPU idle.
        let [mut smallest, mut chosen] = [None; 2];
        for (rows, columns) in [(128, 256), (64, 256), (64, 128), (64, 64)] {
            let fits = memory(rows, columns) + MOST_TABLE <= granted && self.n.div_ceil(rows) <= MOST_BANDS;
            if fits && (columns == 64 || 2 * self.m > columns) {
                let groups = self.n.div_ceil(rows) * self.m.div_ceil(columns) * self.entries;
                smallest = Some((rows, columns));
                chosen = chosen.or(smallest.filter(|_| groups >= target.groups_at_once()));
            }
        }
        let (rows, columns) = chosen.or(smallest)?;
        Some(Way {
            text: vec![
                target.matrix(),
                target.pairs()?,
                group,
                include_str!("source/few_rows.h"),
                include_str!("source/wide_tile.h"),
            ],
            label: format!("wide{rows}_{columns}"),
            memory: format!(
                "  typedef tacit::WideTile<Weight, {kind}, {rows}, {columns}, 1> Tile;\n  static_assert(2 * Tile::MEMORY + 1024 <= {}, \
                 \"the launch asks for the tiles\");\n  TACIT_LAUNCH_ARRAY({kind}, tacit_memory, Tile::MEMORY);\n",
                memory(rows, columns)
            ),
            launched: memory(rows, columns),
            call: format!(
                "    const tacit::u32 row = at.x * {columns}, column = at.y * {rows};\n    if (aligned) Tile::multiply(w, \
                 rows, result, start, n, k, m, row, column, at, tacit_memory);\n    else \
                 tacit::multiply_unaligned<{rows}, {columns}>(w, rows, result, start, n, k, m, row, column, at, tacit_memory);\n"
            ),
            threads: 2 * rows,
            // Groups that run beside each other decode the same elements.
            groups: [self.m.div_ceil(columns), self.n.div_ceil(rows)],
        })
    }

    /// Tiles are decoded into the memory of a group.
    fn many(&self, kind: &str, target: Target) -> Way {
        let steps = usize::from(self.layout.k.is_multiple_of(8));
        let is_transposed = self.orientation == Orientation::Transposed;
        let (transposed, columns) = (usize::from(is_transposed), if is_transposed { self.n } else { self.layout.k });
        // The matrix units take weights in the type of x, as of a dense matrix. That is lost in a long sum and not in a short one.
        let tile = if self.is_in_halves(kind) && self.depth() >= LONG { "MatrixTile" } else { "ExactTile" };
        let tile_type = format!("tacit::{tile}<Weight, {kind}, {steps}, {transposed}>");
        let bands = self.m.div_ceil(64);
        // Where a grid is long enough there is no loop, which takes registers.
        let (turns, row) = if bands <= MOST_BANDS {
            (String::new(), "at.y * 64")
        } else {
            (format!("    for (tacit::u32 row = at.y * 64; row < m; row += {})\n", 64 * MOST_BANDS), "row")
        };
        let x = self.rows(row, 64);
        Way {
            text: vec![target.matrix(), include_str!("source/tiles.h")],
            label: format!("{}{transposed}_s{steps}", if tile == "ExactTile" { "exact" } else { "tile" }),
            memory: format!(
                "  typedef {tile_type} Tile;\n  TACIT_GROUP_ARRAY(float, tacit_memory, Tile::MEMORY);\n{}",
                self.room(64)
            ),
            launched: 0,
            call: format!(
                "{turns}      Tile::multiply(w, {x}, result, start, n, k, m, {row}, at.x * 64, at.id, tacit_memory, aligned);\n"
            ),
            threads: 128,
            groups: [columns.div_ceil(64), bands.min(MOST_BANDS)],
        }
    }
}
