//! What commands say of values that they do not take, and of what is rarely met.

use std::fs;

use expect_test::expect;
use mlx_rs::ops;
use tacit_core::Value;
use tacit_io::save;
use tacit_nn::Parameters;

use super::Folder;

#[test]
fn values_that_no_option_takes_are_named() {
    let folder = Folder::new();
    let values = [
        &["bench", "--seconds=-1"][..],
        &["bench", "--shape", "4096"],
        &["compare", "a", "b", "--max-error=-1"],
        &["launch", "-n", "2", "--grace", "soon", "--", "true"],
    ];
    let said = values.map(|arguments| folder.said(arguments, 2)).concat();
    let named = [
        folder.said(&["man", "nothing"], 1),
        // More than there are ports for.
        folder.said(&["launch", "-n", "50000", "--", "true"], 1),
    ];
    expect![[r#"
        error: invalid value '-1' for '--seconds <SECONDS>': give a number of seconds from 0 to 1000000

        For more information, try '--help'.
        error: invalid value '4096' for '--shape <OUTxIN>': write OUTxIN, such as 4096x4096

        For more information, try '--help'.
        error: invalid value '-1' for '--max-error <ERROR>': it is no relative error: give 0 or more

        For more information, try '--help'.
        error: invalid value 'soon' for '--grace <GRACE>': give a number of seconds, such as 10

        For more information, try '--help'.
        error: there is no command nothing
        help: name one of inspect, quantize, advise, convert, compare, explain, bench, generate, chat, perplexity, train, launch, types, primitives, new, doctor, completions, man, help
        error: 50000 ranks have no ports here: address not available
        help: start fewer ranks, or end what listens on this machine
    "#]].assert_eq(&(said + &named.concat()));
}

#[test]
fn other_shapes_and_what_layers_give_are_compared() {
    let folder = Folder::new();
    let (a, b, svg) = (folder.checkpoint(), folder.at("other.safetensors"), folder.at("far.svg"));
    let ones = |shape: &[i32]| Value::from(ops::ones::<f32>(shape).expect("ones"));
    let other = [("layer.weight".to_owned(), ones(&[4, 64])), ("odd.weight".to_owned(), ones(&[4, 3]))];
    save(&b, &Parameters::from(other)).expect("saves");
    let said = [
        folder.said(&["compare", &a, &b, "--svg", &svg], 0),
        folder.said(&["compare", &a, &a, "--outputs"], 0),
        folder.said(&["explain", &a], 0),
    ];
    expect![[r#"
        parameter     a          b                  error    cosine  sqnr dB
        layer.weight  f32[8,64]  f32[4,64]  shapes differ
        odd.weight    f32[4,3]   f32[4,3]          0.00e0  1.000000    exact
        only in a: layer.bias
        parameter     a          b           error    cosine  sqnr dB  of outputs: error    cosine  sqnr dB
        layer.bias    f32[8]     f32[8]     0.00e0  1.000000    exact
        layer.weight  f32[8,64]  f32[8,64]  0.00e0  1.000000    exact             0.00e0  1.000000    exact
        odd.weight    f32[4,3]   f32[4,3]   0.00e0  1.000000    exact             0.00e0  1.000000    exact
        parameters    of them  value      call     taken by    bytes built
        layer.weight        1  f32[8,64]  x @ w.T  MLX, dense
        odd.weight          1  f32[4,3]   x @ w.T  MLX, dense
        2 calls for tokens [1,1], 0 arrays materialized (0 bytes)
    "#]]
    .assert_eq(&said.concat());
    let svg = fs::read_to_string(svg).expect("is drawn");
    assert!(svg.contains("Relative error by parameter"), "{svg}");
}

#[test]
fn what_rules_leave_as_it_is_is_told_with_the_reason() {
    let folder = Folder::new();
    let (input, rules) = (folder.at("counted.safetensors"), folder.at("rules.json"));
    let ramp = ops::arange::<_, f32>(0, 8 * 64, None).and_then(|ramp| ramp.reshape(&[8, 64])).expect("a ramp");
    let parameters = Parameters::from([
        ("counts.weight".to_owned(), ops::ones::<i32>(&[8, 64]).expect("ones").into()),
        ("layer.weight".to_owned(), ramp.clone().into()),
        ("other.weight".to_owned(), ramp.into()),
    ]);
    save(&input, &parameters).expect("saves");
    fs::write(&rules, r#"{"layer.weight": "affine:4:32", "counts.weight": "affine:4:32"}"#).expect("writes");
    let arguments = ["quantize", &input, "--rules", &rules, "-o", &folder.at("packed.safetensors")];
    expect![[r#"
        parameter      value                error  before  after
        counts.weight  i32[8,64]                     2048   2048  it is no float
        layer.weight   Affine(f32[8,64])  0.00200    2048    384
        other.weight   f32[8,64]                     2048   2048  no rule gives it a format
        6144 bytes before, 4480 after
    "#]]
    .assert_eq(&folder.said(&arguments, 0));
}

#[test]
fn codes_that_gguf_does_not_have_are_quantized_anew() {
    let folder = Folder::new();
    let golden = format!("{}/../../tests/decoder/golden/affine/llama", env!("CARGO_MANIFEST_DIR"));
    let arguments = ["convert", &golden, "--as", "gguf", "--format", "q8_0", "-o", &folder.at("model.gguf")];
    expect![[r#"
        30 parameters, 23424 bytes before, 30176 after
        23 were quantized anew
    "#]]
    .assert_eq(&folder.said(&arguments, 0));
}

/// A Mac has no such paths.
#[test]
#[cfg(target_os = "linux")]
fn a_clone_whose_path_is_no_text_is_named() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    use std::process::Command;

    let folder = Folder::new();
    let clone = OsStr::from_bytes(b"x\xff");
    for file in ["crates/tacit/lib.rs", "crates/mlx-sys/Cargo.toml"] {
        let file = folder.0.path().join(clone).join(file);
        fs::create_dir_all(file.parent().expect("a folder")).expect("makes");
        fs::write(file, "").expect("writes");
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_tacit"));
    let output = command.current_dir(&folder.0).args(["new", "hello", "--path"]).arg(clone).output().expect("starts");
    let said =
        String::from_utf8(output.stderr).expect("text").replace(folder.0.path().to_str().expect("text"), "FOLDER");
    assert_eq!(output.status.code(), Some(1), "{said}");
    expect![[r#"
        error: FOLDER/x�/ is no text
        help: give a path of Unicode characters, for Cargo.toml is text
    "#]]
    .assert_eq(&said);
    assert!(!folder.0.path().join("hello").exists());
}
