//! Saves of ranks that this process plays one after the other.

#[path = "../../../core/tests/it/log.rs"]
mod log;
mod no_leaf;
mod of_some_ranks;
mod refused;

use std::fs;
use std::path::{Path, PathBuf};

use expect_test::expect;
use mlx_rs::{Array, Dtype, random};
use tacit_core::store::Arrays;
use tacit_core::{Aval, Error, Result};
use tacit_io::Training;

use self::log::Log;
use super::folder::{Save, is_seen};
use super::groups::{Groups, Held};
use super::index::{INDEX, Index, LEAVES, file_of};
use super::pieces::{self, Piece};
use super::saved::read;
use crate::layout::{Layout, Leaf, Place};

/// Whole arrays, how they lie, and what an optimizer keeps of some.
fn wholes() -> Vec<(Leaf, Array)> {
    let leaf = |name: &str, layout, shape: &[i32], dtype| {
        let key = random::key(name.len() as u64).expect("a key");
        let numbers = random::normal::<f32>(shape, None, None, Some(&key)).expect("normal numbers");
        let large = numbers.multiply(Array::from_f32(40.0)).and_then(|it| it.abs()).expect("multiplies");
        let inner = if layout == Layout::Flat { ".local" } else { "" };
        let path = format!("{name}{inner}");
        (
            Leaf {
                path,
                key: name.to_owned(),
                layout,
                shape: shape.to_vec(),
                split: None,
                over: None,
                ranks: None,
                stored: None,
                alike: layout == Layout::Whole,
            },
            large.as_dtype(dtype).expect("casts"),
        )
    };
    vec![
        leaf("a.flat", Layout::Flat, &[5, 7], Dtype::Float32),
        leaf("codes", Layout::Flat, &[9], Dtype::Uint8),
        leaf("rows.weight", Layout::Axis(0), &[12, 3], Dtype::Bfloat16),
        leaf("columns", Layout::Axis(1), &[4, 24], Dtype::Float16),
        leaf("one", Layout::Flat, &[], Dtype::Float32),
        leaf("norm", Layout::Whole, &[3], Dtype::Float32),
    ]
}

/// The ranks that have the parts of a leaf, as one of the ranks knows them; nothing where these are all.
type Over = fn(&str, Place) -> Option<Vec<usize>>;

const ALL: Over = |_, _| None;

/// What a rank holds, and what its optimizers do: one with two slots a leaf and a count, and one with none.
fn held(place: Place) -> Result<(Vec<Leaf>, Arrays, Training)> {
    held_over(place, ALL)
}

fn held_over(place: Place, over: Over) -> Result<(Vec<Leaf>, Arrays, Training)> {
    let (mut arrays, mut known, mut state, mut momentum) = (Arrays::new(), Vec::new(), Arrays::new(), Arrays::new());
    for (mut leaf, whole) in wholes() {
        leaf.ranks = over(&leaf.key, place);
        let part = leaf.layout.part(&whole, leaf.place(place))?;
        state.insert(format!("{}.0", leaf.path), part.add(&part)?);
        state.insert(format!("{}.1", leaf.path), part.square()?);
        state.insert(format!("{}.step", leaf.path), Array::from_int(3));
        momentum.insert(leaf.path.clone(), part.add(&part)?.add(&part)?);
        arrays.insert(leaf.path.clone(), part);
        known.push(leaf);
    }
    state.insert("step".to_owned(), Array::from_int(4));
    let mut run = Training::new(4).with_note("rules", "none");
    run.states.insert("optimizer".to_owned(), state);
    run.states.insert("momentum".to_owned(), momentum);
    run.optimizer = Some("AdamW".to_owned());
    Ok((known, arrays, run))
}

/// What each of `size` ranks saves, with what else it has.
fn all_pieces(size: usize, more: impl Fn(Place, &mut Training) -> Result<()>) -> Result<Vec<Vec<Piece>>> {
    all_pieces_over(size, ALL, more)
}

fn all_pieces_over(
    size: usize,
    over: Over,
    more: impl Fn(Place, &mut Training) -> Result<()>,
) -> Result<Vec<Vec<Piece>>> {
    let of_rank = |rank| {
        let place = Place { rank, size };
        let (known, arrays, mut run) = held_over(place, over)?;
        more(place, &mut run)?;
        pieces::from_run(&run, &known, &arrays.iter().map(|(path, array)| (path.clone(), array)).collect(), size)
    };
    (0..size).map(of_rank).collect()
}

/// What ranks learn of the groups that have the parts of their arrays.
fn groups(all: &[Vec<Piece>], digests: &[Vec<u64>]) -> Vec<Groups> {
    let split = all[0].iter().enumerate().filter_map(|(at, piece)| Some((at, piece.ranks.as_ref()?.len())));
    let groups = split.enumerate().map(|(number, (at, parts))| {
        let held = all.iter().zip(digests).enumerate().map(|(rank, (own, digests))| {
            Held::new(own[at].ranks.as_deref().expect("is split on every rank"), rank, digests[at])
        });
        Groups::from_held(&held.collect::<Vec<_>>(), parts, number).expect("ranks agree")
    });
    groups.collect()
}

/// The index of a save, of whose `size` ranks the first `ranks` have written.
fn written(folder: &Path, save: &Save, all: Vec<Vec<Piece>>, ranks: usize) -> Result<Index> {
    let size = all.len();
    let digests: Vec<Vec<u64>> = all.iter().map(|own| pieces::digests(own, size)).collect::<Result<_>>()?;
    let alike: Vec<bool> =
        (0..digests[0].len()).map(|at| digests.iter().all(|own| own[at] == digests[0][at])).collect();
    let (_, _, run) = held(Place { rank: 0, size })?;
    let index = Index::new(
        save.number(),
        save.id(),
        size,
        &run,
        pieces::entries(&all[0], &alike, groups(&all, &digests), size),
    );
    for (rank, pieces) in all.into_iter().enumerate().take(ranks) {
        assert!(is_seen(folder, save.id()));
        pieces::write(folder, &index, pieces, Place { rank, size })?;
    }
    Ok(index)
}

/// Saves what each rank has, and gives the index of that.
fn save_pieces(folder: &Path, all: Vec<Vec<Piece>>) -> Result<Index> {
    let size = all.len();
    let save = Save::begin(folder, size)?;
    let index = written(folder, &save, all, size)?;
    save.commit(&index)?;
    save.finish();
    Ok(index)
}

fn save(folder: &Path, size: usize) -> Result<()> {
    save_pieces(folder, all_pieces(size, |_, _| Ok(()))?)?;
    Ok(())
}

/// A save of `size` ranks of which `ranks` wrote before all were killed.
fn killed(folder: &Path, size: usize, ranks: usize) -> Result<Index> {
    let save = Save::begin(folder, size)?;
    written(folder, &save, all_pieces(size, |_, _| Ok(()))?, ranks)
}

fn bits(array: &Array) -> Vec<u8> {
    tacit_bridge::with_bytes(array, <[u8]>::to_vec).expect("evaluates")
}

/// Checks that each of `size` ranks reads what it would hold.
fn check(folder: &Path, size: usize) -> Result<()> {
    check_over(folder, size, ALL)
}

fn check_over(folder: &Path, size: usize, over: Over) -> Result<()> {
    for rank in 0..size {
        let place = Place { rank, size };
        let (known, arrays, expected) = held_over(place, over)?;
        let (run, _) = read(folder, &known, place)?;
        assert_eq!((run.step, &run.notes, &run.optimizer), (4, &expected.notes, &expected.optimizer));
        let states = expected.states.iter().map(|(state, arrays)| (state.as_str(), arrays));
        for (state, expected) in states.chain([(LEAVES, &arrays)]) {
            let found = &run.states[state];
            assert_eq!(found.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>());
            for (key, array) in expected {
                let found = &found[key];
                assert_eq!(Aval::from(found), Aval::from(array), "{key} on rank {rank} of {size}");
                assert_eq!(bits(found), bits(array), "{key} on rank {rank} of {size}");
            }
        }
    }
    Ok(())
}

fn folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("tacit-ranks-{name}-{}", std::process::id()));
    drop(fs::remove_dir_all(&folder));
    folder
}

fn files(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("is there").flatten();
    let mut names: Vec<String> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// The files of a whole save, and nothing else.
fn whole(save: u64, size: usize) -> Vec<String> {
    let parts = (1..=size).map(|rank| format!("run.{save}-{rank:05}-of-{size:05}.safetensors"));
    parts.chain([INDEX.to_owned()]).collect()
}

fn said(error: &Error, folder: &Path) -> String {
    error.to_string().replace(&*folder.to_string_lossy(), "FOLDER")
}

#[test]
fn any_number_of_ranks_reads_what_any_other_saved() -> Result<()> {
    let folder = folder("sizes");
    for (number, sizes) in (1..).zip([1, 2, 4, 3, 1].windows(2)) {
        save(&folder, sizes[0])?;
        check(&folder, sizes[0])?;
        check(&folder, sizes[1])?;
        assert_eq!(files(&folder), whole(number, sizes[0]));
    }
    fs::remove_dir_all(&folder).expect("removes");
    Ok(())
}

#[test]
fn a_save_that_was_killed_leaves_the_one_before_and_goes_with_the_next() -> Result<()> {
    for ranks in 0..=3 {
        let folder = folder(&format!("killed-{ranks}"));
        save(&folder, 2)?;
        drop(killed(&folder, 3, ranks)?);
        check(&folder, 2)?;
        check(&folder, 4)?;
        // Before the next one is written: the disk may have room for no third.
        drop(Save::begin(&folder, 4)?);
        assert!(!files(&folder).iter().any(|name| name.starts_with("run.2-")), "{:?}", files(&folder));
        check(&folder, 2)?;
        save(&folder, 4)?;
        check(&folder, 3)?;
        assert_eq!(files(&folder), whole(if ranks > 0 { 3 } else { 2 }, 4));
        fs::remove_dir_all(&folder).expect("removes");
    }
    Ok(())
}

#[test]
fn a_save_that_was_killed_behind_its_index_goes_on_with_the_next() -> Result<()> {
    let folder = folder("behind");
    save(&folder, 2)?;
    {
        let save = Save::begin(&folder, 3)?;
        let index = written(&folder, &save, all_pieces(3, |_, _| Ok(()))?, 3)?;
        save.commit(&index)?;
        // The files of the first save are still there, and nothing names them.
    }
    check(&folder, 3)?;
    save(&folder, 1)?;
    check(&folder, 3)?;
    assert_eq!(files(&folder), whole(3, 1));
    fs::remove_dir_all(&folder).expect("removes");
    Ok(())
}

#[test]
fn nothing_goes_before_every_file_is_there() -> Result<()> {
    let folder = folder("incomplete");
    save(&folder, 2)?;
    {
        let save = Save::begin(&folder, 3)?;
        let index = written(&folder, &save, all_pieces(3, |_, _| Ok(()))?, 2)?;
        expect![[r"
            FOLDER/run.2-00003-of-00003.safetensors: the file of rank 2 is not there
            help: save to a file system that all ranks share"]]
        .assert_eq(&said(&save.commit(&index).expect_err("one is missing"), &folder));
        // One of another model.
        let place = Place { rank: 2, size: 3 };
        fs::copy(folder.join("run.1-00001-of-00002.safetensors"), file_of(&folder, 2, place)).expect("copies");
        let other = said(&save.commit(&index).expect_err("of another save"), &folder);
        assert!(other.starts_with("FOLDER/run.2-00003-of-00003.safetensors: "), "{other}");
    }
    check(&folder, 2)?;
    save(&folder, 2)?;
    check(&folder, 2)?;
    assert_eq!(files(&folder), whole(3, 2));
    fs::remove_dir_all(&folder).expect("removes");
    Ok(())
}

#[test]
fn files_of_others_stay_whatever_their_names_are() -> Result<()> {
    let folder = folder("others");
    fs::create_dir_all(folder.join("run.3-00001-of-00001.safetensors.d")).expect("makes");
    let others = [
        "run.7-00001-of-00002.safetensors",
        "run.1-1-of-1.safetensors",
        ".run.3-00001-of-00001.safetensors",
        "thesis.txt",
        ".run.x.saving",
        "run.8-00001-of-00001.safetensors.bak",
        "run.10-00001-of-00001.safetensors.bak",
    ];
    let write = |name: &str| fs::write(folder.join(name), "somebody's").expect("writes");
    let (before, copies) = others.split_at(5);
    for name in before {
        write(name);
    }
    for (copy, size) in copies.iter().zip([2, 3]) {
        drop(killed(&folder, 1, 1)?);
        // Of what the save is about to remove.
        assert!(folder.join(copy.trim_end_matches(".bak")).exists(), "{:?}", files(&folder));
        write(copy);
        save(&folder, size)?;
        check(&folder, size)?;
    }
    for name in others {
        assert_eq!(fs::read_to_string(folder.join(name)).expect("is there"), "somebody's");
    }
    assert_eq!(files(&folder).len(), others.len() + 1 + 4, "{:?}", files(&folder));
    fs::remove_dir_all(&folder).expect("removes");
    // An index of somebody else's is not replaced.
    fs::create_dir_all(&folder).expect("makes");
    tacit_io::write(folder.join(INDEX), Vec::new(), &tacit_io::Metadata::new())?;
    expect![[r"
        FOLDER/run.safetensors: it is no index of ranks
        help: give the folder of a run that `save_run` saved"]]
    .assert_eq(&said(&Save::begin(&folder, 1).err().expect("is none"), &folder));
    assert_eq!(files(&folder), [INDEX]);
    fs::remove_dir_all(&folder).expect("removes");
    Ok(())
}

#[test]
fn two_programs_do_not_save_into_one_folder_at_once() -> Result<()> {
    let folder = folder("two");
    let first = Save::begin(&folder, 1)?;
    expect![[r"
        FOLDER: another program saves into it
        help: let it come to its end, or save to another folder"]]
    .assert_eq(&said(&Save::begin(&folder, 1).err().expect("one is under way"), &folder));
    let index = written(&folder, &first, all_pieces(1, |_, _| Ok(()))?, 1)?;
    first.commit(&index)?;
    first.finish();
    save(&folder, 1)?;
    assert_eq!(files(&folder), whole(2, 1));
    fs::remove_dir_all(&folder).expect("removes");
    Ok(())
}

#[test]
fn a_leaf_that_differed_is_that_of_the_first_rank_where_the_ranks_are_others() -> Result<()> {
    let folder = folder("differing");
    let mut all = all_pieces(2, |_, _| Ok(()))?;
    for piece in all[1].iter_mut().filter(|piece| piece.state == LEAVES && piece.key == "norm") {
        piece.array = piece.array.negative()?;
    }
    save_pieces(&folder, all)?;
    let (place, log) = (Place { rank: 2, size: 3 }, Log::default());
    let (known, arrays, _) = held(place)?;
    let (run, _) = tracing::subscriber::with_default(log.clone(), || read(&folder, &known, place))?;
    assert_eq!(bits(&run.states[LEAVES]["norm"]), bits(&arrays["norm"]));
    expect!["norm was another on each of 2 ranks; every rank has that of the first one now"]
        .assert_eq(&log.lines().join("\n"));
    fs::remove_dir_all(&folder).expect("removes");
    Ok(())
}
