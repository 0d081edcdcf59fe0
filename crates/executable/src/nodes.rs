//! The nodes of a run one by one, so that the one that fails is named.

use mlx_rs::Array;
use tacit_bridge::{Primitive, Tape, constants};
use tacit_core::{Aval, Error, Result, kernel, tree};

/// The nodes of a run that depend on its arguments, in order.
///
/// What depends on no argument, such as a range of positions, is evaluated with the first node that takes it.
pub(crate) struct Nodes {
    executable: String,
    nodes: Vec<Node>,
}

struct Node {
    primitive: Primitive,
    operands: Vec<Aval>,
    results: Vec<Array>,
}

impl Nodes {
    /// The nodes between `arguments` and `outputs` in a run of the executable named `executable`.
    pub(crate) fn between(executable: &str, mut arguments: Vec<Array>, outputs: &[Array]) -> Result<Self> {
        // A function that looked at values left arrays that no argument leads to.
        arguments.extend(constants(outputs, &arguments)?);
        let tape = Tape::walk(outputs, &arguments, &[])?;
        let node = |node| {
            let operands = (0..tape.arity(node)).map(|operand| Ok(Aval::from(&tape.operand(node, operand)?)));
            let results = (0..tape.results(node).len()).map(|result| Ok(tape.result(node, result)?));
            let (operands, results) = (operands.collect::<Result<_>>()?, results.collect::<Result<_>>()?);
            Ok(Node { primitive: tape.primitive(node)?, operands, results })
        };
        Ok(Self { executable: executable.to_owned(), nodes: (0..tape.len()).map(node).collect::<Result<_>>()? })
    }

    /// Evaluates each node before the next.
    ///
    /// # Errors
    ///
    /// That of the first node that fails, with its place.
    pub(crate) fn evaluate(&self) -> Result<()> {
        let count = self.nodes.len();
        for (position, Node { primitive, operands, results }) in self.nodes.iter().enumerate() {
            let evaluated = tree::eval(results);
            evaluated.and_then(|()| results.iter().try_for_each(kernel::check_intact)).map_err(|error| {
                let operands = operands.iter().map(Aval::to_string).collect::<Vec<_>>().join(" ");
                let node = format!("{} of {count} of {}, {primitive} {operands}", position + 1, self.executable);
                Error::Node { node, error: Box::new(error) }
            })?;
        }
        Ok(())
    }
}
