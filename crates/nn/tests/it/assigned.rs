//! Parameters that a loss assigns.

use mlx_rs::macros::ModuleParameters;
use mlx_rs::module::Param;
use mlx_rs::{Array, ops};
use tacit_core::{Error, Result};
use tacit_nn::{Model, ParameterFilter, Pattern};

use crate::types::{normal, numbers};

#[derive(Clone, Debug, ModuleParameters)]
#[module(root = mlx_rs)]
struct Counting {
    #[param]
    weight: Param<Array>,
    /// A statistic that is not called `running_mean`: of spectral normalization, of a codebook.
    #[param]
    seen: Param<Array>,
}

fn step(model: &mut Model<Counting>, only: ParameterFilter) -> Result<Vec<f32>> {
    model.value_and_grad(only, (), |model, ()| {
        model.run(|m| {
            m.seen.value = m.seen.value.add(Array::from_f32(1.0))?;
            m.weight.value.square()?.sum(None)
        })
    })?;
    Ok(numbers(&model.get("seen")?.dense()?))
}

/// "A parameter that the function assigns, such as a running statistic, keeps what it was assigned."
#[test]
fn what_a_loss_assigns_stays_whether_or_not_it_is_trained() -> Result<()> {
    let counting = || -> Result<Counting> {
        Ok(Counting { weight: Param::new(normal(1, &[4])), seen: Param::new(ops::zeros::<f32>(&[2])?) })
    };
    let weight = || -> Result<ParameterFilter> { Ok(ParameterFilter::Paths("weight".parse::<Pattern>()?)) };
    assert_eq!(step(&mut Model::new(counting()?)?, weight()?)?, [1.0; 2]);
    let mut model = Model::new(counting()?)?;
    assert_eq!(step(&mut model, ParameterFilter::default())?, [1.0; 2]);
    assert_eq!(step(&mut model, ParameterFilter::default())?, [2.0; 2]);
    let before = model.get("seen")?.dense()?;
    let failed = model.value_and_grad(ParameterFilter::default(), (), |model, ()| {
        model.run(|m| {
            m.seen.value = m.seen.value.add(Array::from_f32(1.0))?;
            Ok::<_, Error>(())
        })?;
        Err::<Array, _>(Error::invalid("not now", "try again"))
    });
    assert!(failed.is_err());
    assert_eq!(numbers(&model.get("seen")?.dense()?), numbers(&before));
    Ok(())
}
