//! Groups of some of the ranks of another.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{env, thread};

use tacit_bridge::BridgeError;
use tacit_core::{Error, Result};
use tempfile::{Builder, NamedTempFile};

use crate::Group;
use crate::backend::Backend;
use crate::init::HEAD_START;
use crate::members::Members;
use crate::named::named;
use crate::said::said;
use crate::sentinel::Sentinel;
use crate::watch::{Part, RankInfo};

impl Group {
    /// The ranks that give the same `color`, in the order that they have here, as a group of their own.
    ///
    /// It is a group like any other: for collectives, [`Sharded`](crate::Sharded) and [`FullySharded`](crate::FullySharded)
    /// arrays, means of gradients, and splits. So several ways to split work go together:
    ///
    /// ```
    /// use mlx_rs::module::Module;
    /// use mlx_rs::optimizers::AdamW;
    /// use mlx_rs::{nn, ops};
    /// use tacit_distributed::{FullyShard, Group, Shard, Split};
    /// use tacit_nn::{Model, ParameterFilter};
    ///
    /// # fn main() -> tacit_core::Result<()> {
    /// let group = Group::init()?;
    /// // Each pair of ranks has the parts of a model, and the ranks that have the same part each compute a batch.
    /// let (model, data) = (group.split(group.rank() / 2)?, group.split(group.rank() % 2)?);
    /// let mut linear = Model::new(nn::Linear::new(8, 8)?)?.shard("*", Split::Columns(&model))?;
    /// let x = ops::ones::<f32>(&[2, 8])?;
    /// let step = linear.value_and_grad(ParameterFilter::default(), x, |m, x| m.forward(&x)?.square()?.mean(None));
    /// let gradients = linear.mean_gradients(step?.1, &data)?;
    /// linear.update(&mut AdamW::new(1e-2), &gradients)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Every rank calls it, as it does a collective, and waits for the others. A rank that is alone with its color is a group of
    /// one, and where all give the same, this is the group itself. Over the ring the ranks connect anew, at the addresses that
    /// they have; over MPI its communicator is split, and lasts as long as the process. So split once, at the start.
    ///
    /// The collectives of a group and of all that were split off it run one at a time, in the order in which they were made.
    /// Ranks that share any of these groups must therefore make and evaluate them in the same order. Where the order differs
    /// between groups, they wait for each other, and learn it after [`GroupOptions::wait`](crate::GroupOptions::wait). Messages and
    /// errors name ranks by their numbers in the group that was joined, whose ranks watch each other for all of them.
    ///
    /// Rank 0 of that group passes on what they say. Once it has ended, the others learn late or never that a rank is lost, so
    /// it has to stay until the last part is done: end with a [`barrier`](Self::barrier) of all ranks.
    ///
    /// # Errors
    ///
    /// A rank gives a color above 2147483647: all ranks then fail, and the group goes on. The engine splits no groups, as
    /// JACCL does not; ranks do not reach each other within [`GroupOptions::join`](crate::GroupOptions::join), or one is lost:
    /// the group is of no more use then.
    pub fn split(&self, color: usize) -> Result<Self> {
        self.split_with_key(color, self.rank())
    }

    /// As [`split`](Self::split), with the ranks of a color in the order of their keys; those of one key in the order that they
    /// have here.
    ///
    /// # Errors
    ///
    /// As for [`split`](Self::split); a key is above 2147483647.
    pub fn split_with_key(&self, color: usize, key: usize) -> Result<Self> {
        let choice = count("color", color).and_then(|color| Ok([color, count("key", key)?]));
        let Some(members) = self.members() else { return choice.map(|_| self.clone()) };
        let ranks = self.agreed(members, choice)?;
        let color = ranks[self.rank()][0];
        let mut order: Vec<usize> = (0..ranks.len()).filter(|&rank| ranks[rank][0] == color).collect();
        order.sort_by_key(|&rank| ranks[rank][1]);
        if order.iter().copied().eq(0..self.size()) {
            return Ok(self.clone());
        }
        let number = members.splits.fetch_add(1, Ordering::Relaxed);
        let part = Part {
            name: format!("{}/{number}:{color}", members.part.name),
            ranks: order.iter().map(|&rank| members.part.ranks[rank]).collect(),
        };
        self.part(members, &order, color, part)
    }

    /// What each rank gives: its color and its key.
    fn agreed(&self, members: &Members, own: Result<[u32; 2]>) -> Result<Vec<[u32; 2]>> {
        let [color, key] = own.as_ref().copied().unwrap_or_default();
        let said = said(self, &[u32::from(own.is_err()), color, key]);
        own?;
        let said = said?;
        let failed = members.part.ranks.iter().zip(&said).filter(|(_, said)| said[0] != 0);
        let failed: Vec<usize> = failed.map(|(&rank, _)| rank).collect();
        if failed.is_empty() {
            return Ok(said.iter().map(|said| [said[1], said[2]]).collect());
        }
        Err(Error::Group {
            message: format!("{} could not split the group", named(&failed)),
            help: "see the error there; the group is as it was",
        })
    }

    /// The part of the ranks of `order`, which are those that have this rank's color.
    fn part(&self, members: &Members, order: &[usize], color: u32, part: Part) -> Result<Self> {
        let backend = self.backend();
        let rank = order.iter().position(|&rank| rank == self.rank()).unwrap_or(0);
        let rank_info = RankInfo { rank, size: order.len() };
        if rank_info.size == 1 && backend == Backend::Ring {
            return Ok(Self::new(backend, None));
        }
        let hosts: Vec<Vec<String>> = order.iter().filter_map(|&rank| members.hosts.get(rank).cloned()).collect();
        let (limits, watch) = (members.limits, Arc::clone(&members.watch));
        let sentinel = Box::new(Sentinel::new(limits, Arc::clone(&watch), Some(part.clone())));
        let engine = if backend == Backend::Ring {
            let file = host_file(&hosts)?;
            if rank_info.rank + 1 == rank_info.size {
                thread::sleep(HEAD_START);
            }
            members.engine.split_ring(rank_info.rank, file.path(), sentinel)
        } else {
            members.engine.split(color as i32, rank_info.rank as i32, sentinel)
        };
        let engine = engine.map_err(|error| refused(backend, error))?;
        let found = RankInfo { rank: engine.rank(), size: engine.size() };
        if found != rank_info {
            return Err(Error::Group {
                message: format!(
                    "this process is rank {} of {} of the part, and rank {} of {} to the {backend} engine",
                    rank_info.rank, rank_info.size, found.rank, found.size
                ),
                help: "give every rank the same MLX and Tacit",
            });
        }
        if rank_info.size == 1 {
            return Ok(Self::new(backend, None));
        }
        Ok(Self::new(backend, Some(Members { engine, part, hosts, limits, watch, splits: AtomicUsize::new(0) })))
    }
}

/// A color or a key, as every engine can count.
fn count(what: &str, number: usize) -> Result<u32> {
    u32::try_from(number).ok().filter(|&number| i32::try_from(number).is_ok()).ok_or_else(|| {
        Error::invalid(
            format!("the {what} {number} of a split is above {}", i32::MAX),
            "count the parts of the group from 0 on",
        )
    })
}

fn refused(backend: Backend, error: BridgeError) -> Error {
    match error {
        BridgeError::Callback(_) => error.into(),
        _ => Error::Group {
            message: format!("the {backend} group cannot be split: {error}"),
            help: match backend {
                Backend::Ring => "see whether every rank reaches the addresses of the others, as in `MLX_HOSTFILE`",
                _ => "take the ring or MPI, whose groups can be split",
            },
        },
    }
}

/// A file that says where the ranks of a ring are, until it is dropped.
fn host_file(hosts: &[Vec<String>]) -> Result<NamedTempFile> {
    let folder = env::temp_dir();
    let wrong = || Error::file("write", &folder);
    let mut file = Builder::new().prefix("tacit-ring-").suffix(".json").tempfile_in(&folder).map_err(wrong())?;
    let text = serde_json::to_vec(hosts).map_err(|error| wrong()(error.into()))?;
    file.write_all(&text).map_err(wrong())?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    #[test]
    fn a_group_of_one_is_its_own_part() {
        let alone = Group::alone();
        assert_eq!(alone.split_with_key(3, 5).expect("splits"), alone);
        let said = |part: Result<Group>| part.expect_err("no color").to_string();
        expect![[r"
            the color 2147483648 of a split is above 2147483647
            help: count the parts of the group from 0 on"]]
        .assert_eq(&said(alone.split(1 << 31)));
        expect![[r"
            the key 4294967296 of a split is above 2147483647
            help: count the parts of the group from 0 on"]]
        .assert_eq(&said(alone.split_with_key(0, 1 << 32)));
    }

    #[test]
    fn an_engine_that_refuses_is_named() {
        let words = || BridgeError::Mlx("[jaccl] Group split not supported.".to_owned());
        expect![[r"
            the jaccl group cannot be split: [jaccl] Group split not supported.
            help: take the ring or MPI, whose groups can be split"]]
        .assert_eq(&refused(Backend::Jaccl, words()).to_string());
        let lost = BridgeError::Mlx("[ring] connection to a peer was lost".to_owned());
        expect![[r#"
            the ring group cannot be split: [ring] connection to a peer was lost
            help: see whether every rank reaches the addresses of the others, as in `MLX_HOSTFILE`"#]]
        .assert_eq(&refused(Backend::Ring, lost).to_string());
    }
}
