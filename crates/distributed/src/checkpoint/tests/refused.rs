//! Saves that are refused: incomplete, of another model, or contradicting themselves.

use std::collections::BTreeMap;
use std::fs;

use expect_test::expect;
use mlx_rs::{Array, ops};
use tacit_arrays::format::{AnyFormat, Nf4};
use tacit_core::store::Arrays;
use tacit_core::{Error, Result};
use tacit_io::Training;

use super::super::folder::Save;
use super::super::index::{Entry, INDEX, Index, LEAVES};
use super::super::moments::taken_apart;
use super::super::pieces::from_run;
use super::super::saved::read;
use super::super::taken::Taken;
use super::{all_pieces, folder, held, said, save, save_pieces, written};
use crate::layout::{Layout, Leaf, Place, StoredSplit};

#[test]
fn what_is_missing_or_another_model_s_is_named() -> Result<()> {
    let folder = folder("damaged");
    let said = |error: Error| said(&error, &folder);
    let place = Place { rank: 0, size: 2 };
    let (mut known, _, _) = held(place)?;
    assert!(matches!(read(&folder, &known, place), Err(Error::File { .. })), "there is none");
    save(&folder, 2)?;
    known[0].shape = vec![5, 8];
    expect![[r#"
        FOLDER/run.safetensors: a.flat: the leaf has the shape [5, 7], and that of the model [5, 8]
        help: load it into a model of the same formats"#]]
    .assert_eq(&said(read(&folder, &known, place).expect_err("another shape")));
    known[0].key = "b".to_owned();
    expect![[r#"
        FOLDER/run.safetensors: b: the leaf was not saved
        help: load it into a model of the same formats"#]]
    .assert_eq(&said(read(&folder, &known, place).expect_err("another leaf")));
    let (mut known, _, _) = held(place)?;
    known[2].layout = Layout::Own;
    expect![[r#"
        bf16[12,3] is a part of a stored array, which is put together of no other ranks' parts
        help: load it with as many ranks as saved it"#]]
    .assert_eq(&said(read(&folder, &known, place).expect_err("a part of its own")));
    fs::remove_file(folder.join("run.1-00002-of-00002.safetensors")).expect("removes");
    let (known, _, _) = held(place)?;
    assert!(matches!(read(&folder, &known, place), Err(Error::File { .. })), "a rank's file is gone");
    fs::remove_dir_all(&folder).expect("removes");
    Ok(())
}

/// The index as the version before wrote it, where what has no slot is in the file of one rank.
#[test]
fn what_an_earlier_version_lost_is_refused_and_the_rest_is_read() -> Result<()> {
    let folder = folder("earlier");
    let state = |momentum: &'static str| {
        move |_: Place, run: &mut Training| {
            run.states.retain(|name, _| name == "optimizer");
            let numbers = Array::from_slice(&[1f32, 2.0], &[2]);
            run.states.insert("kept".to_owned(), Arrays::from([(momentum.to_owned(), numbers)]));
            Ok(())
        }
    };
    let place = Place { rank: 1, size: 2 };
    for (momentum, is_lost) in [("a.flat.local.velocity", true), ("norm.velocity", false)] {
        let mut index = save_pieces(&folder, all_pieces(2, state("norm.velocity"))?)?;
        index.version = 1;
        let kept: BTreeMap<_, _> =
            index.states["kept"].values().map(|entry| (momentum.to_owned(), entry.clone())).collect();
        index.states.insert("kept".to_owned(), kept);
        index.write(&folder)?;
        let found = read(&folder, &held(place)?.0, place);
        if is_lost {
            expect![[r#"
                FOLDER/run.safetensors: a.flat.local.velocity: an earlier Tacit saved it of one rank alone, and a.flat is split
                help: begin with a new state, or load it with that one"#]].assert_eq(&said(&found.expect_err("one rank's"), &folder));
        } else {
            assert_eq!(found?.0.states["kept"]["norm.velocity"].as_slice::<f32>(), [1.0, 2.0]);
        }
    }
    fs::remove_dir_all(&folder).expect("removes");
    Ok(())
}

/// An optimizer's state goes into another split only where it has the same form there.
#[test]
fn states_that_fit_no_other_split_are_refused() -> Result<()> {
    let folder = folder("forms");
    let place = Place { rank: 0, size: 2 };
    let rows = |place: Place, run: &mut Training| {
        let rows = Array::from_slice(&[place.rank as f32, 5.0, 6.0], &[3]);
        run.states.insert("rows".to_owned(), Arrays::from([("rows.weight.exp_avg_sq_col".to_owned(), rows)]));
        Ok(())
    };
    let mut index = save_pieces(&folder, all_pieces(2, rows)?)?;
    let with = |at: usize, layout: Layout| -> Result<Vec<Leaf>> {
        let mut known = held(place)?.0;
        known[at].layout = layout;
        Ok(known)
    };
    let said = |known: &[Leaf]| said(&read(&folder, known, place).expect_err("is refused"), &folder);
    // Rows of a part, of a leaf that is whole now.
    expect![[r"
        FOLDER/run.safetensors: rows.weight.exp_avg_sq_col: it was kept of rows.weight as that lay on 2 ranks
        help: load it on as many ranks as saved it, split alike"]]
    .assert_eq(&said(&with(2, Layout::Whole)?));
    index.states.remove("rows");
    index.write(&folder)?;
    read(&folder, &with(2, Layout::Whole)?, place)?;
    read(&folder, &with(2, Layout::Flat)?, place)?;
    // Rows and columns of a matrix are no elements of a flat part, nor the other way round; a vector has neither.
    index.optimizer = Some("Adafactor".to_owned());
    index.write(&folder)?;
    read(&folder, &with(2, Layout::Whole)?, place)?;
    read(&folder, &with(5, Layout::Flat)?, place)?;
    expect![[r"
        FOLDER/run.safetensors: rows.weight.0: Adafactor keeps rows and columns of rows.weight, but none of a flat part
        help: split it as it was split then, or begin with a new state"]]
    .assert_eq(&said(&with(2, Layout::Flat)?));
    expect![[r"
        FOLDER/run.safetensors: a.flat.0: Adafactor keeps rows and columns of a.flat, but none of a flat part
        help: split it as it was split then, or begin with a new state"]]
    .assert_eq(&said(&with(0, Layout::Whole)?));
    fs::remove_dir_all(&folder).expect("removes");
    Ok(())
}

#[test]
fn an_index_that_says_what_cannot_be_is_refused() -> Result<()> {
    let folder = folder("impossible");
    save(&folder, 2)?;
    let place = Place { rank: 0, size: 2 };
    let known = held(place)?.0;
    let refused = |change: fn(&mut Entry)| -> Result<String> {
        let (_, mut index) = Index::read(&folder)?;
        let right = index.states.clone();
        let state = index.states.get_mut("optimizer").expect("was saved");
        change(state.get_mut("rows.weight.0").expect("was saved"));
        index.write(&folder)?;
        let found = said(&read(&folder, &known, place).expect_err("is refused"), &folder);
        index.states = right;
        index.write(&folder)?;
        Ok(found)
    };
    expect![[r"
        FOLDER/run.safetensors: optimizer.rows.weight.0: no 2 ranks hold the shape [2147483647, 2147483647, 2147483647] as Flat, nor rank 0 of them
        help: the file is not as it was written: fetch or write it again"]]
    .assert_eq(&refused(|entry| (entry.layout, entry.shape) = (Layout::Flat, vec![i32::MAX; 3]))?);
    for change in [
        |entry: &mut Entry| (entry.layout, entry.shape) = (Layout::Whole, vec![i32::MAX; 3]),
        |entry: &mut Entry| (entry.layout, entry.shape) = (Layout::Flat, vec![-4, -4]),
        |entry: &mut Entry| (entry.layout, entry.shape) = (Layout::Flat, vec![i32::MAX, 3]),
        |entry: &mut Entry| entry.layout = Layout::Axis(99),
        |entry: &mut Entry| (entry.layout, entry.shape) = (Layout::Axis(0), vec![3, 2]),
        |entry: &mut Entry| (entry.layout, entry.holder) = (Layout::Whole, usize::MAX),
        |entry: &mut Entry| entry.holder = 2,
    ] {
        let found = refused(change)?;
        assert!(found.contains("no 2 ranks hold the shape"), "{found}");
    }
    read(&folder, &known, place)?;
    fs::remove_dir_all(&folder).expect("removes");
    Ok(())
}

#[test]
fn files_that_are_not_what_the_index_says_are_named() -> Result<()> {
    let folder = folder("unlike");
    let place = Place { rank: 0, size: 1 };
    let (mut known, _, run) = held(place)?;
    let norm = known.iter().position(|leaf| leaf.key == "norm").expect("is held");
    let longer = |index: &mut Index| {
        let leaves = index.states.get_mut(LEAVES).expect("are saved");
        leaves.get_mut("norm").expect("is saved").shape = vec![4];
    };
    let mut found = vec![from_run(&run, &known, &BTreeMap::new(), 1).map(drop)];
    {
        let save = Save::begin(&folder, 1)?;
        let mut index = written(&folder, &save, all_pieces(1, |_, _| Ok(()))?, 1)?;
        longer(&mut index);
        found.push(save.commit(&index));
    }
    let mut index = save_pieces(&folder, all_pieces(1, |_, _| Ok(()))?)?;
    let mut moments = Training::new(1);
    let codes = AnyFormat::from(Nf4 { block: 64, double: false }).quantize(&ops::ones::<f32>(&[1, 64])?)?;
    moments.moments.insert("other.0".to_owned(), codes);
    index.moments = taken_apart(&moments, &[])?.0;
    index.write(&folder)?;
    found.push(read(&folder, &known, place).map(drop));
    index.moments.clear();
    longer(&mut index);
    index.write(&folder)?;
    known[norm].shape = vec![4];
    found.push(read(&folder, &known, place).map(drop));
    tacit_io::write(
        folder.join(INDEX),
        Vec::new(),
        &tacit_io::Metadata::from([("tacit.ranks".to_owned(), "{".to_owned())]),
    )?;
    found.push(read(&folder, &known, place).map(drop));
    fs::remove_file(folder.join(INDEX)).expect("removes");
    fs::write(folder.join(format!("run.{}-00001-of-00001.safetensors", u64::MAX)), "").expect("writes");
    found.push(Save::begin(&folder, 1).map(drop));
    let found = found.into_iter().map(|found| said(&found.expect_err("is refused"), &folder));
    expect![[r#"
        the model has no leaf a.flat.local
        help: save the model as it is trained
        FOLDER/run.1-00001-of-00001.safetensors: leaves.norm: it has the shape [3], and the index [4]
        help: save the same model on every rank
        the moment other.0.codes was not saved
        help: save the run again
        FOLDER/run.2-00001-of-00001.safetensors: leaves.norm: it is f32[3], where the index has the shape [4]
        help: the file is not as it was written: fetch or write it again
        FOLDER/run.safetensors: its index of ranks cannot be read: EOF while parsing an object at line 1 column 1
        help: give the folder of a run that `save_run` saved
        FOLDER: it has a file of the last number of all
        help: save to another folder"#]]
    .assert_eq(&found.collect::<Vec<_>>().join("\n"));
    fs::remove_dir_all(&folder).expect("removes");
    Ok(())
}

#[test]
fn a_stored_array_whose_leaves_were_not_saved_is_not_split_anew() -> Result<()> {
    let folder = folder("without-leaves");
    let mut index = save_pieces(&folder, all_pieces(2, |_, _| Ok(()))?)?;
    let codes = AnyFormat::from(Nf4 { block: 64, double: false }).quantize(&ops::ones::<f32>(&[1, 64])?)?;
    index.stored.insert("rows.weight".to_owned(), Taken::from_value("rows.weight", &codes)?.0);
    index.write(&folder)?;
    let place = Place { rank: 0, size: 1 };
    let mut known = held(place)?.0;
    let leaf = known.iter_mut().find(|leaf| leaf.key == "rows.weight").expect("is held");
    leaf.stored = Some("rows.weight".to_owned());
    leaf.split = Some(StoredSplit { axis: 0, shape: vec![12, 3] });
    expect![[r#"
        FOLDER/run.safetensors: rows.weight: the leaf is no part of a stored array, and in the model a part of [12, 3] along axis 0: rows.weight.codes was not saved
        help: load it on as many ranks as saved it, split alike"#]].assert_eq(&said(&read(&folder, &known, place).expect_err("is refused"), &folder));
    fs::remove_dir_all(&folder).expect("removes");
    Ok(())
}
