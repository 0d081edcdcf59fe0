//! What changes the parameters of a model, or what they are stored as.

use mlx_rs::{Array, Dtype, random};
use tacit::arrays::ActivationGranularity;
use tacit::format::AnyFormat;
use tacit::model::{LoraConfig, MergeReport, Method, ParameterFilter, QatConfig};
use tacit::{Error, Result, Value};

use crate::held::{Held, bytes, distance};
use crate::life::{Checked, Life, holds, never};

impl Life {
    pub(crate) fn prepare(&mut self, pattern: &str, format: &str, scales: bool, int8: bool) -> Result<()> {
        let config = QatConfig::new(format.parse::<AnyFormat>()?);
        let config = if scales { config.trained_scales() } else { config };
        let config = if int8 { config.int8_activations(ActivationGranularity::Token) } else { config };
        self.become_other(|model| model.prepare(pattern, config))?;
        self.rounds |= int8;
        Ok(())
    }

    pub(crate) fn convert(&mut self, y: &Array) -> Checked<Result<()>> {
        let made = self.model.convert().map(drop);
        if made.is_ok() {
            let after = never(self.output())?;
            holds(never(bytes(y))? == never(bytes(&after))?, "a converted model computes something else")?;
        }
        Ok(made)
    }

    pub(crate) fn adapt(
        &mut self,
        pattern: &str,
        method: Method,
        stored: Option<&'static str>,
        dropout: bool,
        y: &Array,
    ) -> Checked<Result<()>> {
        let dropout = if dropout { 0.5 } else { 0.0 };
        let config = LoraConfig { rank: 4, method, dropout, ..LoraConfig::default() };
        let config = match stored {
            None => Ok(config),
            Some(format) => format.parse::<AnyFormat>().map(|format| config.as_stored(format)),
        };
        let made = config.and_then(|config| self.become_other(|model| model.lora(pattern, config)));
        if made.is_ok() && stored.is_none() {
            let far = never(distance(&never(self.output())?, y))?;
            holds(far <= self.tolerance(1e-4), format!("an adapter that is not trained moves by {far}"))?;
        }
        Ok(made)
    }

    pub(crate) fn merge(&mut self, format: Option<&str>) -> Result<MergeReport> {
        match format {
            Some(format) => self.model.merge(format),
            None => self.model.merge_exactly(),
        }
    }

    pub(crate) fn merge_and_back(&mut self, format: Option<&str>, before: &Held) -> Checked<Result<()>> {
        let report = match self.merge(format) {
            Ok(report) => report,
            Err(error) => return Ok(Err(error)),
        };
        holds(report.worst().is_finite(), format!("a loss that is no number: {report}"))?;
        never(self.output())?;
        never(self.model.unmerge(report))?;
        let differs = before.differs(&never(Held::of(&self.model))?);
        differs.map_or(Ok(Ok(())), |difference| Err(format!("merged and unmerged, there are other {difference}")))
    }

    pub(crate) fn cast(&mut self, pattern: &str, dtype: Dtype) -> Result<()> {
        self.half |= dtype != Dtype::Float32;
        let cast = |_: &str, value: Value| match value {
            Value::Dense(array) if array.dtype().is_float() => Ok(Some(array.as_dtype(dtype)?.into())),
            _ => Ok(None),
        };
        self.model.replace(pattern, cast).map(drop)
    }

    pub(crate) fn set(&mut self, path: &str, good: bool) -> Checked<Result<()>> {
        let own = match self.model.get(path) {
            Ok(value) => never(value.aval())?.shape,
            Err(_) => vec![4, 4],
        };
        let shape = if good { own } else { vec![3, 5] };
        let array = random::key(5).and_then(|key| random::normal::<f32>(&shape, None, 0.1, &key));
        let set = self.model.set(path, never(array.map_err(Error::from))?);
        holds(good || set.is_err(), "a parameter took another shape")?;
        Ok(set)
    }

    pub(crate) fn replace(&mut self, fails_at: usize) -> Result<()> {
        let mut seen = 0;
        let replaced = self.model.replace("*.weight", |_, value| {
            seen += 1;
            if seen > fails_at { Err(Error::invalid("not this one", "try again")) } else { Ok(Some(value)) }
        });
        replaced.map(drop)
    }

    pub(crate) fn set_leaves(&mut self, good: bool) -> Checked<Result<()>> {
        let leaves = self.model.leaves(&ParameterFilter::All).into_iter();
        let mut leaves: Vec<_> = leaves.map(|(path, array)| (path, array.clone())).collect();
        if !good && let Some(last) = leaves.last_mut() {
            last.1 = Array::from_slice(&[1u8, 2], &[2]);
        }
        let set = self.model.set_leaves(leaves);
        holds(set.is_ok() == good, "leaves of its own are taken, and no others")?;
        Ok(set)
    }
}
