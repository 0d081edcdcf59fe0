//! Formats for the parameters of a decoder, and notes on parameters that become something else than a format says.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use tacit_core::{Aval, Error, Result};
use tacit_io::Gguf;
use tacit_io::layout::other_name;
use tacit_models::{Decoder, Formats};
use tacit_nn::{DecoderRules, IntoQatConfig, Model, Outcome, Parameters, Pattern, Report, Rules};

use crate::output::note;

/// The rules for the parameters of a checkpoint, which may name one of a GGUF file as the file does, and experts as either library
/// does; the note says which of them name nothing.
pub(crate) fn named(checkpoint: &Path, rules: &Rules, values: &Parameters) -> Result<DecoderRules> {
    let file = Gguf::find(checkpoint)?.map(Gguf::open).transpose()?;
    let of_file = |path: &str| file.as_ref().and_then(|file| file.own_name(path));
    DecoderRules::new(rules, values, |path| of_file(path).into_iter().chain(other_name(path)))
}

/// The decoder of a checkpoint in these formats. What becomes otherwise than they say is told beside the results.
pub(crate) fn quantized(checkpoint: &Path, model: Model<Decoder>, formats: &Formats) -> Result<Model<Decoder>> {
    let values = model.values()?;
    let DecoderRules { rules, note: of_rules } = match formats {
        Formats::One(format) => Rules::for_decoder(format, &values)?,
        Formats::Rules(rules) => named(checkpoint, rules, &values)?,
    };
    let (mut staying, mut floats) = (Vec::new(), Vec::new());
    for (path, value) in values {
        let aval = value.aval()?;
        if rules.format(&path, &aval).is_none() {
            continue;
        }
        if value.is_implicit() {
            staying.push(format!("{path}, {value}"));
        } else if is_float_matrix(&path, &aval) {
            floats.push(path);
        }
    }
    let model = match formats {
        Formats::One(_) => tacit_models::quantize(model, formats)?,
        // They have the names of the parameters already.
        Formats::Rules(_) => model.quantize("*", &rules)?,
    };
    let codes = staying.first().map(|first| {
        let more = if staying.len() > 1 { format!(" and {} more", staying.len() - 1) } else { String::new() };
        format!("{first}{more}: codes stay as they are, and `tacit quantize` makes others of them")
    });
    of_rules.into_iter().chain(codes).chain(unfit(&model.report(), &floats)).for_each(|text| note(&text));
    Ok(model)
}

/// The decoder whose weights of these layers are trained for a format, all of them; the seed is of codes that are drawn.
pub(crate) fn prepared(model: Model<Decoder>, layers: &str, format: &str, seed: u64) -> Result<Model<Decoder>> {
    let pattern: Pattern = layers.parse()?;
    let model = model.prepare(layers, format.into_config()?.seed(seed))?;
    let named =
        model.avals().into_iter().filter(|(path, aval)| pattern.matches(path, aval) && is_float_matrix(path, aval));
    let named: Vec<String> = named.map(|(path, _)| path).collect();
    match unfit(&model.report(), &named).pop() {
        // A long run would leave them as they are.
        Some(reason) => {
            let help = "take a format that fits all of them, or name fewer by `--layers`; what is implicit already becomes \
                        floats by `tacit convert --as hugging-face`";
            Err(Error::invalid(reason, help))
        }
        None => Ok(model),
    }
}

fn is_float_matrix(path: &str, aval: &Aval) -> bool {
    aval.dtype.is_float() && Rules::is_matrix(path, aval)
}

/// Which of these parameters a format did not fit, in words, for each reason. What no rule names is left out.
fn unfit(report: &Report, paths: &[String]) -> Vec<String> {
    let unmatched: BTreeSet<&str> = report.unmatched().collect();
    let mut reasons: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for path in paths.iter().filter(|path| !unmatched.contains(path.as_str())) {
        if let Some(Outcome::Left { reason }) = report.rows.get(path).map(|row| &row.outcome) {
            reasons.entry(reason).or_default().push(path);
        }
    }
    let told = |(reason, paths): (&str, Vec<&str>)| match &paths[..] {
        [first, _, ..] => format!("{first} and {} more stay as they are: {reason}", paths.len() - 1),
        paths => format!("{} stays as it is: {reason}", paths.concat()),
    };
    reasons.into_iter().map(told).collect()
}

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use mlx_rs::{Array, random};
    use tacit_arrays::TrainedCodes;

    use super::*;
    use crate::small_decoder::config;

    #[test]
    fn a_weight_that_would_not_be_trained_is_an_error() -> Result<()> {
        let config = config(24)?;
        let model = || Model::new(Decoder::new(&config)?);
        let error = prepared(model()?, "model.layers.*_proj.weight", "affine:4:32", 0).expect_err("two do not fit");
        expect![[r#"
            model.layers.0.mlp.down_proj.weight and 1 more stay as they are: the last axis of f32[32,24] is not whole groups of 32, as affine has them
            help: take a format that fits all of them, or name fewer by `--layers`; what is implicit already becomes floats by `tacit convert --as hugging-face`"#]]
        .assert_eq(&error.to_string());
        let one = prepared(model()?, "model.layers.0.mlp.{up,down}_proj.weight", "affine:4:32", 0);
        expect![[r#"
            model.layers.0.mlp.down_proj.weight stays as it is: the last axis of f32[32,24] is not whole groups of 32, as affine has them
            help: take a format that fits all of them, or name fewer by `--layers`; what is implicit already becomes floats by `tacit convert --as hugging-face`"#]].assert_eq(&one.expect_err("one does not fit").to_string());
        let fitting = prepared(model()?, "model.layers.*.{q,k,v,o,gate,up}_proj.weight", "affine:4:32", 0)?;
        assert!(fitting.get("model.layers.1.mlp.up_proj.weight")?.is_implicit());
        Ok(())
    }

    #[test]
    fn codes_are_drawn_by_the_seed() -> Result<()> {
        let path = "model.layers.0.mlp.up_proj.weight";
        let weight = random::normal::<f32>(&[32, 32], None, None, &random::key(0)?)?;
        let drawn = |seed| -> Result<Array> {
            let mut model = Model::new(Decoder::new(&config(32)?)?)?;
            model.set(path, weight.clone())?;
            let value = prepared(model, path, "int8+stochastic", seed)?.get(path)?;
            Ok(value.downcast::<TrainedCodes>().expect("it is trained as codes").key().clone())
        };
        let (first, again, other) = (drawn(0)?, drawn(0)?, drawn(1)?);
        assert!(first.eq_values(&again)? && !first.eq_values(&other)?);
        Ok(())
    }
}
