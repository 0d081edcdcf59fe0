//! The cases that are drawn for a handler: shapes, dtypes, layouts.

use mlx_rs::{Array, Dtype, ops};
use proptest::sample::select;
use proptest::strategy::Strategy;
use tacit_core::Aval;

use crate::shape::Shapes;
use crate::subject::normal;

/// One case. Everything in a call follows from it.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    /// What the subject stands for.
    pub(crate) aval: Aval,
    /// The dtype of dense operands.
    pub(crate) dense: Dtype,
    /// The free extent of dense operands.
    pub(crate) m: i32,
    /// How dense operands lie in memory.
    pub(crate) layout: Layout,
    pub(crate) seed: u64,
}

/// How a dense operand lies in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    Rows,
    /// A view of the array with its last two axes the other way round.
    Columns,
    /// Every other column of a wider array.
    Strided,
    /// One slice along the first axis, broadcast.
    Broadcast,
}

impl Case {
    /// The case that every primitive begins with: f32 and plain shapes.
    pub(crate) fn plain(shapes: &Shapes) -> Self {
        Self::rows(&Aval::new(&shapes.plain(), shapes.dtypes[0]))
    }

    /// Plain rows beside a subject of this aval.
    pub(crate) fn rows(aval: &Aval) -> Self {
        Self { dense: aval.dtype, aval: aval.clone(), m: 3, layout: Layout::Rows, seed: 0 }
    }

    /// Normal numbers in the layout of the case.
    pub(crate) fn array(&self, shape: &[i32], salt: u64) -> Array {
        let seed = self.seed.wrapping_mul(64).wrapping_add(salt + 1);
        let mut stored = shape.to_vec();
        let (rank, layout) = (shape.len(), self.layout);
        let viewed = match layout {
            Layout::Columns if rank >= 2 => {
                stored.swap(rank - 1, rank - 2);
                normal(seed, &stored, self.dense).swap_axes(-1, -2)
            }
            Layout::Strided if rank >= 1 => {
                stored[rank - 1] *= 2;
                let wide = normal(seed, &stored, self.dense);
                let steps: Vec<i64> =
                    (0..rank).map(|axis| stored[axis + 1..].iter().map(|&n| i64::from(n)).product()).collect();
                let steps: Vec<i64> =
                    steps.iter().enumerate().map(|(axis, &step)| if axis == rank - 1 { 2 } else { step }).collect();
                ops::as_strided(&wide, shape, &steps, 0)
            }
            Layout::Broadcast if rank >= 2 => {
                stored[0] = 1;
                ops::broadcast_to(normal(seed, &stored, self.dense), shape)
            }
            _ => Ok(normal(seed, &stored, self.dense)),
        };
        let viewed = viewed.expect("a view of the array that was made for it");
        viewed.eval().expect("evaluates");
        viewed
    }
}

/// Cases of these shapes; they shrink to few axes, few elements and f32.
pub(crate) fn cases(shapes: &Shapes) -> impl Strategy<Value = Case> + use<> {
    let shapes = shapes.clone();
    let ranks: Vec<usize> =
        shapes.ranks.iter().flat_map(|&rank| std::iter::repeat_n(rank, if rank == 2 { 4 } else { 1 })).collect();
    let (rows, columns) = shapes.units();
    let batch = || select(vec![1, 2, 3]);
    let layouts = vec![Layout::Rows, Layout::Columns, Layout::Strided, Layout::Broadcast];
    let dtypes = shapes.dtypes.clone();
    let sizes = (select(ranks), batch(), batch(), select(rows), select(columns), select(vec![1, 2, 3, 5, 8, 17, 33]));
    let forms = (select(dtypes.clone()), proptest::bool::weighted(0.2), select(dtypes), select(layouts), 0..64_u64);
    (sizes, forms).prop_map(move |((rank, first, second, rows, columns, m), (dtype, mixed, other, layout, seed))| {
        Case {
            aval: Aval::new(&shapes.shape(&[first, second], rank, (rows, columns)), dtype),
            dense: if mixed { other } else { dtype },
            m,
            layout,
            seed: seed + 1,
        }
    })
}
