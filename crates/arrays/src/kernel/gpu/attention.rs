//! Attention over stored keys and values, on a GPU.

use std::fmt::Write as _;

use mlx_rs::Dtype;
use tacit_core::Aval;
use tacit_kernels::gcd;

use super::matrices::{Sequence, table};
use super::source::{Parts, Target, float, size};
use super::weight::{Called, Weight, short};
use crate::avals::axes::{extent, strides};
use crate::kernel::{Attend, Hiding, Layout};

/// The most rows of queries for which each warp goes through tokens by itself.
const FEW: usize = 32;

/// Columns of a key or a value that the registers and the memory of a group have room for.
const MOST_COLUMNS: usize = 512;

/// More columns than this leave room for half as many rows, and for a fourth where memory is short.
const MANY_COLUMNS: usize = 256;

/// Bytes that four rows of up to 512 columns need, with a table of 256 values for keys and one for values.
const FOUR_ROWS: usize = 33024;

/// Groups along any but the first axis of a grid: CUDA has not many more there.
const MOST_BLOCKS: usize = 32768;

const KEYS: Called = Called { kind: "Keys", variable: "keys", prefix: "keys_", is_fixed: true };
const VALUES: Called = Called { kind: "Values", variable: "values", prefix: "values_", is_fixed: true };

/// The launch of [`Attend`], of the queries, the mask and the children.
///
/// None where there is nothing to compute, where the kernel of a CPU would refuse the inputs, and of keys or values of more than 512
/// columns: no group has room for them.
pub(crate) fn attention(attend: &Attend, inputs: &[Aval], target: Target) -> Option<Parts> {
    let (q, rest) = inputs.split_first()?;
    let (mask, rest) = rest.split_at_checked(attend.hiding.as_ref().map_or(0, Hiding::inputs))?;
    let (keys, values) = rest.split_at_checked(attend.keys.children)?;
    let (tokens, entries) = (attend.groups.rows, attend.groups.matrices.len());
    let [head, width] = [attend.keys.layout.k, attend.values.layout.k];
    let each = (*q.shape.first()? as usize).checked_div(entries)?;
    let empty = [tokens, head, width, each].contains(&0);
    if empty || head.max(width) > MOST_COLUMNS {
        return None;
    }
    // A GPU would read beyond them.
    let is_there = |layout: &Layout| {
        let matrices = layout.n / tokens;
        layout.n == matrices * tokens && attend.groups.matrices.iter().all(|&matrix| matrix < matrices)
    };
    let fits = q.shape.last() == Some(&(head as i32)) && q.size() == entries * each * head;
    if !fits || ![&attend.keys, &attend.values].iter().all(|side| is_there(&side.layout)) {
        return None;
    }
    let (kind, out) = (float(q.dtype)?, float(q.dtype)?);
    let keys = Weight::called(KEYS, &attend.keys.layout, keys)?;
    let values = Weight::called(VALUES, &attend.values.layout, values)?;
    let sharing = Sharing::from_matrices(&attend.groups.matrices);
    let rows = sharing.entries * each;
    let masks = Masks::new(attend.hiding.as_ref(), mask)?;
    let groups = entries / sharing.entries;
    let way = Way::new([groups, rows], head.max(width), target);
    let blocks = rows.div_ceil(way.rows);
    if blocks > MOST_BLOCKS {
        return None;
    }
    let mut names = vec!["q".to_owned()];
    names.extend(masks.names.iter().map(|&name| name.to_owned()));
    names.extend(keys.inputs);
    names.extend(values.inputs);
    let mut body = format!("  enum {{ THREADS = {} }};\n", way.threads);
    let _ = write!(
        body,
        "  typedef tacit::{}<Keys, Values, {head}, {width}, {}{}> Way;\n  static_assert(4 * Way::MEMORY + {} <= {}, \"no group has as \
         much memory\");\n  TACIT_GROUP_ARRAY(float, tacit_memory, Way::MEMORY);\n",
        way.name,
        way.sizes,
        masks.kind,
        keys.table + values.table,
        target.memory()
    );
    body += &keys.bind;
    body += &values.bind;
    body += &masks.bind;
    let _ = write!(
        body,
        "  const tacit::u32 tokens = sizes_shape[0], each = sizes_shape[1], rows = sizes_shape[2];\n  const tacit::u32 entry = at.x * \
         (rows / each);\n  const tacit::u64 first = (tacit::u64)at.x * rows;\n  Way::attend<Places>(keys, values, (const TACIT_DEVICE \
         {kind}*)q + first * {head}, (TACIT_DEVICE {out}*)out + first * {width},\n    hiding, sizes_shape[5], entry, each, at.y * {}, \
         rows, (tacit::u64){} * tokens, tokens, at, tacit_memory);\n",
        way.rows, sharing.matrix
    );
    let [first, count] = sharing.sequence;
    let sizes = [tokens, each, rows, masks.row, masks.column, masks.whole, first, count];
    Some(Parts {
        label: format!("attention_{}_{}_{}_{}", keys.label, values.label, short(q.dtype), way.label),
        common: [vec![include_str!("source/attend.h")], way.text].concat(),
        description: [keys.text, values.text, sharing.table, masks.places].concat(),
        body,
        inputs: names,
        outputs: vec!["out".to_owned()],
        sizes: sizes.into_iter().map(size).collect::<Option<_>>()?,
        groups: [groups, blocks, 1],
        threads: way.threads,
        memory: 0,
        target,
    })
}

/// Neighboring entries that attend to the same matrix: their keys and values are decoded once.
struct Sharing {
    /// How many entries share one everywhere.
    entries: usize,
    /// The number of the matrix of group `at.x`.
    matrix: &'static str,
    /// The first matrix and how many follow each other, where they do.
    sequence: [usize; 2],
    table: String,
}

impl Sharing {
    fn from_matrices(matrices: &[usize]) -> Self {
        let runs = matrices.chunk_by(|a, b| a == b).map(<[usize]>::len);
        let entries = runs.fold(0, gcd);
        let of_groups: Vec<usize> = matrices.iter().copied().step_by(entries.max(1)).collect();
        match Sequence::from_numbers(&of_groups) {
            Some(Sequence { first, each: 1, count }) => {
                let matrix = "((tacit::u32)sizes_shape[6] + at.x % (tacit::u32)sizes_shape[7])";
                Self { entries, matrix, sequence: [first, count], table: String::new() }
            }
            _ => Self { entries, matrix: "tacit_matrices[at.x]", sequence: [0; 2], table: table(&of_groups) },
        }
    }
}

/// A mask as the text has it.
struct Masks {
    kind: &'static str,
    names: &'static [&'static str],
    bind: String,
    /// Which mask is that of an entry.
    places: String,
    /// From one query, token and mask to the next.
    row: usize,
    column: usize,
    whole: usize,
}

impl Masks {
    fn new(hiding: Option<&Hiding>, inputs: &[Aval]) -> Option<Self> {
        let (kind, element, names): (_, _, &[&str]) = match (hiding, inputs) {
            (None, _) => ("tacit::NO_MASK", "tacit::u8", &[]),
            (Some(_), [added]) => ("tacit::ADDED_MASK", float(added.dtype)?, &["mask"]),
            (Some(_), [visible, hidden]) if (visible.dtype, hidden.dtype) == (Dtype::Bool, Dtype::Float32) => {
                ("tacit::VISIBLE_MASK", "tacit::u8", &["mask", "hidden"])
            }
            _ => return None,
        };
        let mut place = "0".to_owned();
        let (mut row, mut column, mut whole) = (0, 0, 0);
        if let Some(Hiding { shape, scores, .. }) = hiding {
            let places = extent(shape);
            let [mask, scalars @ ..] = inputs else { return None };
            if mask.size() != places || scalars.iter().any(|hidden| hidden.size() == 0) {
                return None;
            }
            let (batch, [queries, tokens]) = shape.split_last_chunk()?;
            [row, column, whole] = [*tokens, 1, queries * tokens].map(|stride| stride as usize);
            row *= usize::from(*queries != 1);
            column *= usize::from(*tokens != 1);
            let steps = strides(batch);
            for axis in (0..batch.len()).rev().filter(|&axis| batch[axis] != 1) {
                let inner: i32 = scores[axis + 1..batch.len()].iter().product();
                let _ = write!(place, " + entry / {inner} % {} * {}", batch[axis], steps[axis]);
            }
            // Every place of the mask is counted in 32 bits.
            size(places)?;
        }
        let values = names.first().copied().unwrap_or("0");
        let hidden = if names.len() == 2 { "hidden[0]" } else { "0.0f" };
        let bind = format!(
            "  tacit::Hiding<const TACIT_DEVICE {element}*> hiding;\n  hiding.values = (const TACIT_DEVICE {element}*){values};\n  \
             hiding.hidden = {hidden};\n  hiding.row = sizes_shape[3];\n  hiding.column = sizes_shape[4];\n"
        );
        let places = format!(
            "struct Places {{\n  static TACIT_FN tacit::u32 of(tacit::u32 entry) {{ (void)entry; return {place}; }}\n}};\n"
        );
        Some(Self { kind, names, bind, places, row, column, whole })
    }
}

/// How a group computes its rows.
struct Way {
    text: Vec<&'static str>,
    name: &'static str,
    label: String,
    /// Sizes, as arguments.
    sizes: String,
    threads: usize,
    /// Rows of queries of a group.
    rows: usize,
}

impl Way {
    /// For so many groups of rows that share keys and values.
    fn new([groups, rows]: [usize; 2], columns: usize, target: Target) -> Self {
        if rows <= FEW {
            // Where a GPU would be idle otherwise, keys and values are decoded several times, beside each other.
            let most = if columns <= MANY_COLUMNS {
                8
            } else if target.memory() >= FOUR_ROWS {
                4
            } else {
                2
            };
            let wanted = (groups * rows / target.groups_at_once()).clamp(1, rows).min(most);
            let rows = 1 << wanted.ilog2();
            let warps = if rows == 1 && columns <= MANY_COLUMNS { 16 } else { 8 };
            return Self {
                text: vec![
                    include_str!("source/rows.h"),
                    include_str!("source/few_rows.h"),
                    include_str!("source/few_queries.h"),
                ],
                name: "FewQueries",
                label: format!("few{rows}"),
                sizes: format!("{rows}, {warps}, "),
                threads: warps * 32,
                rows,
            };
        }
        Self {
            text: vec![
                target.matrix(),
                include_str!("source/rows.h"),
                include_str!("source/tiles.h"),
                include_str!("source/exact_queries.h"),
            ],
            name: "ExactQueries",
            label: "exact".to_owned(),
            sizes: String::new(),
            threads: 128,
            rows: 32,
        }
    }
}
