//! What the ranks of a save tell each other. Every rank calls each of these functions, even if it has failed before.

use std::path::Path;

use mlx_rs::Array;
use tacit_core::{Error, Result};

use super::groups::{Groups, Held};
use super::pieces::{Alike, Piece};
use crate::Group;
use crate::named::named;
use crate::said::said;

const fn halves(number: u64) -> [u32; 2] {
    [(number >> 32) as u32, number as u32]
}

fn joined(halves: &[u32]) -> u64 {
    halves.iter().fold(0, |number, &half| number << 32 | u64::from(half))
}

/// Whether all ranks went on: a rank that failed keeps its own error, and the others have one that names it. The outer error
/// says that this is not known: the others may go on.
pub(super) fn told<T>(group: &Group, result: Result<T>, what: &str) -> Result<Result<T>> {
    let said = said(group, &[u32::from(result.is_err())]);
    let Ok(result) = result else { return Ok(result) };
    let failed = numbers(&said?, |said| said[0] != 0);
    if failed.is_empty() {
        return Ok(Ok(result));
    }
    Ok(Err(Error::Group {
        message: format!("{} could not {what}", named(&failed)),
        help: "see the error there; the checkpoint that was there before is untouched",
    }))
}

/// As [`told`], where nothing is to be done about either error.
pub(super) fn all_went<T>(group: &Group, own: Result<T>, what: &str) -> Result<T> {
    told(group, own, what)?
}

pub(super) fn first_says(group: &Group, own: Option<(u64, u64)>) -> Result<(u64, u64)> {
    let (a, b) = own.unwrap_or_default();
    let said = said(group, &[halves(a), halves(b)].concat())?;
    Ok((joined(&said[0][..2]), joined(&said[0][2..])))
}

/// Checks that all ranks save the same, by fingerprints of it.
pub(super) fn agree(group: &Group, fingerprints: &[(Alike, u64)]) -> Result<()> {
    let words: Vec<u32> = fingerprints.iter().flat_map(|&(_, fingerprint)| halves(fingerprint)).collect();
    let said = said(group, &words)?;
    for (at, &(what, _)) in fingerprints.iter().enumerate() {
        let of = |said: &[u32]| joined(&said[2 * at..2 * at + 2]);
        let others = numbers(&said, |other| of(other) != of(&said[0]));
        if !others.is_empty() {
            let others = named(&others);
            let same_run = "give every rank the same run; what each has of its own is in the arrays of its states";
            let (message, help) = match what {
                Alike::Arrays => (
                    format!("{others} would save other arrays than rank 0, by their names, shapes or dtypes"),
                    "give every rank the same model, and states of the same names",
                ),
                Alike::Step => (format!("{others} would save another step than rank 0"), same_run),
                Alike::Optimizer => (format!("{others} would save another optimizer than rank 0"), same_run),
                Alike::Notes => (format!("{others} would save other notes than rank 0"), same_run),
                Alike::Kinds => (
                    format!("{others} would save leaves of other arrays than rank 0, by their kinds or fields"),
                    "give every rank the same model, with the same kinds, alphas and formats",
                ),
            };
            return Err(Error::Group { message, help });
        }
    }
    Ok(())
}

/// Checks that every rank sees the folder that the first one does.
pub(super) fn all_see(group: &Group, folder: &Path, sees: bool) -> Result<()> {
    let blind = numbers(&said(group, &[u32::from(sees)])?, |said| said[0] == 0);
    of_one_folder(folder, &blind, "does not see", "do not see")
}

/// Checks that every rank found the same save.
pub(super) fn found_one(group: &Group, folder: &Path, id: u64) -> Result<()> {
    let said = said(group, &halves(id))?;
    let others = numbers(&said, |other| *other != said[0]);
    of_one_folder(folder, &others, "finds another save in", "find another save in")
}

fn of_one_folder(folder: &Path, others: &[usize], one: &str, many: &str) -> Result<()> {
    if others.is_empty() {
        return Ok(());
    }
    let verb = if others.len() == 1 { one } else { many };
    Err(Error::Group {
        message: format!("{} {verb} the folder {} of rank 0", named(others), folder.display()),
        help: "give the same path on all ranks, in a file system that they share",
    })
}

/// For each array whether all ranks have the same, by digests of them.
pub(super) fn alike(group: &Group, digests: &[u64]) -> Result<Vec<bool>> {
    if group.size() == 1 || digests.is_empty() {
        return Ok(vec![true; digests.len()]);
    }
    let words: Vec<u32> = digests.iter().flat_map(|&digest| halves(digest)).collect();
    let words = Array::from_slice(&words, &[digests.len() as i32, 2]);
    let (most, least) = (group.all_max(&words)?, group.all_min(&words)?);
    let alike = most.eq(&least)?.all_axis(1, false)?;
    alike.eval()?;
    Ok(alike.as_slice::<bool>().to_vec())
}

/// For each array that is not split over all ranks, in order, the ranks that have its parts.
pub(super) fn groups(group: &Group, pieces: &[Piece], digests: &[u64]) -> Result<Vec<Groups>> {
    let split = pieces.iter().zip(digests).filter_map(|(piece, &digest)| Some((piece, piece.ranks.as_ref()?, digest)));
    let split: Vec<(&Piece, &Vec<usize>, u64)> = split.collect();
    if split.is_empty() {
        return Ok(Vec::new());
    }
    let words = split.iter().flat_map(|&(_, ranks, digest)| {
        let Held { first, part, digest } = Held::new(ranks, group.rank(), digest);
        let [high, low] = halves(digest);
        [first as u32, part as u32, high, low]
    });
    let said = said(group, &words.collect::<Vec<_>>())?;
    let groups = split.iter().enumerate().map(|(at, (piece, ranks, _))| {
        let held = said.iter().map(|said| {
            let said = &said[4 * at..4 * at + 4];
            Held { first: said[0] as usize, part: said[1] as usize, digest: joined(&said[2..]) }
        });
        Groups::from_held(&held.collect::<Vec<_>>(), ranks.len(), at).ok_or_else(|| Error::Group {
            message: format!("{} is split over other groups on some ranks than on others", piece.key),
            help: "split a parameter over one group on every rank",
        })
    });
    groups.collect()
}

fn numbers(said: &[Vec<u32>], is_meant: impl Fn(&Vec<u32>) -> bool) -> Vec<usize> {
    (0..said.len()).filter(|&rank| is_meant(&said[rank])).collect()
}
