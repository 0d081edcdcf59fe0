//! What rank 0 concludes from the collectives that all ranks are in.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use super::frame::Doing;
use crate::named::NAMED;

/// How long ranks must be in different collectives of the same number before that is believed: longer than one takes to
/// hear of the other.
const SETTLED: Duration = Duration::from_secs(1);

/// Why ranks, all of them alive, can never end the collectives they are in; `doing` is in the order of the ranks.
pub(super) fn disagreement(doing: &[Option<Doing>], wait: Duration) -> Option<String> {
    if let Some(reason) = different(doing) {
        return Some(reason);
    }
    let (rank, longest) = doing
        .iter()
        .enumerate()
        .filter_map(|(rank, doing)| Some((rank, doing.as_ref()?)))
        .max_by_key(|(rank, doing)| (doing.age, std::cmp::Reverse(*rank)))?;
    (Duration::from_millis(longest.age) > wait).then(|| {
        format!(
            "{longest} of rank {rank} has waited for {:.1} s while every rank is alive: {}",
            longest.age as f64 / 1e3,
            where_all_are(doing)
        )
    })
}

/// Collectives carry the same number on each of their ranks, so two of one number are the same or a mistake. Messages between
/// two ranks carry that of the collective before them.
fn different(doing: &[Option<Doing>]) -> Option<String> {
    let mut labels = BTreeMap::new();
    let mut settled = doing.iter().flatten().filter(|doing| Duration::from_millis(doing.age) > SETTLED);
    settled
        .any(|doing| {
            let of_part = doing.extent.counted();
            of_part.is_some_and(|part| *labels.entry((part, doing.number)).or_insert(&doing.label) != &doing.label)
        })
        .then(|| format!("ranks are in different collectives: {}", where_all_are(doing)))
}

/// `rank 0 is in all_sum #17 f32[8], rank 1 in no collective`.
fn where_all_are(doing: &[Option<Doing>]) -> String {
    let mut text = String::new();
    for (rank, doing) in doing.iter().enumerate().take(NAMED) {
        let before = if rank == 0 { "" } else { ", " };
        let is = if rank == 0 { " is" } else { "" };
        let _ = match doing {
            Some(doing) => write!(text, "{before}rank {rank}{is} in {doing}"),
            None => write!(text, "{before}rank {rank}{is} in no collective"),
        };
    }
    if doing.len() > NAMED {
        let _ = write!(text, ", and {} more", doing.len() - NAMED);
    }
    text
}

/// Where the first two ranks part that are about to run different collectives.
pub(super) fn difference(plans: &[Vec<String>]) -> Option<String> {
    let (first, rest) = plans.split_first()?;
    let (rank, other) = rest.iter().enumerate().find(|(_, plan)| *plan != first)?;
    let at = first.iter().zip(other).take_while(|(ours, theirs)| ours == theirs).count();
    let has = |plan: &[String]| plan.get(at).map_or_else(|| "no more".to_owned(), Clone::clone);
    Some(format!(
        "ranks are about to run different collectives: no. {} of rank 0 is {}, of rank {} {}",
        at + 1,
        has(first),
        rank + 1,
        has(other)
    ))
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::super::frame::{Extent, Part};
    use super::*;

    fn doing(number: u64, label: &str, age: u64) -> Option<Doing> {
        let extent = if label.starts_with("all") { Extent::All } else { Extent::Two(1) };
        Some(Doing { number, label: label.to_owned(), extent, age })
    }

    #[test]
    fn a_collective_that_a_rank_skipped_is_found_at_its_limit_and_not_before() {
        let wait = Duration::from_secs(5);
        assert_eq!(disagreement(&[doing(3, "all_sum f32[8]", 4_900), None], wait), None);
        let found = disagreement(&[doing(3, "all_sum f32[8]", 5_100), None], wait).expect("stuck");
        expect!["all_sum #3 f32[8] of rank 0 has waited for 5.1 s while every rank is alive: rank 0 is in all_sum #3 f32[8], rank 1 in no collective"]
            .assert_eq(&found);
    }

    #[test]
    fn different_collectives_of_one_number_are_found_at_once() {
        let wait = Duration::from_mins(10);
        let both = |age| [doing(17, "all_gather f32[8]", age), doing(17, "all_sum f32[8]", age)];
        assert_eq!(disagreement(&both(300), wait), None);
        let found = disagreement(&both(1_300), wait).expect("different");
        expect!["ranks are in different collectives: rank 0 is in all_gather #17 f32[8], rank 1 in all_sum #17 f32[8]"]
            .assert_eq(&found);
        // One is ahead of the other, which is no fault.
        let ahead = [doing(18, "all_gather f32[8]", 2_000), doing(17, "all_sum f32[8]", 2_000)];
        assert_eq!(disagreement(&ahead, wait), None);
        let pair = [doing(17, "send f32[8]", 2_000), doing(17, "recv f32[8]", 2_000)];
        assert_eq!(disagreement(&pair, wait), None);
        // Each part counts for itself.
        let within = |label, ranks: [usize; 2]| {
            let extent = Extent::Part(Part { name: format!("{ranks:?}"), ranks: ranks.to_vec() });
            doing(3, label, 2_000).map(|doing| Doing { extent, ..doing })
        };
        let mut parts = [
            within("all_sum f32[8]", [0, 1]),
            within("all_sum f32[8]", [0, 1]),
            within("all_max f32[8]", [2, 3]),
            within("all_max f32[8]", [2, 3]),
        ];
        assert_eq!(disagreement(&parts, wait), None);
        parts[3] = within("all_max f32[9]", [2, 3]);
        assert!(disagreement(&parts, wait).is_some());
    }

    #[test]
    fn plans_are_compared_whole() {
        let plan = |lines: &[&str]| lines.iter().map(ToString::to_string).collect::<Vec<_>>();
        let same = plan(&["all_sum f32[8]", "all_gather f32[2,3]"]);
        assert_eq!(difference(&[same.clone(), same.clone()]), None);
        let other = plan(&["all_sum f32[8]", "all_gather f32[2,4]"]);
        expect!["ranks are about to run different collectives: no. 2 of rank 0 is all_gather f32[2,3], of rank 2 all_gather f32[2,4]"]
            .assert_eq(&difference(&[same.clone(), same.clone(), other]).expect("different"));
        expect![
            "ranks are about to run different collectives: no. 2 of rank 0 is all_gather f32[2,3], of rank 1 no more"
        ]
        .assert_eq(&difference(&[same, plan(&["all_sum f32[8]"])]).expect("shorter"));
    }

    #[test]
    fn many_ranks_are_counted() {
        let found = disagreement(&vec![doing(1, "all_sum f32[1]", 700); 10], Duration::from_millis(600));
        assert!(found.is_some_and(|text| text.ends_with("rank 7 in all_sum #1 f32[1], and 2 more")));
    }
}
