//! Ranks by their numbers, as messages name them.

/// How many ranks a message names.
pub(crate) const NAMED: usize = 8;

/// `rank 2`, `ranks 2 and 3`, `ranks 1, 2 and 9 more`.
pub(crate) fn named(ranks: &[usize]) -> String {
    let texts = |ranks: &[usize]| ranks.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    match ranks {
        [one] => format!("rank {one}"),
        [some @ .., last] if ranks.len() <= NAMED => format!("ranks {} and {last}", texts(some)),
        _ => {
            format!("ranks {} and {} more", texts(&ranks[..NAMED.min(ranks.len())]), ranks.len().saturating_sub(NAMED))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_ranks_are_counted() {
        assert_eq!(named(&[2]), "rank 2");
        assert_eq!(named(&[2, 3]), "ranks 2 and 3");
        assert_eq!(named(&(1..12).collect::<Vec<_>>()), "ranks 1, 2, 3, 4, 5, 6, 7, 8 and 3 more");
    }
}
