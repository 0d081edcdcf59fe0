//! Checkpoints of training runs on several ranks.
//!
//! Each rank writes what it holds into a file of its own, `run.3-00002-of-00004.safetensors` for the second of four in the
//! third save; when all of these are on the disk, the first rank puts `run.safetensors` in its place, which names them and says
//! how the arrays lie in them. Until then the folder holds the save before. Any number of ranks reads it.

mod folder;
mod groups;
mod index;
mod moments;
mod pieces;
mod ranks;
mod saved;
mod taken;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use mlx_rs::module::ModuleParameters;
use mlx_rs::transforms::eval;
use tacit_core::Result;
use tacit_io::Training;
use tacit_nn::{Model, ParameterFilter};

use crate::Group;
use crate::layout::{Place, leaves_in};
use folder::Save;
use index::Index;

/// Saves a run of a model on all ranks of a group in a folder: the model's leaves, and the states of `run`, such as that of the
/// optimizer and the random one.
///
/// Every rank calls it with the same path, in a file system that they share.
///
/// Everything is evaluated first, on all ranks together, so that what is lazy may have collectives in it. Each rank then writes
/// what it holds of arrays that are split, a share of those that are the same on every rank, bit for bit, and its own of those that
/// differ between ranks, such as random states. The folder holds the old save until the new one is complete, at whatever moment a rank
/// is killed. Only files of earlier saves are ever removed from it. [`load_run`] reads it on any number of ranks.
///
/// Parameters may be split over groups of [`Group::split`], each over another one if need be: `group` is then the one that was split.
/// Where several such groups have the same parts, one of them writes its own. A model that is split over one such group alone may also
/// be saved by that group, once all ranks have evaluated it, and loaded by each.
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
/// let mut random = group.random(1)?;
/// save_run(&folder, &Training::new(10).with_optimizer(&adamw)?.with_random(&random), &model, &group)?;
///
/// // .. in other processes, perhaps more or fewer of them ..
/// let run = load_run(&folder, &model, &group)?;
/// run.restore_model(&mut model)?;
/// run.restore_optimizer(&mut adamw)?;
/// random = run.random()?;
/// assert_eq!(run.step, 10);
/// # std::fs::remove_dir_all(folder).ok();
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// The ranks do not see one folder, or save different things, also in the step or the notes; a parameter is split over ranks
/// that are not in the group; a rank cannot write its file; another program saves into the folder. All ranks then fail, each with
/// its own error or one that names the rank, and the old save is untouched.
pub fn save_run<M: ModuleParameters>(
    folder: impl AsRef<Path>,
    run: &Training,
    model: &Model<M>,
    group: &Group,
) -> Result<()> {
    let (folder, place) = (folder.as_ref(), Place::from(group));
    let taken_apart = leaves_in(model, group).and_then(|known| {
        let keys: BTreeMap<&str, &str> = known.iter().map(|leaf| (&*leaf.path, &*leaf.key)).collect();
        let kinds = model.leaf_kinds(&ParameterFilter::All)?.renamed(|path| keys.get(path).map(|&key| key.to_owned()));
        let (moments, of_moments) = moments::taken_apart(run, &known)?;
        let mut pieces = pieces::from_run(
            run,
            &known,
            &model.lasting_leaves(&ParameterFilter::All).into_iter().collect(),
            place.size,
        )?;
        pieces.extend(of_moments);
        let kinds = (kinds, taken::of_model(model)?, moments);
        let fingerprints = pieces::fingerprints(run, &kinds, &pieces)?;
        Ok((pieces, kinds, fingerprints))
    });
    let (pieces, (kinds, stored, moments), fingerprints) =
        ranks::all_went(group, taken_apart, "take apart what it saves")?;
    ranks::agree(group, &fingerprints)?;
    let digests = eval(pieces.iter().map(|piece| &piece.array))
        .map_err(Into::into)
        .and_then(|()| pieces::digests(&pieces, place.size));
    let digests = ranks::all_went(group, digests, "compute what it saves")?;
    let (alike, groups) = (ranks::alike(group, &digests)?, ranks::groups(group, &pieces, &digests)?);
    let entries = pieces::entries(&pieces, &alike, groups, place.size);

    let begun = if place.rank == 0 { Save::begin(folder, place.size).map(Some) } else { Ok(None) };
    let save = ranks::all_went(group, begun, "begin a save in the folder")?;
    let (number, id) = ranks::first_says(group, save.as_ref().map(|save| (save.number(), save.id())))?;
    ranks::all_see(group, folder, folder::is_seen(folder, id))?;
    let index = Index { kinds: Some(kinds), stored, moments, ..Index::new(number, id, place.size, run, entries) };
    let written = pieces::write(folder, &index, pieces, place);
    ranks::told(group, written, "write its part of the checkpoint")?.inspect_err(|_| {
        // All ranks know that no index will name it.
        drop(fs::remove_file(index::file_of(folder, number, place)));
    })?;
    let committed = save.map_or(Ok(()), |save| save.commit(&index).map(|()| save.finish()));
    ranks::all_went(group, committed, "put the index of the checkpoint in its place")
}

/// Loads what of a run this rank needs for the model, which was saved by [`save_run`] on any number of ranks.
///
/// Every rank calls it.
///
/// The arrays are those of the whole run, bit for bit, in the parts that the model has here: it may be split otherwise than the
/// one that was saved. Parts of a stored array are joined and cut between their blocks, and never quantized anew. The moments of a
/// [`QuantizedState`](tacit_nn::QuantizedState) are the same codes where the parameter is split as it was; otherwise codes are made
/// anew of what these stand for. [`Training::restore_model`] gives the model its leaves, [`Training::restore_optimizer`] the
/// optimizer its state. An array that differed between ranks goes to the rank of the same number. On another number of ranks, ranks
/// that are new get random states of their own, and leaves of the model that differed, such as the statistics of batches, are those
/// of the first rank, with a warning. Ranks that compute one result, since they have parts of one [`Sharded`](crate::Sharded) weight,
/// have the random state of the first of them where the model was split otherwise.
///
/// # Errors
///
/// There is no such run, or a file of it is not as it was written; the model has leaves that were not saved, or of other
/// shapes, or is split over ranks that are not in the group; the ranks find different saves. A parameter is split otherwise, and
/// its parts are not joined bit for bit: those of a format whose scales are codes themselves, of one with a global scale, and of
/// what is computed of several arrays, such as an adapter that was split with its base. The state of an optimizer differed between
/// ranks, and there are more or fewer of them now: these are the rows and columns of Adafactor for parts of a weight, and what was kept
/// of parts of a stored array. Adafactor has rows and columns of a matrix that is whole or split along an axis, and none of one that
/// is fully sharded: its state is not loaded from the one into the other.
pub fn load_run<M: ModuleParameters>(folder: impl AsRef<Path>, model: &Model<M>, group: &Group) -> Result<Training> {
    let run = leaves_in(model, group).and_then(|known| saved::read(folder.as_ref(), &known, group.into()));
    let (run, id) = ranks::all_went(group, run, "load its part of the checkpoint")?;
    ranks::found_one(group, folder.as_ref(), id)?;
    Ok(run)
}
