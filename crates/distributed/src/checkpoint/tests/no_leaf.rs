//! States that no leaf has, such as those of random numbers, or that differ between ranks.

use std::collections::BTreeSet;
use std::fs;

use expect_test::expect;
use mlx_rs::{Array, random};
use tacit_arrays::format::{AnyFormat, Nf4};
use tacit_core::store::Arrays;
use tacit_core::{Aval, Result};
use tacit_io::Training;

use super::super::folder::Save;
use super::super::moments::taken_apart;
use super::super::saved::read;
use super::{
    ALL, Over, all_pieces, all_pieces_over, bits, folder, held, held_over, said, save_pieces, wholes, written,
};
use crate::layout::{Layout, Leaf, Place};

/// What a rank has of a model of which no two ranks compute one result.
fn held_apart(place: Place) -> Result<Vec<Leaf>> {
    let mut known = held(place)?.0;
    for leaf in known.iter_mut().filter(|leaf| matches!(leaf.layout, Layout::Axis(_))) {
        leaf.layout = Layout::Flat;
    }
    Ok(known)
}

#[test]
fn what_differs_between_ranks_is_each_rank_s_own() -> Result<()> {
    let folder = folder("own");
    let key = |rank: usize| random::key(rank as u64 + 40).expect("a key");
    // A random state, statistics of rows that a rank has of its part, and a count that all have.
    let more = |place: Place, run: &mut Training| {
        run.states.insert("random".to_owned(), Arrays::from([("key".to_owned(), key(place.rank))]));
        let rows = Array::from_slice(&[place.rank as f32, 5.0, 6.0], &[3]);
        run.states.insert("rows".to_owned(), Arrays::from([("rows.weight.exp_avg_sq_col".to_owned(), rows)]));
        Ok(())
    };
    save_pieces(&folder, all_pieces(2, more)?)?;
    for rank in 0..2 {
        let place = Place { rank, size: 2 };
        let (run, _) = read(&folder, &held(place)?.0, place)?;
        assert_eq!(bits(&run.states["random"]["key"]), bits(&key(rank)));
        assert_eq!(run.states["rows"]["rows.weight.exp_avg_sq_col"].as_slice::<f32>(), [rank as f32, 5.0, 6.0]);
    }
    let place = Place { rank: 2, size: 3 };
    let (known, _, _) = held(place)?;
    expect![[r"
        FOLDER/run.safetensors: rows.weight.exp_avg_sq_col: it was kept of rows.weight as that lay on 2 ranks
        help: load it on as many ranks as saved it, split alike"]]
    .assert_eq(&said(&read(&folder, &known, place).expect_err("of two ranks"), &folder));

    // Without the statistics, three ranks go on: the third draws numbers that neither of the first two does.
    let only_random = |place: Place, run: &mut Training| {
        more(place, run)?;
        run.states.remove("rows");
        Ok(())
    };
    save_pieces(&folder, all_pieces(2, only_random)?)?;
    let keys = (0..3).map(|rank| {
        let place = Place { rank, size: 3 };
        Ok(bits(&read(&folder, &held_apart(place)?, place)?.0.states["random"]["key"]))
    });
    let keys = keys.collect::<Result<Vec<_>>>()?;
    assert_eq!(keys[..2], [bits(&key(0)), bits(&key(1))]);
    assert!(!keys[..2].contains(&keys[2]));
    fs::remove_dir_all(&folder).expect("removes");
    Ok(())
}

#[test]
fn a_moment_of_no_leaf_is_that_of_a_rank_or_of_none() -> Result<()> {
    let folder = folder("moment");
    let (mut all, mut taken) = (all_pieces(2, |_, _| Ok(()))?, None);
    for (rank, own) in all.iter_mut().enumerate() {
        let numbers = random::normal::<f32>(&[1, 64], None, None, Some(&random::key(rank as u64)?))?;
        let mut run = Training::new(4);
        run.moments.insert("other.0".to_owned(), AnyFormat::from(Nf4 { block: 64, double: false }).quantize(&numbers)?);
        let (of_rank, pieces) = taken_apart(&run, &[])?;
        own.extend(pieces);
        taken = Some(of_rank);
    }
    let save = Save::begin(&folder, 2)?;
    let mut index = written(&folder, &save, all, 2)?;
    index.moments = taken.expect("of two ranks");
    save.commit(&index)?;
    save.finish();
    for rank in 0..2 {
        let place = Place { rank, size: 2 };
        let (run, _) = read(&folder, &held(place)?.0, place)?;
        assert_eq!(run.moments.keys().collect::<Vec<_>>(), ["other.0"]);
    }
    let place = Place { rank: 0, size: 1 };
    expect![[r"
        FOLDER/run.safetensors: other.0: it was another on each of 2 ranks
        help: load it on as many ranks as saved it, split alike"]]
    .assert_eq(&said(&read(&folder, &held(place)?.0, place).expect_err("of two ranks"), &folder));
    fs::remove_dir_all(&folder).expect("removes");
    Ok(())
}

#[test]
fn a_state_that_was_kept_of_no_leaf_comes_back_under_its_name() -> Result<()> {
    let folder = folder("own-names");
    let (whole, norms) = (wholes().swap_remove(0).1, Array::from_slice(&[1f32, 2.0, 3.0], &[3]));
    let key = random::key(40).expect("a key");
    // Named as parameters are, whose leaves are `a.flat.local`, `codes.local` and `one.local`.
    let more = |_: Place, run: &mut Training| {
        let own = Arrays::from([("a.flat".to_owned(), whole.clone()), ("codes".to_owned(), norms.clone())]);
        run.states.insert("averages".to_owned(), own);
        run.states.insert("random".to_owned(), Arrays::from([("one".to_owned(), key.clone())]));
        Ok(())
    };
    save_pieces(&folder, all_pieces(2, more)?)?;
    for place in [Place { rank: 1, size: 2 }, Place { rank: 2, size: 3 }] {
        let (run, _) = read(&folder, &held(place)?.0, place)?;
        let found = &run.states["averages"];
        assert_eq!(found.keys().collect::<Vec<_>>(), ["a.flat", "codes"], "{place:?}");
        assert_eq!(Aval::from(&found["a.flat"]), Aval::from(&whole));
        assert_eq!((bits(&found["a.flat"]), bits(&found["codes"])), (bits(&whole), bits(&norms)));
        assert_eq!(bits(&run.states["random"]["one"]), bits(&key));
    }
    fs::remove_dir_all(&folder).expect("removes");
    Ok(())
}

#[test]
fn ranks_that_are_new_beside_one_draw_for_themselves() -> Result<()> {
    let folder = folder("beside-one");
    let key = random::key(40).expect("a key");
    // One rank that has a batch of its own, as any rank of data parallelism: `Group::random`.
    let with_random = |_: Place, run: &mut Training| {
        run.states.insert("random".to_owned(), Arrays::from([("key".to_owned(), key.clone())]));
        Ok(())
    };
    save_pieces(&folder, all_pieces(1, with_random)?)?;
    let keys = |are_split: bool| {
        let of_rank = |rank| {
            let place = Place { rank, size: 3 };
            let known = if are_split { held(place)?.0 } else { held_apart(place)? };
            Ok(bits(&read(&folder, &known, place)?.0.states["random"]["key"]))
        };
        (0..3).map(of_rank).collect::<Result<Vec<_>>>()
    };
    let apart = keys(false)?;
    assert_eq!(apart[0], bits(&key));
    assert!(apart[1] != apart[0] && apart[2] != apart[0] && apart[1] != apart[2]);
    // Ranks with parts of one layer compute one result.
    assert_eq!(keys(true)?, vec![bits(&key); 3]);
    fs::remove_dir_all(&folder).expect("removes");
    Ok(())
}

/// Pairs that have the parts of layers: each has a batch of its own.
const PAIRS: Over = |key, Place { rank, .. }| match key {
    "rows.weight" | "columns" => Some(vec![rank / 2 * 2, rank / 2 * 2 + 1]),
    _ => None,
};

/// Other pairs of four ranks.
const ACROSS: Over = |key, Place { rank, .. }| match key {
    "rows.weight" | "columns" => Some(vec![rank % 2, rank % 2 + 2]),
    _ => None,
};

#[test]
fn ranks_that_compute_one_result_draw_alike_however_many_there_are() -> Result<()> {
    let folder = folder("pairs");
    let key = |pair: usize| random::key(pair as u64 + 40).expect("a key");
    let with_random = |place: Place, run: &mut Training| {
        run.states.insert("random".to_owned(), Arrays::from([("key".to_owned(), key(place.rank / 2))]));
        Ok(())
    };
    save_pieces(&folder, all_pieces_over(4, PAIRS, with_random)?)?;
    let keys = |size: usize, over: Over| {
        let of_rank = |rank| {
            let place = Place { rank, size };
            Ok(bits(&read(&folder, &held_over(place, over)?.0, place)?.0.states["random"]["key"]))
        };
        (0..size).map(of_rank).collect::<Result<Vec<_>>>()
    };
    let own = [0, 0, 1, 1].map(|pair| bits(&key(pair)));
    assert_eq!(keys(4, PAIRS)?, own);
    // Each new pair has a state of its own, which is that of both.
    let found = keys(8, PAIRS)?;
    assert_eq!(found[..4], own);
    assert!(found.chunks(2).all(|pair| pair[0] == pair[1]));
    assert_eq!(found.into_iter().collect::<BTreeSet<_>>().len(), 4);
    // Other ranks that compute one result now did not before.
    let found = keys(4, ACROSS)?;
    assert!(found[0] == found[2] && found[1] == found[3]);
    assert_eq!(keys(4, ALL)?, vec![bits(&key(0)); 4]);
    assert_eq!(keys(2, ALL)?, vec![bits(&key(0)); 2]);
    fs::remove_dir_all(&folder).expect("removes");
    Ok(())
}
