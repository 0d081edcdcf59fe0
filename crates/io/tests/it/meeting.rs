//! Saves that meet what still reads the file, and saves that meet each other.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use mlx_rs::Array;
use tacit_arrays::Nf4Array;
use tacit_core::{Result, Value};
use tacit_io::{Metadata, hugging_face, load, read, save, write_sharded};
use tacit_nn::Parameters;

use crate::scratch::Scratch;

type Write = fn(&Path, &Parameters) -> Result<()>;

const PATH: &str = "model.layers.0.mlp.up_proj.weight";

fn floats(value: &Value) -> Vec<f32> {
    let array = value.dense().expect("dense");
    array.eval().expect("evaluates");
    array.as_slice::<f32>().to_vec()
}

fn raised(numbers: &[f32], by: f32) -> Vec<f32> {
    numbers.iter().map(|number| number + by).collect()
}

fn more(value: &Value, by: f32) -> Value {
    value.dense().and_then(|array| Ok(array.add(Array::from_f32(by))?)).expect("a sum").into()
}

fn first() -> Value {
    let numbers: Vec<f32> = (0..64 * 1024).map(|number| (number % 251) as f32).collect();
    Array::from_slice(&numbers, &[64, 1024]).into()
}

/// What was loaded from a file is what it was, computed or not, while the file is written over and read again.
#[test]
fn a_file_is_written_over_while_it_is_still_read() {
    let writers: [(&str, Write); 3] = [
        ("tacit", |file, parameters| save(file, parameters)),
        ("hugging face", |file, parameters| hugging_face::write(file, parameters)),
        ("shards", |file, parameters| {
            let arrays = parameters.iter().map(|(path, value)| Ok((path.clone(), value.dense()?)));
            write_sharded(file, arrays.collect::<Result<_>>()?, &Metadata::default(), 1 << 17)
        }),
    ];
    for (name, write) in writers {
        let folder = Scratch::new();
        let file = folder.join("model.safetensors");
        let parameters: Parameters = [(PATH.to_owned(), first()), ("other".to_owned(), more(&first(), 0.5))].into();
        write(&file, &parameters).expect("writes");
        let mut held: Vec<(Parameters, Value)> = Vec::new();
        for round in 0..4 {
            let own = read(&*folder).expect("reads");
            let lazy = more(&own[PATH], 100.0);
            let adapted = own.iter().map(|(path, value)| (path.clone(), more(value, 1.0))).collect();
            write(&file, &adapted).expect("writes");
            held.push((own, lazy));
            for (round, (own, lazy)) in (0..=round).zip(&held) {
                let expected: Vec<f32> = floats(&first()).iter().map(|x| x + round as f32).collect();
                assert!(floats(&own[PATH]) == expected, "{name}, {round}");
                if round % 2 == 0 {
                    assert!(floats(lazy) == raised(&expected, 100.0), "{name}, {round}");
                }
            }
        }
        let now = read(&*folder).expect("reads");
        assert!(floats(&now["other"]) == raised(&floats(&first()), 4.5), "{name}");
    }
}

#[test]
fn saves_to_one_place_at_once_leave_one_of_them() {
    let folder = Scratch::in_memory();
    let file = folder.join("model.safetensors");
    let parameters = |number: usize| -> Parameters {
        let array = |more: usize| -> Value { Array::from_slice(&vec![(number + more) as f32; 5000], &[5000]).into() };
        [("a".to_owned(), array(0)), ("b".to_owned(), array(1000))].into()
    };
    save(&file, &parameters(0)).expect("saves");
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut read = 0;
            while !done.load(Ordering::Relaxed) {
                let both = load(&file).expect("loads");
                let (a, b) = (floats(&both["a"]), floats(&both["b"]));
                assert!(a == vec![a[0]; 5000] && b == raised(&a, 1000.0));
                read += 1;
            }
            read
        });
        let writers: Vec<_> = (1..5)
            .map(|writer| {
                let (file, parameters) = (&file, &parameters);
                scope.spawn(move || {
                    for round in 0..15 {
                        save(file, &parameters(100 * writer + round)).expect("saves");
                    }
                })
            })
            .collect();
        for writer in writers {
            writer.join().expect("does not panic");
        }
        done.store(true, Ordering::Relaxed);
        assert!(reader.join().expect("does not panic") > 0);
    });
    assert_eq!(folder.names(), ["model.safetensors"]);
}

/// The codes are those of the mapped file that goes.
#[test]
fn stored_codes_are_written_over_the_file_that_they_are_of() {
    let folder = Scratch::new();
    let file = folder.join("model.safetensors");
    let packed = Nf4Array::quantize(&first().dense().expect("dense"), 64).expect("quantizes");
    let parameters: Parameters = [(PATH.to_owned(), packed.into())].into();
    save(&file, &parameters).expect("saves");
    let expected = floats(&parameters[PATH]);
    for _ in 0..3 {
        let own = load(&file).expect("loads");
        save(&file, &own).expect("saves");
        assert!(floats(&own[PATH]) == expected && floats(&load(&file).expect("loads")[PATH]) == expected);
    }
}
