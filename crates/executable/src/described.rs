//! What an executable is described to have, parameters, inputs and outputs, and what becomes of the nodes of a run.

use tacit_core::{Aval, Explanation, Result, explain};

use crate::Executable;
use crate::rehearsal;
use crate::signature::{Described, Signature};

impl Executable<'_> {
    /// The parameters in the order of their description.
    ///
    /// ```
    /// # fn main() -> tacit_core::Result<()> {
    /// use mlx_rs::Dtype;
    /// use tacit_core::Aval;
    /// use tacit_executable::Executable;
    ///
    /// let scaled = Executable::builder("scaled")
    ///     .parameter("factor", Aval::new(&[2], Dtype::Float32))
    ///     .input("x", Aval::new(&[3, 2], Dtype::Float32))
    ///     .output("y")
    ///     .build(|given| Ok(vec![given.get("x")?.multiply(given.get("factor")?)?]))?;
    /// let (name, aval) = scaled.parameters().next().expect("there is one");
    /// assert_eq!(format!("{name} {aval}"), "factor f32[2]");
    /// assert_eq!(scaled.outputs()?, [("y", Aval::new(&[3, 2], Dtype::Float32))]);
    /// assert_eq!(scaled.unset(), ["factor"]);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn parameters(&self) -> impl ExactSizeIterator<Item = (&str, &Aval)> {
        described(&self.body.signature.parameters)
    }

    /// The inputs in the order of their description, resident and optional ones too.
    #[must_use]
    pub fn inputs(&self) -> impl ExactSizeIterator<Item = (&str, &Aval)> {
        described(&self.body.signature.inputs)
    }

    /// The outputs in the order of their description, those that are fed too. A function that was not called yet is recorded
    /// on placeholders of what is described, and nothing is computed.
    ///
    /// # Errors
    ///
    /// The function fails, or asks for the value of an array.
    pub fn outputs(&self) -> Result<Vec<(&str, Aval)>> {
        let Signature { outputs, output_avals, .. } = &self.body.signature;
        let rows = self.body.rows.borrow();
        let avals = match (&*rows, output_avals.get()) {
            (Some((_, avals)), _) | (None, Some(avals)) => avals.clone(),
            (None, None) => rehearsal::avals(&self.body)?,
        };
        Ok(outputs.iter().map(|output| &*output.name).zip(avals).collect())
    }

    /// The names of the parameters and resident inputs that must be set before a run and are not.
    #[must_use]
    pub fn unset(&self) -> Vec<&str> {
        self.unset.iter().map(|place| &*self.body.signature.described(*place).name).collect()
    }

    /// What becomes of each node of a run, as [`explain`](fn@tacit_core::explain) tells it, with the
    /// names of parameters and inputs. Inputs that are not there are zeros.
    ///
    /// # Errors
    ///
    /// A parameter was not set, or the function fails.
    pub fn explain(&self) -> Result<Explanation> {
        let whole = self.with_stand_ins()?;
        let arguments = self.cut(&whole)?.unwrap_or(whole);
        let told = explain(&arguments, |(parameters, inputs)| self.body.call(&parameters, &inputs))?;
        let names = self.parameters().chain(self.inputs()).map(|(name, _)| name.to_owned());
        Ok(told.with_input_names(names))
    }
}

fn described(entries: &[Described]) -> impl ExactSizeIterator<Item = (&str, &Aval)> {
    entries.iter().map(|entry| (&*entry.name, &entry.aval))
}
