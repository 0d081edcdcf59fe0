//! Checkpoints of training runs on several ranks.
//!
//! Each rank writes what it holds into a file of its own, `run.3-00002-of-00004.safetensors` for the second of four in the
//! third save; when all of these are on the disk, the first rank puts `run.safetensors` in its place, which names them and says
//! how the arrays lie in them. Until then the folder holds the save before. Any number of ranks reads it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use mlx_rs::Array;
use mlx_rs::module::ModuleParameters;
use serde::{Deserialize, Serialize};
use tacit_core::store::Arrays;
use tacit_core::{Aval, Error, Result};
use tacit_io::{Metadata, Tensors, Training, write};
use tacit_nn::{Model, Only};

use crate::Group;
use crate::layout::{Layout, Leaf, Place, leaves};

/// What the metadata of the index have it under.
const RANKS: &str = "tacit.ranks";
const VERSION: u32 = 1;

const INDEX: &str = "run.safetensors";
const LEAVES: &str = "leaves";

/// What the index says.
#[derive(Serialize, Deserialize)]
struct Index {
    version: u32,
    /// The number of this save in the folder, which the names of the files have.
    save: u64,
    /// How many ranks there were.
    size: usize,
    step: u64,
    notes: BTreeMap<String, String>,
    optimizer: Option<String>,
    /// The arrays by state and key.
    states: BTreeMap<String, BTreeMap<String, Entry>>,
}

/// How an array lies in the files.
#[derive(Clone, Serialize, Deserialize)]
struct Entry {
    layout: Layout,
    /// The whole array's.
    shape: Vec<i32>,
    /// The rank whose file has it, where every rank has all of it.
    holder: usize,
}

/// Saves a run of a model on all ranks of a group in a folder: the model's leaves, and the states of `run`, such as that of the
/// optimizer. Every rank calls it with the same path, in a file system that they share.
///
/// Each rank writes what it holds of arrays that are split, and a share of the others. The folder holds the old save until the
/// new one is whole, at whatever moment a rank is killed. It is read by [`load_run`] on any number of ranks. A state that is not
/// the optimizer's, such as the random one, is that of the first rank.
///
/// ```
/// use mlx_rs::nn;
/// use mlx_rs::optimizers::AdamW;
/// use tacit_distributed::{FullyShard, Group, load_run, save_run};
/// use tacit_io::Training;
/// use tacit_nn::Model;
///
/// # fn main() -> tacit_core::Result<()> {
/// # let folder = std::env::temp_dir().join(format!("tacit-save-run-{}", std::process::id()));
/// let group = Group::init()?;
/// let mut model = Model::new(nn::Linear::new(8, 8)?)?.fully_shard("weight", &group)?;
/// let mut adamw = AdamW::new(1e-3);
/// save_run(&folder, &Training::new(10).with_optimizer(&adamw)?, &model, &group)?;
///
/// // .. in other processes, perhaps more or fewer of them ..
/// let run = load_run(&folder, &model, &group)?;
/// run.restore_model(&mut model)?;
/// run.restore_optimizer(&mut adamw)?;
/// assert_eq!(run.step, 10);
/// # std::fs::remove_dir_all(folder).ok();
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// A rank cannot write its file, which all ranks are then told; the old save is untouched.
pub fn save_run<M: ModuleParameters>(
    folder: impl AsRef<Path>,
    run: &Training,
    model: &Model<M>,
    group: &Group,
) -> Result<()> {
    let folder = folder.as_ref();
    let place = Place::from(group);
    let written = leaves(model)
        .and_then(|known| write_part(folder, run, &known, &model.leaves(&Only::All).into_iter().collect(), place));
    agreed(written.as_ref().map(drop), group, "its part of the checkpoint")?;
    let index = written?;
    let committed = if place.rank == 0 { commit(folder, &index) } else { Ok(()) };
    agreed(committed.as_ref().map(drop), group, "the index of the checkpoint")?;
    committed
}

/// Loads what of a run this rank needs for the model, which was saved by [`save_run`] on any number of ranks.
///
/// The arrays are those of the whole run, bit for bit, in the parts that the model has here: it may be split otherwise than the
/// one that was saved. [`Training::restore_model`] gives the model its leaves, [`Training::restore_optimizer`] the optimizer its
/// state.
///
/// # Errors
///
/// There is no such run, or a file of it is not as it was written; the model has leaves that were not saved, or of other
/// shapes; a parameter is a part of a stored array ([`Sharded`](crate::Sharded) in a format), and the number of ranks is
/// another one.
pub fn load_run<M: ModuleParameters>(folder: impl AsRef<Path>, model: &Model<M>, group: &Group) -> Result<Training> {
    read(folder.as_ref(), &leaves(model)?, group.into())
}

/// Whether all ranks went on: an error on every rank where one failed, which keeps its own.
fn agreed(own: Result<(), &Error>, group: &Group, what: &str) -> Result<()> {
    let sum = group.all_sum(&Array::from_int(i32::from(own.is_err())))?;
    sum.eval()?;
    if own.is_ok() && sum.item_exact::<i32>() > 0 {
        return Err(Error::Group {
            message: format!("another rank could not write {what}"),
            help: "see the error of that rank; the old checkpoint is untouched",
        });
    }
    Ok(())
}

/// Writes what a rank has of these leaves and the states of a run, and tells what the index is to be.
fn write_part(
    folder: &Path,
    run: &Training,
    known: &[Leaf],
    arrays: &BTreeMap<String, &Array>,
    place: Place,
) -> Result<Index> {
    fs::create_dir_all(folder).map_err(Error::file("make", folder))?;
    let save = if folder.join(INDEX).exists() { index_of(folder)?.1.save + 1 } else { 1 };
    let mut states: BTreeMap<String, BTreeMap<String, Entry>> = BTreeMap::new();
    let mut tensors = Vec::new();
    let mut count = 0;
    let mut put = |state: &str, key: String, layout: Layout, shape: Vec<i32>, array: &Array| {
        let holder = if layout == Layout::Whole { count % place.size } else { 0 };
        count += usize::from(layout == Layout::Whole);
        if layout != Layout::Whole || holder == place.rank {
            tensors.push((tensor(state, &key), array.clone()));
        }
        states.entry(state.to_owned()).or_default().insert(key, Entry { layout, shape, holder });
    };
    for leaf in known {
        let array = arrays.get(&leaf.path).ok_or_else(|| {
            Error::invalid(format!("the model has no leaf {}", leaf.path), "save the model as it is trained")
        })?;
        put(LEAVES, leaf.key.clone(), leaf.layout, leaf.shape.clone(), array);
    }
    for (state, arrays) in run.states.iter().filter(|(state, _)| *state != LEAVES) {
        for (key, array) in arrays {
            match of_leaf(known, key, |leaf| &leaf.path).filter(|(leaf, _)| has_shape(leaf, array, place)) {
                Some((leaf, slot)) => {
                    put(state, format!("{}.{slot}", leaf.key), leaf.layout, leaf.shape.clone(), array);
                }
                None => put(state, key.clone(), Layout::Whole, array.shape().to_vec(), array),
            }
        }
    }
    write(file_of(folder, save, place), tensors, &Metadata::new())?;
    let (step, notes, optimizer) = (run.step, run.notes.clone(), run.optimizer.clone());
    Ok(Index { version: VERSION, save, size: place.size, step, notes, optimizer, states })
}

/// Puts the index in its place, and removes the files that it does not name.
fn commit(folder: &Path, index: &Index) -> Result<()> {
    let path = folder.join(INDEX);
    let text = serde_json::to_string(index).map_err(|error| Error::file("write", &path)(error.into()))?;
    write(&path, Vec::new(), &Metadata::from([(RANKS.to_owned(), text)]))?;
    let named: Vec<PathBuf> =
        (0..index.size).map(|rank| file_of(folder, index.save, Place { rank, size: index.size })).collect();
    for entry in fs::read_dir(folder).map_err(Error::file("read", folder))?.flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let name = name.strip_prefix('.').and_then(|name| name.strip_suffix(".partial")).unwrap_or(&name);
        if is_part(name) && !named.contains(&entry.path()) {
            // What is left of one that was killed goes with the next save.
            let _ = fs::remove_file(entry.path());
        }
    }
    Ok(())
}

fn read(folder: &Path, known: &[Leaf], place: Place) -> Result<Training> {
    let (tensors, index) = index_of(folder)?;
    let wrong = |key: &str, reason: String, help: &str| Error::checkpoint(tensors.path(), Some(key), reason, help);
    let files =
        (0..index.size).map(|rank| Tensors::open(file_of(folder, index.save, Place { rank, size: index.size })));
    let saved = Saved { files: files.collect::<Result<_>>()?, size: index.size };
    let mut run = Training { step: index.step, notes: index.notes, optimizer: index.optimizer, ..Training::default() };
    let entries = index.states.get(LEAVES).cloned().unwrap_or_default();
    let mut own = Arrays::new();
    for leaf in known {
        let entry = entries.get(&leaf.key).ok_or_else(|| {
            wrong(&leaf.key, "the leaf was not saved".to_owned(), "load it into a model of the same formats")
        })?;
        if entry.shape != leaf.shape {
            let reason = format!("the leaf has the shape {:?}, and that of the model {:?}", entry.shape, leaf.shape);
            return Err(wrong(&leaf.key, reason, "load it into a model of the same formats"));
        }
        own.insert(leaf.path.clone(), saved.part(&tensor(LEAVES, &leaf.key), entry, leaf.layout, place)?);
    }
    run.states.insert(LEAVES.to_owned(), own);
    for (state, entries) in index.states.iter().filter(|(state, _)| *state != LEAVES) {
        let mut own = Arrays::new();
        for (key, entry) in entries {
            let found = of_leaf(known, key, |leaf| &leaf.key);
            let (name, layout) =
                match found.filter(|(leaf, _)| entry.layout != Layout::Whole || leaf.shape == entry.shape) {
                    Some((leaf, slot)) => (format!("{}.{slot}", leaf.path), leaf.layout),
                    None => (key.clone(), Layout::Whole),
                };
            own.insert(name, saved.part(&tensor(state, key), entry, layout, place)?);
        }
        run.states.insert(state.clone(), own);
    }
    Ok(run)
}

/// The files of a save.
struct Saved {
    files: Vec<Tensors>,
    size: usize,
}

impl Saved {
    /// What a rank has of an array in a layout of its own.
    fn part(&self, tensor: &str, entry: &Entry, layout: Layout, place: Place) -> Result<Array> {
        let Entry { layout: saved, ref shape, holder } = *entry;
        if layout == saved && place.size == self.size {
            let file = if saved == Layout::Whole { holder } else { place.rank };
            return self.get(file, tensor, &saved.shape(shape, self.size));
        }
        if saved == Layout::Own || layout == Layout::Own {
            return Err(Error::invalid(
                format!("{tensor} is a part of a stored array on one of {} ranks", self.size),
                "load it on as many ranks as saved it, split alike",
            ));
        }
        let holders = if saved == Layout::Whole { holder..holder + 1 } else { 0..self.size };
        let part = saved.shape(shape, self.size);
        let parts = holders.map(|rank| self.get(rank, tensor, &part)).collect::<Result<Vec<_>>>()?;
        let dtype = parts.first().map_or(mlx_rs::Dtype::Float32, Array::dtype);
        layout.part(&saved.whole(&parts, &Aval::new(shape, dtype))?, place)
    }

    fn get(&self, rank: usize, tensor: &str, shape: &[i32]) -> Result<Array> {
        let file = self.files.get(rank).ok_or_else(|| {
            Error::invalid(format!("the index names the file of rank {rank} of {}", self.size), "save the run again")
        })?;
        let array = file.get(tensor)?;
        if array.shape() == shape {
            return Ok(array);
        }
        let reason = format!("it is {}, where the index has the shape {shape:?}", Aval::from(&array));
        Err(file.wrong(Some(tensor), reason, "the file is not as it was written: fetch or write it again"))
    }
}

/// The index of a folder, checked.
fn index_of(folder: &Path) -> Result<(Tensors, Index)> {
    let tensors = Tensors::open(folder.join(INDEX))?;
    let help = "give the folder of a run that `save_run` saved";
    let text = tensors.metadata().get(RANKS).ok_or_else(|| tensors.wrong(None, "it is no index of ranks", help))?;
    let index: Index = serde_json::from_str(text)
        .map_err(|error| tensors.wrong(None, format!("its index of ranks is none: {error}"), help))?;
    if index.version != VERSION || index.size == 0 {
        let reason = format!("it has version {} of {} ranks", index.version, index.size);
        return Err(tensors.wrong(None, reason, "use a newer Tacit"));
    }
    Ok((tensors, index))
}

/// The leaf that a state's array belongs to, and what is behind its name.
fn of_leaf<'l, 'k>(leaves: &'l [Leaf], key: &'k str, name: fn(&Leaf) -> &String) -> Option<(&'l Leaf, &'k str)> {
    let (path, slot) = key.rsplit_once('.')?;
    leaves.iter().find(|leaf| name(leaf) == path).map(|leaf| (leaf, slot))
}

fn has_shape(leaf: &Leaf, array: &Array, place: Place) -> bool {
    array.shape() == leaf.layout.shape(&leaf.shape, place.size)
}

fn tensor(state: &str, key: &str) -> String {
    format!("{state}.{key}")
}

fn file_of(folder: &Path, save: u64, Place { rank, size }: Place) -> PathBuf {
    folder.join(format!("run.{save}-{:05}-of-{size:05}.safetensors", rank + 1))
}

/// Whether a file of this name is one of a rank's.
fn is_part(name: &str) -> bool {
    let numbers = || {
        let (save, rest) = name.strip_prefix("run.")?.strip_suffix(".safetensors")?.split_once('-')?;
        let (rank, size) = rest.split_once("-of-")?;
        Some([save, rank, size])
    };
    numbers().is_some_and(|numbers| {
        numbers.iter().all(|digits| !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_digit()))
    })
}

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use mlx_rs::{Dtype, random};

    use super::*;

    /// Whole arrays, how they lie, and what an optimizer keeps of some.
    fn wholes() -> Vec<(Leaf, Array)> {
        let leaf = |name: &str, layout, shape: &[i32], dtype| {
            let key = random::key(name.len() as u64).expect("a key");
            let numbers = random::normal::<f32>(shape, None, None, Some(&key)).expect("normal numbers");
            let large = numbers.multiply(Array::from_f32(40.0)).and_then(|it| it.abs()).expect("multiplies");
            let inner = if layout == Layout::Flat { ".local" } else { "" };
            let path = format!("{name}{inner}");
            (Leaf { path, key: name.to_owned(), layout, shape: shape.to_vec() }, large.as_dtype(dtype).expect("casts"))
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

    /// What a rank holds, and what its optimizer does.
    fn held(place: Place) -> Result<(Vec<Leaf>, Arrays, Training)> {
        let (mut arrays, mut known, mut state) = (Arrays::new(), Vec::new(), Arrays::new());
        for (leaf, whole) in wholes() {
            let part = leaf.layout.part(&whole, place)?;
            state.insert(format!("{}.0", leaf.path), part.add(&part)?);
            state.insert(format!("{}.1", leaf.path), part.square()?);
            arrays.insert(leaf.path.clone(), part);
            known.push(leaf);
        }
        state.insert("step".to_owned(), Array::from_int(4));
        let mut run = Training::new(4).with_note("rules", "none");
        run.states.insert("optimizer".to_owned(), state);
        run.optimizer = Some("AdamW".to_owned());
        Ok((known, arrays, run))
    }

    fn save(folder: &Path, size: usize, ranks: usize) -> Result<Vec<Index>> {
        let each = (0..ranks).map(|rank| {
            let place = Place { rank, size };
            let (known, arrays, run) = held(place)?;
            write_part(folder, &run, &known, &arrays.iter().map(|(path, array)| (path.clone(), array)).collect(), place)
        });
        each.collect()
    }

    fn bits(array: &Array) -> Vec<u8> {
        tacit_bridge::with_bytes(array, <[u8]>::to_vec).expect("evaluates")
    }

    /// Checks that each of `size` ranks reads what it would hold.
    fn check(folder: &Path, size: usize) -> Result<()> {
        for rank in 0..size {
            let place = Place { rank, size };
            let (known, arrays, expected) = held(place)?;
            let run = read(folder, &known, place)?;
            assert_eq!((run.step, &run.notes, &run.optimizer), (4, &expected.notes, &expected.optimizer));
            for (found, expected) in
                [(&run.states[LEAVES], &arrays), (&run.states["optimizer"], &expected.states["optimizer"])]
            {
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

    #[test]
    fn any_number_of_ranks_reads_what_any_other_saved() -> Result<()> {
        let folder = folder("sizes");
        for sizes in [1, 2, 4, 3, 1].windows(2) {
            commit(&folder, &save(&folder, sizes[0], sizes[0])?[0])?;
            check(&folder, sizes[0])?;
            check(&folder, sizes[1])?;
        }
        assert_eq!(files(&folder).len(), 4, "an index and three parts");
        fs::remove_dir_all(&folder).expect("removes");
        Ok(())
    }

    #[test]
    fn a_save_that_was_killed_leaves_the_one_before() -> Result<()> {
        let folder = folder("killed");
        commit(&folder, &save(&folder, 2, 2)?[0])?;
        let whole = files(&folder);
        // One of three ranks has written its part, and another a piece of it.
        save(&folder, 3, 1)?;
        fs::write(folder.join(".run.2-00002-of-00003.safetensors.partial"), "a piece").expect("writes");
        check(&folder, 2)?;
        check(&folder, 4)?;
        // All have, and the index is not there yet.
        let index = save(&folder, 3, 3)?;
        check(&folder, 2)?;
        commit(&folder, &index[2])?;
        check(&folder, 3)?;
        assert_eq!(whole, ["run.1-00001-of-00002.safetensors", "run.1-00002-of-00002.safetensors", INDEX]);
        let now = ["run.2-00001-of-00003.safetensors", "run.2-00002-of-00003.safetensors"];
        assert_eq!(files(&folder), [now[0], now[1], "run.2-00003-of-00003.safetensors", INDEX]);
        fs::remove_dir_all(&folder).expect("removes");
        Ok(())
    }

    #[test]
    fn what_is_missing_or_another_model_s_is_named() -> Result<()> {
        let folder = folder("damaged");
        let said = |error: Error| error.to_string().replace(&*folder.to_string_lossy(), "FOLDER");
        let place = Place { rank: 0, size: 2 };
        let (mut known, _, _) = held(place)?;
        assert!(matches!(read(&folder, &known, place), Err(Error::File { .. })), "there is none");
        commit(&folder, &save(&folder, 2, 2)?[0])?;
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
            leaves.rows.weight is a part of a stored array on one of 2 ranks
            help: load it on as many ranks as saved it, split alike"#]]
        .assert_eq(&said(read(&folder, &known, place).expect_err("a part of its own")));
        fs::remove_file(folder.join("run.1-00002-of-00002.safetensors")).expect("removes");
        let (known, _, _) = held(place)?;
        assert!(matches!(read(&folder, &known, place), Err(Error::File { .. })), "a rank's file is gone");
        fs::remove_dir_all(&folder).expect("removes");
        Ok(())
    }
}
