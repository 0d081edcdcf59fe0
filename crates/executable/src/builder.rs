//! The description of an executable.

use std::cell::{OnceCell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use mlx_rs::Array;
use tacit_core::compile::Constants;
use tacit_core::{Aval, Error, Result};

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
    mode: Option<Mode>,
    constants: Constants,
}

impl Builder {
    pub(crate) fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            parameters: Vec::new(),
            inputs: Vec::new(),
            outputs: Vec::new(),
            feeds: Vec::new(),
            mode: None,
            constants: Constants::default(),
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

    /// What happens when the compiled function holds arrays that it was not given.
    pub fn constants(mut self, constants: Constants) -> Self {
        self.constants = constants;
        self
    }

    /// The executable of a function, which returns one array for each described output.
    ///
    /// # Errors
    ///
    /// Two names are equal, a feed names what is not described, or there is no output.
    pub fn build<'f>(self, function: impl Fn(&Named<'_>) -> Result<Vec<Array>> + 'f) -> Result<Executable<'f>> {
        let mode = self.mode.unwrap_or_else(Mode::from_environment);
        let constants = self.constants;
        let body = Body { signature: self.signature()?, function: Box::new(function), rows: RefCell::new(None) };
        Ok(Executable::new(Rc::new(body), mode, constants))
    }

    fn signature(self) -> Result<Signature> {
        let Self { name, parameters, inputs, outputs, feeds, .. } = self;
        let mut places = BTreeMap::new();
        let named = parameters.iter().enumerate().map(|(i, own)| (own, Place::Parameter(i)));
        for (own, place) in named.chain(inputs.iter().enumerate().map(|(i, own)| (own, Place::Input(i)))) {
            if own.aval.shape.iter().any(|&extent| extent < 0) {
                return Err(Error::invalid(
                    format!("{} is described as {}", own.name, own.aval),
                    "describe extents that are not negative",
                ));
            }
            if places.insert(Rc::clone(&own.name), place).is_some() {
                return Err(twice(&name, &own.name, "parameters and inputs"));
            }
        }
        let mut described: Vec<Output> = Vec::with_capacity(outputs.len());
        for output in outputs {
            if described.iter().any(|own| own.name == output) {
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
            made: OnceCell::new(),
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
    let found = signature.find(input, Kind::Resident)?;
    let Place::Input(index) = found else { return Err(signature.missing(found)) };
    if signature.outputs.iter().any(|own| own.feeds.contains(&index)) {
        return Err(Error::invalid(
            format!("{input} of {} is fed twice", signature.name),
            "feed each input from one output",
        ));
    }
    let names: Vec<&str> = signature.outputs.iter().map(|own| &*own.name).collect();
    let Some(position) = names.iter().position(|own| *own == output) else {
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
