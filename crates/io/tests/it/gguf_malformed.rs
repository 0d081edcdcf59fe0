//! GGUF files that are not as they were written: an error that names the file, the entry and the reason, and no panic.

use expect_test::expect;
use proptest::prelude::*;
use tacit_core::Error;
use tacit_io::{Gguf, GgufValue};

use crate::scratch::Scratch;

/// A file in the making: its parts are put one after the other.
#[derive(Clone, Default)]
pub(crate) struct Maker {
    metadata: Vec<Vec<u8>>,
    pub(crate) tensors: Vec<Vec<u8>>,
    elements: Vec<u8>,
    alignment: usize,
}

pub(crate) fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat()
}

pub(crate) fn list(kind: u32, items: &[Vec<u8>]) -> Vec<u8> {
    [&kind.to_le_bytes()[..], &(items.len() as u64).to_le_bytes(), &items.concat()].concat()
}

impl Maker {
    pub(crate) fn value(mut self, key: &str, kind: u32, value: &[u8]) -> Self {
        self.metadata.push([&text(key), &kind.to_le_bytes()[..], value].concat());
        self
    }

    pub(crate) fn tensor(mut self, name: &str, extents: &[u64], kind: u32, offset: u64) -> Self {
        let extents: Vec<u8> = extents.iter().flat_map(|extent| extent.to_le_bytes()).collect();
        let count = (extents.len() as u32 / 8).to_le_bytes();
        self.tensors.push([&text(name), &count[..], &extents, &kind.to_le_bytes(), &offset.to_le_bytes()].concat());
        self
    }

    pub(crate) fn elements(mut self, count: usize) -> Self {
        self.elements = (0..count).map(|at| at as u8).collect();
        self
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let counts = [self.tensors.len() as u64, self.metadata.len() as u64].map(u64::to_le_bytes).concat();
        self.with_counts(&counts)
    }

    fn with_counts(&self, counts: &[u8]) -> Vec<u8> {
        let head =
            [b"GGUF", &3_u32.to_le_bytes()[..], counts, &self.metadata.concat(), &self.tensors.concat()].concat();
        let mut bytes = head;
        bytes.resize(bytes.len().next_multiple_of(if self.alignment == 0 { 32 } else { self.alignment }), 0);
        [bytes, self.elements.clone()].concat()
    }
}

/// Two tensors, one of them quantized, and metadata with a list of lists.
fn tiny() -> Maker {
    let lists =
        [&9_u32.to_le_bytes()[..], &1_u64.to_le_bytes(), &0_u32.to_le_bytes(), &3_u64.to_le_bytes(), &[7, 8, 9]];
    Maker::default()
        .value("general.architecture", 8, &text("tiny"))
        .value("lists", 9, &lists.concat())
        .value("truth", 7, &[1])
        .tensor("w", &[32, 2], 2, 0)
        .tensor("b", &[2], 0, 64)
        .elements(72)
}

/// Everything that can be read of a file.
fn read(folder: &Scratch, bytes: &[u8]) -> Result<usize, Error> {
    let file = Gguf::open(folder.file("model.gguf", bytes))?;
    for key in file.keys() {
        file.metadata(key)?;
    }
    let parameters = file.parameters()?;
    for value in parameters.values() {
        value.aval()?;
    }
    Ok(parameters.len())
}

#[test]
fn a_tiny_file_is_read() {
    let folder = Scratch::new();
    assert_eq!(read(&folder, &tiny().bytes()).expect("reads"), 2);
    let file = Gguf::open(folder.join("model.gguf")).expect("opens");
    let list = GgufValue::List(vec![GgufValue::List([7, 8, 9].map(GgufValue::Unsigned).to_vec())]);
    assert_eq!(file.metadata("lists").expect("reads"), list);
    assert_eq!(file.aval("w").expect("is there").shape, [2, 32]);
    let mut older = tiny().bytes();
    older[4] = 2;
    assert_eq!(read(&folder, &older).expect("reads"), 2);
    let aligned = Maker { alignment: 8, ..tiny().value("general.alignment", 4, &8_u32.to_le_bytes()) };
    assert_eq!(read(&folder, &aligned.bytes()).expect("reads"), 2);
}

#[test]
fn a_file_that_is_cut_short_anywhere_is_refused() {
    let folder = Scratch::new();
    let bytes = tiny().bytes();
    for length in 0..bytes.len() {
        let error = read(&folder, &bytes[..length]).expect_err("is refused");
        assert!(matches!(error, Error::Checkpoint { .. }), "{length}: {error}");
    }
}

/// Rows of nothing take no bytes, however many there are said to be: nothing is made of each.
#[test]
fn rows_of_nothing_are_not_put_in_order() {
    let folder = Scratch::new();
    let file = Maker::default()
        .value("general.architecture", 8, &text("llama"))
        .value("llama.attention.head_count", 4, &1_u32.to_le_bytes())
        .tensor("blk.0.attn_q.weight", &[0, 2_147_483_646], 0, 0);
    let file = Gguf::open(folder.file("model.gguf", file.bytes())).expect("opens");
    let error = file.hugging_face().map(|_| ()).expect_err("is refused");
    expect![[r#"
        FOLDER/model.gguf: blk.0.attn_q.weight: it has no elements
        help: the metadata are those of another model: convert it again"#]]
    .assert_eq(&folder.message(&error));
}

/// Rows of heads go into another order, and a block holds several elements of a vector.
#[test]
fn a_vector_of_blocks_has_no_rows_of_heads() {
    let folder = Scratch::new();
    let file = Maker::default()
        .value("general.architecture", 8, &text("llama"))
        .value("llama.attention.head_count", 4, &2_u32.to_le_bytes())
        .tensor("blk.0.attn_q.bias", &[64], 8, 0)
        .elements(68);
    let file = Gguf::open(folder.file("model.gguf", file.bytes())).expect("opens");
    let error = file.hugging_face().map(|_| ()).expect_err("is refused");
    expect![[r#"
        FOLDER/model.gguf: blk.0.attn_q.bias: it is a vector of Q8_0, whose elements are no rows of their own
        help: convert the model again: llama.cpp leaves vectors as floats"#]]
    .assert_eq(&folder.message(&error));
}

/// What is said of each file, by a name.
fn said(cases: impl IntoIterator<Item = (&'static str, Vec<u8>)>) -> String {
    let folder = Scratch::new();
    let said = cases.into_iter().map(|(name, bytes)| {
        let error = read(&folder, &bytes).expect_err(name);
        let message = folder.message(&error);
        assert!(matches!(error, Error::Checkpoint { .. }), "{name}: {message}");
        format!("{name}: {}\n", message.replace("FOLDER/", ""))
    });
    said.collect()
}

#[test]
fn what_is_wrong_with_the_metadata_is_named() {
    let huge = u64::MAX.to_le_bytes();
    let list = |kind: u32, count: u64| [&kind.to_le_bytes()[..], &count.to_le_bytes()].concat();
    let nested: Vec<u8> = (0..100).flat_map(|_| list(9, 1)).collect();
    let aligned = |kind: u32, alignment: &[u8]| tiny().value("general.alignment", kind, alignment).bytes();
    let version = |version: [u8; 4]| [b"GGUF", &version[..], &tiny().bytes()[8..]].concat();
    let none = Maker::default;
    let table = said([
        ("empty", Vec::new()),
        ("no GGUF", b"PK\x03\x04 and so on, and so on".to_vec()),
        ("version 1", version([1, 0, 0, 0])),
        ("version 4", version([4, 0, 0, 0])),
        ("big-endian", version([0, 0, 0, 3])),
        ("many tensors", none().with_counts(&[huge, [0; 8]].concat())),
        ("many keys", none().with_counts(&[[0; 8], huge].concat())),
        ("long key", none().with_counts(&[[0; 8], 1_u64.to_le_bytes(), huge, [0; 8]].concat())),
        ("long string", none().value("k", 8, &huge).bytes()),
        ("long list", none().value("k", 9, &list(10, u64::MAX)).bytes()),
        ("long list of strings", none().value("k", 9, &list(8, 1 << 40)).bytes()),
        ("deep list", none().value("k", 9, &nested).bytes()),
        ("type 13", none().value("k", 13, &[]).bytes()),
        ("list of type 99", none().value("k", 9, &list(99, 0)).bytes()),
        ("bool of 2", none().value("k", 7, &[2]).bytes()),
        ("bools of 2", none().value("k", 9, &[list(7, 2), vec![0, 2]].concat()).bytes()),
        ("key twice", none().value("k", 0, &[1]).value("k", 0, &[2]).bytes()),
        ("string of bytes", none().value("k", 8, &[&1_u64.to_le_bytes()[..], &[0xff]].concat()).bytes()),
        ("alignment 0", aligned(4, &0_u32.to_le_bytes())),
        ("alignment 24", aligned(4, &24_u32.to_le_bytes())),
        ("alignment u64", aligned(10, &32_u64.to_le_bytes())),
        ("alignment 2^31", aligned(4, &(1_u32 << 31).to_le_bytes())),
    ]);
    expect![[r#"
        empty: model.gguf: the file ends in the magic number: 4 bytes are needed at byte 0, and 0 are left
        help: the file is not as it was written: fetch or convert it again
        no GGUF: model.gguf: it does not begin with `GGUF`
        help: open a GGUF file
        version 1: model.gguf: its version is 1, and 2 and 3 are read
        help: convert the model with a current llama.cpp
        version 4: model.gguf: its version is 4, and 2 and 3 are read
        help: convert the model with a current llama.cpp
        big-endian: model.gguf: its numbers are big-endian
        help: convert it with gguf-py's gguf_convert_endian
        many tensors: model.gguf: 18446744073709551615 is given as the number of tensors, and the 16 bytes that are left hold 0 at most
        help: the file is not as it was written: fetch or convert it again
        many keys: model.gguf: 18446744073709551615 is given as the number of keys, and the 8 bytes that are left hold 0 at most
        help: the file is not as it was written: fetch or convert it again
        long key: model.gguf: 18446744073709551615 is given as the length of a key, and the 32 bytes that are left hold 32 at most
        help: the file is not as it was written: fetch or convert it again
        long string: model.gguf: k: 18446744073709551615 is given as the length of a string, and the 19 bytes that are left hold 19 at most
        help: the file is not as it was written: fetch or convert it again
        long list: model.gguf: k: 18446744073709551615 is given as the length of a list, and the 15 bytes that are left hold 1 at most
        help: the file is not as it was written: fetch or convert it again
        long list of strings: model.gguf: k: 1099511627776 is given as the length of a list, and the 15 bytes that are left hold 1 at most
        help: the file is not as it was written: fetch or convert it again
        deep list: model.gguf: k: its lists lie in each other more than 8 deep
        help: the file is not as it was written: fetch or convert it again
        type 13: model.gguf: k: its type is 13, and GGUF has 0 to 12
        help: the file is not as it was written: fetch or convert it again
        list of type 99: model.gguf: k: its type is 99, and GGUF has 0 to 12
        help: the file is not as it was written: fetch or convert it again
        bool of 2: model.gguf: k: its byte 2 is no bool
        help: the file is not as it was written: fetch or convert it again
        bools of 2: model.gguf: k: its byte 2 is no bool
        help: the file is not as it was written: fetch or convert it again
        key twice: model.gguf: k: the key is there twice
        help: the file is not as it was written: fetch or convert it again
        string of bytes: model.gguf: k: a string is not UTF-8
        help: read another key: this one has bytes that are no text
        alignment 0: model.gguf: general.alignment: it is 0, and must be a power of two in a u32
        help: the file is not as it was written: fetch or convert it again
        alignment 24: model.gguf: general.alignment: it is 24, and must be a power of two in a u32
        help: the file is not as it was written: fetch or convert it again
        alignment u64: model.gguf: general.alignment: it is 32, and must be a power of two in a u32
        help: the file is not as it was written: fetch or convert it again
        alignment 2^31: model.gguf: b: its place, 64, is not a multiple of the alignment, 2147483648
        help: the file is not as it was written: fetch or convert it again
    "#]].assert_eq(&table);
}

#[test]
fn what_is_wrong_with_a_tokenizer_is_named() {
    let spm = || {
        tiny()
            .value("tokenizer.ggml.model", 8, &text("llama"))
            .value("tokenizer.ggml.tokens", 9, &list(8, &[text("a"), text("b")]))
            .value("tokenizer.ggml.scores", 9, &list(6, &[vec![0; 4], vec![0; 4]]))
    };
    let folder = Scratch::new();
    let said = |made: Maker| {
        let file = Gguf::open(folder.file("model.gguf", made.bytes())).expect("opens");
        folder.message(&file.tokenizer().expect_err("is refused"))
    };
    let one = 1_u32.to_le_bytes();
    let ended =
        Gguf::open(folder.file("ended.gguf", tiny().value("tokenizer.ggml.eos_token_id", 8, &text("x")).bytes()))
            .expect("opens")
            .end_tokens()
            .expect_err("is no token");
    expect![[r#"
        FOLDER/model.gguf: tokenizer.ggml.model: there is no tokenizer in the file
        help: take that of the model's folder
        FOLDER/model.gguf: tokenizer.ggml.token_type: it has 1 types, and there are 2 tokens
        help: convert the model again, or take the tokenizer of its folder
        FOLDER/model.gguf: tokenizer.ggml.add_space_prefix: it is 1, and should be true or false
        help: convert the model again, or take the tokenizer of its folder
        FOLDER/ended.gguf: tokenizer.ggml.eos_token_id: it is "x", and should be a token
        help: convert the model again, or take the tokenizer of its folder"#]]
    .assert_eq(
        &[
            said(tiny()),
            said(spm().value("tokenizer.ggml.token_type", 9, &list(5, &[one.to_vec()]))),
            said(spm().value("tokenizer.ggml.add_space_prefix", 4, &one)),
            folder.message(&ended),
        ]
        .join("\n"),
    );
}

#[test]
fn a_folder_without_a_model_is_named() {
    let folder = Scratch::new();
    let error = Gguf::open(&*folder).expect_err("is refused");
    expect![[r"
        FOLDER: the folder holds no model in a GGUF file
        help: open another folder, or a file"]]
    .assert_eq(&folder.message(&error));
}

#[test]
fn what_is_wrong_with_a_tensor_is_named() {
    let none = Maker::default;
    let table = said([
        ("five extents", none().tensor("w", &[1; 5], 0, 0).bytes()),
        ("extent beyond", none().tensor("w", &[1 << 31], 0, 0).bytes()),
        ("extents beyond", none().tensor("w", &[(1 << 31) - 1; 4], 0, 0).bytes()),
        ("type 4", none().tensor("w", &[32], 4, 0).bytes()),
        ("broken block", none().tensor("w", &[33], 2, 0).elements(36).bytes()),
        ("tensor twice", none().tensor("w", &[1], 0, 0).tensor("w", &[1], 0, 32).elements(36).bytes()),
        ("misaligned", none().tensor("w", &[1], 0, 4).elements(36).bytes()),
        ("outside", none().tensor("w", &[1], 0, 1 << 20).elements(4).bytes()),
        ("far outside", none().tensor("w", &[1], 0, u64::MAX - 31).elements(4).bytes()),
        ("overlapping", none().tensor("v", &[16], 0, 0).tensor("w", &[16], 0, 32).elements(96).bytes()),
        ("nothing", none().tensor("w", &[0, 2], 2, 0).bytes()),
        ("scalar of blocks", none().tensor("w", &[], 12, 0).elements(256).bytes()),
    ]);
    expect![[r#"
        five extents: model.gguf: w: it has 5 extents, and ggml has 4 at most
        help: the file is not as it was written: fetch or convert it again
        extent beyond: model.gguf: w: an extent of 2147483648 is beyond MLX's
        help: the file is not as it was written: fetch or convert it again
        extents beyond: model.gguf: w: F32 of [2147483647, 2147483647, 2147483647, 2147483647] at 0 behind the header, which ends at 96, is not within the 96 bytes of the file
        help: the file is not as it was written: fetch or convert it again
        type 4: model.gguf: w: its type is number 4, which is not known
        help: the file is not as it was written: fetch or convert it again
        broken block: model.gguf: w: its rows have 33 elements, which are not whole blocks of 32, as Q4_0 has
        help: the file is not as it was written: fetch or convert it again
        tensor twice: model.gguf: w: the tensor is there twice
        help: the file is not as it was written: fetch or convert it again
        misaligned: model.gguf: w: its place, 4, is not a multiple of the alignment, 32
        help: the file is not as it was written: fetch or convert it again
        outside: model.gguf: w: F32 of [1] at 1048576 behind the header, which ends at 64, is not within the 68 bytes of the file
        help: the file is not as it was written: fetch or convert it again
        far outside: model.gguf: w: F32 of [1] at 18446744073709551584 behind the header, which ends at 64, is not within the 68 bytes of the file
        help: the file is not as it was written: fetch or convert it again
        overlapping: model.gguf: w: its bytes overlap those of v
        help: the file is not as it was written: fetch or convert it again
        nothing: model.gguf: w: it cannot be read: f32[2,0] has no elements to quantize
        help: leave it out, or convert it again
        scalar of blocks: model.gguf: w: its rows have 1 elements, which are not whole blocks of 256, as Q4_K has
        help: the file is not as it was written: fetch or convert it again
    "#]].assert_eq(&table);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Whatever three bytes of a file become, it is read or refused.
    #[test]
    fn changed_bytes_are_no_panic(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4)) {
        let folder = Scratch::new();
        let mut bytes = tiny().bytes();
        for (at, byte) in changes {
            let length = bytes.len();
            bytes[at.index(length)] = byte;
        }
        let _ = read(&folder, &bytes);
    }
}

/// Some converters write a number of the model once for each layer.
#[test]
fn heads_that_are_said_of_each_layer_are_read() {
    let folder = Scratch::new();
    let of_layers = |heads: [u32; 2]| {
        let heads = heads.map(u32::to_le_bytes).concat();
        let each = [&4_u32.to_le_bytes()[..], &2_u64.to_le_bytes(), &heads[..]].concat();
        let made = Maker::default()
            .value("general.architecture", 8, &text("llama"))
            .value("llama.attention.head_count", 9, &each)
            .tensor("blk.0.attn_q.weight", &[32, 8], 0, 0)
            .elements(1024);
        Gguf::open(folder.file("model.gguf", made.bytes())).expect("opens").hugging_face()
    };
    let parameters = of_layers([4, 4]).map_err(|error| folder.message(&error)).expect("reads");
    assert_eq!(parameters.into_keys().collect::<Vec<_>>(), ["model.layers.0.self_attn.q_proj.weight"]);
    let error = of_layers([4, 2]).map(|_| ()).expect_err("is refused");
    expect![[r#"
        FOLDER/model.gguf: llama.attention.head_count: it is [4, 2], and must be one number
        help: convert the model again"#]]
    .assert_eq(&folder.message(&error));
}

/// As llama.cpp's converter of adapters makes them: their tensors are changes of tensors, and have no names of Hugging Face's.
#[test]
fn tensors_of_an_adapter_keep_their_names() {
    let folder = Scratch::new();
    let adapter = Maker::default()
        .value("general.architecture", 8, &text("llama"))
        .value("general.type", 8, &text("adapter"))
        .tensor("blk.0.attn_q.weight.lora_a", &[32, 2], 0, 0)
        .tensor("blk.0.attn_q.weight.lora_b", &[2, 32], 0, 256)
        .elements(512);
    let heads = adapter.clone().value("llama.attention.head_count", 4, &4_u32.to_le_bytes());
    for made in [adapter, heads] {
        let parameters = tacit_io::read(folder.file("model.gguf", made.bytes())).expect("reads");
        assert_eq!(parameters.keys().collect::<Vec<_>>(), ["blk.0.attn_q.weight.lora_a", "blk.0.attn_q.weight.lora_b"]);
    }
}
