//! Whether something takes time by its size.

use std::time::{Duration, Instant};

/// Fails where sixteen times as many take more than a hundred times as long: what looks at all that came before takes 256 times.
///
/// The memory that many take is farther away, which costs two or three times as much for each.
pub(crate) fn assert_linear(count: usize, mut run: impl FnMut(usize)) {
    // The shortest of several runs, in turn, is nearest to what it takes where the machine does nothing else; where it does much
    // else, there are more of them.
    let mut least = [Duration::MAX; 2];
    let is_linear = |[few, many]: [Duration; 2]| many < 100 * few;
    for turn in 0..20 {
        if turn >= 3 && is_linear(least) {
            break;
        }
        for (least, count) in least.iter_mut().zip([count, 16 * count]) {
            let begun = Instant::now();
            run(count);
            *least = begun.elapsed().min(*least);
        }
    }
    let [few, many] = least;
    assert!(is_linear(least), "{count} take {few:?}, and sixteen times as many {many:?}");
}
