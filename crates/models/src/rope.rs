//! Rotary positions: the frequencies by which queries and keys are rotated, and their variants for longer contexts.

use std::f32::consts::PI;
use std::sync::Arc;

use mlx_rs::error::Exception;
use mlx_rs::{Array, fast, ops};
use tacit_core::Result;

use crate::keys::Keys;

/// How positions rotate queries and keys.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// The first so many of a head are rotated.
    dims: i32,
    /// Whether neighbors are rotated together, and not the two halves.
    interleaved: bool,
    theta: f32,
    variant: Variant,
}

/// How the frequencies were changed for contexts longer than those of the first training.
#[derive(Clone, Debug, PartialEq)]
enum Variant {
    Plain,
    /// Positions are divided by the factor.
    Linear {
        factor: f32,
    },
    /// Wavelengths above `original / low` are stretched by the factor, those below `original / high` stay (Llama 3.1).
    Llama3 {
        factor: f32,
        low: f32,
        high: f32,
        original: f32,
    },
    /// The dimensions up to `first` stay and those from `last` are stretched by the factor; queries and keys are
    /// multiplied by `gain` (Peng et al., `YaRN`, 2023).
    Yarn {
        factor: f32,
        first: f32,
        last: f32,
        gain: f32,
    },
    /// Each frequency is divided by a factor of its own, as GGUF files of Llama 3.1 have it; queries and keys are multiplied by
    /// `gain`.
    Factors {
        factors: Arc<[f32]>,
        gain: f32,
    },
}

impl Rope {
    /// What the keys of the positions say, and the keys of the whole configuration; `usual` is the part of a head that is
    /// rotated where none says it.
    ///
    /// # Errors
    ///
    /// The variant is not one of those above, or lacks a key; or a number of them gives no frequencies.
    pub(crate) fn new(
        section: Option<&Keys>,
        config: &Keys,
        head_dim: i32,
        theta: f64,
        usual: Option<f64>,
    ) -> Result<Self> {
        const PART: &str = "partial_rotary_factor";
        let in_section = |key: &str| section.map_or(Ok(None), |section| section.positive_number(key));
        let theta = in_section("rope_theta")?.unwrap_or(theta);
        let (said_by, part) = match (section, in_section(PART)?) {
            (Some(section), Some(part)) => (section, Some(part)),
            _ => (config, config.positive_number(PART)?),
        };
        let dims = part.or(usual).map_or(head_dim, |part| (f64::from(head_dim) * part).round() as i32);
        if dims < 2 || dims % 2 != 0 || dims > head_dim {
            let reason = format!("{dims} of the {head_dim} numbers of a head are rotated, and pairs of them should be");
            // Without the factor all are rotated: it is their number that is wrong.
            let head = if config.has("head_dim") { "head_dim" } else { "hidden_size" };
            let key = if part.is_some() { PART } else { head };
            return Err(said_by.wrong(key, reason, "fetch the configuration again"));
        }
        let interleaved = config.flag("rope_traditional")?.unwrap_or(false);
        let plain = Self { dims, interleaved, theta: theta as f32, variant: Variant::Plain };
        let Some(section) = section else { return Ok(plain) };
        let name = section.text("rope_type")?.map_or_else(|| section.text("type"), |name| Ok(Some(name)))?;
        let needed = |key: &str| Ok::<_, tacit_core::Error>(section.needed(key)? as f32);
        let variant = match name.unwrap_or("default") {
            "default" => Variant::Plain,
            "linear" => Variant::Linear { factor: needed("factor")? },
            "llama3" => {
                let (low, high) = (needed("low_freq_factor")?, needed("high_freq_factor")?);
                if low >= high {
                    let reason = format!("it is {high}, and low_freq_factor is {low}");
                    return Err(section.wrong("high_freq_factor", reason, "fetch the configuration again"));
                }
                let original = needed("original_max_position_embeddings")?;
                Variant::Llama3 { factor: needed("factor")?, low, high, original }
            }
            "yarn" => yarn(section, config, dims, theta)?,
            // The first files of Phi-3 have the other name.
            "longrope" | "su" => factors(section, dims)?,
            other => {
                let help = "there are default, linear, llama3, yarn and longrope: take a model of one of these, or remove the \
                            entry if its context is not longer than that of the first training";
                let why = if other == "dynamic" { ": its frequencies change with the length" } else { "" };
                return Err(section.wrong("rope_type", format!("{other} is not read{why}"), help));
            }
        };
        Ok(Self { variant, ..plain })
    }

    /// What the layers of one kind share: the wavelengths over 2 pi, `f32[dims / 2]`, where they are not the plain ones.
    pub(crate) fn wavelengths(&self) -> Result<Option<Array>, Exception> {
        let &Self { dims, theta, .. } = self;
        let number = Array::from_f32;
        // In the graph, since an array that a compiled step holds would be a constant of it.
        let plain = || {
            let exponents = ops::arange::<_, f32>(0, dims, 2)?.divide(number(dims as f32))?;
            ops::power(number(theta), exponents)
        };
        Ok(match self.variant {
            Variant::Plain | Variant::Linear { .. } => None,
            Variant::Factors { ref factors, .. } => Some(plain()?.multiply(Array::from_slice(factors, &[dims / 2]))?),
            Variant::Llama3 { factor, low, high, original } => {
                let plain = plain()?;
                let turns = ops::divide(number(original / (2.0 * PI)), &plain)?;
                let smooth = turns.subtract(number(low))?.divide(number(high - low))?;
                let smooth = ops::clip(smooth, (number(0.0), number(1.0)))?;
                let factors = smooth.add(ops::subtract(number(1.0), &smooth)?.divide(number(factor))?)?;
                Some(plain.divide(factors)?)
            }
            Variant::Yarn { factor, first, last, .. } => {
                let ramp = ops::arange::<_, f32>(0, dims / 2, None)?.subtract(number(first))?;
                let stretched = ops::clip(ramp.divide(number(last - first))?, (number(0.0), number(1.0)))?;
                let unstretched = ops::subtract(number(1.0), &stretched)?;
                Some(plain()?.divide(unstretched.add(stretched.divide(number(factor))?)?)?)
            }
        })
    }

    /// Rotates `x: [batch, heads, tokens, head_dim]` as the positions from `offset: i32[batch]` on say.
    pub(crate) fn rotate(&self, x: &Array, offset: &Array, wavelengths: Option<&Array>) -> Result<Array, Exception> {
        let scale = if let Variant::Linear { factor } = self.variant { factor.recip() } else { 1.0 };
        let base = wavelengths.is_none().then_some(self.theta);
        let rotated = |x: &Array| fast::rope_dynamic(x, self.dims, self.interleaved, base, scale, offset, wavelengths);
        match self.variant {
            Variant::Yarn { gain, .. } | Variant::Factors { gain, .. } if (gain - 1.0).abs() > f32::EPSILON => {
                let gain = Array::from_f32(gain).as_dtype(x.dtype())?;
                let parts = x.split_at_indices(&[self.dims], -1)?;
                let x = match &parts[..] {
                    [rotated, rest] if rest.dim(-1) > 0 => ops::concatenate(&[&rotated.multiply(gain)?, rest], -1)?,
                    _ => x.multiply(gain)?,
                };
                rotated(&x)
            }
            _ => rotated(x),
        }
    }
}

/// What each frequency is divided by, if that is the same for texts of any length, and the gain.
fn factors(section: &Keys, dims: i32) -> Result<Variant> {
    const KEY: &str = "long_factor";
    let factors = section.positive_numbers(KEY)?;
    if factors.len() != dims as usize / 2 {
        let reason = format!("it has {} numbers, and {dims} of a head are rotated in pairs", factors.len());
        return Err(section.wrong(KEY, reason, "convert the model again"));
    }
    let gain = section.positive_number("attention_factor")?;
    let (true, Some(gain)) = (section.positive_numbers("short_factor")? == factors, gain) else {
        let reason = "long texts have other frequencies than short ones, or there is no attention_factor";
        return Err(section.wrong(KEY, reason, "take a model whose frequencies do not change with the length"));
    };
    Ok(Variant::Factors { factors: factors.into(), gain: gain as f32 })
}

/// The dimensions between which the frequencies change, and the gain.
fn yarn(section: &Keys, config: &Keys, dims: i32, theta: f64) -> Result<Variant> {
    let factor = section.needed("factor")?;
    let original = match section.positive_number("original_max_position_embeddings")? {
        Some(original) => original,
        None => config.needed("max_position_embeddings")?,
    };
    // The dimension whose wave turns so often in the original context.
    let turning = |times: f64| f64::from(dims) * (original / (times * std::f64::consts::TAU)).ln() / (2.0 * theta.ln());
    if theta <= 1.0 {
        let reason = format!("it is {theta}, of which no wave is longer than another");
        let said_by = if section.positive_number("rope_theta")?.is_some() { section } else { config };
        return Err(said_by.wrong("rope_theta", reason, "fetch the configuration again"));
    }
    let bound =
        |key: &str, default: f64| Ok::<_, tacit_core::Error>(turning(section.positive_number(key)?.unwrap_or(default)));
    let whole = section.flag("truncate")?.unwrap_or(true);
    let (first, last) = (bound("beta_fast", 32.0)?, bound("beta_slow", 1.0)?);
    let (first, last) = if whole { (first.floor(), last.ceil()) } else { (first, last) };
    let first = first.max(0.0);
    // Apart, so that the ramp between them is one.
    let last = last.min(f64::from(dims - 1)).max(first + 1e-3);
    let of_scale = |scale: f64| if factor > 1.0 { 0.1 * scale * factor.ln() + 1.0 } else { 1.0 };
    // One of the two alone says nothing, and neither does a zero.
    let scale = |key: &str| Ok::<_, tacit_core::Error>(section.number(key)?.filter(|scale| scale.abs() > 0.0));
    let gain = match (section.positive_number("attention_factor")?, scale("mscale")?, scale("mscale_all_dim")?) {
        (Some(gain), ..) => gain,
        (None, Some(scale), Some(of_all)) => of_scale(scale) / of_scale(of_all),
        _ => of_scale(1.0),
    };
    if !(gain as f32).is_finite() {
        let reason = format!("queries and keys are multiplied by {gain:e}, which is beyond f32");
        return Err(section.wrong("mscale_all_dim", reason, "fetch the configuration again"));
    }
    Ok(Variant::Yarn { factor: factor as f32, first: first as f32, last: last as f32, gain: gain as f32 })
}
