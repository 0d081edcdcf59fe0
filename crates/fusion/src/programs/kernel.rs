//! A program as a node of the graph.

use half::{bf16, f16};
use mlx_rs::{Array, Dtype};
use tacit_core::kernel::{EvalPiece, Input, Kernel, Output, Pieces, apply as put};
use tacit_core::{Aval, Result};
use tacit_kernels::program::{Data, DataMut, Parts, Program};

use super::build::Built;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The results of a built program on arrays.
pub(super) fn apply(built: &Built, inputs: &[Array]) -> Result<Vec<Array>> {
    let kernel = RowProgram {
        program: built.program.clone(),
        inputs: inputs.iter().map(Aval::from).collect(),
        results: built.results.iter().map(|(_, aval)| aval.clone()).collect(),
    };
    put(kernel, inputs)
}

struct RowProgram {
    program: Program,
    inputs: Vec<Aval>,
    results: Vec<Aval>,
}

impl Kernel for RowProgram {
    fn name(&self) -> &'static str {
        "RowProgram"
    }

    fn output_avals(&self, inputs: &[Aval]) -> Result<Vec<Aval>, BoxError> {
        if inputs != self.inputs {
            return Err(
                "a program was given other arrays than it was made for\nhelp: compile the function again".into()
            );
        }
        Ok(self.results.clone())
    }

    fn eval_cpu(&self, inputs: &[Input<'_>], outputs: &mut [Output<'_>]) -> Result<(), BoxError> {
        let inputs = inputs.iter().map(data).collect::<Result<Vec<_>, _>>()?;
        let outputs = outputs.iter_mut().map(data_mut).collect::<Result<Vec<_>, _>>()?;
        Ok(self.program.run(&inputs, outputs)?)
    }

    fn pieces(&self, inputs: &[Aval]) -> Option<Pieces> {
        let Parts { elements, unit, inputs: read, results } = self.program.parts()?;
        let read = inputs.iter().zip(read).map(|(aval, numbers)| numbers.map(|numbers| numbers * aval.item_size()));
        let written = self.results.iter().zip(results).map(|(aval, numbers)| numbers * aval.item_size());
        let (inputs, outputs, program) = (read.collect(), written.collect(), self.program.clone());
        let eval: Box<EvalPiece> = Box::new(move |piece, inputs, outputs| {
            let inputs = inputs.iter().map(data).collect::<Result<Vec<_>, _>>()?;
            let outputs = outputs.iter_mut().map(data_mut).collect::<Result<Vec<_>, _>>()?;
            Ok(program.run_part(piece.len(), &inputs, outputs)?)
        });
        Some(Pieces { elements, unit, inputs, outputs, eval })
    }

    fn in_place(&self, _: &[Aval]) -> Vec<(usize, usize)> {
        self.program.in_place()
    }

    /// Nothing asks for it: a program is put in on the CPU, into a graph that nothing transforms any more.
    fn decompose(&self, _: &[Array]) -> Result<Vec<Array>, BoxError> {
        Err("a program of a compiled graph has no derivative\nhelp: differentiate the function before it is compiled"
            .into())
    }
}

fn data<'a>(input: &'a Input<'_>) -> Result<Data<'a>, BoxError> {
    if let Some(output) = input.output() {
        return Ok(Data::Result(output));
    }
    Ok(match input.aval().dtype {
        Dtype::Float32 => Data::F32(input.elements()?),
        Dtype::Float16 => Data::F16(input.elements::<f16>()?),
        Dtype::Bfloat16 => Data::Bf16(input.elements::<bf16>()?),
        Dtype::Bool => Data::Bool(input.bytes()),
        Dtype::Int32 => Data::I32(input.elements()?),
        Dtype::Uint32 => Data::U32(input.elements()?),
        _ => return Err(format!("a program reads no {}", input.aval()).into()),
    })
}

fn data_mut<'a>(output: &'a mut Output<'_>) -> Result<DataMut<'a>, BoxError> {
    Ok(match output.aval().dtype {
        Dtype::Float32 => DataMut::F32(output.elements()?),
        Dtype::Float16 => DataMut::F16(output.elements::<f16>()?),
        Dtype::Bfloat16 => DataMut::Bf16(output.elements::<bf16>()?),
        Dtype::Bool => DataMut::Bool(output.bytes()),
        _ => return Err(format!("a program writes no {}", output.aval()).into()),
    })
}
