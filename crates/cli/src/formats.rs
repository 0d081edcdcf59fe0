//! What formats make of the parameters of a decoder, and what is told of those that become otherwise than they say.

use std::path::Path;

use tacit_core::Result;
use tacit_io::Gguf;
use tacit_io::layout::other_name;
use tacit_models::{Decoder, Formats};
use tacit_nn::{DecoderRules, Model, Parameters, Rules};

use crate::output::note;

/// The rules for the parameters of a checkpoint, which may name one of a GGUF file as the file does, and experts as either library
/// does; the note says which of them name nothing.
pub(crate) fn named(checkpoint: &Path, rules: &Rules, values: &Parameters) -> Result<DecoderRules> {
    let file = Gguf::find(checkpoint)?.map(Gguf::open).transpose()?;
    let of_file = |path: &str| file.as_ref().and_then(|file| file.own_name(path));
    DecoderRules::of(rules, values, |path| of_file(path).into_iter().chain(other_name(path)))
}

/// The decoder of a checkpoint in these formats. What becomes otherwise than they say is told beside the results.
pub(crate) fn quantized(checkpoint: &Path, model: Model<Decoder>, formats: &Formats) -> Result<Model<Decoder>> {
    let values = model.values()?;
    let (DecoderRules { rules, note: of_rules }, formats) = match formats {
        Formats::One(format) => (Rules::for_decoder(format, &values)?, formats.clone()),
        Formats::Rules(rules) => {
            let found = named(checkpoint, rules, &values)?;
            let formats = Formats::Rules(found.rules.clone());
            (found, formats)
        }
    };
    let mut staying = Vec::new();
    for (path, value) in values.iter().filter(|(_, value)| value.is_implicit()) {
        if rules.format(path, &value.aval()?).is_some() {
            staying.push(format!("{path}, {value}"));
        }
    }
    // Each dense array goes as its codes take its place.
    drop(values);
    let model = tacit_models::quantize(model, &formats)?;
    let codes = staying.first().map(|first| {
        let more = if staying.len() > 1 { format!(" and {} more", staying.len() - 1) } else { String::new() };
        format!("{first}{more}: codes stay as they are, and `tacit quantize` makes others of them")
    });
    of_rules.into_iter().chain(codes).for_each(|text| note(&text));
    Ok(model)
}
