//! What an executable is described to take and give, and the checks against it.

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use mlx_rs::{Array, ops};
use tacit_core::{Aval, Error, Result, Value, dtype_name};

/// A parameter or an input.
pub(crate) struct Described {
    pub(crate) name: Rc<str>,
    pub(crate) aval: Aval,
    pub(crate) kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Parameter,
    /// An input that each run is given.
    Given,
    /// An input that is held from run to run.
    Resident,
    /// An input that is held from run to run, and that a run may be given in its place.
    Optional,
}

/// What a run is given for an optional input, by its index among the inputs.
pub(crate) type Override<'a> = (usize, &'a Array);

impl Kind {
    /// Whether an input of this kind may stand where one of `wanted` is named.
    fn serves(self, wanted: Self) -> bool {
        self == wanted || (self == Self::Optional && wanted != Self::Parameter)
    }

    pub(crate) fn words(self) -> &'static str {
        match self {
            Self::Parameter => "parameter",
            Self::Given => "input",
            Self::Resident => "resident input",
            Self::Optional => "optional input",
        }
    }

    fn indefinite(self) -> String {
        let article = if matches!(self, Self::Given | Self::Optional) { "an" } else { "a" };
        format!("{article} {}", self.words())
    }
}

pub(crate) struct Output {
    pub(crate) name: Rc<str>,
    /// The inputs that it becomes.
    pub(crate) feeds: Vec<usize>,
}

/// Where a name stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Parameter(usize),
    Input(usize),
}

pub(crate) struct Signature {
    pub(crate) name: String,
    pub(crate) parameters: Vec<Described>,
    pub(crate) inputs: Vec<Described>,
    pub(crate) outputs: Vec<Output>,
    pub(crate) places: BTreeMap<Rc<str>, Place>,
    /// The inputs that each run is given, in order.
    pub(crate) given: Vec<usize>,
    /// The names of the outputs that are not fed back, in order.
    pub(crate) returned: Rc<[Rc<str>]>,
    /// The avals of the outputs, since the function was first called.
    pub(crate) output_avals: OnceCell<Vec<Aval>>,
}

/// Nothing has a name; these are the names that there are.
pub(crate) fn unknown<'n>(message: String, names: impl Iterator<Item = &'n str>) -> Error {
    let names: Vec<&str> = names.collect();
    let help =
        if names.is_empty() { "describe it first".to_owned() } else { format!("name one of {}", names.join(", ")) };
    Error::invalid(message, help)
}

impl Signature {
    pub(crate) fn described(&self, place: Place) -> &Described {
        match place {
            Place::Parameter(index) => &self.parameters[index],
            Place::Input(index) => &self.inputs[index],
        }
    }

    /// Where `name` stands, whatever it is.
    pub(crate) fn place(&self, name: &str) -> Result<Place> {
        let place = self.places.get(name).copied();
        place.ok_or_else(|| {
            unknown(format!("{} describes no {name}", self.name), self.places.keys().map(|name| &**name))
        })
    }

    /// Where `name` stands, which must be of this kind.
    pub(crate) fn find(&self, name: &str, kind: Kind) -> Result<Place> {
        let Some(&place) = self.places.get(name) else { return Err(self.unknown(name, kind)) };
        let found = self.described(place).kind;
        let help = match found {
            _ if found.serves(kind) => return Ok(place),
            Kind::Parameter => "set it with `set_parameter`",
            Kind::Resident | Kind::Optional => "set it with `set_input`; it stays until it is set again or fed",
            Kind::Given => "give it to each run, or describe it with `resident`",
        };
        Err(Error::invalid(
            format!("{name} is {} of {}, not {}", found.indefinite(), self.name, kind.indefinite()),
            help,
        ))
    }

    fn unknown(&self, name: &str, kind: Kind) -> Error {
        let described = self.parameters.iter().chain(&self.inputs);
        let names: Vec<&str> = described.filter(|entry| entry.kind.serves(kind)).map(|entry| &*entry.name).collect();
        let help = match names.as_slice() {
            [] => format!("describe {} first", kind.indefinite()),
            names => format!("name one of {}", names.join(", ")),
        };
        Error::invalid(format!("{} has no {} named {name}", self.name, kind.words()), help)
    }

    /// The error of something that is described and was not given.
    pub(crate) fn missing(&self, place: Place) -> Error {
        let Described { name, kind, .. } = self.described(place);
        let (message, help) = match kind {
            Kind::Parameter => (format!("parameter {name} was not set"), "set it with `set_parameter`"),
            Kind::Resident | Kind::Optional => {
                (format!("resident input {name} was not set"), "set it with `set_input`")
            }
            Kind::Given => (format!("input {name} is missing"), "give every input that is not resident to the run"),
        };
        Error::invalid(message, help)
    }

    /// The avals of what the function returned must be those that it returned first, and fit where they are fed; of some
    /// rows alone they must be `expected`.
    pub(crate) fn check_outputs(&self, outputs: &[Array], expected: Option<&[Aval]>) -> Result<()> {
        if outputs.len() != self.outputs.len() {
            let names: Vec<&str> = self.outputs.iter().map(|output| &*output.name).collect();
            return Err(Error::invalid(
                format!("the function of {} returns {} arrays for {}", self.name, outputs.len(), counted(&names)),
                "return one array for each described output, in their order",
            ));
        }
        let avals: Vec<Aval> = outputs.iter().map(Aval::from).collect();
        let whole = if expected.is_none() { &self.outputs[..] } else { &[] };
        for (Output { name, feeds }, aval) in whole.iter().zip(&avals) {
            if let Some(input) = feeds.iter().map(|&input| &self.inputs[input]).find(|input| input.aval != *aval) {
                return Err(Error::invalid(
                    format!("output {name} is {aval} and is fed to {}, which is {}", input.name, input.aval),
                    "return an array of the input's shape and dtype",
                ));
            }
        }
        let first = expected.unwrap_or_else(|| self.output_avals.get_or_init(|| avals.clone()));
        match first.iter().zip(&avals).zip(&self.outputs).find(|((first, now), _)| first != now) {
            None => Ok(()),
            Some(((first, now), output)) => Err(Error::invalid(
                format!("output {} was {first} and is now {now}", output.name),
                "let the shapes and dtypes of outputs depend on those of inputs alone",
            )),
        }
    }
}

impl Described {
    /// An array as it is described: a scalar of the dtype is broadcast.
    pub(crate) fn fitted(&self, array: &Array) -> Result<Array> {
        if array.dtype() == self.aval.dtype {
            if array.shape() == self.aval.shape {
                return Ok(array.clone());
            }
            if array.ndim() == 0 {
                return Ok(ops::broadcast_to(array, &self.aval.shape)?);
            }
        }
        let found = Aval::from(array);
        Err(self.differs(&found, &found.to_string()))
    }

    /// A value as it is described.
    pub(crate) fn fitted_value(&self, value: Value) -> Result<Value> {
        match &value {
            Value::Dense(array) => Ok(self.fitted(array)?.into()),
            Value::Implicit(array) => {
                let aval = array.aval()?;
                if aval == self.aval { Ok(value) } else { Err(self.differs(&aval, &value.to_string())) }
            }
        }
    }

    fn differs(&self, found: &Aval, printed: &str) -> Error {
        let help = if found.dtype == self.aval.dtype {
            format!("give it the shape {:?}, or describe it with its own", self.aval.shape)
        } else {
            format!("convert it with `as_dtype`, or describe it as {}", dtype_name(found.dtype))
        };
        Error::invalid(format!("{} {} is {printed} and described as {}", self.kind.words(), self.name, self.aval), help)
    }
}

fn counted(names: &[&str]) -> String {
    let plural = if names.len() == 1 { "" } else { "s" };
    format!("{} output{plural}: {}", names.len(), names.join(", "))
}
