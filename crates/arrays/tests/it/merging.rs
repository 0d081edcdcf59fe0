//! Adapters merged into their base.

use expect_test::expect;
use mlx_rs::{Array, Dtype, ops, random};
use tacit_arrays::{
    ActivationGranularity, Adapter, AsStored, Dora, Int8Inputs, Int8Training, Lora, QaLora, merge, merge_exactly,
};
use tacit_conformance::oracle::Oracle;
use tacit_core::{Counters, Error, ImplicitArray, Policy, Result, Value, implicit, store};

use crate::adapters::{dora_on, qa_lora_on};
use crate::as_stored::{FORMATS, parsed};
use crate::messages::{check, said_of};
use crate::operands::{affine, nf4, normal};
use crate::structured::lora_on;

const F32: Dtype = Dtype::Float32;

fn of(w: &Value) -> &dyn Adapter {
    w.family().expect("an adapter")
}

/// The bytes of every dense array of a value.
fn bytes(value: &Value) -> Vec<Vec<u8>> {
    match value {
        Value::Dense(array) => {
            let bytes = ops::flatten(array, None, None).and_then(|flat| flat.view_dtype(Dtype::Uint8)).expect("bytes");
            vec![bytes.as_slice::<u8>().to_vec()]
        }
        Value::Implicit(array) => array.children().iter().flat_map(|(_, child)| bytes(child)).collect(),
    }
}

/// A text of each format, and more of some.
fn every() -> impl Iterator<Item = &'static str> {
    FORMATS.into_iter().chain(["fp4:64:double", "affine:8:32"])
}

#[test]
fn factors_of_zero_change_no_byte_in_any_format() -> Result<()> {
    for text in every() {
        let format = parsed(text);
        let base = format.quantize(&normal(2, &[40, 96]))?;
        let (a, b) = (normal(3, &[2, 96]), ops::zeros::<f32>(&[40, 2])?);
        for w in [
            Lora::new(base.clone(), a.clone(), b.clone(), 1.0)?.into(),
            Value::from(Dora::new(base.clone(), a, b, 1.0)?),
        ] {
            let _deny = Policy::Deny.scope();
            let merged = merge(of(&w), &format)?;
            assert!(merged.loss.is_none(), "{text}: {}", merged.loss);
            assert_eq!(bytes(&merged.value), bytes(&base), "{text}");
        }
    }
    Ok(())
}

/// Which formats could do without the rule above: their own values make their own codes again.
#[test]
fn formats_whose_own_values_make_the_same_codes() -> Result<()> {
    let _allow = Policy::Allow.scope();
    let mut again = Vec::new();
    for text in every() {
        let format = parsed(text);
        let same = |seed| -> Result<bool> {
            let once = format.quantize(&normal(seed, &[40, 96]))?;
            Ok(bytes(&once) == bytes(&format.quantize(&once.dense()?)?))
        };
        if (2..8).map(same).collect::<Result<Vec<_>>>()?.iter().all(|same| *same) {
            again.push(text);
        }
    }
    expect!["nf4:64 nvfp4"].assert_eq(&again.join(" "));
    Ok(())
}

#[test]
fn the_loss_is_that_of_the_dense_arrays() -> Result<()> {
    let base = nf4(&normal(2, &[40, 96]), 64);
    for w in [lora_on(base.clone()), dora_on(base.clone())] {
        let (merged, counters) = Counters::during(|| {
            let _deny = Policy::Deny.scope();
            merge(of(&w), "nf4:64")
        });
        let merged = merged?;
        assert_eq!(counters.materialized, 0);
        let _allow = Policy::Allow.scope();
        let norm =
            |array: Array| -> Result<f64> { Ok(f64::from(array.square()?.sum(None)?.sqrt()?.item_exact::<f32>())) };
        let (sum, stored, base) = (w.dense()?, merged.value.dense()?, base.dense()?);
        let lost = norm(stored.subtract(&sum)?)?;
        let near = |a: f64, b: f64| assert!((a - b).abs() < 1e-4 * b, "{a} for {b}");
        near(merged.loss.relative, lost / norm(sum.clone())?);
        near(merged.loss.of_change, lost / norm(sum.subtract(&base)?)?);
        near(merged.loss.change, norm(sum.subtract(&base)?)? / norm(base)?);
        assert!(merged.loss.relative > 0.01);
    }
    Ok(())
}

#[test]
fn what_is_trained_as_stored_merges_exactly() -> Result<()> {
    let _deny = Policy::Deny.scope();
    let sum = lora_on(nf4(&normal(2, &[40, 96]), 64));
    for text in every() {
        let w = Value::from(AsStored::new(&sum, parsed(text))?);
        for merged in [merge_exactly(of(&w))?, merge(of(&w), text)?] {
            assert!(merged.loss.is_none(), "{text}: {}", merged.loss);
            assert_eq!(bytes(&merged.value), bytes(&w.downcast::<AsStored>().expect("one").merged()?), "{text}");
        }
    }
    let w = qa_lora_on(affine(&normal(2, &[40, 96]), 32, 4), 3);
    for merged in [merge_exactly(of(&w))?, merge(of(&w), "affine:4:32")?] {
        assert!(merged.loss.is_none(), "{}", merged.loss);
        assert_eq!(bytes(&merged.value), bytes(&w.downcast::<QaLora>().expect("one").merged()?));
    }
    let finer = merge(of(&w), "int8")?;
    assert!(!finer.loss.is_none());
    Ok(())
}

#[test]
fn a_dense_array_is_asked_for() -> Result<()> {
    let w = lora_on(nf4(&normal(2, &[40, 96]), 64));
    {
        let _allow = Policy::Allow.scope();
        let merged = merge_exactly(of(&w))?;
        assert!(merged.loss.relative < 1e-6);
        assert_eq!(merged.value.to_string(), "f32[40,96]");
        // A finer format is exact to its own step.
        assert!(merge(of(&w), "int8:32")?.loss.relative < 0.006);
    }
    assert_eq!(w.aval()?.dtype, F32);
    let _deny = Policy::Deny.scope();
    check(
        merge_exactly(of(&w)).map(|merged| merged.loss),
        expect![[r#"
            a dense array of Lora(f32[40,96]) needs Lora materialized, which the policy forbids
            help: allow it here with `Policy::Allow.scope()`"#]],
    );
    check(
        merge(of(&lora_on(w)), "nf4:64").map(|merged| merged.loss),
        expect![[r#"
            a dense array of Lora(f32[40,96]) needs Lora materialized, which the policy forbids
            help: allow it here with `Policy::Allow.scope()`"#]],
    );
    Ok(())
}

/// The dense array is what an adapter stands for, in half floats as well.
#[test]
fn a_merge_without_a_format_loses_nothing() -> Result<()> {
    let _allow = Policy::Allow.scope();
    for dtype in [F32, Dtype::Bfloat16, Dtype::Float16] {
        for base in [nf4(&normal(2, &[40, 96]).as_dtype(dtype)?, 32), normal(2, &[40, 96]).as_dtype(dtype)?.into()] {
            for w in [lora_on(base.clone()), dora_on(base.clone())] {
                let merged = merge_exactly(of(&w))?;
                assert!(merged.loss.is_none(), "{w}: {}", merged.loss);
                assert!(merged.loss.change > 0.1, "{w}: {:?}", merged.loss);
                assert!(merged.value.dense()?.eq_exact(w.dense()?)?, "{w}");
            }
        }
    }
    Ok(())
}

/// What an adapter was trained as is what is merged, also into a finer format.
#[test]
fn what_is_trained_as_stored_is_what_another_format_gets() -> Result<()> {
    let sum = lora_on(nf4(&normal(2, &[40, 96]), 64));
    let w = Value::from(AsStored::new(&sum, parsed("nf4:64"))?);
    let _allow = Policy::Allow.scope();
    for (text, loss) in [("int8:32", 0.006), ("rotated:int8:32", 0.01)] {
        let merged = merge(of(&w), text)?;
        assert!(merged.loss.relative < loss, "{text}: {}", merged.loss);
        // An adapter of it is stored as what was trained, too.
        let again = Value::from(AsStored::new(&w, parsed(text))?);
        assert_eq!(bytes(&again.downcast::<AsStored>().expect("one").merged()?), bytes(&merged.value), "{text}");
    }
    Ok(())
}

#[test]
fn a_base_of_8_bit_activations_loses_nothing_either() -> Result<()> {
    let _allow = Policy::Allow.scope();
    let base = Int8Inputs::new(affine(&normal(2, &[40, 96]), 32, 4), ActivationGranularity::Token)?;
    for text in ["affine:4:32", "rotated:affine:4:32"] {
        let w = Value::from(AsStored::new(lora_on(base.clone().into()), parsed(text))?);
        for merged in [merge(of(&w), text)?, merge_exactly(of(&w))?] {
            assert!(merged.loss.is_none(), "{text}: {}", merged.loss);
            let inner = merged.value.downcast::<Int8Inputs>().expect("rounds").inner();
            assert!(parsed(text).stores(inner), "{text}: {inner}");
        }
    }
    Ok(())
}

/// Codes whose products are of integers in both passes are not quantized anew, and what is merged has such products where it can.
#[test]
fn a_base_of_8_bit_products_is_merged_as_its_codes() -> Result<()> {
    let _deny = Policy::Deny.scope();
    let codes = parsed("int8").quantize(&normal(2, &[40, 96]))?;
    let base = Int8Training::new(codes)?.stochastic(&random::key(1)?)?;
    let still = Lora::new(base.clone(), normal(3, &[2, 96]), ops::zeros::<f32>(&[40, 2])?, 1.0)?;
    let merged = merge(&still, "int8")?;
    assert!(merged.loss.is_none(), "{}", merged.loss);
    assert_eq!(bytes(&merged.value), bytes(&base.clone().into()));
    let changed = lora_on(base.into());
    for text in ["int8", "nf4:64"] {
        let merged = merge(of(&changed), text)?;
        let training = merged.value.downcast::<Int8Training>();
        assert_eq!(training.is_some(), text == "int8", "{}", merged.value);
        let inner = training.map_or(&merged.value, Int8Training::inner);
        assert!(parsed(text).stores(inner), "{text}: {inner}");
    }
    Ok(())
}

#[test]
fn what_is_transposed_merges_as_it_lies() -> Result<()> {
    let _allow = Policy::Allow.scope();
    let base = nf4(&normal(2, &[40, 96]), 64);
    let w = Value::from(AsStored::new(lora_on(base.clone()), parsed("nf4:64"))?);
    let transpose = |w: &Value| implicit(w, |w| Ok::<_, Error>(w.t()));
    let transposed = transpose(&w)?;
    let (merged, upright) = (merge_exactly(of(&transposed))?, merge_exactly(of(&w))?);
    assert!(merged.loss.is_none(), "{}", merged.loss);
    assert!((merged.loss.change - upright.loss.change).abs() < 1e-5 * upright.loss.change);
    assert_eq!(bytes(&transpose(&merged.value)?), bytes(&upright.value));
    assert_eq!(of(&transposed).base().aval()?.shape, [96, 40]);
    assert_eq!(bytes(&transpose(of(&transposed).base())?), bytes(&base));
    Ok(())
}

/// Who merges applies no primitive, and has no handler to write.
#[test]
fn a_merge_that_is_denied_names_no_handler_to_write() -> Result<()> {
    let w = lora_on(nf4(&normal(2, &[40, 96]), 64));
    let transposed = implicit(&w, |w| Ok::<_, Error>(w.t()))?;
    let _deny = Policy::Deny.scope();
    for (merged, reason) in [
        (merge(of(&transposed), "nf4:64"), "only whole rows are gathered from packed codes"),
        (merge_exactly(of(&transposed)), "only whole rows are gathered from packed codes"),
        (merge(of(&lora_on(w)), "nf4:64"), "a dense array of Lora(f32[40,96])"),
    ] {
        let said = said_of(merged);
        assert!(said.contains(reason) && !said.contains("near:"), "{said}");
        assert!(said.ends_with("\nhelp: allow it here with `Policy::Allow.scope()`\n"), "{said}");
    }
    Ok(())
}

/// Codes whose scales are codes: what is read again has the bytes, the products with all that transforms make of them, and the merge.
#[test]
fn an_adapter_over_scales_of_codes_is_read_again_as_it_was() -> Result<()> {
    let text = "nf4:64:double";
    let w = lora_on(parsed(text).quantize(&normal(2, &[64, 96]))?);
    let Value::Implicit(array) = &w else { panic!("an adapter") };
    let (json, arrays) = store::collect(|| serde_json::to_string(array).expect("is stored"));
    let read: Box<dyn ImplicitArray> = store::provide(arrays, || serde_json::from_str(&json).expect("is read"));
    let both = [w, read.into()];
    let _allow = Policy::Allow.scope();
    let merged = merge(of(&both[0]), text)?;
    assert!(merged.loss.relative < 0.2, "{}", merged.loss);
    for w in &both {
        assert_eq!(bytes(w), bytes(&both[0]));
        assert_eq!(bytes(&merge(of(w), text)?.value), bytes(&merged.value));
        let operands = [normal(1, &[3, 96]).into(), w.clone()];
        let product = |a: Vec<Array>| Ok(vec![a[0].matmul(a[1].t())?]);
        Oracle::new(1e-4).allowing().transformed().check("x W^T", &operands, product);
    }
    Ok(())
}
