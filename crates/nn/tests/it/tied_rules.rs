//! Rules that name one path of a tie, within a pattern that names the other.

use mlx_rs::Array;
use mlx_rs::macros::ModuleParameters;
use mlx_rs::module::Param;
use tacit_core::Result;
use tacit_nn::{Model, Rules};

use crate::types::normal;

#[derive(Clone, Debug, ModuleParameters)]
#[module(root = mlx_rs)]
struct Two {
    #[param]
    embedding: Param<Array>,
    #[param]
    head: Param<Array>,
}

fn tied() -> Result<Model<Two>> {
    let of = |seed| Param::new(normal(seed, &[32, 64]));
    Model::new(Two { embedding: of(1), head: of(2) })?.tie("head", "embedding")
}

/// "Whatever names either path means it": a pattern and a rule may each take another name.
#[test]
fn a_rule_and_a_pattern_may_name_a_tied_parameter_by_different_paths() -> Result<()> {
    let skip = Rules::new().skip("head")?.quantize("*", "affine:4:64")?;
    assert!(tied()?.quantize("*", &skip).is_err(), "the rules skip it");
    assert!(tied()?.quantize("head", &skip).is_err(), "the rules skip it");
    assert!(tied()?.quantize("embedding", &skip).is_err(), "the rules skip it");
    assert!(tied()?.prepare("embedding", &skip).is_err(), "the rules skip it");

    let rules = Rules::new().quantize("head", "affine:8:64")?.quantize("*", "nf4:64")?;
    for pattern in ["*", "head", "embedding", "embed*"] {
        let model = tied()?.quantize(pattern, &rules)?;
        assert_eq!(model.get("head")?.to_string(), "Affine(f32[32,64])", "{pattern}");
    }
    let alone = Rules::new().quantize("head", "affine:8:64")?;
    tied()?.quantize("embedding", &alone)?;
    Ok(())
}
