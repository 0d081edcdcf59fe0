//! Rules for all weights of a decoder, from one format.

use std::collections::HashSet;

use mlx_rs::{Dtype, ops};
use tacit_arrays::format::AnyFormat;
use tacit_core::{Aval, Error, Result, Value};

use crate::matrices::ends;
use crate::{Parameters, Pattern, Rules};

/// The embeddings and heads of decoders by the ends of their paths, in the names of Hugging Face, mlx-lm and llama.cpp.
const EMBEDDINGS: [&str; 3] = ["embed_tokens.weight", "token_embd.weight", "wte.weight"];
const HEADS: [&str; 2] = ["lm_head.weight", "output.weight"];

/// The bits of a weight, scales included, below which an embedding or a head is not quantized by itself.
const BITS: f64 = 6.0;

/// The bits of a float; what is held in fewer was quantized before, and nothing is gained where it is given more.
const FLOAT: f64 = 16.0;

/// Rules that a note names: there may be one for each expert of each layer.
const SHOWN: usize = 16;

/// What is taken in place of a coarser format, the first that fits.
const FINER: [&str; 3] = ["affine:8:64", "affine:8:32", "int8"];

/// The rules of a decoder that is quantized in one format, [`Rules::for_decoder`], or in formats by [rules](Self::new).
#[derive(Clone, Debug, PartialEq)]
pub struct DecoderRules {
    /// The rules.
    pub rules: Rules,
    /// In words, which parameters are in another format than was asked for and why, or which rules decide nothing; `None` where all
    /// is as it was asked for.
    pub note: Option<String>,
}

impl DecoderRules {
    /// Rules [by the paths](Rules::by_names) of a decoder's parameters, which they may also name by the `others` of a path.
    ///
    /// The note names those that decide nothing, and it is told through `tracing`.
    ///
    /// A rule may be of one expert, where all experts of a layer are one parameter: it has the format of that expert whose name is
    /// among the others of its path. A rule that gives another expert the same format decides nothing and is not in the note.
    ///
    /// ```
    /// # fn main() -> tacit_core::Result<()> {
    /// use mlx_rs::ops;
    /// use tacit_nn::{DecoderRules, Parameters, Rules};
    ///
    /// let parameters = Parameters::from([("layers.0.up.weight".to_owned(), ops::ones::<f32>(&[8, 64])?.into())]);
    /// let rules = Rules::new().quantize("blk.*.ffn_up.weight", "nf4:64")?.skip("haed.weight")?;
    /// let found = DecoderRules::new(&rules, &parameters, |_| ["blk.0.ffn_up.weight".to_owned()])?;
    /// assert_eq!(found.note.as_deref(), Some("these rules name no parameter: haed.weight"));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// A parameter has no aval.
    pub fn new<I>(rules: &Rules, parameters: &Parameters, others: impl Fn(&str) -> I) -> Result<Self>
    where
        I: IntoIterator<Item = String>,
    {
        let resolved = rules.by_names(parameters, &others)?;
        let avals = parameters.iter().map(|(path, value)| Ok((vec![path.as_str()], value.aval()?)));
        let mut unused = resolved.unused(avals.collect::<Result<Vec<_>>>()?.iter());
        let agrees = |rule: &str, path: &str| {
            let aval = parameters.get(path).and_then(|value| value.aval().ok());
            aval.is_some_and(|aval| rules.format(rule, &aval) == resolved.format(path, &aval))
        };
        unused.retain(|rule| !others(rule).into_iter().any(|path| agrees(rule, &path)));
        let naming = if unused.is_empty() { HashSet::new() } else { rules.naming(parameters, &others)? };
        let (shadowed, unnamed): (Vec<_>, Vec<_>) = unused.into_iter().partition(|rule| naming.contains(rule));
        let groups =
            [("these rules name no parameter", unnamed), ("earlier rules decide all that these name", shadowed)];
        let notes = groups.iter().filter(|(_, rules)| !rules.is_empty());
        let notes: Vec<String> = notes.map(|(what, rules)| format!("{what}: {}", shown(rules))).collect();
        let note = (!notes.is_empty()).then(|| notes.join("; "));
        if let Some(note) = &note {
            tracing::info!(target: "tacit", "{note}");
        }
        Ok(Self { rules: resolved, note })
    }
}

impl Rules {
    /// `format` for all parameters of a decoder, but for its embedding and its head, which have at least 6 bits.
    ///
    /// These two are a small part of the weights, and most of what quantizing loses is lost in them: each token goes through them.
    /// Where `format` has fewer bits, they take `affine:8:64`; where their rows are no whole groups of that, `affine:8:32` or `int8`. One
    /// that was quantized before would gain nothing from that: it stays as it is if it has 6 bits, and else takes `format` too.
    ///
    /// They are found by the ends of their paths: `embed_tokens.weight`, `token_embd.weight` and `wte.weight` are embeddings,
    /// `lm_head.weight` and `output.weight` are heads. Where there is no embedding, all parameters have the one format. Write [`Rules`]
    /// of your own for another choice. What is chosen is told through `tracing`.
    ///
    /// `parameters` are all of the decoder, none of which is computed.
    ///
    /// ```
    /// # fn main() -> tacit_core::Result<()> {
    /// use mlx_rs::ops;
    /// use tacit_core::{Aval, Value};
    /// use tacit_nn::{DecoderRules, Parameters, Rules};
    ///
    /// let weight = ops::zeros::<f32>(&[1000, 640])?;
    /// let paths = ["model.embed_tokens.weight", "model.layers.0.mlp.up_proj.weight"];
    /// let parameters = Parameters::from(paths.map(|path| (path.to_owned(), Value::from(&weight))));
    /// let DecoderRules { rules, note } = Rules::for_decoder("nf4:64", &parameters)?;
    /// let format = |path| rules.format(path, &Aval::from(&weight)).map(ToString::to_string);
    /// assert_eq!(paths.map(format), [Some("affine:8:64".to_owned()), Some("nf4:64".to_owned())]);
    /// assert!(note.is_some());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// The text is no format, or the format has no such options; or a parameter has no aval.
    pub fn for_decoder(
        format: impl TryInto<AnyFormat, Error: Into<Error>>,
        parameters: &Parameters,
    ) -> Result<DecoderRules> {
        let format = format.try_into().map_err(Into::into)?;
        let is_decoder = parameters.keys().any(|path| ends(path, &EMBEDDINGS));
        let mut rules = Self::new();
        let mut finer = Vec::new();
        for (path, value) in parameters.iter().filter(|_| is_decoder) {
            if !ends(path, &EMBEDDINGS) && !ends(path, &HEADS) {
                continue;
            }
            let (aval, stored) = (value.aval()?, bits_held(value)?);
            let is_coarse = || bits(&format, &aval).is_some_and(|bits| bits < BITS);
            if aval.shape.len() < 2 || stored < BITS || !is_coarse() {
                continue;
            }
            if stored < FLOAT {
                rules = rules.skip(Pattern::exact(path.as_str()))?;
                finer.push(format!("{path} stays {value}"));
                continue;
            }
            let fits = |text: &&str| text.parse().is_ok_and(|format| bits(&format, &aval).is_some());
            let Some(chosen) = FINER.into_iter().find(fits) else { continue };
            rules = rules.quantize(Pattern::exact(path.as_str()), chosen)?;
            finer.push(format!("{path} is in {chosen}"));
        }
        let note = (!finer.is_empty()).then(|| {
            format!(
                "{}: embedding and head have at least {BITS} bits, since each token goes through them; rules of your own decide otherwise",
                finer.join(", ")
            )
        });
        if let Some(note) = &note {
            tracing::info!(target: "tacit", "{note}");
        }
        Ok(DecoderRules { rules: rules.quantize("*", format)?, note })
    }
}

/// The first rules of a list, and how many more there are.
fn shown(rules: &[String]) -> String {
    let (first, more) = rules.split_at(rules.len().min(SHOWN));
    let more = if more.is_empty() { String::new() } else { format!(" and {} more", more.len()) };
    format!("{}{more}", first.join(", "))
}

/// The bits of a weight in a format, whose scales are half floats where they have the dtype of the weight; nothing where it does
/// not fit. The array that this is asked with is never evaluated.
fn bits(format: &AnyFormat, aval: &Aval) -> Option<f64> {
    let zeros = ops::zeros_dtype(&aval.shape, Dtype::Bfloat16).ok()?;
    bits_held(&format.quantize(&zeros).ok()?).ok()
}

/// The bits of an element as a value holds it.
fn bits_held(value: &Value) -> Result<f64> {
    Ok(8.0 * value.nbytes() as f64 / value.aval()?.size().max(1) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The formats that parameters get which are in these ones now.
    fn chosen_of(format: &str, parameters: &[(&str, [i32; 2], &str)]) -> (Vec<String>, Option<String>) {
        let value = |shape: &[i32], stored: &str| -> Value {
            let zeros = ops::zeros::<f32>(shape).expect("zeros");
            match stored {
                "dense" => zeros.into(),
                stored => stored.parse::<AnyFormat>().and_then(|stored| stored.quantize(&zeros)).expect("fits"),
            }
        };
        let given: Parameters =
            parameters.iter().map(|(path, shape, stored)| ((*path).to_owned(), value(shape, stored))).collect();
        let DecoderRules { rules, note } = Rules::for_decoder(format, &given).expect("a format");
        let format = |(path, ..): &(&str, [i32; 2], &str)| {
            let aval = given[*path].aval().expect("an aval");
            rules.format(path, &aval).map_or("none".to_owned(), ToString::to_string)
        };
        (parameters.iter().map(format).collect(), note)
    }

    fn chosen(format: &str, paths: &[(&str, [i32; 2])]) -> (Vec<String>, Option<String>) {
        chosen_of(format, &paths.iter().map(|&(path, shape)| (path, shape, "dense")).collect::<Vec<_>>())
    }

    #[test]
    fn embedding_and_head_have_at_least_six_bits() {
        let paths =
            [("model.embed_tokens.weight", [128, 64]), ("lm_head.weight", [128, 96]), ("l.up_proj.weight", [8, 64])];
        for format in ["nf4:64", "affine:4:32", "mxfp4", "ternary"] {
            let (formats, note) = chosen(format, &paths);
            assert_eq!(formats, ["affine:8:64", "affine:8:32", format]);
            assert!(note.is_some_and(|note| note.starts_with("lm_head.weight is in affine:8:32, model.embed_tokens")));
        }
        for format in ["affine:6:32", "int8:64", "bf16"] {
            assert_eq!(chosen(format, &paths[..1]), (vec![format.to_owned()], None));
        }
        assert_eq!(
            chosen("nf4:64", &[("token_embd.weight", [8, 64]), ("output.weight", [8, 64])]).0,
            ["affine:8:64"; 2]
        );
        // Rows that are no whole groups.
        assert_eq!(chosen("nf4:64", &[("transformer.wte.weight", [8, 10])]).0, ["int8"]);
    }

    #[test]
    fn a_rule_of_another_expert_is_told_where_its_format_is_another() {
        let (experts, shape) = ("l.switch_mlp.weight", [2, 8, 64]);
        let parameters = Parameters::from([(experts.to_owned(), ops::zeros::<f32>(&shape).expect("zeros").into())]);
        let other = |path: &str| match path {
            "l.switch_mlp.weight" => Some("l.0.weight".to_owned()),
            "l.0.weight" | "l.1.weight" => Some("l.switch_mlp.weight".to_owned()),
            _ => None,
        };
        let note = |second: &str| {
            let rules =
                Rules::new().quantize("l.0.weight", "int8").and_then(|rules| rules.quantize("l.1.weight", second));
            let found = DecoderRules::new(&rules.expect("rules"), &parameters, other).expect("avals");
            let aval = Aval::new(&shape, Dtype::Float32);
            assert_eq!(found.rules.format(experts, &aval).map(ToString::to_string).as_deref(), Some("int8"));
            found.note
        };
        assert_eq!(note("int8"), None);
        assert_eq!(note("nf4:64").as_deref(), Some("these rules name no parameter: l.1.weight"));
    }

    /// A rule that is right and stands behind another one is not misspelt.
    #[test]
    fn a_rule_behind_another_one_is_told_as_such() {
        let value = ops::zeros::<f32>(&[8, 64]).expect("zeros").into();
        let parameters = Parameters::from([("l.up.weight".to_owned(), value)]);
        let rules = [("l.*", "int8"), ("l.up.weight", "nf4:64"), ("blk.0.*", "nf4:64"), ("haed.weight", "int8")];
        let rules = rules.into_iter().try_fold(Rules::new(), |rules, (path, format)| rules.quantize(path, format));
        let found = DecoderRules::new(&rules.expect("rules"), &parameters, |_| Some("blk.0.ffn_up.weight".to_owned()));
        assert_eq!(
            found.expect("avals").note.as_deref(),
            Some(
                "these rules name no parameter: haed.weight; earlier rules decide all that these name: l.up.weight, blk.0.*"
            )
        );
    }

    #[test]
    fn a_path_is_no_glob() {
        let paths = [("m[0].embed_tokens.weight", [8, 64]), ("m[1.lm_head.weight", [8, 64])];
        let (formats, note) = chosen("nf4:64", &paths);
        assert_eq!(formats, ["affine:8:64"; 2]);
        assert!(note.is_some());
        let (formats, note) = chosen_of("nf4:64", &paths.map(|(path, shape)| (path, shape, "int8")));
        assert_eq!(formats, ["none"; 2]);
        assert!(note.is_some());
    }

    #[test]
    fn what_is_no_decoder_has_one_format() {
        let paths = [("output.weight", [8, 64]), ("my_embed_tokens.weight", [8, 64])];
        assert_eq!(chosen("nf4:64", &paths), (vec!["nf4:64".to_owned(); 2], None));
    }

    #[test]
    fn what_was_quantized_before_is_not_made_larger() {
        let with = |embedding| {
            let embedding = ("model.embed_tokens.weight", [128, 64], embedding);
            chosen_of("nf4:64", &[embedding, ("lm_head.weight", [128, 64], "dense")])
        };
        // The head beside it is that of a decoder nevertheless.
        for coarse in ["nf4:64", "affine:4:64", "mxfp4"] {
            let (formats, note) = with(coarse);
            assert_eq!(formats, ["nf4:64", "affine:8:64"], "{coarse}");
            assert!(note.is_some_and(|note| note.starts_with("lm_head.weight is in affine:8:64: ")));
        }
        for (fine, shown) in [("affine:6:64", "Affine"), ("int8", "Int8")] {
            let (formats, note) = with(fine);
            assert_eq!(formats, ["none", "affine:8:64"], "{fine}");
            let stays = format!("model.embed_tokens.weight stays {shown}(f32[128,64]): ");
            assert!(note.is_some_and(|note| note.contains(&stays)), "{fine}");
        }
        // Floats that were rounded to nothing less.
        assert_eq!(with("bf16").0, ["affine:8:64"; 2]);
    }
}
