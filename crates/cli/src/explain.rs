//! `tacit explain`: which handlers take the products with the parameters of a checkpoint.

mod role;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};

use clap::Args;
use mlx_rs::error::Exception;
use mlx_rs::{Array, Dtype, ops};
use serde::Serialize;
use tacit_core::dispatch::Taker;
use tacit_core::kernel::{GPU_SOURCES_VARIABLE, GpuBackend, trace_for};
use tacit_core::{
    CompiledGraph, Counters, Equation, Error, Explanation, Result, Value, explain as explained, printable,
};
use tacit_files::{Place, replace};
use tacit_io::read;
use tacit_models::{Config, Positions};
use tacit_nn::Pattern;

use self::role::Role;
use crate::overwriting::{Overwriting, is_one_file};
use crate::table::Table;

#[derive(Args)]
pub(crate) struct Options {
    /// A file or a folder, of Tacit's or of another program's
    path: PathBuf,
    /// The shape of the tokens, with commas: batch and length. Each layer is given its own width besides
    #[arg(long, value_name = "SHAPE", value_delimiter = ',', default_value = "1,1", value_parser = clap::value_parser!(i32).range(1..))]
    input_shape: Vec<i32>,
    /// Only the parameters of this path or glob, such as layers.0.*
    #[arg(long, value_name = "PATTERN")]
    only: Option<String>,
    /// Print the trace op by op, a block that repeats once
    #[arg(long)]
    trace: bool,
    /// Draw the graph into this file, a block that repeats once
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
    /// Write the drawing and a list of all ops into this page
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
    /// Show what would happen on a GPU of this kind, which this machine need not have, and count the kernels that have no source for it
    #[arg(long, value_name = "KIND", value_parser = ["metal", "cuda"])]
    gpu: Option<String>,
    /// Fail where something would be materialized, or a layer cannot be computed or a known model not be built
    #[arg(long)]
    deny: bool,
    #[command(flatten)]
    overwriting: Overwriting,
}

/// Who takes each parameter's product.
#[derive(Serialize)]
pub(crate) struct Products {
    input_shape: Vec<i32>,
    layers: Vec<Layer>,
    materialized: u64,
    materialized_bytes: u64,
    /// The kernels without a source for the GPU that was asked about.
    #[serde(skip_serializing_if = "Option::is_none")]
    decomposed: Option<u64>,
    /// The kernels of them whose source is not asked for.
    #[serde(skip)]
    switched_off: u64,
    /// The model as a whole, where it is one that can be built.
    #[serde(skip_serializing_if = "Option::is_none")]
    model: Option<Whole>,
    /// Why it cannot be built though its architecture is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    unbuilt: Option<String>,
    /// The model, or each kind of layer, op by op.
    #[serde(skip)]
    trace: Option<Explanation>,
    /// The trace as a text, where it is told and not only drawn.
    #[serde(rename = "trace", skip_serializing_if = "Option::is_none")]
    told: Option<String>,
    #[serde(skip)]
    deny: bool,
}

#[derive(Serialize)]
struct Layer {
    path: String,
    value: String,
    role: Role,
    /// The handlers and defaults of types that take an op, in their order, each once.
    taken_by: Vec<String>,
    /// Handlers that were asked and declined, with their reasons.
    declined: Vec<String>,
    /// How many arrays each call materializes.
    materialized: u64,
    materialized_bytes: u64,
    #[serde(skip)]
    plain: Plain,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// The kernels that are plain ops on the GPU that was asked about.
#[derive(Clone, Copy, Default)]
struct Plain {
    kernels: u64,
    /// The kernels of them whose source is not asked for.
    switched_off: u64,
}

impl Plain {
    fn from_trace(trace: &Explanation) -> Self {
        let Counters { decomposed, switched_off, .. } = trace.counters;
        Self { kernels: decomposed, switched_off }
    }
}

/// What happens in a call of a model.
#[derive(Serialize)]
struct Whole {
    ops: usize,
    handled: usize,
    materialized: u64,
    materialized_bytes: u64,
    #[serde(skip)]
    plain: Plain,
    /// The nodes that a compiled call gives MLX: a plan is one of them.
    compiled_nodes: usize,
    #[serde(skip)]
    compiled: CompiledGraph,
}

pub(crate) fn explain(options: &Options) -> Result<Products> {
    options.overwriting.check(options.svg.iter().chain(&options.html), [&options.path])?;
    if let (Some(svg), Some(html)) = (&options.svg, &options.html)
        && is_one_file(svg, html)
        && Place::at(svg)? != Place::Stream
    {
        return Err(Error::invalid("the drawing and the page are one file", "give each a place of its own"));
    }
    let backend = options.gpu.as_deref().map(|gpu| if gpu == "metal" { GpuBackend::Metal } else { GpuBackend::Cuda });
    let _traced_for = backend.map(trace_for);
    let only: Option<Pattern> = options.only.as_deref().map(str::parse).transpose()?;
    let tokens = &options.input_shape;
    let (mut layers, mut kinds): (Vec<Layer>, BTreeMap<Kind, Member>) = (Vec::new(), BTreeMap::new());
    for (path, value) in read(&options.path)? {
        let aval = value.aval()?;
        if only.as_ref().is_some_and(|only| !only.matches(&path, &aval)) {
            continue;
        }
        for role in Role::of_parameter(&path, &value)? {
            let layer = Layer::new(&path, &value, role, tokens);
            if layer.error.is_none() {
                let member = || Member { path: path.clone(), value: value.clone(), role, count: 0 };
                kinds.entry(layer.kind()).or_insert_with(member).count += 1;
            }
            layers.push(layer);
        }
    }
    if layers.is_empty() {
        let what = options.only.as_deref().map_or("no matrix".to_owned(), |only| format!("no matrix of a path {only}"));
        return Err(Error::invalid(
            format!("{} has {what}", options.path.display()),
            "see what there is with `tacit inspect`",
        ));
    }
    let members: Vec<Member> = kinds.into_values().collect();
    let (whole, unbuilt) = match of_model(&options.path, tokens, backend) {
        _ if options.only.is_some() => (None, None),
        Ok(whole) => (whole, None),
        Err(error) => (None, Some(error.to_string())),
    };
    let model = whole.as_ref().map(Whole::from_trace);
    let wanted = options.trace || options.svg.is_some() || options.html.is_some();
    let trace = match whole {
        Some(trace) => Some(trace),
        None if wanted => Some(traced(&members, tokens)?),
        None => None,
    };
    let told = trace.as_ref().filter(|_| options.trace).map(|trace| format!("{trace:#}"));
    let sum = |of: fn(&Layer) -> u64| layers.iter().map(of).sum();
    // What a model does counts more than what its layers might.
    let plain = model.as_ref().map_or_else(
        || Plain { kernels: sum(|layer| layer.plain.kernels), switched_off: sum(|layer| layer.plain.switched_off) },
        |model| model.plain,
    );
    Ok(Products {
        input_shape: tokens.clone(),
        materialized: sum(|layer| layer.materialized),
        materialized_bytes: sum(|layer| layer.materialized_bytes),
        decomposed: backend.map(|_| plain.kernels),
        switched_off: plain.switched_off,
        layers,
        model,
        unbuilt,
        trace,
        told,
        deny: options.deny,
    })
}

/// The trace of a step of the decoder that a checkpoint is, with empty caches; nothing where it is no decoder, or tokens have not a
/// batch and a length.
fn of_model(path: &Path, tokens: &[i32], backend: Option<GpuBackend>) -> Result<Option<Explanation>> {
    let &[batch, length] = tokens else { return Ok(None) };
    if !Config::is_known(path)? {
        return Ok(None);
    }
    let (config, mut model) = tacit_models::load(path)?;
    if backend.is_none() {
        // As commands run it here.
        tacit_models::hold_halves(&mut model)?;
    }
    let dtype = model.get("model.embed_tokens.weight")?.aval()?.dtype;
    // Codes of half floats are written in a step alone, which this is not.
    let dense = tacit_models::caches(&config, batch, dtype)?.into_iter().map(|cache| cache.stored(None, None));
    let mut caches = dense.collect::<Result<Vec<_>>>()?;
    caches.iter_mut().try_for_each(|cache| cache.reserve(length))?;
    let tokens = ops::zeros_dtype(&[batch, length], Dtype::Uint32)?;
    model.explain(|decoder| decoder.forward(&tokens, &mut caches, Positions::Last)).map(Some)
}

impl Whole {
    fn from_trace(trace: &Explanation) -> Self {
        let handled = |equation: &&Equation| matches!(equation.taker, Taker::Handler(_) | Taker::Default(_));
        Self {
            ops: trace.equations.len(),
            handled: trace.equations.iter().filter(handled).count(),
            materialized: trace.counters.materialized,
            materialized_bytes: trace.counters.materialized_bytes,
            plain: Plain::from_trace(trace),
            compiled_nodes: trace.compiled.nodes.len(),
            compiled: trace.compiled.clone(),
        }
    }
}

/// What layers have in common that are shown as one: path without numbers, value, role, who takes it.
type Kind = (String, String, Role, Vec<String>, u64);

/// The first layer of a kind, and how many there are.
struct Member {
    path: String,
    value: Value,
    role: Role,
    count: usize,
}

/// A path with a star for each number: `layers.*.up_proj.weight`.
fn folded(path: &str) -> String {
    let number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    path.split('.').map(|part| if number(part) { "*" } else { part }).collect::<Vec<_>>().join(".")
}

/// The trace of one layer of each kind, whose weight has the layer's path.
fn traced(members: &[Member], tokens: &[i32]) -> Result<Explanation> {
    // One that is used in two ways is one argument.
    let mut weights: Vec<(String, &Value)> = Vec::new();
    let mut of_member = Vec::new();
    for Member { path, count, value, .. } in members {
        let name = if *count > 1 { format!("{} ({count})", folded(path)) } else { path.clone() };
        let same = |(known, of): &(String, &Value)| *known == name && of.to_string() == value.to_string();
        let at = weights.iter().position(same).unwrap_or_else(|| {
            weights.push((name, value));
            weights.len() - 1
        });
        of_member.push(at);
    }
    let (names, values): (Vec<String>, Vec<&Value>) = weights.into_iter().unzip();
    let trace = explained(values, |weights| {
        let calls = members.iter().zip(&of_member).map(|(member, &at)| member.role.call(&weights[at], tokens));
        calls.collect::<Result<Vec<Array>, Exception>>()
    })?;
    Ok(trace.with_input_names(names))
}

impl Layer {
    fn new(path: &str, value: &Value, role: Role, tokens: &[i32]) -> Self {
        let none = |error| Self {
            path: path.to_owned(),
            value: value.to_string(),
            role,
            taken_by: Vec::new(),
            declined: Vec::new(),
            materialized: 0,
            materialized_bytes: 0,
            plain: Plain::default(),
            error,
        };
        match explained(value, |weight| role.call(&weight, tokens)) {
            Err(error) => none(Some(error.to_string())),
            Ok(trace) => {
                let mut taken_by: Vec<String> = Vec::new();
                for equation in &trace.equations {
                    let taker = match &equation.taker {
                        Taker::Handler(site) => site.name.to_owned(),
                        Taker::Default(of) => format!("default of {of}"),
                        Taker::Dense | Taker::Computed | Taker::Materialized => continue,
                    };
                    if !taken_by.contains(&taker) {
                        taken_by.push(taker);
                    }
                }
                let declined = trace.equations.iter().flat_map(|equation| &equation.declined);
                Self {
                    taken_by,
                    declined: declined.map(ToString::to_string).collect(),
                    materialized: trace.counters.materialized,
                    materialized_bytes: trace.counters.materialized_bytes,
                    plain: Plain::from_trace(&trace),
                    ..none(None)
                }
            }
        }
    }

    fn kind(&self) -> Kind {
        let taken_by = self.error.iter().chain(&self.taken_by).cloned().collect();
        (folded(&self.path), self.value.clone(), self.role, taken_by, self.materialized_bytes)
    }
}

impl Products {
    /// Draws the trace into the files that were named.
    pub(crate) fn draw(&self, options: &Options) -> Result<()> {
        let ways = [(&options.svg, Explanation::to_svg as fn(&_) -> _), (&options.html, Explanation::to_html)];
        for (file, text) in ways {
            if let (Some(file), Some(trace)) = (file, &self.trace) {
                replace(file, text(trace).as_bytes())?;
            }
        }
        Ok(())
    }

    /// Whether nothing is materialized, where that was asked. What could not be asked is not well.
    pub(crate) fn is_well(&self) -> bool {
        let computed = self.unbuilt.is_none() && self.layers.iter().all(|layer| layer.error.is_none());
        // What a model does counts more than what its layers might.
        let materialized = self.model.as_ref().map_or(self.materialized, |model| model.materialized);
        !self.deny || (materialized == 0 && computed)
    }
}

impl fmt::Display for Products {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut kinds: BTreeMap<Kind, (usize, &Layer)> = BTreeMap::new();
        for layer in &self.layers {
            kinds.entry(layer.kind()).or_insert((0, layer)).0 += 1;
        }
        let mut table = Table::new(&["parameters", ">of them", "value", "call", "taken by", ">bytes built"]);
        let mut reasons = BTreeSet::new();
        for ((folded, value, role, ..), (count, layer)) in kinds {
            let path = if count > 1 { folded } else { layer.path.clone() };
            if layer.materialized > 0 {
                reasons.extend(layer.declined.iter().map(|reason| (path.clone(), reason)));
            }
            let taken_by = match &layer.error {
                Some(error) => format!("error: {}", error.lines().next().unwrap_or_default()),
                None if layer.taken_by.is_empty() && layer.materialized == 0 => "MLX, dense".to_owned(),
                None => layer.taken_by.join(", "),
            };
            let bytes = if layer.materialized == 0 { String::new() } else { layer.materialized_bytes.to_string() };
            table.row([path, count.to_string(), value, role.to_string(), taken_by, bytes]);
        }
        writeln!(f, "{table}")?;
        for (path, reason) in reasons {
            writeln!(f, "{} {reason}", printable::name(&path))?;
        }
        if let Some(trace) = &self.told {
            writeln!(f, "{trace}")?;
        }
        let shape: Vec<String> = self.input_shape.iter().map(ToString::to_string).collect();
        write!(
            f,
            "{} calls for tokens [{}], {} arrays materialized ({} bytes)",
            self.layers.len(),
            shape.join(","),
            self.materialized,
            self.materialized_bytes
        )?;
        if let Some(decomposed) = self.decomposed {
            write!(f, ", {decomposed} kernels as plain ops on the GPU")?;
            match (self.switched_off, decomposed - self.switched_off) {
                (0, 0) => {}
                (0, _) => write!(f, ", since they have no source for it")?,
                (_, 0) => write!(f, ", since {GPU_SOURCES_VARIABLE} is off")?,
                (off, without) => {
                    write!(f, ": {off} since {GPU_SOURCES_VARIABLE} is off, {without} without a source for it")?;
                }
            }
        }
        if let Some(reason) = &self.unbuilt {
            write!(f, "\nthe model cannot be built: {reason}")?;
        }
        match &self.model {
            None => Ok(()),
            Some(Whole { ops, handled, materialized, materialized_bytes, compiled, .. }) => write!(
                f,
                "\nthe model: {ops} ops after an implicit array, {handled} handled, \
                 {materialized} arrays materialized ({materialized_bytes} bytes)\n{compiled:#}"
            ),
        }
    }
}
