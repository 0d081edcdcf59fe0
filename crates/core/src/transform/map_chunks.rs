//! Functions of rows that are called with some of the rows at a time.

use std::rc::Rc;

use mlx_rs::Array;
use tacit_bridge::BoxError;

use super::again;
use super::opened::Opened;
use crate::tree::Arguments;
use crate::values::Values;
use crate::{Aval, Error, Result, Tree, Value};

/// Calls `f` with at most `rows` rows of `xs` at a time, and joins what it makes of them along axis 0: no more than one chunk
/// is in memory at a time, whichever way MLX would evaluate the calls.
///
/// `f` takes a chunk of every array of `xs`, `f32[rows,5]` of an `f32[1000,5]` (the last may have fewer), and `shared`, whole.
/// Each of its results has a row for each row of the chunk. A gradient keeps nothing of `f` but its results: it calls `f`
/// again, with a chunk after the other, as [`checkpoint`](super::checkpoint) does with all rows. Gradients of `shared` are
/// sums over the chunks, in `f32` where they are half floats.
///
/// `f` is intercepted in both passes: implicit arrays in `shared` meet their handlers. Those in `xs` are materialized, and
/// implicit results too. Call it on values: inside [`implicit`](crate::implicit()) implicit arrays are materialized.
///
/// Random numbers that `f` draws without a key are others for each chunk, and the same in both passes.
///
/// What `f` captures keeps its gradient, and all rows are then computed at once: pass it in `shared`.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::{Array, ops};
/// use tacit_core::transform::map_chunks;
///
/// let (x, w) = (ops::ones::<f32>(&[1000, 8])?, ops::ones::<f32>(&[4096, 8])?);
/// // Of the 1000 rows of 4096 scores no more than 64 are there at a time.
/// let most = map_chunks(&x, &w, 64, |x: Array, w: Array| x.matmul(w.t())?.max_axis(-1, None))?;
/// assert_eq!(most.dense()?.shape(), [1000]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// `xs` holds no array, a scalar, or arrays of different numbers of rows; `rows` is not positive; `f` fails, returns no
/// array, or one that does not have a row for each row of the chunk.
pub fn map_chunks<X, P, O, E>(
    xs: X,
    shared: P,
    rows: i32,
    f: impl Fn(X::Arrays, P::Arrays) -> Result<O, E> + 'static,
) -> Result<O::With<Value>>
where
    X: Arguments<Arrays: 'static>,
    P: Arguments<Arrays: 'static>,
    O: Tree + 'static,
    E: Into<Error> + 'static,
{
    if rows < 1 {
        return Err(Error::invalid(format!("chunks of {rows} rows"), "give a chunk at least one row"));
    }
    let (count, total) = {
        let sliced = Values::from_arguments(&xs)?;
        (sliced.values.len(), rows_of(&sliced)?)
    };
    let mut arguments = Values::from_arguments(&(&xs, &shared))?;
    drop((xs, shared));
    for value in arguments.values.iter_mut().take(count) {
        *value = value.dense()?.into();
    }
    let opened = Opened::from_values(&arguments)?;
    drop(arguments);
    let f = Rc::new(move |(xs, shared): (X::Arrays, P::Arrays)| f(xs, shared));
    again::put(&f, &opened, total, |body, leaves| {
        let chunk = move |arrays: &[Array]| -> Result<Vec<Array>, BoxError> {
            let result = body(arrays)?;
            check_rows(&result, arrays[0].dim(0))?;
            Ok(result)
        };
        // Keys come first, and have a row for each row.
        let sliced = count + leaves.len() - opened.leaves.len();
        tacit_bridge::in_chunks(chunk, leaves, sliced, rows.min(total.max(1)))
    })
}

fn rows_of(xs: &Values) -> Result<i32> {
    let mut known = None;
    for (value, path) in xs.values.iter().zip(xs.def.paths()) {
        let path = format!("xs at {}", path.shown());
        let Some(rows) = value.aval()?.shape.first().copied() else {
            let help = "give it an axis 0 of rows, or pass it in `shared`";
            return Err(Error::invalid(format!("{path} is {value}, which has no rows"), help));
        };
        match &known {
            Some((others, other)) if *others != rows => {
                let help = "give every array of `xs` the same number of rows, and pass others in `shared`";
                return Err(Error::invalid(format!("{path} is {value}, and {other} has {others} rows"), help));
            }
            _ => known = Some((rows, path)),
        }
    }
    let help = "give what has rows as `xs`, and what each chunk takes whole as `shared`";
    known.map(|(rows, _)| rows).ok_or_else(|| Error::invalid("`xs` holds no array", help))
}

fn check_rows(results: &[Array], rows: i32) -> Result<()> {
    let Some(other) = results.iter().find(|result| result.shape().first() != Some(&rows)) else { return Ok(()) };
    Err(Error::invalid(
        format!("the function of `map_chunks` made {} of a chunk of {rows} rows", Aval::from(other)),
        "return arrays with a row for each row of the chunk; sum them outside",
    ))
}
