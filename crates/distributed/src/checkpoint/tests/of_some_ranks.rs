//! Arrays whose parts lie in groups of some of the ranks.

use tacit_io::Tensors;

use super::super::index::tensor;
use super::*;

/// Four ranks in pairs, beside each other in reverse order or across, and each by itself.
const GRID: Over = |key, Place { rank, .. }| match key {
    "a.flat" | "codes" => Some(vec![rank % 2, rank % 2 + 2]),
    "rows.weight" => Some(vec![rank / 2 * 2 + 1, rank / 2 * 2]),
    "columns" => Some(vec![rank]),
    _ => None,
};

/// Four ranks otherwise: all of them in reverse order, and pairs where there were others.
const REVERSED: Over = |key, Place { rank, .. }| match key {
    "a.flat" => Some(vec![3, 2, 1, 0]),
    "codes" | "columns" => Some(vec![rank / 2 * 2, rank / 2 * 2 + 1]),
    "one" => Some(vec![rank]),
    _ => None,
};

fn save_over(folder: &Path, size: usize, over: Over) -> Result<()> {
    save_pieces(folder, all_pieces_over(size, over, |_, _| Ok(()))?)?;
    Ok(())
}

#[test]
fn however_ranks_are_grouped_they_read_what_others_saved() -> Result<()> {
    let folder = folder("grouped");
    let ways = [(4, GRID), (4, REVERSED), (2, ALL), (4, GRID), (1, ALL), (4, REVERSED), (3, ALL), (4, ALL), (4, GRID)];
    for (number, ways) in (1..).zip(ways.windows(2)) {
        let [(size, over), (other_size, other)] = [ways[0], ways[1]];
        save_over(&folder, size, over)?;
        check_over(&folder, size, over)?;
        check_over(&folder, other_size, other)?;
        assert_eq!(files(&folder), whole(number, size));
    }
    fs::remove_dir_all(&folder).expect("removes");
    Ok(())
}

#[test]
fn what_groups_have_alike_one_of_them_writes() -> Result<()> {
    let folder = folder("one-group");
    let version = |size, over| -> Result<u32> {
        save_over(&folder, size, over)?;
        Ok(Index::read(&folder)?.1.version)
    };
    // Earlier versions read what they could have written.
    assert_eq!(version(4, ALL)?, 3);
    assert_eq!(version(4, GRID)?, 4);
    let holders = |key: &str| -> Result<Vec<usize>> {
        let has =
            |rank| Ok(Tensors::open(file_of(&folder, 2, Place { rank, size: 4 }))?.aval(&tensor(LEAVES, key)).is_ok());
        let all = (0..4).map(has).collect::<Result<Vec<bool>>>()?;
        Ok((0..4).filter(|&rank| all[rank]).collect())
    };
    // They take turns.
    assert_eq!((holders("a.flat")?, holders("codes")?), (vec![0, 2], vec![1, 3]));
    assert_eq!((holders("rows.weight")?, holders("columns")?), (vec![0, 1], vec![3]));
    assert_eq!(holders("one")?, [0, 1, 2, 3]);
    fs::remove_dir_all(&folder).expect("removes");
    Ok(())
}

#[test]
fn what_differs_between_groups_is_each_group_s_own() -> Result<()> {
    let folder = folder("own-groups");
    let mut all = all_pieces_over(4, GRID, |_, _| Ok(()))?;
    for pieces in all.iter_mut().skip(1).step_by(2) {
        for piece in pieces.iter_mut().filter(|piece| piece.state == LEAVES && piece.key == "a.flat") {
            piece.array = piece.array.negative()?;
        }
    }
    save_pieces(&folder, all)?;
    let log = Log::default();
    let _guard = tracing::subscriber::set_default(log.clone());
    let read = |place, over| -> Result<(Vec<u8>, Array)> {
        let (known, arrays, _) = held_over(place, over)?;
        let (run, _) = read(&folder, &known, place)?;
        Ok((bits(&run.states[LEAVES]["a.flat.local"]), arrays["a.flat.local"].clone()))
    };
    for rank in 0..4 {
        let place = Place { rank, size: 4 };
        let (found, own) = read(place, GRID)?;
        assert_eq!(found, bits(&if rank % 2 == 0 { own } else { own.negative()? }), "rank {rank}");
        // In other groups that of the first one, on all ranks.
        let (found, own) = read(place, REVERSED)?;
        assert_eq!(found, bits(&own), "rank {rank}");
    }
    let mut lines = log.lines();
    lines.dedup();
    expect!["a.flat was another in each group of ranks; every group has that of the first one now"]
        .assert_eq(&lines.join("\n"));
    fs::remove_dir_all(&folder).expect("removes");
    Ok(())
}

#[test]
fn groups_that_cannot_be_are_refused() -> Result<()> {
    let folder = folder("no-groups");
    save_over(&folder, 4, GRID)?;
    for other in ["[[0,2],[1,4]]", "[[0,2],[1]]", "[[],[]]", "[]", "[[0,0],[1,3]]", "[[0,2],[2,3]]", "[[0,2]]"] {
        let (_, mut index) = Index::read(&folder)?;
        let groups = serde_json::from_str(&format!(r#"{{"ranks":{other}}}"#)).expect("is read");
        let leaves = index.states.get_mut(LEAVES).expect("was saved");
        let own = leaves.get_mut("a.flat").expect("was saved").groups.replace(groups);
        index.write(&folder)?;
        let place = Place { rank: 0, size: 4 };
        let found = said(&read(&folder, &held_over(place, GRID)?.0, place).expect_err("is refused"), &folder);
        assert!(found.contains("leaves.a.flat: no 4 ranks hold the shape [5, 7] as Flat"), "{other}: {found}");
        index.states.get_mut(LEAVES).expect("was saved").get_mut("a.flat").expect("was saved").groups = own;
        index.write(&folder)?;
    }
    check_over(&folder, 4, GRID)?;
    fs::remove_dir_all(&folder).expect("removes");
    Ok(())
}
