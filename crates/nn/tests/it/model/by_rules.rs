//! Rules that choose the formats of a model.

use expect_test::expect;
use tacit_arrays::format::{Affine, Int8};
use tacit_core::Error;
use tacit_nn::{Model, Outcome, Pattern, Rules};

use super::{NF4, layers};
use crate::types::{normal, said_of};

#[test]
fn rules_choose_by_the_first_match() {
    let rules = Rules::new()
        .skip("layers.2.weight")
        .and_then(|rules| rules.quantize("re:layers\\.\\d+\\.weight", Affine { bits: 4, group: 64 }))
        .and_then(|rules| rules.quantize(Pattern::when(|_, aval| aval.shape == [10]), Int8::default()))
        .expect("rules");
    let model = Model::new(layers()).and_then(|model| model.quantize("*", &rules)).expect("quantizes");
    let values = model.values().expect("values");
    let shown: Vec<String> = values.iter().map(|(path, value)| format!("{path} {value}")).collect();
    assert_eq!(
        shown,
        [
            "layers.0.bias f32[64]",
            "layers.0.weight Affine(f32[64,64])",
            "layers.2.bias f32[10]",
            "layers.2.weight f32[10,64]"
        ]
    );
    let text = serde_json::to_string(&Rules::from_json(r#"{"b": "int8", "a": "skip"}"#).expect("rules")).expect("json");
    assert_eq!(text, r#"{"b":"int8","a":"skip"}"#);
}

#[test]
fn rules_choose_among_what_the_pattern_names() {
    let rules =
        Rules::new().quantize("*.weight", NF4).and_then(|rules| rules.quantize("layers.*", "bf16")).expect("rules");
    let quantized = |pattern: &str| {
        let model = Model::new(layers()).and_then(|model| model.quantize(pattern, &rules)).expect("quantizes");
        let values = model.values().expect("values").into_iter().filter(|(_, value)| value.is_implicit());
        let shown: Vec<String> = values.map(|(path, value)| format!("{path} {value}")).collect();
        (shown, model.report().unused.clone())
    };
    assert_eq!(quantized("layers.0.*"), (vec!["layers.0.weight Nf4(f32[64,64])".to_owned()], vec![]));
    // A parameter of one axis is named by its path, here or in a rule.
    assert_eq!(
        quantized("layers.2.bias"),
        (vec!["layers.2.bias Bf16(f32[10])".to_owned()], vec!["*.weight and layers.2.bias".to_owned()])
    );
}

#[test]
fn the_report_tells_of_every_parameter() {
    let mut model = Model::new(layers()).expect("a model");
    for (path, seed) in [("layers.0.weight", 1), ("layers.2.weight", 2)] {
        let shape = model.get(path).and_then(|value| value.aval()).expect("there").shape;
        model.set(path, normal(seed, &shape)).expect("fits");
    }
    let rules = Rules::new()
        .quantize("layers.2.weight", Affine { bits: 4, group: 128 })
        .and_then(|rules| rules.quantize("layers.0.*", NF4))
        .and_then(|rules| rules.skip("layer.9.*"))
        .expect("rules");
    let model = model.quantize("*", &rules).expect("quantizes");
    expect![[r#"
        parameter        aval        format           bits     error        before         after
        layers.0.bias    f32[64]     -                                         256           256  it has one axis
        layers.0.weight  f32[64,64]  nf4:64:double   4.141   0.09155         16384          2120
        layers.2.bias    f32[10]     -                                          40            40  no rule names it
        layers.2.weight  f32[10,64]  -                                        2560          2560  the last axis of f32[10,64] is not whole groups of 128, as affine has them
                                                                             19240          4976
        rules that decide no parameter: layer.9.*"#]].assert_eq(&model.report().to_string());
    assert_eq!(model.report().unmatched().collect::<Vec<_>>(), ["layers.2.bias"]);
    let Outcome::Quantized { error, bits, .. } = model.report().rows["layers.0.weight"].outcome else {
        panic!("it is quantized")
    };
    assert!((0.05..0.15).contains(&error) && bits < 4.3, "{error} {bits}");
    let data = serde_json::to_value(model.report()).expect("json");
    assert_eq!(data["rows"]["layers.0.weight"]["aval"], "f32[64,64]");
}

#[test]
fn rules_are_read_of_files_with_the_mark_of_editors_before_them() {
    for (ending, text) in [("json", r#"{"*.weight": "nf4:64"}"#), ("toml", r#""*.weight" = "nf4:64""#)] {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join(format!("rules.{ending}"));
        std::fs::write(&file, format!("\u{feff}{text}")).expect("writes");
        assert!(
            Rules::load(&file).expect("rules") == Rules::from_json(r#"{"*.weight": "nf4:64"}"#).expect("rules"),
            "{ending}"
        );
    }
}

#[test]
fn bad_rules() {
    let quantize = |pattern: &str, format: &str| Rules::from_json(&format!("{{{pattern:?}: {format:?}}}"));
    let said = [
        said_of(quantize("layers.[", "nf4:64")),
        said_of(quantize("re:(", "nf4:64")),
        said_of(quantize("*", "nf5:64")),
        said_of(quantize("*", "nf4:63")),
        said_of(Rules::from_json("[]")),
        said_of(Rules::from_toml("a = 1")),
        said_of(Rules::from_toml("a = ")),
        said_of(Rules::from_toml("'*.bias' = 'skip'\n'*.weight' = 'nf5'\n")),
        said_of(Rules::load("rules.yaml")),
        said_of(Rules::new().quantize("*", Affine { bits: 7, group: 64 })),
    ]
    .concat();
    expect![[r#"
        the rules: layers.[ is no glob: unclosed character class; missing ']' at line 1 column 22
        help: write a path or glob and a format for each rule, such as `"layers.*.weight" = "nf4:64"`, or "skip"
        the rules: re:( is no regular expression: unclosed group at line 1 column 18
        help: write a path or glob and a format for each rule, such as `"layers.*.weight" = "nf4:64"`, or "skip"
        the rules: no format is named nf5 at line 1 column 15
        help: write a path or glob and a format for each rule, such as `"layers.*.weight" = "nf4:64"`, or "skip"
        the rules: the nf4 block size 63 is not a power of two from 32 to 4096 at line 1 column 15
        help: write a path or glob and a format for each rule, such as `"layers.*.weight" = "nf4:64"`, or "skip"
        the rules: invalid type: sequence, expected a table of patterns and formats at line 1 column 0
        help: write a path or glob and a format for each rule, such as `"layers.*.weight" = "nf4:64"`, or "skip"
        the rules: invalid type: integer `1`, expected a string at line 1
        help: write a path or glob and a format for each rule, such as `"layers.*.weight" = "nf4:64"`, or "skip"
        the rules: string values must be quoted, expected literal string at line 1
        help: write a path or glob and a format for each rule, such as `"layers.*.weight" = "nf4:64"`, or "skip"
        the rules: no format is named nf5 at line 2
        help: write a path or glob and a format for each rule, such as `"layers.*.weight" = "nf4:64"`, or "skip"
        cannot read rules.yaml: No such file or directory (os error 2)
        MLX has no affine format of 7 bits in groups of 64
        help: use 2, 3, 4, 5, 6 or 8 bits and groups of 32, 64 or 128
    "#]]
    .assert_eq(&said);
}

#[test]
fn files_that_hold_no_rules() {
    let said = |ending: &str, text: &str| {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join(format!("rules.{ending}"));
        std::fs::write(&file, text).expect("writes");
        let read = Rules::load(&file);
        assert!(matches!(&read, Err(Error::Checkpoint { file: of, .. }) if *of == file));
        said_of(read).replace(&format!("{}/", folder.path().display()), "")
    };
    expect![[r#"
        rules.yaml: the extension says neither TOML nor JSON
        help: name it .toml or .json
        rules.json: no format is named nf5 at line 1 column 15
        help: write a path or glob and a format for each rule, such as `"layers.*.weight" = "nf4:64"`, or "skip"
        rules.toml: no format is named nf5 at line 2
        help: write a path or glob and a format for each rule, such as `"layers.*.weight" = "nf4:64"`, or "skip"
    "#]]
    .assert_eq(
        &[
            said("yaml", "*: nf4:64"),
            said("json", r#"{"*": "nf5:64"}"#),
            said("toml", "'*.bias' = 'skip'\n'*.weight' = 'nf5'\n"),
        ]
        .concat(),
    );
}
