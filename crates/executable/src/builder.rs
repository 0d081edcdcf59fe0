//! The description of an executable.

use std::cell::{OnceCell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use mlx_rs::{Array, Dtype};
use tacit_core::compile::CompileOptions;
use tacit_core::{Aval, Error, Result, Value};

use crate::body::Body;
use crate::signature::{Described, Kind, Output, Place, Signature};
use crate::{Executable, Mode, Named};

/// The description of an executable; made by [`Executable::builder`].
#[must_use = "an executable is made by `build`"]
pub struct Builder {
    name: String,
    parameters: Vec<Described>,
    inputs: Vec<Described>,
    outputs: Vec<Rc<str>>,
    feeds: Vec<(String, String)>,
    /// What optional inputs are at first, by their indices.
    defaults: Vec<(usize, Value)>,
    mode: Option<Mode>,
    options: CompileOptions,
}

impl Builder {
    pub(crate) fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            parameters: Vec::new(),
            inputs: Vec::new(),
            outputs: Vec::new(),
            feeds: Vec::new(),
            defaults: Vec::new(),
            mode: None,
            options: CompileOptions::default(),
        }
    }

    /// Describes a parameter: it is set by name before the first run, and may be implicit.
    pub fn parameter(mut self, name: &str, aval: Aval) -> Self {
        self.parameters.push(Described { name: name.into(), aval, kind: Kind::Parameter });
        self
    }

    /// Describes an input that each run is given.
    pub fn input(mut self, name: &str, aval: Aval) -> Self {
        self.inputs.push(Described { name: name.into(), aval, kind: Kind::Given });
        self
    }

    /// Describes an input that is held from run to run, and may be implicit: a cache, a table of positions.
    pub fn resident(mut self, name: &str, aval: Aval) -> Self {
        self.inputs.push(Described { name: name.into(), aval, kind: Kind::Resident });
        self
    }

    /// Describes an input that is `value` in the runs that are not given another one by name; its aval is that of `value`.
    ///
    /// What a run is given is used in that run alone. `value` is changed as a resident input is, and may be implicit.
    ///
    /// ```
    /// # fn main() -> tacit_core::Result<()> {
    /// use mlx_rs::{Array, Dtype};
    /// use tacit_core::Aval;
    /// use tacit_executable::Executable;
    ///
    /// let mut scaled = Executable::builder("scaled")
    ///     .input("x", Aval::new(&[], Dtype::Float32))
    ///     .optional("factor", Array::from_f32(2.0))
    ///     .output("y")
    ///     .build(|given| Ok(vec![given.get("x")?.multiply(given.get("factor")?)?]))?;
    /// let (x, ten) = (Array::from_f32(3.0), Array::from_f32(10.0));
    /// assert_eq!(scaled.run(&[("x", &x), ("factor", &ten)])?.get("y")?.dense()?.item_exact::<f32>(), 30.0);
    /// assert_eq!(scaled.run(&[("x", &x)])?.get("y")?.dense()?.item_exact::<f32>(), 6.0);
    /// # Ok(())
    /// # }
    /// ```
    pub fn optional(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.defaults.push((self.inputs.len(), value.into()));
        // The aval is that of the value, which `build` asks for where it can fail.
        self.inputs.push(Described { name: name.into(), aval: Aval::new(&[], Dtype::Bool), kind: Kind::Optional });
        self
    }

    /// Describes the next output of the function.
    pub fn output(mut self, name: &str) -> Self {
        self.outputs.push(name.into());
        self
    }

    /// Makes an output the resident input of the next run; runs do not return it.
    pub fn feed(mut self, output: &str, input: &str) -> Self {
        self.feeds.push((output.to_owned(), input.to_owned()));
        self
    }

    /// How the function is run; without this, as [`MODE_VARIABLE`](crate::MODE_VARIABLE) says.
    pub fn mode(mut self, mode: Mode) -> Self {
        self.mode = Some(mode);
        self
    }

    /// How the function is compiled, but for its name, which is the executable's: what happens where it holds arrays that it
    /// was not given, which passes rewrite it, how many traces are kept, and whether one trace serves every
    /// [extent of rows](Executable::active_extent).
    pub fn options(mut self, options: CompileOptions) -> Self {
        self.options = options;
        self
    }

    /// The executable of a function, which returns one array for each described output.
    ///
    /// # Errors
    ///
    /// Two names are equal, a feed names what is not described, or there is no output.
    #[track_caller]
    pub fn build<'f>(mut self, function: impl Fn(&Named<'_>) -> Result<Vec<Array>> + 'f) -> Result<Executable<'f>> {
        let mode = self.mode.unwrap_or_else(Mode::from_environment);
        let (options, defaults) = (std::mem::take(&mut self.options), std::mem::take(&mut self.defaults));
        for (input, value) in &defaults {
            self.inputs[*input].aval = value.aval()?;
        }
        let body = Body { signature: self.signature()?, function: Box::new(function), rows: RefCell::new(None) };
        Ok(Executable::new(Rc::new(body), mode, options, defaults))
    }

    fn signature(self) -> Result<Signature> {
        let Self { name, parameters, inputs, outputs, feeds, .. } = self;
        let mut places = BTreeMap::new();
        let named = parameters.iter().enumerate().map(|(i, entry)| (entry, Place::Parameter(i)));
        for (entry, place) in named.chain(inputs.iter().enumerate().map(|(i, entry)| (entry, Place::Input(i)))) {
            if entry.aval.shape.iter().any(|&extent| extent < 0) {
                return Err(Error::invalid(
                    format!("{} is described as {}", entry.name, entry.aval),
                    "describe extents that are not negative",
                ));
            }
            if places.insert(Rc::clone(&entry.name), place).is_some() {
                return Err(twice(&name, &entry.name, "parameters and inputs"));
            }
        }
        let mut described: Vec<Output> = Vec::with_capacity(outputs.len());
        for output in outputs {
            if described.iter().any(|earlier| earlier.name == output) {
                return Err(twice(&name, &output, "outputs"));
            }
            described.push(Output { name: output, feeds: Vec::new() });
        }
        if described.is_empty() {
            return Err(Error::invalid(format!("{name} has no outputs"), "describe what it returns with `output`"));
        }
        let mut signature = Signature {
            given: (0..inputs.len()).filter(|&input| inputs[input].kind == Kind::Given).collect(),
            name,
            parameters,
            inputs,
            outputs: described,
            places,
            returned: Rc::new([]),
            output_avals: OnceCell::new(),
        };
        for (output, input) in feeds {
            connect(&mut signature, &output, &input)?;
        }
        signature.returned = signature
            .outputs
            .iter()
            .filter(|output| output.feeds.is_empty())
            .map(|output| Rc::clone(&output.name))
            .collect();
        Ok(signature)
    }
}

fn connect(signature: &mut Signature, output: &str, input: &str) -> Result<()> {
    let place = signature.find(input, Kind::Resident)?;
    let Place::Input(index) = place else { return Err(signature.missing(place)) };
    if signature.outputs.iter().any(|other| other.feeds.contains(&index)) {
        return Err(Error::invalid(
            format!("{input} of {} is fed twice", signature.name),
            "feed each input from one output",
        ));
    }
    let names: Vec<&str> = signature.outputs.iter().map(|described| &*described.name).collect();
    let Some(position) = names.iter().position(|name| *name == output) else {
        return Err(Error::invalid(
            format!("{} has no output named {output}", signature.name),
            format!("name one of {}", names.join(", ")),
        ));
    };
    signature.outputs[position].feeds.push(index);
    Ok(())
}

fn twice(executable: &str, name: &str, among: &str) -> Error {
    Error::invalid(
        format!("{name} is described twice among the {among} of {executable}"),
        "give each a name of its own",
    )
}

impl Executable<'static> {
    /// Begins the description of an executable; messages call it `name`.
    pub fn builder(name: &str) -> Builder {
        Builder::new(name)
    }
}
