//! Sums along an axis.

use tacit_kernels::sum;
use tacit_kernels::threads::with_count;

use crate::random::Random;

fn expected(x: &[f32], [outer, reduced, inner]: [usize; 3]) -> Vec<f64> {
    let mut sums = vec![0.0; outer * inner];
    for (at, &x) in x.iter().enumerate() {
        sums[at / (reduced * inner) * inner + at % inner] += f64::from(x);
    }
    sums
}

#[test]
fn they_are_near_and_the_same_on_any_number_of_threads() {
    let all = [
        [1, 1, 1],
        [3, 5, 1],
        [2, 7000, 1],
        [2, 300, 7],
        [1, 1000, 600],
        [40, 3, 20],
        [1, 5000, 1],
        [3, 0, 4],
        [0, 3, 2],
    ];
    for extents in all {
        let x = Random::new(7).normal(extents.iter().product());
        let sums = |threads| {
            let mut sums = vec![f32::NAN; extents[0] * extents[2]];
            with_count(threads, || sum(&x, extents, &mut sums)).expect("lengths that fit");
            sums
        };
        let one = sums(1);
        assert_eq!(
            one.iter().map(|x| x.to_bits()).collect::<Vec<_>>(),
            sums(3).iter().map(|x| x.to_bits()).collect::<Vec<_>>()
        );
        for (found, expected) in one.iter().zip(expected(&x, extents)) {
            let most = 1e-6 * (extents[1] as f64).sqrt().max(1.0) * 4.0;
            assert!((f64::from(*found) - expected).abs() <= most, "{found}, not {expected}, of {extents:?}");
        }
    }
}

#[test]
fn other_lengths_are_refused() {
    assert!(sum(&[0.0; 5], [1, 2, 3], &mut [0.0; 3]).is_err());
    assert!(sum(&[0.0; 6], [1, 2, 3], &mut [0.0; 2]).is_err());
}
