//! Large pages of memory for the weights of a step that is called again and again.

use std::thread;
use std::time::Duration;

use mlx_rs::module::Module as _;
use mlx_rs::{Array, nn, random};
use tacit_core::compile::CompileOptions;
use tacit_core::{Error, Result, compile_with_state};
use tacit_nn::{Missing, Model};

use crate::turns;

/// Whether this system has large pages where it is asked for them, and puts small ones together: Linux 6.1 and newer, unless all memory
/// gets them.
fn has_large_pages() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers = release.split(['.', '-']).map(|part| part.trim().parse::<u32>().unwrap_or(0));
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    let enabled = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
    version >= (6, 1) && (enabled.contains("[madvise]") || enabled.contains("[never]"))
}

/// Bytes in large pages of the mapping that an array lies in.
fn large_bytes(array: &Array) -> usize {
    let at = array.as_slice::<f32>().as_ptr().addr();
    let maps = std::fs::read_to_string("/proc/self/smaps").expect("Linux tells its mappings");
    let mut is_here = false;
    for line in maps.lines() {
        let mut words = line.split_whitespace();
        let first = words.next().unwrap_or_default();
        let ends = first.split_once('-').map(|(begin, end)| [begin, end].map(|end| usize::from_str_radix(end, 16)));
        if let Some([Ok(begin), Ok(end)]) = ends {
            is_here = (begin..end).contains(&at);
        } else if is_here && first == "AnonHugePages:" {
            return words.next().and_then(|kilobytes| kilobytes.parse::<usize>().ok()).expect("a number") << 10;
        }
    }
    panic!("no mapping has the array");
}

#[test]
fn weights_that_stay_get_large_pages() -> Result<()> {
    if !has_large_pages() {
        println!("skipped: this system puts no pages together, or has all memory in large ones");
        return Ok(());
    }
    let _turn = turns::of_memory();
    let (rows, columns) = (4096, 2048);
    let mut model = Model::new(nn::Linear::new(columns, rows)?)?;
    let weight = random::normal::<f32>(&[rows, columns], None, None, &random::key(1)?)?;
    weight.eval()?;
    let bytes = weight.nbytes();
    model.assign([("weight".to_owned(), weight.clone().into())].into(), Missing::Keep)?;
    let mut state = (model, Array::from_f32(0.0));
    let mut step =
        compile_with_state(CompileOptions::default(), |(model, sum): &mut (Model<nn::Linear>, Array), x: Array| {
            *sum = sum.add(model.forward(&x)?.mean(None)?)?;
            Ok::<_, Error>(sum.clone())
        });
    let x = random::normal::<f32>(&[1, columns], None, None, &random::key(2)?)?;
    let mut sums = Vec::new();
    for _ in 0..4 {
        sums.push(step.call(&mut state, &x)?.dense()?.item_exact::<f32>());
    }
    assert!(step.stats().steady > 0, "{:?}", step.stats());
    // Another thread asks for them.
    for _ in 0..600 {
        if large_bytes(&weight) >= bytes / 2 {
            break;
        }
        thread::sleep(Duration::from_millis(100));
    }
    assert!(large_bytes(&weight) >= bytes / 2, "{} of {bytes} bytes", large_bytes(&weight));
    let next = step.call(&mut state, &x)?.dense()?.item_exact::<f32>();
    let each = sums[0];
    assert!((next - 5.0 * each).abs() <= 1e-4 * each.abs().max(1.0), "{sums:?}, then {next}");
    Ok(())
}
