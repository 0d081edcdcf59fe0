//! The shapes and dtypes that a subject can stand for, found by trying.

use mlx_rs::Dtype;
use tacit_core::Aval;

use crate::subject::Subject;

/// What a subject asks of a shape: groups of elements, square matrices, a number of axes.
#[derive(Clone, Debug)]
pub(crate) struct Shapes {
    /// What the next to last extent is a multiple of.
    rows: i32,
    /// What the last extent is a multiple of.
    columns: i32,
    square: bool,
    /// The possible numbers of axes, two first where it is possible.
    pub(crate) ranks: Vec<usize>,
    pub(crate) dtypes: Vec<Dtype>,
}

/// Shapes in multiples of what the subject asks for, by which it is known.
const PROBES: [(i32, i32); 4] = [(1, 1), (3, 5), (2, 3), (17, 1)];

const FLOATS: [Dtype; 3] = [Dtype::Float32, Dtype::Bfloat16, Dtype::Float16];

impl Shapes {
    /// The least demanding shapes of which the subject takes all.
    pub(crate) fn find(subject: &Subject) -> Result<Self, String> {
        let multiples = [1, 2, 4, 8, 16, 32, 64, 128];
        let rectangles = multiples.into_iter().flat_map(|n| [(1, n, false), (n, 1, false), (n, n, false)]);
        let squares = multiples.into_iter().map(|n| (n, n, true));
        for (rows, columns, square) in rectangles.chain(squares) {
            for dtype in FLOATS {
                let mut shapes = Self { rows, columns, square, ranks: vec![2, 3, 1, 4], dtypes: FLOATS.to_vec() };
                let takes = |shapes: &Self, rank, dtype| {
                    PROBES.iter().all(|&units| {
                        let shape = shapes.shape(&[2, 3], rank, units);
                        subject.stands_for(&Aval::new(&shape, dtype))
                    })
                };
                let ranks = shapes.ranks.clone().into_iter().filter(|&rank| takes(&shapes, rank, dtype)).collect();
                shapes.ranks = ranks;
                let Some(&rank) = shapes.ranks.first() else { continue };
                shapes.dtypes = FLOATS.into_iter().filter(|&dtype| takes(&shapes, rank, dtype)).collect();
                return Ok(shapes);
            }
        }
        Err(format!("{} stands for no float array of 1 to 4 axes that was tried", subject.name()))
    }

    /// A shape of this number of axes; `units` counts the last two extents, and `batch` are those before.
    pub(crate) fn shape(&self, batch: &[i32], rank: usize, units: (i32, i32)) -> Vec<i32> {
        let columns = units.1 * self.columns;
        let rows = if self.square { columns } else { units.0 * self.rows };
        match rank {
            0 | 1 => vec![columns],
            _ => [&batch[..rank - 2], &[rows, columns]].concat(),
        }
    }

    /// What the next to last and the last extent are multiples of.
    pub(crate) fn multiples(&self) -> (i32, i32) {
        (self.rows, self.columns)
    }

    /// Numbers of units for the next to last and the last extent, so that extents stay about 33 or a few groups.
    pub(crate) fn units(&self) -> (Vec<i32>, Vec<i32>) {
        let counts = |multiple: i32| match multiple {
            1 => vec![1, 2, 3, 5, 8, 17, 33],
            2..8 => vec![1, 2, 3, 5],
            _ => vec![1, 2, 3],
        };
        (counts(self.rows), counts(self.columns))
    }

    /// A plain shape: two axes where that is possible, neither of them one group alone.
    pub(crate) fn plain(&self) -> Vec<i32> {
        self.shape(&[2, 3], self.ranks[0], (if self.rows == 1 { 6 } else { 2 }, if self.columns == 1 { 10 } else { 2 }))
    }

    /// A shape whose last axis, or the one before it, has about this extent; of squares both have some of it.
    pub(crate) fn long(&self, extent: i32, last: bool) -> Vec<i32> {
        // More than one tile of any kernel, and not a whole number of them.
        let short = |multiple: i32| if multiple < 16 { 20 / multiple } else { 2 };
        let units = match (self.square, last) {
            (true, _) => (0, extent / 4 / self.columns),
            (false, true) => (short(self.rows), extent / self.columns),
            (false, false) => (extent / self.rows, short(self.columns)),
        };
        self.shape(&[2, 3], self.ranks[0], units)
    }

    /// A shape of about these extents.
    pub(crate) fn large(&self, rows: i32, columns: i32) -> Vec<i32> {
        self.shape(&[2, 3], self.ranks[0], (rows / self.rows, columns / self.columns))
    }
}
