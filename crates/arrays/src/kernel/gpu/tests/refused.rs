//! Operands that the CPU's kernels refuse: there is no GPU source for them, which would read out of bounds, and
//! decompositions refuse them too.

use mlx_rs::{Array, Dtype};
use tacit_core::Aval;
use tacit_core::kernel::Kernel;
use tacit_kernels::Orientation;

use super::normal;
use crate::format::Nf4;
use crate::kernel::gather_matmul::GatherMatmul;
use crate::kernel::gpu::checks::avals;
use crate::kernel::gpu::source::Target;
use crate::kernel::gpu::{dequantize, gather_matmul, gather_rows, grouped_matmul, matmul};
use crate::kernel::matmul::Matmul;
use crate::kernel::tests::{Case, case, cases};
use crate::kernel::{Groups, StackLayout};

const TRANSPOSED: Orientation = Orientation::Transposed;

#[test]
fn children_of_other_lengths_and_dtypes_have_no_source() {
    for Case { layout, children } in cases() {
        let (children, label) = (avals(&children), layout.scheme.label);
        let has_source = |children: &[Aval]| dequantize(&layout, children, Dtype::Float32, Target::Host).is_some();
        assert!(has_source(&children), "{label}");
        for (at, child) in children.iter().enumerate() {
            let size = child.size() as i32;
            for wrong in [Aval::new(&[size - 1], child.dtype), Aval::new(&[size], Dtype::Int64)] {
                let mut changed = children.clone();
                changed[at] = wrong;
                assert!(!has_source(&changed), "{label}: {changed:?}");
            }
        }
    }
}

#[test]
fn products_with_what_is_not_there_have_no_source() {
    let Case { layout, children } = case(&Nf4::from(32), 6, 64);
    let children = avals(&children);
    let x = |shape: &[i32]| Aval::new(shape, Dtype::Float32);
    let with_children = |own: &[Aval]| [own, &children].concat();
    let only =
        |shape: &[i32], orientation| matmul(&layout, orientation, &with_children(&[x(shape)]), Target::Host).is_some();
    assert!(only(&[1, 64], TRANSPOSED) && only(&[1, 6], Orientation::Plain) && only(&[2, 3, 64], TRANSPOSED));
    assert!(!only(&[1, 7], TRANSPOSED) && !only(&[1, 64], Orientation::Plain) && !only(&[], TRANSPOSED));
    let grouped = |rows, matrices: &[usize]| {
        let groups = Groups { matrices: matrices.to_vec(), rows };
        grouped_matmul(&layout, TRANSPOSED, &groups, &with_children(&[x(&[2, 1, 64])]), Target::Host).is_some()
    };
    assert!(grouped(2, &[2, 0]) && grouped(2, &[1]));
    assert!(!grouped(2, &[9, 0]) && !grouped(4, &[0, 0]) && !grouped(2, &[0, 1, 2]));
    let stack = StackLayout { rows: layout, count: 3, orientation: TRANSPOSED };
    let indices = |count| Aval::new(&[count], Dtype::Uint32);
    let gathered = |own: [Aval; 3]| gather_matmul(&stack, &with_children(&own), Target::Host).is_some();
    assert!(gathered([x(&[2, 1, 64]), indices(5), indices(5)]));
    assert!(!gathered([x(&[2, 1, 64]), indices(5), indices(4)]));
    assert!(!gathered([x(&[2, 1, 63]), indices(5), indices(5)]));
    let signed = Aval::new(&[5], Dtype::Int32);
    assert!(!gathered([x(&[2, 1, 64]), signed.clone(), indices(5)]));
    let rows = |rows: Aval| gather_rows(&layout, &with_children(&[rows]), Dtype::Float32, Target::Host).is_some();
    assert!(rows(indices(5)) && !rows(signed));
}

/// What the decomposition of a kernel says to these inputs.
fn refusal(kernel: &impl Kernel, inputs: &[&Array]) -> String {
    let inputs: Vec<Array> = inputs.iter().copied().cloned().collect();
    kernel.decompose(&inputs).expect_err("is refused").to_string()
}

#[test]
fn their_decompositions_refuse_them() {
    let Case { layout, children } = case(&Nf4::from(32), 6, 64);
    let [codes, scales] = &children[..] else { unreachable!("codes and scales") };
    let x = normal(1, &[2, 64]);
    let matmul = |groups| Matmul { layout, orientation: TRANSPOSED, groups };
    let short = Array::from_slice(&[0_u8; 3], &[3]);
    let said = refusal(&matmul(None), &[&x, &short, scales]);
    assert!(said.contains("`codes` holds 6 elements where 384 are needed"), "{said}");
    let said = refusal(&matmul(None), &[&x, codes, &Array::from_slice(&[1.0_f32], &[1])]);
    assert!(said.contains("`scales` holds 32 elements where 384 are needed"), "{said}");
    refusal(&matmul(None), &[&normal(1, &[2, 7]), codes, scales]);
    let groups = Groups { matrices: vec![1, 9], rows: 2 };
    let said = refusal(&matmul(Some(groups)), &[&normal(1, &[2, 1, 64]), codes, scales]);
    assert!(said.contains("matrix 9 (entry 1) is outside a stack of 3"), "{said}");
    let indices = |count: usize| Array::from_slice(&vec![0_u32; count], &[count as i32]);
    let stack = StackLayout { rows: layout, count: 3, orientation: TRANSPOSED };
    let said = refusal(&GatherMatmul { stack }, &[&normal(1, &[2, 1, 64]), &indices(5), &indices(1), codes, scales]);
    assert!(said.contains("`stack` holds 1 elements where 5 are needed"), "{said}");
}
