//! The tokens of texts in many scripts, beside those of llama.cpp (`tests/decoder/golden/make_gguf_tokenizers.py`).

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use tacit_core::Result;
use tacit_io::Gguf;

use super::source::Source;
use super::text;

/// What llama.cpp made of the texts.
#[derive(Deserialize)]
struct Golden {
    texts: Vec<String>,
    /// By the name of a file.
    files: BTreeMap<String, Expected>,
}

#[derive(Deserialize)]
struct Expected {
    /// The tokens of each text, with those that begin and end one.
    ids: Vec<Vec<u32>>,
    /// The tokens behind which a text ends.
    ends: Vec<u32>,
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/decoder/golden/tokenizers")
}

#[test]
fn texts_have_the_tokens_that_llama_cpp_gives_them() -> Result<()> {
    let golden = fs::read(folder().join("ids.json")).expect("reads");
    let golden: Golden = serde_json::from_slice(&golden).expect("is JSON");
    assert!(golden.texts.len() > 50 && golden.files.len() > 8);
    for (name, expected) in golden.files {
        let file = folder().join(format!("{name}.gguf"));
        let tokenizer = Source::find(&file)?.tokenizer()?;
        for (text, ids) in golden.texts.iter().zip(&expected.ids) {
            assert_eq!(text::tokens(&tokenizer, &name, text, true)?, *ids, "{name}: {text:?}");
            // Tokens of names are not written, and behind those of the user a space is put, which stays.
            let plain = !["<", "\n\n", "    "].iter().any(|token| text.contains(token));
            if plain {
                let decoded = tokenizer.decode(ids, true).expect("decodes");
                assert_eq!(&decoded, text, "{name}");
            }
        }
        assert_eq!(Gguf::open(&file)?.end_tokens()?, expected.ends, "{name}");
    }
    Ok(())
}
