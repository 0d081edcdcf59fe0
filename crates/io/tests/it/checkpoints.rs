//! Tacit's own checkpoints: every kind of value comes back, and what does not fit is named.

use expect_test::expect;
use mlx_rs::builder::Builder;
use mlx_rs::optimizers::{
    AdaDelta, AdaGrad, Adafactor, Adam, AdamW, Adamax, Lion, Optimizer, RmsProp, Sgd, SgdBuilder,
};
use mlx_rs::random::RandomState;
use mlx_rs::{Array, ops, random};
use tacit_arrays::format::parse;
use tacit_arrays::{Constant, Lora, LowRank, Masked, Nf4Array, Scaled, Sliced, Sparse24, Stacked, Transposed};
use tacit_bridge::with_bytes;
use tacit_core::store::{StoredChild, collect, named};
use tacit_core::{Policy, Result, Value};
use tacit_io::{Metadata, Progress, Tensors, Training, Writing, load, save, save_with, write};
use tacit_nn::{Apollo, Parameters, QuantizedState, Rules, SavedMoments, Stateful};

use crate::scratch::Scratch;

fn numbers(shape: &[i32]) -> Array {
    random::uniform::<_, f32>(-1.0, 1.0, shape, &random::key(3).expect("a key")).expect("draws")
}

/// A value of every stored format, and of the types that are made of others.
fn one_of_each() -> Parameters {
    let x = numbers(&[128, 128]);
    let texts = FORMATS.split_whitespace();
    let mut values: Parameters =
        texts.map(|text| (format!("formats.{text}"), parse(text).expect(text).quantize(&x).expect(text))).collect();
    let nf4 = || Value::from(Nf4Array::quantize(&x, 64).expect("quantizes"));
    let made: [(&str, Value); 10] = [
        ("dense", x.clone().into()),
        ("lora", Lora::new(nf4(), numbers(&[8, 128]), numbers(&[128, 8]), 16.0).expect("fits").into()),
        ("low_rank", LowRank::new(numbers(&[128, 4]), numbers(&[4, 128])).expect("fits").into()),
        ("masked", Masked::new(nf4(), x.gt(Array::from_f32(0.0)).expect("compares")).expect("fits").into()),
        ("scaled", Scaled::new(nf4(), &Array::from_f32(0.5)).expect("fits").into()),
        ("sliced", Sliced::new(nf4(), &[0, 64], &[64, 128]).expect("fits").into()),
        ("sparse", Sparse24::prune(&x).expect("prunes").into()),
        ("stacked", Stacked::new(vec![nf4(), x.clone().into()]).expect("fits").into()),
        ("transposed", Transposed::new(nf4(), &[1, 0]).expect("fits").into()),
        ("constant", Constant::full(&[3, 4], &Array::from_f32(0.5)).expect("fits").into()),
    ];
    values.extend(made.map(|(path, value)| (path.to_owned(), value)));
    values
}

const FORMATS: &str = "nf4:64 nf4:128:double fp4:32 affine:4:64 affine:3:32 int8 int8:columns ternary:32 binary:8 dynamic:8:256:unsigned dynamic:4:128 e4m3:64 e5m2:64 f16 bf16 mxfp4 mxfp8:round nvfp4:global";

/// The structure of values, and the bytes of their arrays by key.
pub(crate) fn taken_apart(values: &Parameters) -> (Vec<String>, Vec<(String, Vec<u8>)>) {
    let (structure, arrays) = collect(|| {
        let one = |(path, value): (&String, &Value)| {
            named(path, || serde_json::to_string(&value.stored()).expect("serializes"))
        };
        values.iter().map(one).collect()
    });
    let bytes = |(key, array): (String, Array)| (key, with_bytes(&array, <[u8]>::to_vec).expect("evaluates"));
    (structure, arrays.into_iter().map(bytes).collect())
}

#[test]
fn every_kind_of_value_comes_back_bit_by_bit_and_is_never_built() {
    let _policy = Policy::Deny.scope();
    let folder = Scratch::new();
    let values = one_of_each();
    let whole = folder.join("model.safetensors");
    save(&whole, &values).expect("saves");
    assert_eq!(taken_apart(&load(&whole).expect("loads")), taken_apart(&values));
    // And in several files, and again over them.
    let parts = folder.join("parts.safetensors");
    for _ in 0..2 {
        save_with(&parts, &values, Writing { shard: Some(100_000), progress: None }).expect("saves");
        let index = folder.join("parts.safetensors.index.json");
        assert_eq!(taken_apart(&load(index).expect("loads")), taken_apart(&values));
    }
}

#[test]
fn a_dense_value_is_a_tensor_of_its_path_whatever_an_implicit_one_is_made_of() {
    let folder = Scratch::new();
    let nf4 = Nf4Array::quantize(&numbers(&[64, 64]), 64).expect("quantizes");
    let values = Parameters::from([
        ("w".to_owned(), nf4.into()),
        ("w.codes".to_owned(), Array::from_int(1).into()),
        ("w.packed".to_owned(), Array::from_int(2).into()),
    ]);
    let path = folder.join("model.safetensors");
    save(&path, &values).expect("saves");
    assert_eq!(taken_apart(&load(&path).expect("loads")).0.len(), 3);
    let tensors = Tensors::open(&path).expect("opens");
    assert_eq!(tensors.get("w.codes").expect("is there").item_exact::<i32>(), 1);
    assert_eq!(tensors.get("w.packed").expect("is there").item_exact::<i32>(), 2);
}

#[test]
fn word_of_the_progress_goes_up_to_the_whole() {
    let folder = Scratch::new();
    let mut seen = Vec::new();
    let mut note = |progress: Progress| seen.push((progress.done, progress.total));
    let values = Parameters::from([("a", 64), ("b", 8)].map(|(path, n)| (path.to_owned(), numbers(&[n]).into())));
    let writing = Writing { shard: Some(100), progress: Some(&mut note) };
    save_with(folder.join("m.safetensors"), &values, writing).expect("saves");
    assert_eq!(seen, [(256, 288), (288, 288)]);
}

#[test]
fn what_cannot_be_loaded_is_named() {
    let folder = Scratch::new();
    let path = folder.join("m.safetensors");
    let codes = || vec![("w.codes".to_owned(), Array::from_slice(&[0u8, 1], &[2]))];
    let said = |entries: &[(&str, &str)]| {
        let metadata: Metadata = entries.iter().map(|(key, text)| ((*key).to_owned(), (*text).to_owned())).collect();
        write(&path, codes(), &metadata).expect("writes");
        folder.message(&load(&path).expect_err("cannot be loaded")).replace("FOLDER/", "") + "\n"
    };
    let values = |json: &str| said(&[("tacit.version", "1"), ("tacit.values", json)]);
    let said = [
        said(&[]),
        said(&[("tacit.version", "2"), ("tacit.values", "{}")]),
        said(&[("tacit.version", "one")]),
        said(&[("tacit.version", "1")]),
        values("[]"),
        values(r#"{"w":{"array":"w.codes"},"w":{"array":"w.codes"}}"#),
        values(r#"{"w":{"array":"w.scales"}}"#),
        values(r#"{"w":{"list":[]}}"#),
        values(r#"{"w":{"implicit":{"type":"strange.Array"}}}"#),
        values(
            r#"{"w":{"implicit":{"type":"tacit.Transposed","inner":{"implicit":{"type":"strange.Inner"}},"axes":[]}}}"#,
        ),
        values(r#"{"w":{"implicit":{"type":"tacit.Transposed","inner":{"array":"w.codes"},"axes":[1,0]}}}"#),
        values(r#"{"w":{"implicit":{"type":"tacit.Transposed","inner":{"array":"w.codes"}}}}"#),
    ]
    .concat();
    expect![[r#"
        m.safetensors: it is no checkpoint of Tacit's
        help: read it with the function for its format, or its tensors with `Tensors::open`
        m.safetensors: it has version 2 of Tacit's checkpoints, and this program reads 1
        help: use a newer Tacit
        m.safetensors: its version is "one"
        help: the file is not as it was written: fetch or write it again
        m.safetensors: it has no `tacit.values`
        help: the file is not as it was written: fetch or write it again
        m.safetensors: it does not say which values it holds: invalid type: sequence, expected a map at line 1 column 0
        help: the file is not as it was written: fetch or write it again
        m.safetensors: it does not say which values it holds: the key "w" is there twice at line 1 column 49
        help: the file is not as it was written: fetch or write it again
        m.safetensors: w: there is no array for the key "w.scales"
        help: the file is not as it was written: fetch or write it again
        m.safetensors: w: unknown variant `list`, expected `array` or `implicit`
        help: the file is not as it was written: fetch or write it again
        m.safetensors: w: this program has no array type "strange.Array"
        help: use the crate that declares the type, or a newer Tacit
        m.safetensors: w: this program has no array type "strange.Inner"
        help: use the crate that declares the type, or a newer Tacit
        m.safetensors: w: missing field `aval`
        help: the file is not as it was written: fetch or write it again
        m.safetensors: w: missing field `axes`
        help: the file is not as it was written: fetch or write it again
    "#]]
    .assert_eq(&said);
}

#[test]
fn a_save_that_fails_leaves_the_old_file_and_nothing_beside_it() {
    let folder = Scratch::new();
    let path = folder.join("m.safetensors");
    let old = Parameters::from([("w".to_owned(), Array::from_int(1).into())]);
    save(&path, &old).expect("saves");
    // An array that cannot be evaluated here: a lazy one of another thread.
    let lazy = std::thread::spawn(|| Array::from_int(1).negative().expect("is lazy")).join().expect("does not panic");
    let new = Parameters::from([("v".to_owned(), numbers(&[64]).into()), ("w".to_owned(), lazy.into())]);
    for shard in [None, Some(128)] {
        let error = save_with(&path, &new, Writing { shard, progress: None }).expect_err("cannot be evaluated");
        assert!(error.to_string().contains("in current thread"), "{error}");
        assert_eq!(folder.names(), ["m.safetensors"]);
        assert_eq!(taken_apart(&load(&path).expect("loads")), taken_apart(&old));
    }
    let error = save(folder.join("no/such/folder"), &old).expect_err("there is no folder");
    expect!["cannot write FOLDER/no/such/folder: No such file or directory (os error 2)"]
        .assert_eq(&folder.message(&error));
    let twice = vec![("w".to_owned(), Array::from_int(1)), ("w".to_owned(), Array::from_int(2))];
    expect![[r#"
        FOLDER/m.safetensors: w: the name is taken
        help: give each tensor a name of its own"#]]
    .assert_eq(&folder.message(&write(&path, twice, &Metadata::new()).expect_err("two of one name")));
    assert_eq!(folder.names(), ["m.safetensors"]);
}

/// One step of an optimizer on two parameters, one of which has dots in its path.
fn stepped<O: Optimizer>(optimizer: &mut O, seed: u64) -> Vec<Array> {
    let draw = |n: u64, shape: &[i32]| {
        random::uniform::<_, f32>(-1.0, 1.0, shape, &random::key(seed + n).expect("a key")).expect("draws")
    };
    let shapes: [(&str, &[i32]); 3] = [("layers.0.weight", &[4, 3]), ("layers.1.weight", &[2, 2]), ("bias", &[3])];
    let step = |(n, (path, shape)): (usize, (&str, &[i32]))| {
        let mut parameter = ops::ones::<f32>(shape).expect("ones");
        optimizer.update_single(&path.into(), &draw(n as u64, shape), &mut parameter).expect("a step");
        parameter
    };
    shapes.into_iter().enumerate().map(step).collect()
}

fn goes_on<O: Optimizer<State: SavedMoments>>(mut new: impl FnMut() -> O) {
    let folder = Scratch::new();
    let path = folder.join("run.safetensors");
    let mut first = new();
    stepped(&mut first, 1);
    let run = Training::new(1).with_optimizer(&first).expect("has a state");
    run.with_note("rules", "all").save(&path).expect("saves");
    let run = Training::load(&path).expect("loads");
    assert_eq!((run.step, run.notes["rules"].as_str()), (1, "all"));
    let mut second = new();
    run.restore_optimizer(&mut second).expect("is of the kind");
    let bytes = |arrays: Vec<Array>| -> Vec<Vec<u8>> {
        arrays.iter().map(|array| with_bytes(array, <[u8]>::to_vec).expect("evaluates")).collect()
    };
    // How the first of these steps rounds its moments the second shows.
    for seed in [9, 17] {
        assert_eq!(bytes(stepped(&mut first, seed)), bytes(stepped(&mut second, seed)));
    }
}

#[test]
fn every_optimizer_goes_on_bit_by_bit() {
    goes_on(|| Sgd::new(0.1));
    goes_on(|| SgdBuilder::new(0.1).momentum(0.9).build().expect("builds"));
    goes_on(|| Adam::new(0.1));
    goes_on(|| AdamW::new(0.1));
    goes_on(|| Adamax::new(0.1));
    goes_on(|| Lion::new(0.1));
    goes_on(|| AdaDelta::new(0.1).expect("builds"));
    goes_on(|| AdaGrad::new(0.1));
    goes_on(|| RmsProp::new(0.1).expect("builds"));
    goes_on(|| Adafactor::new().expect("builds"));
    goes_on(|| Stateful(AdamW::new(0.1)));
    let small = |optimizer: Result<QuantizedState<AdamW>>| optimizer.expect("formats").from_elements(1);
    goes_on(|| small(QuantizedState::eight_bits(AdamW::new(0.1))));
    goes_on(|| small(QuantizedState::four_bits(AdamW::new(0.1))));
    // Scales that are arrays of their own, floats beside codes, and one moment.
    goes_on(|| small(QuantizedState::new(AdamW::new(0.1), "nf4:64:double")));
    let first = Rules::new().quantize("layers.*.0", "int8").expect("rules");
    goes_on(|| small(QuantizedState::new(AdamW::new(0.1), &first)));
    // Moments that are rounded at random: the key goes on, too.
    goes_on(|| small(QuantizedState::new(AdamW::new(0.1), "dynamic:8:256+stochastic")).with_seed(5));
    goes_on(|| QuantizedState::eight_bits(Lion::new(0.1)).expect("formats").from_elements(1));
    // Projections, which are drawn anew in the second step.
    let low = Apollo { period: 1, ..Apollo::mini() };
    goes_on(|| {
        QuantizedState::new(Adam::new(0.1), &Rules::new()).and_then(|adam| adam.apollo("*", low)).expect("fits")
    });
    goes_on(|| small(QuantizedState::eight_bits(AdamW::new(0.1))).apollo("*", low).expect("fits"));
}

#[test]
fn moments_of_a_low_rank_go_on_in_none_that_is_whole() {
    let low = QuantizedState::new(Lion::new(0.1), &Rules::new()).and_then(|lion| lion.apollo("*", Apollo::mini()));
    let (mut low, mut whole) = (low.expect("fits"), Lion::new(0.1));
    stepped(&mut low, 1);
    let run = Training::new(1).with_optimizer(&low).expect("has a state");
    expect![[r#"
        the moments are of gradients of a low rank
        help: restore them into a `QuantizedState` with the same `apollo`"#]]
    .assert_eq(&run.restore_optimizer(&mut whole).expect_err("another state").to_string());
    assert!(whole.state().is_empty(), "it is as it was");
}

/// Floats go on in few bits, and codes as what they stand for.
#[test]
fn a_state_goes_on_in_another_format() {
    let folder = Scratch::new();
    let path = folder.join("run.safetensors");
    let new = || QuantizedState::eight_bits(Adam::new(0.1)).expect("formats").from_elements(1);
    let (mut float, mut quantized) = (Adam::new(0.1), new());
    stepped(&mut float, 1);
    Training::new(1).with_optimizer(&float).and_then(|run| run.save(&path)).expect("saves");
    Training::load(&path).and_then(|run| run.restore_optimizer(&mut quantized)).expect("is of the kind");
    assert_eq!(quantized.values().expect("values")["layers.0.weight.1"].to_string(), "f32[4,3]");
    stepped(&mut quantized, 2);
    assert_eq!(quantized.values().expect("values")["layers.0.weight.1"].to_string(), "Dynamic(f32[4,3])");

    Training::new(2).with_optimizer(&quantized).and_then(|run| run.save(&path)).expect("saves");
    let run = Training::load(&path).expect("loads");
    let before = float.state().clone();
    {
        let _deny = Policy::Deny.scope();
        assert!(run.restore_optimizer(&mut float).is_err());
        assert!(float.state().keys().all(|key| before.contains_key(key)), "it is as it was");
    }
    run.restore_optimizer(&mut float).expect("is of the kind");
    let (own, other) = (&float.state()["layers.0.weight"].1, &quantized.values().expect("values")["layers.0.weight.1"]);
    assert!(own.eq_exact(other.dense().expect("builds")).expect("compares"));
}

/// Codes of other bits are what they stand for to the next step, which makes its own.
#[test]
fn codes_go_on_in_fewer_bits_and_in_more() {
    let adam = || Adam::new(0.1);
    let small = |optimizer: Result<QuantizedState<Adam>>| optimizer.expect("formats").from_elements(1);
    let eight = || small(QuantizedState::eight_bits(adam()));
    let four = || small(QuantizedState::four_bits(adam()));
    for (mut first, mut second) in [(eight(), four()), (four(), eight())] {
        stepped(&mut first, 1);
        let run = Training::new(1).with_optimizer(&first).expect("has a state");
        let mut float = adam();
        run.restore_optimizer(&mut float).expect("is of the kind");
        let mut own = second.clone();
        stepped(&mut own, 1);
        run.restore_optimizer(&mut second).expect("is of the kind");
        assert_eq!(second.nbytes(), first.nbytes());
        for (found, expected) in stepped(&mut second, 9).iter().zip(&stepped(&mut float, 9)) {
            assert!(found.all_close(expected, 1e-5, 1e-5, None).expect("compares"), "{found:?} {expected:?}");
        }
        assert_eq!(second.nbytes(), own.nbytes());
    }
}

#[test]
fn a_run_says_what_it_does_not_have() {
    let folder = Scratch::new();
    let path = folder.join("run.safetensors");
    let mut adamw = AdamW::new(0.1);
    stepped(&mut adamw, 1);
    let random = RandomState::with_seed(3).expect("a state");
    let mut run = Training::new(2);
    run.parameters = one_of_each();
    run.with_optimizer(&adamw).expect("has a state").with_random(&random).save(&path).expect("saves");
    let run = Training::load(&path).expect("loads");
    let key = run.random().expect("is there");
    assert!(key.as_array().eq_values(random.as_array()).expect("compares"));
    assert_eq!(taken_apart(&run.parameters), taken_apart(&one_of_each()));
    assert_eq!(taken_apart(&load(&path).expect("has values")), taken_apart(&one_of_each()));
    let mut sgd = Sgd::new(0.1);
    expect![[r#"
        the saved state is that of AdamW, not of Sgd
        help: use the kind that was saved"#]]
    .assert_eq(&run.restore_optimizer(&mut sgd).expect_err("another kind").to_string());
    assert!(sgd.state().is_empty(), "it is as it was");
    let bare = Training::new(2);
    expect![[r#"
        the run was saved without its optimizer state
        help: add it by `Training::with_optimizer` before the run is saved; the states that were saved: none at all"#]]
    .assert_eq(&bare.restore_optimizer(&mut sgd).expect_err("none").to_string());
    expect![[r#"
        the run was saved without its random state
        help: add it by `Training::with_random` before the run is saved; the states that were saved: none at all"#]]
    .assert_eq(&bare.random().expect_err("none").to_string());
    save(&path, &Parameters::new()).expect("saves");
    expect![[r#"
        FOLDER/run.safetensors: it has no state of a training run
        help: read the values alone with `load`"#]]
    .assert_eq(&folder.message(&Training::load(&path).expect_err("no run")));
}
