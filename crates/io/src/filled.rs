//! Arrays whose elements are read when they are evaluated, such as those of a file.

use std::ptr;
use std::sync::Arc;

use mlx_rs::Array;
use tacit_bridge::kernel::{self, Input, Kernel, Output, Placement};
use tacit_bridge::{BoxError, Primitive, array_of_bytes};
use tacit_core::{Aval, Result, Value};

/// Writes the elements of arrays, which are there as bytes.
type Fill<const N: usize> = Box<dyn Fn([&mut [u8]; N]) + Send + Sync>;

struct Filled<const N: usize> {
    avals: [Aval; N],
    fill: Fill<N>,
}

/// Arrays of these avals whose elements `fill` writes where they stay, all at once, when one of them is evaluated; on the CPU,
/// wherever they are used.
pub(crate) fn filled<const N: usize>(
    avals: [Aval; N],
    fill: impl Fn([&mut [u8]; N]) + Send + Sync + 'static,
) -> Result<[Array; N]> {
    // A kernel says so of shapes alone.
    if let Some(wrong) = avals.iter().find(|aval| aval.shape.iter().any(|&extent| extent < 0)) {
        return Err(tacit_bridge::BridgeError::NegativeExtent(wrong.shape.clone()).into());
    }
    let arrays = placed(Arc::new(Filled { avals, fill: Box::new(fill) }))?;
    Ok(arrays.try_into().unwrap_or_else(|_| unreachable!("a kernel has as many results as it says")))
}

fn placed(kernel: Arc<dyn Kernel>) -> Result<Vec<Array>> {
    Ok(kernel::place(kernel, &[], Placement { host: true, ..Placement::default() })?.0)
}

/// The name of the kernel that fills arrays from a file.
const NAME: &str = "tacit::Read";

/// A reader, and the arrays of another node of it that nobody has taken yet.
type Reads = Vec<(Arc<dyn Kernel>, Vec<Array>)>;

/// The same value, which is read by itself: whoever evaluates it leaves the arrays of `value` as they are, to be read later. What
/// was read already, and what is not read, is the same array in both.
///
/// Arrays of one aval that are read together are told apart by their order, which is the same in the value and in the file's reader.
pub(crate) fn read_apart(value: &Value) -> Result<Value> {
    value_apart(value, &mut Vec::new())
}

fn value_apart(value: &Value, reads: &mut Reads) -> Result<Value> {
    match value {
        Value::Dense(array) => Ok(array_apart(array, reads)?.into()),
        Value::Implicit(array) => {
            let children = array.children().into_iter().map(|(_, child)| value_apart(&child, reads));
            let children = children.collect::<Result<_>>()?;
            Ok(array.with_children(children)?.into())
        }
    }
}

fn array_apart(array: &Array, reads: &mut Reads) -> Result<Array> {
    let kernel = Primitive::making(array)?.and_then(|primitive| primitive.shared_kernel());
    let Some(kernel) = kernel.filter(|kernel| kernel.name() == NAME) else { return Ok(array.clone()) };
    let known = reads.iter().position(|(other, _)| ptr::addr_eq(Arc::as_ptr(other), Arc::as_ptr(&kernel)));
    let at = if let Some(at) = known {
        at
    } else {
        let arrays = placed(Arc::clone(&kernel))?;
        reads.push((kernel, arrays));
        reads.len() - 1
    };
    let (aval, untaken) = (Aval::from(array), &mut reads[at].1);
    let index = untaken.iter().position(|other| Aval::from(other) == aval);
    Ok(index.map_or_else(|| array.clone(), |index| untaken.remove(index)))
}

impl<const N: usize> Kernel for Filled<N> {
    fn name(&self) -> &'static str {
        NAME
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
        let mut buffers = self.avals.each_ref().map(|aval| vec![0; aval.nbytes()]);
        (self.fill)(buffers.each_mut().map(Vec::as_mut_slice));
        self.avals.iter().zip(&buffers).map(|(aval, bytes)| Ok(array_of_bytes(bytes, aval)?)).collect()
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
        let avals = [
            Aval::new(&[3], Dtype::Uint8),
            Aval::new(&[1, 2], Dtype::Int8),
            Aval::new(&[2, 1], Dtype::Uint16),
            Aval::new(&[0, 2], Dtype::Float32),
        ];
        let fill = move |[first, second, wide, none]: [&mut [u8]; 4]| {
            counted.fetch_add(1, Ordering::Relaxed);
            first.copy_from_slice(&[1, 2, 3]);
            second.copy_from_slice(&[255, 4]);
            wide.copy_from_slice(&[1, 2, 3, 4]);
            assert!(none.is_empty());
        };
        let [first, second, wide, none] = filled(avals.clone(), fill.clone()).expect("fits");
        assert_eq!(calls.load(Ordering::Relaxed), 0);
        assert_eq!(second.as_slice::<i8>(), [-1, 4]);
        assert_eq!(first.as_slice::<u8>(), [1, 2, 3]);
        assert_eq!((wide.as_slice::<u16>(), none.shape()), (&[0x201, 0x403][..], &[0, 2][..]));
        assert_eq!(calls.load(Ordering::Relaxed), 1);
        // Where there is no CPU kernel, the same.
        let decomposed = Filled { avals: avals.clone(), fill: Box::new(fill) }.decompose(&[]).expect("fits");
        assert_eq!(decomposed.iter().map(Aval::from).collect::<Vec<_>>(), avals);
        assert_eq!(decomposed[1].as_slice::<i8>(), [-1, 4]);
        assert_eq!(decomposed[2].as_slice::<u16>(), [0x201, 0x403]);
        assert!(filled([Aval::new(&[-1], Dtype::Uint8)], |_| ()).is_err());
    }
}
