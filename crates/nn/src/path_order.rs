//! Paths in the order in which a person counts: `blk.2` before `blk.10`.

use std::cmp::Ordering;

/// Which of two paths comes first: numbers in them by their value, and all else by its characters.
///
/// ```
/// let mut paths = ["layers.10.weight", "layers.2.weight"];
/// paths.sort_by(|a, b| tacit_nn::path_order(a, b));
/// assert_eq!(paths, ["layers.2.weight", "layers.10.weight"]);
/// ```
#[must_use]
pub fn path_order(a: &str, b: &str) -> Ordering {
    let (mut rest_of_a, mut rest_of_b) = (a, b);
    while let (Some((first, others)), Some((second, more))) = (part(rest_of_a), part(rest_of_b)) {
        let number = |text: &str| text.starts_with(|c: char| c.is_ascii_digit());
        let by_part = if number(first) && number(second) {
            let [x, y] = [first, second].map(|digits| digits.trim_start_matches('0'));
            x.len().cmp(&y.len()).then_with(|| x.cmp(y))
        } else {
            first.cmp(second)
        };
        if by_part != Ordering::Equal {
            return by_part;
        }
        (rest_of_a, rest_of_b) = (others, more);
    }
    // Where only zeros before numbers differ, the texts themselves tell.
    rest_of_a.len().cmp(&rest_of_b.len()).then_with(|| a.cmp(b))
}

/// The number or the text that a path begins with, and what follows.
fn part(path: &str) -> Option<(&str, &str)> {
    let first = path.chars().next()?;
    let end = path.find(|c: char| c.is_ascii_digit() != first.is_ascii_digit()).unwrap_or(path.len());
    Some(path.split_at(end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_counted_and_equal_is_what_is_the_same() {
        let mut paths = ["blk.10.w", "blk.2.w", "blk.2", "a", "blk.02.w", "blk.9.w", "10", "9", "", "blk"];
        paths.sort_by(|a, b| path_order(a, b));
        assert_eq!(paths, ["", "9", "10", "a", "blk", "blk.2", "blk.02.w", "blk.2.w", "blk.9.w", "blk.10.w"]);
        let long = ["1".repeat(40), "2".repeat(39)];
        assert_eq!(path_order(&long[0], &long[1]), Ordering::Greater);
        for a in paths {
            for b in paths {
                assert_eq!(path_order(a, b), path_order(b, a).reverse());
                assert_eq!(path_order(a, b) == Ordering::Equal, a == b);
            }
        }
    }
}
