//! Checkpoints of floats of eight bits.

use std::fs;
use std::path::Path;

use mlx_rs::{Array, Dtype};
use serde_json::{Map, Value as Json, json};
use tacit::arrays::E4m3Array;
use tacit::io::{Tensors, hugging_face};
use tacit::model::Missing;
use tacit::prelude::*;
use tacit_bridge::with_bytes;
use tacit_models::{Decoder, Positions, caches, load};

use crate::golden::{ARCHITECTURES, folder};

/// Writes a folder as its original is, with the weights of products in eight bits and a scale for each row; gives what these
/// are then.
fn written(original: &Path, to: &Path) -> Result<Parameters> {
    fs::create_dir_all(to).map_err(|error| Error::file("make", to)(error))?;
    // The float type of the weights, which are compared with single floats.
    let mut config = tacit::io::json::Json::open(original.join("config.json"))?;
    config.set("torch_dtype", tacit::io::json::Json::Text("float32".to_owned()));
    fs::write(to.join("config.json"), config.line()).map_err(|error| Error::file("write", to)(error))?;
    let (mut header, mut elements, mut values) = (Map::new(), Vec::new(), Parameters::new());
    let mut put = |name: String, dtype: &str, shape: &[i32], array: &Array| -> Result<()> {
        let bytes = with_bytes(array, <[u8]>::to_vec)?;
        let end = elements.len() + bytes.len();
        header.insert(name, json!({"dtype": dtype, "shape": shape, "data_offsets": [elements.len(), end]}));
        elements.extend(bytes);
        Ok(())
    };
    for (name, value) in hugging_face::read(original)? {
        let array = value.dense()?.as_dtype(Dtype::Float32)?;
        let shape = array.shape().to_vec();
        if !name.ends_with("_proj.weight") {
            put(name, "F32", &shape, &array)?;
            continue;
        }
        let (rows, columns) = shape.split_at(shape.len() - 1);
        let stored = E4m3Array::quantize(&array, columns[0] as usize)?;
        let scales = stored.scales().map(Value::dense).transpose()?;
        let scales = scales.ok_or_else(|| Error::invalid("it has no scales", "report it"))?;
        put(name.clone(), "F8_E4M3", &shape, stored.codes())?;
        put(format!("{name}_scale"), "F32", &[rows, &[1]].concat(), &scales)?;
        values.insert(name, Value::from(stored).dense()?.into());
    }
    let mut text = Json::Object(header).to_string();
    text.push_str(&" ".repeat(text.len().next_multiple_of(8) - text.len()));
    let file = [(text.len() as u64).to_le_bytes().to_vec(), text.into_bytes(), elements].concat();
    let place = to.join("model.safetensors");
    fs::write(&place, file).map_err(|error| Error::file("write", &place)(error))?;
    Ok(values)
}

fn logits(model: &mut Model<Decoder>, config: &tacit_models::Config, prompt: &Array) -> Result<Array> {
    let mut caches = caches(config, 1, Dtype::Float32)?;
    caches.iter_mut().try_for_each(|cache| cache.reserve(prompt.dim(1)))?;
    model.run_with(&mut caches, |decoder, caches| decoder.forward(prompt, caches, Positions::All))
}

/// A folder in eight bits computes what the floats do that its codes and scales are, from the codes.
#[test]
fn a_decoder_in_eight_bits_is_read_as_what_it_is() -> Result<()> {
    let scratch = std::env::temp_dir().join(format!("tacit-fp8-{}", std::process::id()));
    for name in ARCHITECTURES {
        let (original, to) = (folder(&format!("float/{name}")), scratch.join(name));
        let mut values = {
            let _allow = Policy::Allow.scope();
            written(&original, &to)?
        };
        let prompt = Tensors::open(folder(&format!("float/{name}.safetensors")))?.get("prompt")?;
        let prompt = prompt.reshape(&[1, prompt.dim(0)])?;
        let (config, mut model) = load(&to)?;
        let stored = model.values()?.values().filter(|value| value.to_string().starts_with("E4m3")).count();
        assert!(stored >= 7, "{name}: {stored}");
        let (_, mut dense) = load(&original)?;
        let float = |(path, value): (String, Value)| {
            let _allow = Policy::Allow.scope();
            // Experts, which the folder has apart, are one parameter of the decoder.
            let of_codes = values.remove(&path).map_or_else(|| value.dense().map(Value::from), Ok)?;
            Ok((path, of_codes))
        };
        dense.assign(model.values()?.into_iter().map(float).collect::<Result<_>>()?, Missing::Refuse)?;
        let found = {
            let _deny = Policy::Deny.scope();
            logits(&mut model, &config, &prompt)?
        };
        let expected = logits(&mut dense, &config, &prompt)?;
        let largest =
            |array: &Array| Ok::<_, Error>(array.as_dtype(Dtype::Float32)?.abs()?.max(None)?.item_exact::<f32>());
        let apart = largest(&found.subtract(&expected)?)? / largest(&expected)?;
        assert!(apart < 1e-4, "{name}: {apart}");
    }
    fs::remove_dir_all(scratch).ok();
    Ok(())
}
