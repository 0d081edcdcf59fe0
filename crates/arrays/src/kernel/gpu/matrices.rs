//! Which matrix of a stack each entry of a batch multiplies, in the text of a kernel.

/// Numbers of matrices that follow a rule: entry `i` has the number `first + i / each % count`.
///
/// The rule's numbers are sizes of a launch, so that one text serves every batch.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Sequence {
    pub(super) first: usize,
    pub(super) each: usize,
    pub(super) count: usize,
}

impl Sequence {
    /// The rule of these numbers, if they have one.
    pub(super) fn from_numbers(numbers: &[usize]) -> Option<Self> {
        let &first = numbers.first()?;
        let each = numbers.iter().take_while(|&&number| number == first).count();
        let runs = numbers.iter().step_by(each);
        let count = (first..).zip(runs).take_while(|&(next, &number)| next == number).count();
        let follows = numbers.iter().enumerate().all(|(entry, &number)| number == first + entry / each % count);
        follows.then_some(Self { first, each, count })
    }
}

/// The table of numbers that follow no rule.
pub(super) fn table(numbers: &[usize]) -> String {
    let list: Vec<String> = numbers.iter().map(ToString::to_string).collect();
    format!("TACIT_TABLE(tacit_matrices, {}) = {{{}}};\n", list.len(), list.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_batch_broadcasts_follows_a_rule() {
        let rule = |first, each, count| Some(Sequence { first, each, count });
        assert_eq!(Sequence::from_numbers(&[0, 1, 2]), rule(0, 1, 3));
        assert_eq!(Sequence::from_numbers(&[0, 1, 0, 1]), rule(0, 1, 2));
        assert_eq!(Sequence::from_numbers(&[0, 0, 1, 1, 0, 0]), rule(0, 2, 2));
        assert_eq!(Sequence::from_numbers(&[7, 7, 7]), rule(7, 3, 1));
        assert_eq!(Sequence::from_numbers(&[4, 5]), rule(4, 1, 2));
        let others: [&[usize]; 4] = [&[], &[1, 0], &[0, 2, 4], &[0, 1, 2, 1]];
        assert!(others.into_iter().all(|numbers| Sequence::from_numbers(numbers).is_none()));
    }
}
