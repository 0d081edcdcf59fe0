//! What is read from storage is checked as its constructor would: every field and every child of every type, corrupted.

use std::collections::BTreeSet;

use mlx_rs::{Array, Dtype, ops};
use serde_json::{Value as Json, json};
use tacit_arrays::format::{AnyFormat, Granularity, Nf4};
use tacit_arrays::{
    ActivationGranularity, AsStored, Batched, Cast, Concat, Constant, Int8Array, Int8Inputs, Int8Training, Lora,
    Observed, Prepared, Rotated, SavedInputs, Scaled, ScaledChannels, Scores, Sliced, Sparse24, Stacked, TrainedCodes,
    Transposed, ste,
};
use tacit_core::{ImplicitArray, Policy, Value, implicit, store};

use crate::adapters::{dora_on, lora_set_on, qa_lora_on};
use crate::operands::{affine, every, nf4, normal, normal_of};
use crate::structured::{constant, diagonal, dropped_lora, identity, lora, lora_on, low_rank, masked, sparse24};

/// An array of every type, matrices both ways round.
fn arrays() -> Vec<Value> {
    let packed = || nf4(&normal(1, &[8, 64]), 64);
    let views: [Value; 11] = [
        Cast::new(nf4(&normal_of(Dtype::Bfloat16, 1, &[8, 64]), 64), Dtype::Float32).expect("casts").into(),
        Concat::new(vec![packed(), normal(2, &[3, 64]).into()], 0).expect("joins").into(),
        Rotated::new(packed(), -1).expect("rotates").into(),
        Scaled::new(packed(), &Array::from_f32(2.0)).expect("scales").into(),
        ScaledChannels::new(packed(), &normal(2, &[64]), -1).expect("scales").into(),
        Sliced::new(packed(), &[1, 2], &[5, 50]).expect("cuts").into(),
        Stacked::new(vec![packed(), normal(2, &[8, 64]).into()]).expect("stacks").into(),
        Transposed::new(packed(), &[1, 0]).expect("turns").into(),
        ste(normal(1, &[8, 64]), |w| Ok::<_, tacit_core::Error>(nf4(w, 64))).expect("quantizes"),
        Int8Array::quantize(&normal(1, &[6, 64]), Granularity::Column).expect("quantizes").into(),
        Constant::full(&[], &Array::from_int(2)).expect("one number").into(),
    ];
    let structured = [constant(), identity(), diagonal(), low_rank(), lora(), dropped_lora(0.25), masked(), sparse24()];
    let adapters: [Value; 4] = [
        dora_on(packed()),
        qa_lora_on(affine(&normal(1, &[8, 64]), 32, 4), 2),
        lora_set_on(&packed(), Array::from_slice(&[1u32], &[])).into(),
        AsStored::new(lora_on(packed()), Nf4::from(64)).expect("an adapter").into(),
    ];
    let mut all: Vec<Value> = every(Dtype::Float32, 1, &[6, 64]);
    all.extend(views);
    all.extend(structured);
    all.extend(adapters);
    let transposed = |w: &Value| implicit(w, |w| Ok::<_, tacit_core::Error>(w.t()));
    let matrices = all.iter().filter(|w| w.aval().expect("an aval").shape.len() == 2);
    let transposed: Vec<Value> = matrices.map(|w| transposed(w).expect("turns")).filter(Value::is_implicit).collect();
    all.extend(transposed);
    all
}

fn saved(value: &Value) -> (Json, store::Arrays) {
    let Value::Implicit(array) = value else { panic!("{value} is dense") };
    let (json, arrays) = store::collect(|| serde_json::to_value(array).expect("is stored"));
    (json, arrays)
}

fn loaded(json: &Json, arrays: &store::Arrays) -> Result<Value, String> {
    let read = store::provide(arrays.clone(), || serde_json::from_value::<Box<dyn ImplicitArray>>(json.clone()));
    read.map(Value::from).map_err(|error| error.to_string())
}

/// Each static field of a stored structure and of those in it, by its JSON pointer.
fn fields(json: &Json, arrays: &store::Arrays, at: &str, found: &mut Vec<String>) {
    match json {
        Json::Object(object) => {
            for (name, field) in object.iter().filter(|(name, _)| *name != "type") {
                fields(field, arrays, &format!("{at}/{name}"), found);
            }
        }
        Json::String(key) if arrays.contains_key(key) => {}
        Json::Array(items) if items.iter().any(Json::is_object) => {
            for (i, item) in items.iter().enumerate() {
                fields(item, arrays, &format!("{at}/{i}"), found);
            }
        }
        Json::Null => {}
        _ => found.push(at.to_owned()),
    }
}

/// Other values of a field, and whether each must be an error.
fn others(name: &str, field: &Json, most: usize) -> Vec<(Json, bool)> {
    match field {
        Json::String(_) if name == "format" => {
            let wrong = ["", "affine", "affine:0:64", "affine:4:0", "affine:4:7", "affine:7:64", "affine:-4:64"];
            let far = ["affine:4294967295:64", "affine:4:18446744073709551615", "affine:4:64:1", "nf4:64"];
            wrong.iter().chain(&far).map(|text| (json!(text), true)).collect()
        }
        Json::String(aval) => {
            let dtype = aval.split('[').next().unwrap_or_default();
            // Of as many elements it is another array.
            let shapes = [("[-6,-64]", true), ("[1,6,64]", false), ("[]", true), ("[0]", true), ("[7]", true)];
            let huge = [("[5,9]", true), ("[2147483647,2147483647]", true)];
            let shapes = shapes.iter().chain(&huge).take(most);
            let mut all: Vec<(Json, bool)> =
                shapes.map(|(shape, must)| (json!(format!("{dtype}{shape}")), *must)).collect();
            if most != 6 {
                all.push((json!(aval.replacen(dtype, "bool", 1)), true));
            }
            all.push((json!("f32"), true));
            all
        }
        Json::Number(_) => {
            let number = field.as_u64().unwrap_or_default();
            let zero = !matches!(name, "alpha" | "dropout" | "axis");
            let nan = matches!(name, "alpha" | "dropout");
            vec![
                (json!(0), zero),
                (json!(number + 1), false),
                (json!(-1), true),
                (json!(0x7fc0_0000), nan),
                (json!(i32::MAX), !nan),
                (json!(u64::MAX), true),
            ]
        }
        // Codes in one row of blocks are those of a matrix either way round.
        Json::Bool(flag) => vec![(json!(!flag), false)],
        Json::Array(numbers) => {
            let mut all = vec![(json!([]), true), (json!([0, 0, 0, 0, 0]), true), (json!([i32::MIN, i32::MAX]), true)];
            let mut less = numbers.clone();
            less[0] = json!(-1);
            all.push((json!(less), true));
            if name == "scales" {
                less[0] = json!(f32::NAN.to_bits());
                all.push((json!(less), true));
            }
            all
        }
        _ => Vec::new(),
    }
}

/// An array that is read works: it has the aval that it says.
fn works(value: &Value) {
    let _allow = Policy::Allow.scope();
    let (aval, dense) = (value.aval().expect("an aval"), value.dense().expect("dense"));
    dense.eval().expect("evaluates");
    assert_eq!(tacit_core::Aval::from(&dense), aval, "{value}");
}

#[test]
fn what_was_saved_is_loaded() {
    for value in arrays() {
        let (json, arrays) = saved(&value);
        works(&loaded(&json, &arrays).unwrap_or_else(|error| panic!("{json}: {error}")));
    }
}

#[test]
fn a_corrupt_field_is_an_error() {
    let mut kinds = BTreeSet::new();
    for value in arrays() {
        let (json, arrays) = saved(&value);
        // A constant has any shape, and an identity any that is square, of any type.
        let most = match json["type"].as_str() {
            Some("tacit.Constant") => 1,
            Some("tacit.Identity") => 6,
            _ => 7,
        };
        let mut pointers = Vec::new();
        fields(&json, &arrays, "", &mut pointers);
        for pointer in pointers {
            let name = pointer.rsplit('/').next().unwrap_or_default();
            let original = json.pointer(&pointer).expect("is there").clone();
            for (other, must) in others(name, &original, most).into_iter().filter(|(other, _)| *other != original) {
                let mut corrupt = json.clone();
                *corrupt.pointer_mut(&pointer).expect("is there") = other.clone();
                match loaded(&corrupt, &arrays) {
                    Ok(read) if must => panic!("{value}: {pointer} = {other} instead of {original} is read as {read}"),
                    Ok(read) => works(&read),
                    Err(_) => {
                        kinds.insert(name.to_owned());
                    }
                }
            }
        }
    }
    let expected = [
        "aval",
        "axes",
        "axis",
        "block_size",
        "bounds",
        "alpha",
        "dropout",
        "format",
        "rank",
        "scales",
        "start",
        "stop",
        "stored",
        "transposed",
    ];
    for name in expected {
        assert!(kinds.contains(name), "no corrupt {name} was an error: {kinds:?}");
    }
}

#[test]
fn a_child_of_another_shape_or_type_is_an_error() {
    for value in arrays() {
        let (json, arrays) = saved(&value);
        for (key, child) in &arrays {
            let longer = ops::zeros_dtype(&[&[3], child.shape()].concat(), child.dtype()).expect("zeros");
            let short = ops::zeros_dtype(&[1013], child.dtype()).expect("zeros");
            let other = ops::zeros_dtype(child.shape(), Dtype::Complex64).expect("zeros");
            // An index chooses one adapter, or one for each of so many parts of a batch.
            let wrong = if key == "index" { vec![other] } else { vec![longer, short, other] };
            for wrong in wrong {
                let mut arrays = arrays.clone();
                arrays.insert(key.clone(), wrong.clone());
                let read = loaded(&json, &arrays);
                let aval = tacit_core::Aval::from(&wrong);
                assert!(read.is_err(), "{value}: {key} = {aval} is read as {}", read.unwrap_or(wrong.into()));
            }
        }
    }
}

#[test]
fn a_child_that_is_left_out_or_too_many_is_an_error() {
    for value in arrays() {
        let (json, arrays) = saved(&value);
        let names: Vec<String> = json.as_object().expect("fields").keys().cloned().collect();
        for name in names {
            let mut less = json.clone();
            less.as_object_mut().expect("fields").remove(&name);
            match loaded(&less, &arrays) {
                // An option that is not there is none.
                Ok(read) => works(&read),
                Err(error) => assert!(error.contains(&name) || error.contains("missing"), "{error}"),
            }
        }
        let mut more = json.clone();
        more.as_object_mut().expect("fields").insert("more".to_owned(), json!(1));
        assert!(loaded(&more, &arrays).is_err());
    }
}

#[test]
fn an_error_of_loading_says_what_does_not_fit() {
    let (mut json, arrays) = saved(&lora());
    json["alpha"] = json!(f32::INFINITY.to_bits());
    expect_test::expect![[r"
        alpha is inf
        help: give a finite one; the rank is the usual choice"]]
    .assert_eq(&loaded(&json, &arrays).expect_err("is infinite"));
    let set = lora_set_on(&nf4(&normal(1, &[8, 64]), 64), Array::from_slice(&[1u32], &[]));
    let (mut json, arrays) = saved(&set.into());
    json["scales"][0] = json!(f32::NAN.to_bits());
    expect_test::expect![[r"
        the factor of an adapter is NaN
        help: give a finite one"]]
    .assert_eq(&loaded(&json, &arrays).expect_err("is no number"));
    let (mut json, arrays) = saved(&Transposed::new(nf4(&normal(1, &[8, 64]), 64), &[1, 0]).expect("turns").into());
    json["aval"] = json!("f32[8,64]");
    expect_test::expect![[r#"
        Transposed has axes=[1, 0] aval=f32[8,64], and its children make axes=[1, 0] aval=f32[64,8]
        help: build it by its constructor"#]]
    .assert_eq(&loaded(&json, &arrays).expect_err("is transposed"));
}

#[test]
fn a_sparse_array_of_three_axes_is_not_transposed() {
    let (mut json, arrays) = saved(&Sparse24::prune(&normal(1, &[2, 3, 8])).expect("groups").into());
    json["transposed"] = json!(true);
    json["aval"] = json!("f32[2,8,3]");
    expect_test::expect![[r"
        f32[2,3,8] is transposed, and is not a matrix
        help: transpose matrices alone"]]
    .assert_eq(&loaded(&json, &arrays).expect_err("has no transpose"));
}

#[test]
fn what_an_adapter_is_stored_as_holds_it() {
    let w = Value::from(AsStored::new(lora_on(nf4(&normal(1, &[8, 64]), 64)), Nf4::from(64)).expect("an adapter"));
    let (mut json, arrays) = saved(&w);
    json["format"] = json!("affine:4:128");
    expect_test::expect![[r"
        the last axis of f32[8,64] is not whole groups of 128, as affine has them
        help: use a smaller group size, or an array type whose blocks may straddle rows"]]
    .assert_eq(&loaded(&json, &arrays).expect_err("has no groups"));
}

#[test]
fn arrays_are_keyed_by_their_path() {
    let parts = vec![Lora::new(nf4(&normal(1, &[8, 64]), 64), normal(2, &[1, 64]), normal(3, &[8, 1]), 1.0)];
    let parts = parts.into_iter().map(|part| part.expect("fits").into()).chain([normal(4, &[1, 64]).into()]).collect();
    let (_, arrays) = saved(&Concat::new(parts, 0).expect("joins").into());
    let keys: Vec<&str> = arrays.keys().map(String::as_str).collect();
    assert_eq!(keys, ["parts.0.a", "parts.0.b", "parts.0.base.codes", "parts.0.base.scales", "parts.1"]);
}

/// Only formats of integers have products with activations in 8 bits; what is read so of them works.
#[test]
fn int8_activations_are_read_where_there_are_such_products() {
    let x = normal(2, &[3, 64]);
    let (mut taken, mut refused) = (0, 0);
    for value in every(Dtype::Float32, 1, &[6, 64]) {
        let (mut json, arrays) = saved(&value);
        json["int8_activations"] = json!(true);
        match loaded(&json, &arrays) {
            Ok(read) => {
                taken += 1;
                let y = implicit((&x, &read), |(x, w)| x.matmul(w.t())).and_then(|y| y.dense()).expect("is lazy");
                y.eval().unwrap_or_else(|error| panic!("{value} is read, and its product fails: {error}"));
            }
            Err(error) => {
                refused += 1;
                assert!(error.contains("has no products with activations in 8 bits\nhelp: "), "{error}");
            }
        }
    }
    assert!(taken >= 7 && refused >= 8, "{taken} and {refused}");
}

/// A format without elements in its blocks divides by nothing.
#[test]
fn a_prepared_weight_of_a_hostile_format_is_an_error() {
    for (text, trained) in
        [("int8:32", true), ("binary:32", true), ("e4m3:32", false), ("e5m2:32", false), ("nf4:32", true)]
    {
        let format = text.parse::<AnyFormat>().expect("a format");
        let mut prepared = Prepared::new(&normal(1, &[4, 64]), format).expect("fits");
        if trained {
            prepared = prepared.with_trained_scales().expect("has scales");
        }
        let (mut json, arrays) = saved(&prepared.into());
        for hostile in
            ["int8:0", "binary:0", "e4m3:0", "e5m2:0", "ternary:0", "codebook:0:-1,1", "nf4:0", "int8:4294967296"]
        {
            json["format"] = json!(hostile);
            assert!(loaded(&json, &arrays).is_err(), "{text} is read as {hostile}");
        }
    }
}

/// The parts of what holds a matrix are named with what it is.
#[test]
fn what_holds_a_matrix_says_which_part_of_it_does_not_fit() {
    let (w, x) = (|| nf4(&normal(1, &[8, 64]), 64), normal(2, &[2, 8, 64]));
    let keys = Batched::new(nf4(&normal(1, &[2, 5, 64]), 64), &[2], vec![0, 1], true).expect("numbers of matrices");
    let key = mlx_rs::random::key(1).expect("a key");
    let codes = TrainedCodes::from_value(&normal(1, &[8, 64]).into(), "int8+stochastic", &key).expect("fits");
    let of_lora = AsStored::new(lora_on(w()), Nf4::from(64)).expect("an adapter");
    let straight = ste(normal(1, &[8, 64]), |w| Ok::<_, tacit_core::Error>(nf4(w, 64))).expect("quantizes");
    let cases: [(Value, &str, &str); 9] = [
        (of_lora.into(), "/aval", "f32[4,128]"),
        (Int8Inputs::new(w(), ActivationGranularity::Token).expect("is float").into(), "/aval", "f32[4,128]"),
        (Int8Training::new(normal(1, &[8, 64])).expect("is float").into(), "/aval", "f32[4,128]"),
        (SavedInputs::exact(w()).expect("is float").into(), "/aval", "f32[4,128]"),
        (Observed::new(w()).expect("is float").into(), "/aval", "f32[4,128]"),
        (straight, "/inner/implicit/aval", "f32[4,128]"),
        (Prepared::new(&normal(1, &[8, 64]), Nf4::from(64)).expect("fits").into(), "/aval", "f32[4,128]"),
        (codes.into(), "/format", "nf4:64+stochastic"),
        (Scores::new(&x, keys).expect("of one batch").into(), "/aval", "f32[2,8,6]"),
    ];
    let said = cases.map(|(value, pointer, other)| {
        let (mut json, arrays) = saved(&value);
        *json.pointer_mut(pointer).unwrap_or_else(|| panic!("{value} has no {pointer}")) = json!(other);
        format!("{}\n", loaded(&json, &arrays).expect_err("does not fit"))
    });
    expect_test::expect![[r#"
        its sum is f32[8,64], where an AsStored of f32[4,128] has f32[4,128]
        help: take the parts of one array, with its shape and block size
        its matrix is f32[8,64], where a matrix of 8-bit activations of f32[4,128] has f32[4,128]
        help: take the parts of one array, with its shape and block size
        its matrix is f32[8,64], where a matrix of 8-bit products of f32[4,128] has f32[4,128]
        help: take the parts of one array, with its shape and block size
        its weight is f32[8,64], where a weight that saves activations of f32[4,128] has f32[4,128]
        help: take the parts of one array, with its shape and block size
        an observed weight of f32[4,128] has f32[8,64] with 2 axes
        help: build it by its constructor
        its inner array is f32[4,128], where a straight-through array of f32[8,64] has f32[8,64]
        help: take the parts of one array, with its shape and block size
        its master is f32[8,64], where a prepared weight of f32[4,128] has f32[4,128]
        help: take the parts of one array, with its shape and block size
        Int8(f32[8,64]) is not in the format nf4:64+stochastic, in which a step would round it
        help: take the format that made these codes
        f32[2,8,6] are no scores of their queries and keys
        help: compute them anew
    "#]]
    .assert_eq(&said.concat());
}
