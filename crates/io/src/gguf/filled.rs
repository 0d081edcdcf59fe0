//! Arrays that are read when they are evaluated, as those are that lie in a file.

use std::sync::Arc;

use mlx_rs::Array;
use tacit_bridge::kernel::{self, Input, Kernel, Output};
use tacit_bridge::{BoxError, Buffer};
use tacit_core::{Aval, Result};

/// Writes the elements of arrays, which are there as bytes.
type Fill<const N: usize> = Box<dyn Fn([&mut [u8]; N]) + Send + Sync>;

struct Filled<const N: usize> {
    avals: [Aval; N],
    fill: Fill<N>,
}

/// Arrays of these avals whose elements `fill` writes where they stay, all at once, when one of them is evaluated.
pub(super) fn filled<const N: usize>(
    avals: [Aval; N],
    fill: impl Fn([&mut [u8]; N]) + Send + Sync + 'static,
) -> Result<[Array; N]> {
    // A kernel says so of shapes alone.
    if let Some(wrong) = avals.iter().find(|aval| aval.shape.iter().any(|&extent| extent < 0)) {
        return Err(tacit_bridge::BridgeError::NegativeExtent(wrong.shape.clone()).into());
    }
    let arrays = kernel::apply(Arc::new(Filled { avals, fill: Box::new(fill) }), &[])?;
    Ok(arrays.try_into().unwrap_or_else(|_| unreachable!("a kernel has as many results as it says")))
}

impl<const N: usize> Kernel for Filled<N> {
    fn name(&self) -> &'static str {
        "tacit::Read"
    }

    fn output_avals(&self, _inputs: &[Aval]) -> Result<Vec<Aval>, BoxError> {
        Ok(self.avals.to_vec())
    }

    fn eval_cpu(&self, _inputs: &[Input<'_>], outputs: &mut [Output<'_>]) -> Result<(), BoxError> {
        let outputs: &mut [Output<'_>; N] = outputs.try_into()?;
        (self.fill)(outputs.each_mut().map(Output::bytes));
        Ok(())
    }

    fn decompose(&self, _inputs: &[Array]) -> Result<Vec<Array>, BoxError> {
        let mut buffers = self.avals.iter().map(Buffer::new).collect::<Result<Vec<_>, _>>()?;
        let all: &mut [Buffer; N] = buffers.as_mut_slice().try_into()?;
        (self.fill)(all.each_mut().map(Buffer::bytes));
        Ok(buffers.into_iter().map(Buffer::into_array).collect())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use mlx_rs::Dtype;

    use super::*;

    #[test]
    fn arrays_are_read_together_and_once() {
        let calls = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&calls);
        let avals = [Aval::new(&[3], Dtype::Uint8), Aval::new(&[1, 2], Dtype::Int8)];
        let fill = move |[first, second]: [&mut [u8]; 2]| {
            counted.fetch_add(1, Ordering::Relaxed);
            first.copy_from_slice(&[1, 2, 3]);
            second.copy_from_slice(&[255, 4]);
        };
        let [first, second] = filled(avals.clone(), fill.clone()).expect("fits");
        assert_eq!(calls.load(Ordering::Relaxed), 0);
        assert_eq!(second.as_slice::<i8>(), [-1, 4]);
        assert_eq!(first.as_slice::<u8>(), [1, 2, 3]);
        assert_eq!(calls.load(Ordering::Relaxed), 1);
        // Where there is no CPU kernel, the same.
        let decomposed = Filled { avals, fill: Box::new(fill) }.decompose(&[]).expect("fits");
        assert_eq!(decomposed[1].as_slice::<i8>(), [-1, 4]);
        assert!(filled([Aval::new(&[-1], Dtype::Uint8)], |_| ()).is_err());
    }
}
