//! The one rule for indices: those below zero count from the end, and one that is outside is an error.
//!
//! MLX looks at no index: one that is outside reads, or writes, memory of something else. The indices of every primitive on
//! an implicit array go through here before anybody sees the call, so that all array types answer alike.

use std::fmt;

use mlx_rs::{Array, Dtype, ops};
use tacit_bridge::kernel::{GpuBackend, Input, Kernel, Launch, Output};
use tacit_bridge::typed::Indices as Given;
use tacit_bridge::{Aval, Mapped, NameId, Param, broadcast_source, extent};

use crate::{Error, Primitive, Result, Value, kernel};

/// What a kernel answers.
type Fallible<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Indices along an axis of `extent`, counted from zero: `u32` of the same shape.
///
/// Negative ones count from the end, as everywhere in MLX. One that is outside is an error of the eval, with its number and its
/// place; MLX itself reads foreign memory there. The indices of every primitive on an implicit array are checked in this way. On
/// dense arrays plain MLX runs: code that takes indices from outside calls this first.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::Array;
/// use tacit_core::extra_ops::checked_indices;
///
/// let checked = checked_indices(&Array::from_slice(&[2i32, -1, -4], &[3]), 4)?;
/// assert_eq!(checked.as_slice::<u32>(), [2, 3, 0]);
/// let outside = checked_indices(&Array::from_slice(&[2i32, 4], &[2]), 4)?;
/// let error = tacit_core::kernel::check_intact(&outside).and_then(|()| Ok(outside.eval()?)).expect_err("4 of 4");
/// assert!(error.to_string().contains("index 4 (entry 1) is outside an extent of 4"), "{error}");
/// # Ok(())
/// # }
/// ```
///
/// Off the CPU an eval has no such errors: there the nearest index within the extent is taken.
///
/// # Errors
///
/// The indices are no integers.
pub fn checked_indices(indices: &Array, extent: i32) -> Result<Array> {
    checked(indices, None, Indices { extent: Some(extent), width: 1, named: None })
}

/// Numbers from 0 to `extent - 1`, such as tokens, as `u32` of the same shape: [`checked_indices`] without negative ones.
///
/// A number outside is an error of the eval, which calls it `what` and has this `help`.
///
/// # Errors
///
/// The numbers are no integers.
pub fn checked_numbers(numbers: &Array, extent: i32, what: &'static str, help: &'static str) -> Result<Array> {
    checked(numbers, None, Indices { extent: Some(extent), width: 1, named: Some((what, help)) })
}

/// Checked indices; `extent` is an input where `check` has none.
fn checked(indices: &Array, extent: Option<Array>, check: Indices) -> Result<Array> {
    // Handlers look at what was repeated, and need not be asked the same for each copy.
    let source = broadcast_source(indices)?;
    let inputs: Vec<Array> = std::iter::once(source.clone()).chain(extent).collect();
    let checked = kernel::apply(check, &inputs)?.swap_remove(0);
    Ok(if source.shape() == indices.shape() { checked } else { ops::broadcast_to(&checked, indices.shape())? })
}

/// An operand of a call that is indices.
#[derive(Clone, Debug)]
pub(crate) struct Choice {
    pub(crate) operand: usize,
    /// The extent that is chosen from.
    extent: i32,
    /// The operand, and its axes, whose elements are counted by the extent.
    source: (usize, Vec<i32>),
    /// How many elements begin at an index.
    width: i32,
}

impl Choice {
    /// The operand as the call gets it, once it is dense. Where a graph without shapes is recorded, the extent is that of
    /// the shape in which the graph runs.
    pub(crate) fn checked(&self, operands: &[&Value]) -> Result<Option<Array>> {
        let Some(indices) = operands[self.operand].as_dense() else { return Ok(None) };
        let (source, axes) = &self.source;
        let at_run_time = operands[*source].as_dense().map(|source| extent(source, axes)).transpose()?.flatten();
        let known = at_run_time.is_none().then_some(self.extent);
        checked(indices, at_run_time, Indices { extent: known, width: self.width, named: None }).map(Some)
    }
}

/// Whether a primitive has operands that are indices.
pub(crate) fn are_in(name: NameId) -> bool {
    index_operands(name) != Given::Absent
}

/// Which operands are indices, as the table of primitives says.
fn index_operands(name: NameId) -> Given {
    name.description().map_or(Given::Absent, |description| description.indices)
}

/// The operands of a call that are indices.
pub(crate) fn choices(primitive: &Primitive, operands: &[&Value]) -> Result<Vec<Choice>> {
    let avals = operands.iter().map(|operand| operand.aval()).collect::<Result<Vec<_>>>()?;
    // The operands behind the first choose along its axes.
    let along = |axes: Vec<i32>, width: &dyn Fn(usize, usize) -> i32| {
        let of_axis = |(operand, axis): (usize, i32)| {
            let extent = avals[0].shape[axis as usize];
            Choice { operand, extent, source: (0, vec![axis]), width: width(operand, axis as usize) }
        };
        (1..).zip(axes).map(of_axis).collect()
    };
    Ok(match index_operands(primitive.name_id()) {
        Given::Picked => along(primitive.integers("axis")?, &|_, _| 1),
        Given::Cut => {
            let sizes = primitive.integers("slice_sizes")?;
            along(primitive.integers("axes")?, &|_, axis| sizes[axis])
        }
        Given::Placed => {
            let update = avals.last().map(|update| update.shape.as_slice()).unwrap_or_default();
            let width = |operand: usize, axis| update.get(avals[operand].shape.len() + axis).copied().unwrap_or(1);
            along(primitive.integers("axes")?, &width)
        }
        // MLX has made them unsigned: none of them counts from the end.
        Given::Paired if avals.len() >= 4 => {
            let matrices = |operand: usize, source: usize| {
                let stack = &avals[source].shape[..avals[source].shape.len().saturating_sub(2)];
                let axes = (0..stack.len() as i32).collect();
                Choice { operand, extent: stack.iter().product(), source: (source, axes), width: 1 }
            };
            vec![matrices(avals.len() - 2, 0), matrices(avals.len() - 1, 1)]
        }
        Given::Paired | Given::Absent => Vec::new(),
    })
}

/// Indices counted from zero, each of them within.
#[derive(Clone, Copy)]
struct Indices {
    /// `None`: the second input holds it.
    extent: Option<i32>,
    width: i32,
    /// What one is, and what to do where it is outside; those do not count from the end.
    named: Option<(&'static str, &'static str)>,
}

impl Kernel for Indices {
    fn name(&self) -> &'static str {
        "Indices"
    }

    fn params(&self) -> Option<Vec<(&'static str, Param)>> {
        let extent = self.extent.map(|extent| ("extent", Param::Int(extent.into())));
        let named = self.named.map(|(what, _)| ("of", Param::Str(what.to_owned())));
        Some(extent.into_iter().chain([("width", Param::Int(self.width.into()))]).chain(named).collect())
    }

    fn output_avals(&self, inputs: &[Aval]) -> Fallible<Vec<Aval>> {
        let indices = &inputs[0];
        if indices.dtype.is_inexact() {
            return Err(Box::new(Error::invalid(
                format!("the indices are {indices}, which are no integers"),
                "give integers, such as those of `argmax`",
            )));
        }
        Ok(vec![Aval::new(&indices.shape, Dtype::Uint32)])
    }

    fn eval_cpu(&self, inputs: &[Input<'_>], outputs: &mut [Output<'_>]) -> Fallible<()> {
        let (indices, places) = (&inputs[0], outputs[0].elements::<u32>()?);
        let extent = match self.extent {
            Some(extent) => extent,
            None => inputs[1].elements::<i32>()?[0],
        };
        let bounds = Bounds { extent, width: self.width, named: self.named };
        match indices.aval().dtype {
            Dtype::Bool => bounds.count(indices.bytes(), places),
            Dtype::Uint8 => bounds.count(indices.elements::<u8>()?, places),
            Dtype::Uint16 => bounds.count(indices.elements::<u16>()?, places),
            Dtype::Uint32 => bounds.count(indices.elements::<u32>()?, places),
            Dtype::Uint64 => bounds.count(indices.elements::<u64>()?, places),
            Dtype::Int8 => bounds.count(indices.elements::<i8>()?, places),
            Dtype::Int16 => bounds.count(indices.elements::<i16>()?, places),
            Dtype::Int32 => bounds.count(indices.elements::<i32>()?, places),
            _ => bounds.count(indices.elements::<i64>()?, places),
        }
    }

    /// As the decomposition: of an index outside the extent the nearest one within it is taken.
    fn launch(&self, inputs: &[Aval], backend: GpuBackend) -> Option<Launch> {
        let indices = &inputs[0];
        let count = i32::try_from(indices.size()).ok().filter(|&count| count > 0)?;
        let (at, long) = match backend {
            GpuBackend::Metal => ("thread_position_in_grid.x", "long"),
            GpuBackend::Cuda => ("blockIdx.x * blockDim.x + threadIdx.x", "long long"),
        };
        let (extent, place) = match self.extent {
            Some(_) => ("sizes_shape[1]", "known"),
            None => ("extent[0]", "given"),
        };
        let counting = if self.named.is_some() { "numbers" } else { "indices" };
        let from_end = match (indices.dtype, self.named) {
            // It is above all that `long` counts, and so is outside at the far end.
            (Dtype::Uint64, _) => "  if (index < 0) index = extent_of;\n",
            (_, Some(_)) => "",
            (_, None) => "  if (index < 0) index += extent_of;\n",
        };
        let body = format!(
            "unsigned int at = {at};\nif (at < (unsigned int)sizes_shape[0]) {{\n  const {long} extent_of = {extent};\n  {long} index = \
             ({long})given[at];\n{from_end}  const {long} last = extent_of - sizes_shape[2];\n  if (index > last) index = last;\n  if (index < \
             0) index = 0;\n  out[at] = (unsigned int)index;\n}}\n"
        );
        let group = 256;
        let mut names = vec!["given".to_owned()];
        names.extend(inputs.get(1).map(|_| "extent".to_owned()));
        Some(Launch {
            name: format!("tacit_{counting}_{place}_{:?}", indices.dtype).to_lowercase(),
            header: String::new(),
            body,
            inputs: names,
            outputs: vec!["out".to_owned()],
            sizes: vec![count, self.extent.unwrap_or_default(), self.width],
            grid: [indices.size().next_multiple_of(group), 1, 1],
            group: [group, 1, 1],
            memory: 0,
        })
    }

    fn decompose(&self, inputs: &[Array]) -> Fallible<Vec<Array>> {
        let indices = match inputs[0].dtype() {
            // One above all that `i64` counts would be negative.
            Dtype::Uint64 => ops::minimum(&inputs[0], Array::from_slice(&[i64::MAX as u64], &[]))?,
            _ => inputs[0].clone(),
        };
        let indices = indices.as_dtype(Dtype::Int64)?;
        let number = |number: i32| Array::from_slice(&[i64::from(number)], &[]);
        let extent = match self.extent {
            Some(extent) => number(extent),
            None => inputs[1].as_dtype(Dtype::Int64)?,
        };
        let counted = match self.named {
            Some(_) => indices,
            None => ops::select(indices.lt(number(0))?, indices.add(&extent)?, &indices)?,
        };
        let last = ops::maximum(extent.subtract(number(self.width))?, number(0))?;
        Ok(vec![ops::clip(counted, (&number(0), &last))?.as_dtype(Dtype::Uint32)?])
    }

    /// An index has no gradient: zeros.
    fn vjp(&self, primals: &[Array], _: &[Array], argnums: &[usize]) -> Option<Fallible<Vec<Array>>> {
        Some(argnums.iter().map(|&argnum| Ok(ops::zeros_like(&primals[argnum])?)).collect())
    }

    fn jvp(&self, primals: &[Array], _: &[Array], _: &[usize]) -> Option<Fallible<Vec<Array>>> {
        let zeros = || Ok(vec![ops::zeros_dtype(primals[0].shape(), Dtype::Uint32)?]);
        Some(zeros())
    }

    /// Each by itself, whatever the axes are.
    fn vmap(&self, inputs: &[Array], axes: &[Option<usize>]) -> Option<Fallible<Mapped>> {
        let ([Some(axis), None] | [Some(axis)]) = *axes else { return None };
        let mapped = || Ok((kernel::apply(*self, inputs)?, vec![axis]));
        Some(mapped())
    }
}

/// What indices must lie within.
struct Bounds {
    extent: i32,
    width: i32,
    named: Option<(&'static str, &'static str)>,
}

impl Bounds {
    fn count<T: Index>(&self, indices: &[T], places: &mut [u32]) -> Fallible<()> {
        let (extent, last) = (i64::from(self.extent), i64::from(self.extent) - i64::from(self.width));
        for (entry, (&index, place)) in indices.iter().zip(places).enumerate() {
            let counted =
                index.try_into().ok().map(|at: i64| if at < 0 && self.named.is_none() { at + extent } else { at });
            *place = match counted.filter(|at| (0..=last).contains(at)) {
                Some(counted) => counted as u32,
                None => return Err(self.outside(index, entry).into()),
            };
        }
        Ok(())
    }

    fn outside<T: Index>(&self, index: T, entry: usize) -> String {
        let Self { extent, width, named } = *self;
        if let Some((what, help)) = named {
            return format!("{what} {index} (entry {entry}) is not in the range 0 to {}\nhelp: {help}", extent - 1);
        }
        let help = match extent - width {
            last if last < 0 => "there is nothing to choose".to_owned(),
            last if T::try_from(-1_i8).is_err() => format!("indices count from 0 to {last}"),
            last => format!("indices count from 0 to {last}, or backwards from -{width} to -{extent}"),
        };
        format!("index {index} (entry {entry}) is outside an extent of {extent}\nhelp: {help}")
    }
}

trait Index: Copy + fmt::Display + TryInto<i64> + TryFrom<i8> {}

impl<T: Copy + fmt::Display + TryInto<i64> + TryFrom<i8>> Index for T {}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    const GIVEN: [i32; 9] = [0, 3, 4, 5, 1000, -1, -4, -5, -1000];

    /// What the source gives of nine numbers of a C++ type, as a program of the host's.
    fn run(check: Indices, backend: GpuBackend, dtype: Dtype, numbers: &str) -> Vec<u32> {
        let launch = check.launch(&[Aval::new(&[9], dtype), Aval::new(&[], Dtype::Int32)], backend).expect("a source");
        let folder =
            std::env::temp_dir().join(format!("tacit-indices-{}-{}-{backend:?}", std::process::id(), launch.name));
        std::fs::create_dir_all(&folder).expect("a folder");
        let (source, program) = (folder.join("indices.cpp"), folder.join("indices"));
        let sizes = format!("{:?}", launch.sizes);
        let braces = |list: String| list.replace('[', "{").replace(']', "}");
        let text = format!(
            "#include <cstdio>\nstruct Place {{ unsigned x; }};\nint main() {{\n  {numbers};\n  int sizes_shape[] = {}, extent[] = {{4}};\n  unsigned \
             out[9];\n  for (unsigned i = 0; i < {}; ++i) {{\n    Place blockIdx = {{i / {group}}}, blockDim = {{{group}}}, threadIdx = {{i % \
             {group}}}, thread_position_in_grid = {{i}};\n    {}\n  }}\n  for (unsigned one : out) std::printf(\"%u \", one);\n}}\n",
            braces(sizes),
            launch.grid[0],
            launch.body,
            group = launch.group[0],
        );
        std::fs::write(&source, text).expect("writes");
        let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".to_owned());
        let built = Command::new(compiler).args(["-w", "-o"]).args([&program, &source]).status().expect("a compiler");
        assert!(built.success(), "{}", source.display());
        let told = Command::new(&program).output().expect("runs");
        std::fs::remove_dir_all(&folder).expect("removes");
        let told = String::from_utf8(told.stdout).expect("text");
        told.split_whitespace().map(|one| one.parse().expect("a number")).collect()
    }

    #[test]
    fn the_source_counts_as_the_plain_ops_do() {
        let list = |numbers: &[String]| numbers.join(", ");
        let signed = format!("int given[] = {{{}}}", list(&GIVEN.map(|number| number.to_string())));
        // Those below zero as the numbers that have their bits.
        let large = GIVEN.map(|number| i64::from(number) as u64);
        let unsigned =
            format!("unsigned long long given[] = {{{}}}", list(&large.map(|number| format!("{number}ull"))));
        let given = [(Array::from_slice(&GIVEN, &[9]), signed), (Array::from_slice(&large, &[9]), unsigned)];
        let named = Some(("class", "give one of them"));
        for check in [
            Indices { extent: Some(4), width: 1, named: None },
            Indices { extent: Some(4), width: 3, named: None },
            Indices { extent: None, width: 1, named: None },
            Indices { extent: Some(4), width: 1, named },
        ] {
            for (given, text) in &given {
                let expected = check.decompose(&[given.clone(), Array::from_int(4)]).expect("runs").remove(0);
                if given.dtype() == Dtype::Uint64 {
                    let last = expected.as_slice::<u32>()[4];
                    assert!(expected.as_slice::<u32>()[5..].iter().all(|&found| found == last), "{expected}");
                }
                for backend in [GpuBackend::Cuda, GpuBackend::Metal] {
                    let found = run(check, backend, given.dtype(), text);
                    assert_eq!(found, expected.as_slice::<u32>(), "{backend:?}");
                }
            }
        }
    }
}
