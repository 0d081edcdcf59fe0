//! What a build removes that a killed one left.

#[path = "../build/leftovers.rs"]
mod leftovers;

use std::fs::{self, File};
use std::path::Path;
use std::time::{Duration, SystemTime};
use std::{env, process};

use leftovers::{BEGIN, sweep};

fn make(folder: &Path, days: u64) {
    fs::create_dir_all(folder).expect("makes");
    fs::write(folder.join("wheel"), "half").expect("writes");
    let then = SystemTime::now() - Duration::from_hours(24 * days);
    File::open(folder).and_then(|folder| folder.set_modified(then)).expect("is ours");
}

#[test]
fn only_what_killed_builds_left_some_time_ago_goes() {
    let cache = env::temp_dir().join(format!("tacit-leftovers-{}", process::id()));
    // None is there yet.
    sweep(&cache);
    for (name, days) in [(format!("{BEGIN}1-2"), 2), (format!("{BEGIN}3-4"), 0), ("mlx-cpu".to_owned(), 9)] {
        make(&cache.join(name), days);
    }
    sweep(&cache);
    let mut names: Vec<_> =
        fs::read_dir(&cache).expect("reads").map(|entry| entry.expect("reads").file_name()).collect();
    names.sort();
    fs::remove_dir_all(&cache).expect("removes");
    assert_eq!(names, [".unpacking-3-4", "mlx-cpu"]);
}
