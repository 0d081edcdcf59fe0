//! Whether something takes time by its size.

use std::time::{Duration, Instant};

/// Fails where sixteen times as many take more than a hundred times as long: what looks at all that came before takes 256 times.
///
/// The memory that many take is farther away, which costs two or three times as much for each.
pub(crate) fn assert_linear(count: usize, mut run: impl FnMut(usize)) {
    // The shortest of several runs, in turn, is nearest to what it takes where the machine does nothing else.
    let mut least = [Duration::MAX; 2];
    for _ in 0..3 {
        for (least, count) in least.iter_mut().zip([count, 16 * count]) {
            let begun = Instant::now();
            run(count);
            *least = begun.elapsed().min(*least);
        }
    }
    let [few, many] = least;
    assert!(many < 100 * few, "{count} take {few:?}, and sixteen times as many {many:?}");
}
