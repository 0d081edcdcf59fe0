//! How the children of a format are split into pieces that are computed one at a time.

use tacit_core::Aval;
use tacit_core::kernel::Pieces;
use tacit_kernels::KernelError;

use super::host::Fallible;
use super::{Layout, Scaling, Scheme};

/// Blocks beyond which a piece fits no cache.
const MOST: usize = 1 << 20;

/// Elements after which a block and an element of the array of codes end.
#[derive(Clone, Copy)]
pub(super) struct Unit {
    pub(super) elements: usize,
    /// The bytes of their codes.
    pub(super) codes: usize,
    blocks: usize,
}

impl Unit {
    /// The unit of a format in such blocks; none where they are too long.
    pub(super) fn new(scheme: &Scheme, block: usize) -> Option<Self> {
        let (bits, width) = (scheme.bits(), scheme.width());
        let block = if scheme.is_scaled() { block } else { 1 };
        if block == 0 || block > MOST {
            return None;
        }
        let elements = Pieces::common_unit(block, Pieces::common_unit(bits, width) / bits);
        Some(Self { elements, codes: elements * bits / 8, blocks: elements / block })
    }

    /// The bytes of an array with a number for each element.
    pub(super) fn element_bytes(self, aval: &Aval) -> usize {
        self.elements * aval.item_size()
    }

    /// The bytes of an array with a number for each block.
    pub(super) fn numbers(self, aval: &Aval) -> usize {
        self.blocks * aval.item_size()
    }

    /// The units of the children of a layout, as [pieces](tacit_core::kernel::Pieces) have them; none where scales have
    /// blocks of their own.
    pub(super) fn children(self, layout: &Layout, children: &[Aval]) -> Option<Vec<Option<usize>>> {
        let of_array = match layout.scheme.scaling {
            Scaling::Nested { .. } | Scaling::Integers { .. } => return None,
            // The factor of all scales.
            Scaling::E4m3 => 2,
            Scaling::One | Scaling::Float | Scaling::E8m0 => children.len(),
        };
        let bytes = |(at, child): (usize, &Aval)| match at {
            0 => Some(self.codes),
            at => (at < of_array).then(|| self.numbers(child)),
        };
        Some(children.iter().enumerate().map(bytes).collect())
    }
}

impl Layout {
    pub(super) fn of_piece(self, elements: usize) -> Self {
        Self { n: 1, k: elements, ..self }
    }
}

/// What came of elements of which so many others lie before, whose errors count from the first of all.
pub(super) fn counted(before: usize, result: Result<(), KernelError>) -> Fallible<()> {
    Ok(result.map_err(|mut error| {
        if let Some(index) = error.element() {
            *index += before;
        }
        error
    })?)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use mlx_rs::{Array, Dtype, random};
    use tacit_core::kernel::Kernel;
    use tacit_core::pass::{Plan, PlanBuilder, PlanValue, Threads};
    use tacit_core::{Result, tree};
    use tacit_kernels::threads;

    use super::super::added::AddDense;
    use super::super::dequantize::Dequantize;
    use super::super::draw::Draw;
    use super::super::encode_by::EncodeBy;
    use super::super::quantize::Quantize;
    use super::super::tests::{normal, schemes};
    use super::*;
    use crate::kernel::quantize;

    /// What a format's kernels make of an array and of codes, with what they take.
    fn plan(builder: PlanBuilder, layout: Layout, inputs: &[Array]) -> Plan {
        let (mut plan, Layout { scheme, block, .. }) = (builder, layout);
        let inputs: Vec<PlanValue> = inputs.iter().map(|input| plan.input(Aval::from(input))).collect();
        let [x, factor, key, children @ ..] = &inputs[..] else { panic!("an array, a factor, a key and codes") };
        let moved = [&[*x, *factor], children].concat();
        let moved = plan.stage(Arc::new(AddDense { layout, scaled: true }), &moved).expect("a stage")[0];
        let mut results = plan.stage(Arc::new(Quantize::new(scheme, block)), &[moved]).expect("a stage");
        if scheme.is_scaled() {
            let by = [&[moved], &children[1..]].concat();
            results.extend(plan.stage(Arc::new(EncodeBy { scheme, block }), &by).expect("a stage"));
            // Of numbers that are floats.
            if scheme.scaling == Scaling::Float {
                let drawn = [&[moved, *key], &children[1..]].concat();
                results.extend(plan.stage(Arc::new(Draw { scheme, block }), &drawn).expect("a stage"));
            }
        }
        let dtype = Dtype::Bfloat16;
        let dense = plan.stage(Arc::new(Dequantize { layout, dtype }), children).expect("a stage")[0];
        let twice = [&[dense], children].concat();
        results.extend(plan.stage(Arc::new(AddDense { layout, scaled: false }), &twice).expect("a stage"));
        plan.finish(&results).expect("a plan")
    }

    /// A builder whose stages run in pieces.
    fn builder() -> PlanBuilder {
        PlanBuilder::default().in_pieces(Threads { count: threads::count, run: threads::for_each_on })
    }

    fn evaluated(plan: Plan, inputs: &[Array]) -> Result<Vec<Array>> {
        let result = plan.apply(inputs).expect("a node");
        tree::eval(&result)?;
        Ok(result)
    }

    fn inputs(layout: &Layout, x: Array) -> Vec<Array> {
        let Layout { scheme, block, k, .. } = *layout;
        let children = quantize(scheme, block, &[normal(2, &[k as i32])]).expect("quantizes");
        [x, Array::from_f32(0.9), random::key(5).expect("a key")].into_iter().chain(children).collect()
    }

    #[test]
    fn pieces_give_the_bits_of_the_whole() {
        for (scheme, block, _) in schemes() {
            let sizes = if scheme.is_grouped() { &[32, 4096, 4128, 40_032][..] } else { &[1, 255, 256, 257, 40_001] };
            for &size in sizes {
                let layout = Layout { scheme, n: 1, k: size as usize, block };
                let inputs = inputs(&layout, normal(1, &[1, size]));
                let whole = evaluated(plan(PlanBuilder::default(), layout, &inputs), &inputs).expect("it runs");
                for count in [1, 2] {
                    let found = threads::with_count(count, || {
                        let plan = plan(builder(), layout, &inputs);
                        assert_eq!(plan.pieced(), plan.stages().len(), "{} of {size}", scheme.label);
                        evaluated(plan, &inputs).expect("it runs")
                    });
                    for (found, whole) in found.iter().zip(&whole) {
                        assert!(found.eq_exact(whole).expect("compares"), "{} of {size} on {count}", scheme.label);
                    }
                }
            }
        }
    }

    #[test]
    fn what_has_no_code_is_named_as_ever() {
        let int8 = |(scheme, ..): &(Scheme, usize, f64)| scheme.label == "int8";
        let (scheme, block, _) = schemes().into_iter().find(int8).expect("a format");
        let layout = Layout { scheme, n: 1, k: 40_001, block };
        let mut numbers = vec![1.0_f32; 40_001];
        (numbers[30_007], numbers[40_000]) = (f32::NAN, f32::INFINITY);
        let inputs = inputs(&layout, Array::from_slice(&numbers, &[1, 40_001]));
        for builder in [PlanBuilder::default(), builder()] {
            let error = evaluated(plan(builder, layout, &inputs), &inputs).expect_err("it has no code").to_string();
            assert!(error.contains("kernel Int8Quantize failed: element 30007 is NaN"), "{error}");
        }
    }

    /// The codes of a sum, by the scales of codes that are there, and at random where there is a key.
    fn codes(builder: PlanBuilder, layout: Layout, inputs: &[Array], by_key: bool) -> Plan {
        let (mut plan, Layout { scheme, block, .. }) = (builder, layout);
        let inputs: Vec<PlanValue> = inputs.iter().map(|input| plan.input(Aval::from(input))).collect();
        let [x, factor, key, children @ ..] = &inputs[..] else { panic!("an array, a factor, a key and codes") };
        let moved = [&[*x, *factor], children].concat();
        let moved = plan.stage(Arc::new(AddDense { layout, scaled: true }), &moved).expect("a stage")[0];
        let result = if by_key {
            plan.stage(Arc::new(Draw { scheme, block }), &[&[moved, *key], &children[1..]].concat())
        } else {
            plan.stage(Arc::new(EncodeBy { scheme, block }), &[&[moved], &children[1..]].concat())
        };
        plan.finish(&result.expect("a stage")).expect("a plan")
    }

    #[test]
    fn what_has_no_code_by_other_scales_or_by_a_key_is_named_as_ever() {
        for (scheme, block, _) in schemes().into_iter().filter(|(scheme, ..)| scheme.scaling == Scaling::Float) {
            let size = if scheme.is_grouped() { 40_032 } else { 40_001 };
            let layout = Layout { scheme, n: 1, k: size, block };
            let mut numbers = vec![1.0_f32; size];
            (numbers[30_007], numbers[40_000]) = (f32::NAN, f32::INFINITY);
            let inputs = inputs(&layout, Array::from_slice(&numbers, &[1, size as i32]));
            for (by_key, name) in [(false, EncodeBy { scheme, block }.name()), (true, Draw { scheme, block }.name())] {
                for builder in [PlanBuilder::default(), builder()] {
                    let plan = codes(builder, layout, &inputs, by_key);
                    let error = evaluated(plan, &inputs).expect_err("it has no code").to_string();
                    assert!(error.contains(&format!("kernel {name} failed: element 30007 is NaN")), "{error}");
                }
            }
        }
    }
}
