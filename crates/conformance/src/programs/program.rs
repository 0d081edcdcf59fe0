//! A random program as data, and its listing.

use std::fmt;
use std::str::FromStr;

use mlx_rs::Dtype;
use tacit_core::{Aval, dtype_name, dtype_named};

use crate::ops::named;

/// A graph of ops of the [surface](crate::ops), its inputs, and what stands around it.
///
/// [`Display`](fmt::Display) lists it, a line for each input and step, and [`FromStr`] reads such a listing:
///
/// ```text
/// around grad vmap
/// 0 argument f16[3,4] columns ready normal 17
/// 1 captured f16[] rows in-flight special 3
/// 2 = 0 1 | multiply
/// 3 = 2~3x4 own:f16 | add
/// results 3 0
/// ```
///
/// Values are numbered, inputs first. An operand is a value (`2`), its magnitude made positive (`2+`), as many of its elements
/// as another shape has (`2~3x4`), or what the op's own row makes, in a dtype (`own:f16`). Transforms stand innermost first.
#[derive(Clone, Debug, PartialEq)]
pub struct Program {
    pub(crate) around: Vec<Around>,
    pub(crate) inputs: Vec<Input>,
    pub(crate) steps: Vec<Step>,
    pub(crate) results: Vec<usize>,
}

/// Declares an enum whose variants have a word in listings.
macro_rules! words {
    ($($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $word:literal,)+ })+) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Copy, Debug, PartialEq, Eq)]
            pub(crate) enum $name {
                $($(#[$variant_doc])* $variant,)+
            }

            impl $name {
                pub(crate) const ALL: &[Self] = &[$(Self::$variant),+];

                fn word(self) -> &'static str {
                    match self {
                        $(Self::$variant => $word,)+
                    }
                }

                fn named(word: &str) -> Result<Self, String> {
                    let found = Self::ALL.iter().find(|known| known.word() == word);
                    found.copied().ok_or_else(|| {
                        let words: Vec<&str> = Self::ALL.iter().map(|known| known.word()).collect();
                        format!("`{word}` is not one of {words:?}")
                    })
                }
            }
        )+
    };
}

words! {
    /// What stands around the function of a program.
    Around {
        /// Values and gradients of a weighted sum of the float results.
        Grad = "grad",
        /// Values and derivatives in one direction.
        Jvp = "jvp",
        /// Some arguments mapped over two examples.
        Vmap = "vmap",
        Checkpoint = "checkpoint",
        /// Over rows of the first argument.
        Scan = "scan",
        /// Twice, with the first argument as the carry.
        Fori = "fori",
        /// One of two calls, by a predicate of the first argument.
        Cond = "cond",
        /// Over rows of the first argument, two at a time.
        Chunks = "chunks",
        /// Compiled by itself.
        Compile = "compile",
    }
    /// Who holds an input.
    Role {
        Argument = "argument",
        Captured = "captured",
        /// An argument that each call replaces by one of its results.
        State = "state",
    }
    /// How an input lies in memory.
    Layout {
        Rows = "rows",
        /// The last two axes the other way round.
        Columns = "columns",
        /// Every other column of a wider array.
        Strided = "strided",
        /// The last axis backwards.
        Reversed = "reversed",
        /// A part of a longer array.
        Part = "part",
        /// One slice along the first axis, broadcast.
        Broadcast = "broadcast",
        /// A view of bytes that begins at an odd address.
        Misaligned = "misaligned",
    }
    /// How far an input is computed when it is used.
    State {
        Ready = "ready",
        Lazy = "lazy",
        InFlight = "in-flight",
        /// The array of the input before it with the same holder, where that is like it.
        Shared = "shared",
    }
    /// The numbers of an input.
    Fill {
        Normal = "normal",
        /// Whole numbers from -4 to 4.
        Whole = "whole",
        Equal = "equal",
        /// NaN, infinities, zeros of both signs, the smallest and the largest.
        Special = "special",
        /// Magnitudes from 2^-12 to 2^12.
        Wide = "wide",
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Input {
    pub(crate) role: Role,
    pub(crate) aval: Aval,
    pub(crate) layout: Layout,
    pub(crate) state: State,
    pub(crate) fill: Fill,
    pub(crate) seed: u64,
    /// The [kind](super::kind) that stands for it, if it is implicit.
    pub(crate) subject: Option<String>,
}

/// A call of an op.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Step {
    pub(crate) op: &'static str,
    pub(crate) operands: Vec<Operand>,
    /// The number of results.
    pub(crate) results: usize,
}

/// What an op takes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Operand {
    Value(usize),
    Positive(usize),
    Fitted(usize, Vec<i32>),
    Own(Dtype),
}

impl Operand {
    pub(crate) fn value(&self) -> Option<usize> {
        match self {
            Self::Value(value) | Self::Positive(value) | Self::Fitted(value, _) => Some(*value),
            Self::Own(_) => None,
        }
    }

    pub(crate) fn value_mut(&mut self) -> Option<&mut usize> {
        match self {
            Self::Value(value) | Self::Positive(value) | Self::Fitted(value, _) => Some(value),
            Self::Own(_) => None,
        }
    }
}

impl Program {
    /// The number of inputs and results of steps.
    pub(crate) fn values(&self) -> usize {
        self.inputs.len() + self.steps.iter().map(|step| step.results).sum::<usize>()
    }

    /// The program with one row more in what it is given, where it has rows.
    pub(crate) fn longer(&self) -> Option<Self> {
        let mut longer = self.clone();
        let first = self.inputs.iter().find(|input| input.role != Role::Captured)?;
        let rows = *first.aval.shape.first()?;
        for input in longer.inputs.iter_mut().filter(|input| input.role != Role::Captured && input.subject.is_none()) {
            if input.aval.shape.len() == first.aval.shape.len() && input.aval.shape[0] == rows && rows > 1 {
                input.aval.shape[0] += 1;
            }
        }
        (longer != *self).then_some(longer)
    }

    /// Whether an implicit argument is differentiated, whose gradient has the structure of the array.
    pub(crate) fn differentiates_an_implicit(&self) -> bool {
        let implicit = |input: &Input| input.subject.is_some() && input.role != Role::Captured;
        self.around.contains(&Around::Grad) && self.inputs.iter().any(implicit)
    }

    /// Whether a branch stands inside a gradient or a derivative.
    pub(crate) fn differentiates_a_branch(&self) -> bool {
        let branch = self.around.iter().position(|&around| around == Around::Cond);
        branch.is_some_and(|at| self.around[at..].iter().any(|around| matches!(around, Around::Grad | Around::Jvp)))
    }
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.around.is_empty() {
            let words: Vec<&str> = self.around.iter().map(|around| around.word()).collect();
            writeln!(f, "around {}", words.join(" "))?;
        }
        for (at, input) in self.inputs.iter().enumerate() {
            let Input { role, aval, layout, state, fill, seed, subject } = input;
            let [role, layout, state, fill] = [role.word(), layout.word(), state.word(), fill.word()];
            write!(f, "{at} {role} {aval} {layout} {state} {fill} {seed}")?;
            match subject {
                Some(subject) => writeln!(f, " {subject}")?,
                None => writeln!(f)?,
            }
        }
        let mut next = self.inputs.len();
        for step in &self.steps {
            for _ in 0..step.results {
                write!(f, "{next} ")?;
                next += 1;
            }
            write!(f, "=")?;
            step.operands.iter().try_for_each(|operand| write!(f, " {operand}"))?;
            writeln!(f, " | {}", step.op)?;
        }
        write!(f, "results")?;
        self.results.iter().try_for_each(|result| write!(f, " {result}"))
    }
}

impl fmt::Display for Operand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Value(value) => write!(f, "{value}"),
            Self::Positive(value) => write!(f, "{value}+"),
            Self::Fitted(value, shape) => {
                let extents: Vec<String> = shape.iter().map(ToString::to_string).collect();
                write!(f, "{value}~{}", extents.join("x"))
            }
            Self::Own(dtype) => write!(f, "own:{}", dtype_name(*dtype)),
        }
    }
}

impl FromStr for Program {
    type Err = String;

    fn from_str(listing: &str) -> Result<Self, String> {
        let mut program = Self { around: Vec::new(), inputs: Vec::new(), steps: Vec::new(), results: Vec::new() };
        for line in listing.lines().map(str::trim).filter(|line| !line.is_empty()) {
            program.read(line).map_err(|what| format!("{what} in `{line}`"))?;
        }
        let values = program.values();
        let mut used = program.steps.iter().flat_map(|step| &step.operands).filter_map(Operand::value);
        match used.find(|&value| value >= values).or_else(|| program.results.iter().copied().find(|&at| at >= values)) {
            Some(value) => Err(format!("there is no value {value}")),
            None => Ok(program),
        }
    }
}

impl Program {
    fn read(&mut self, line: &str) -> Result<(), String> {
        if let Some(words) = line.strip_prefix("around ") {
            self.around = words.split_whitespace().map(Around::named).collect::<Result<_, _>>()?;
        } else if let Some(values) = line.strip_prefix("results") {
            self.results = values.split_whitespace().map(number).collect::<Result<_, _>>()?;
        } else if let Some((results, call)) = line.split_once('=') {
            let (operands, op) = call.rsplit_once('|').ok_or("no `|` before an op")?;
            let op = op.trim();
            let op = named(op).ok_or_else(|| format!("no op `{op}`"))?.name;
            let operands = operands.split_whitespace().map(operand).collect::<Result<_, _>>()?;
            self.steps.push(Step { op, operands, results: results.split_whitespace().count() });
        } else {
            let words: Vec<&str> = line.split_whitespace().collect();
            let [_, role, aval, layout, state, fill, seed, subject @ ..] = &words[..] else {
                return Err("an input needs seven words".to_owned());
            };
            self.inputs.push(Input {
                role: Role::named(role)?,
                aval: aval.parse::<Aval>().map_err(|error| error.to_string())?,
                layout: Layout::named(layout)?,
                state: State::named(state)?,
                fill: Fill::named(fill)?,
                seed: seed.parse().map_err(|_| format!("`{seed}` is no seed"))?,
                subject: subject.first().map(|&subject| subject.to_owned()),
            });
        }
        Ok(())
    }
}

fn number<T: FromStr>(word: &str) -> Result<T, String> {
    word.parse().map_err(|_| format!("`{word}` is no number"))
}

fn operand(word: &str) -> Result<Operand, String> {
    if let Some(name) = word.strip_prefix("own:") {
        return dtype_named(name).map(Operand::Own).ok_or_else(|| format!("no dtype `{name}`"));
    }
    if let Some(value) = word.strip_suffix('+') {
        return Ok(Operand::Positive(number(value)?));
    }
    match word.split_once('~') {
        Some((value, shape)) => Ok(Operand::Fitted(number(value)?, extents(shape, 'x')?)),
        None => Ok(Operand::Value(number(word)?)),
    }
}

fn extents(words: &str, separator: char) -> Result<Vec<i32>, String> {
    words.split(separator).filter(|word| !word.is_empty()).map(number).collect()
}
