//! A call on values, compared with the same call on the dense arrays that they stand for.

use std::rc::Rc;

use mlx_rs::error::Exception;
use mlx_rs::{Array, Dtype, transforms};
use tacit_core::transform::intercept;
use tacit_core::{Aval, Error, Explanation, Policy, Result, Site, Taker, Value, explain, implicit};

use crate::elements::{self, relative_error, worst};
use crate::exact::Exact;
use crate::oracle::{Function, Oracle, Side, Structure};
use crate::subject::Subject;

/// Plain mlx-rs code.
pub(crate) type Run = Rc<dyn Fn(&[Array]) -> Result<Vec<Array>, Exception>>;

#[derive(Clone)]
pub(crate) struct Call {
    pub(crate) name: String,
    pub(crate) operands: Vec<Value>,
    pub(crate) run: Run,
    /// Whether MLX differentiates it with respect to every float operand.
    pub(crate) differentiable: bool,
    /// How many terms of magnitude one the gradient of a scalar may be the sum of.
    pub(crate) terms: u32,
}

/// What is compared beside values and gradients of a call that a handler takes.
#[derive(Clone, Copy)]
pub(crate) struct Depth {
    pub(crate) compiled: bool,
    /// Directional derivatives and vmap.
    pub(crate) transformed: bool,
}

impl Depth {
    pub(crate) const EAGER: Self = Self { compiled: false, transformed: false };
}

/// Who took the nodes of a call.
#[derive(Clone, Debug, Default)]
pub(crate) struct Takers {
    pub(crate) handlers: Vec<Site>,
    /// Whether some type's default handler took part.
    default: bool,
}

impl Takers {
    fn from_explanation(explanation: &Explanation) -> Self {
        let mut takers = Self::default();
        for equation in &explanation.equations {
            match equation.taker {
                Taker::Handler(site) => takers.handlers.push(site),
                Taker::Default(_) => takers.default = true,
                Taker::Materialized | Taker::Computed | Taker::Dense => {}
            }
        }
        takers
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.handlers.is_empty() && !self.default
    }
}

impl Call {
    pub(crate) fn new(
        name: impl Into<String>,
        operands: Vec<Value>,
        run: impl Fn(&[Array]) -> Result<Array, Exception> + 'static,
    ) -> Self {
        Self::several(name, operands, move |arrays| Ok(vec![run(arrays)?]))
    }

    pub(crate) fn several(
        name: impl Into<String>,
        operands: Vec<Value>,
        run: impl Fn(&[Array]) -> Result<Vec<Array>, Exception> + 'static,
    ) -> Self {
        Self { name: name.into(), operands, run: Rc::new(run), differentiable: true, terms: 1 }
    }

    /// Who takes the call, without computing anything.
    pub(crate) fn takers(&self) -> Result<Takers> {
        let _allow = Policy::Allow.scope();
        let run = self.run.clone();
        explain(&self.operands, move |arrays| run(&arrays)).map(|explanation| Takers::from_explanation(&explanation))
    }

    /// Compares the call with the dense one: bit for bit where the operands were only materialized; where a handler took
    /// part, values within the tolerance and gradients if all is f32, and what else `depth` asks for.
    ///
    /// Gradients in half types are sums of few rounded terms that may cancel: no relative error bounds them.
    pub(crate) fn check(&self, subject: &Subject, depth: Depth) -> Result<(), String> {
        let operands = self.operands.iter().map(dense).collect::<Result<Vec<_>, _>>()?;
        let expected = self.on_dense(&operands);
        let takers = match (self.takers(), &expected) {
            (Ok(takers), _) => takers,
            // Both refuse: the operands are not what the op takes.
            (Err(_), Err(_)) => return Ok(()),
            (Err(error), Ok(_)) => return Err(error.to_string()),
        };
        if takers.is_empty() {
            return self.same_bits(expected);
        }
        let expected = match expected {
            Ok(expected) => expected,
            // What dense refuses when it is evaluated is refused here, too, but for a dtype that MLX lacks.
            Err(refused) => {
                let Ok(found) = self.intercepted() else { return Ok(()) };
                return Exact::compute(&*self.run, &operands).map_err(|_| refused)?.near(&found);
            }
        };
        let avals = self.operands.iter().filter_map(|operand| operand.aval().ok().map(|aval| aval.dtype));
        let dtypes: Vec<Dtype> = avals.chain(expected.iter().map(Array::dtype)).collect();
        let half = dtypes.iter().any(|dtype| matches!(dtype, Dtype::Float16 | Dtype::Bfloat16));
        let mut oracle = Oracle::new(subject.tolerance_for(&dtypes))
            .least(CANCELLED * f64::from(self.terms).sqrt())
            .over_ranks(subject.over_ranks)
            .allowing();
        if half || !self.differentiable {
            oracle = oracle.values_only();
        }
        if !depth.compiled {
            oracle = oracle.eager_only();
        }
        if depth.transformed && !half {
            oracle = oracle.transformed();
        }
        let run = self.run.clone();
        let compared = oracle.compare(&self.name, &self.operands, move |arrays| Ok(run(&arrays)?));
        match compared {
            Ok(_) => Ok(()),
            // MLX sums half types as they are: then it is the primitive that may be far from the truth.
            Err(mismatch) if half => {
                self.near_exact(&operands, &expected, depth).map_err(|far| format!("{mismatch}; {far}"))
            }
            Err(mismatch) => Err(mismatch.to_string()),
        }
    }

    /// Compares the call with the same in f64, and its avals with those of the dense one.
    fn near_exact(&self, operands: &[Array], expected: &[Array], depth: Depth) -> Result<(), String> {
        let exact = Exact::compute(&*self.run, operands)?.granting(expected)?;
        let mut found = vec![self.intercepted()?];
        if depth.compiled {
            found.push(self.compiled()?);
        }
        found.iter().try_for_each(|found| {
            let (avals, expected) = (listed(found), listed(expected));
            if avals != expected {
                return Err(format!("the results are {avals}, expected {expected}"));
            }
            exact.near(found)
        })
    }

    fn same_bits(&self, expected: Result<Vec<Array>, String>) -> Result<(), String> {
        let found = self.intercepted();
        match (found, expected) {
            (Ok(found), Ok(expected)) if found.len() == expected.len() => {
                found.iter().zip(&expected).try_for_each(|(found, expected)| bits_equal(found, expected))
            }
            (Ok(found), Ok(expected)) => Err(format!("{} results, expected {}", found.len(), expected.len())),
            (Err(_), Err(_)) => Ok(()),
            (Err(error), Ok(_)) => Err(error),
            (Ok(_), Err(error)) => Err(format!("it gives a result, expected the error of the dense call: {error}")),
        }
    }

    /// The results of the intercepted call, compiled.
    fn compiled(&self) -> Result<Vec<Array>, String> {
        let _allow = Policy::Allow.scope();
        let run = self.run.clone();
        let structure = Structure::from_operands(&self.operands);
        let side =
            structure.side(&(Rc::new(move |arrays: Vec<Array>| Ok(run(&arrays)?)) as Function), Side::Intercepted);
        let mut compiled = transforms::compile::compile(move |leaves: &[Array]| side(leaves), None);
        evaluated(compiled(&structure.leaves).map_err(text)?)
    }

    /// The results on materialized operands, evaluated.
    pub(crate) fn on_dense(&self, operands: &[Array]) -> Result<Vec<Array>, String> {
        evaluated((self.run)(operands).map_err(text)?)
    }

    /// The results of the intercepted call, evaluated.
    pub(crate) fn intercepted(&self) -> Result<Vec<Array>, String> {
        let _allow = Policy::Allow.scope();
        let run = self.run.clone();
        let results = implicit(&self.operands, move |arrays| run(&arrays)).map_err(text)?;
        evaluated(results.iter().map(Value::dense).collect::<Result<_>>().map_err(text)?)
    }
}

/// What is left of terms of magnitude one that cancel is not compared more closely than this: a unit in the last place of
/// each, of which many come to the root of their number, on either side, as a kernel adds them in another order.
const CANCELLED: f64 = 1.0 / 32.0;

pub(crate) fn evaluated(arrays: Vec<Array>) -> Result<Vec<Array>, String> {
    transforms::eval(&arrays).map_err(text)?;
    Ok(arrays)
}

pub(crate) fn text(error: impl Into<Error>) -> String {
    error.into().to_string()
}

/// The shapes and dtypes of arrays.
pub(crate) fn listed(arrays: &[Array]) -> String {
    arrays.iter().map(|array| Aval::from(array).to_string()).collect::<Vec<_>>().join(", ")
}

/// The dense array behind a value, evaluated.
pub(crate) fn dense(value: &Value) -> Result<Array, String> {
    let _allow = Policy::Allow.scope();
    evaluated(vec![value.dense().map_err(text)?]).map(|mut arrays| arrays.remove(0))
}

/// Whether two arrays have one aval and the same bytes.
pub(crate) fn bits_equal(found: &Array, expected: &Array) -> Result<(), String> {
    let avals = (Aval::from(found), Aval::from(expected));
    if avals.0 != avals.1 {
        return Err(format!("it is {}, expected {}", avals.0, avals.1));
    }
    if bytes(found)? == bytes(expected)? {
        return Ok(());
    }
    let error = relative_error(found, expected).map_err(text)?;
    let worst = worst(found, expected).map_err(text)?;
    Err(format!("not the same bits: the relative error is {error:.3e}: {worst}"))
}

/// The bytes of an array in row-major order.
pub(crate) fn bytes(array: &Array) -> Result<Vec<u8>, String> {
    elements::bytes(array, array.dtype()).map_err(text)
}

/// A matrix transposed; a vector is one either way.
pub(crate) fn transposed(array: &Array) -> Result<Array, Exception> {
    if array.ndim() < 2 { Ok(array.clone()) } else { array.swap_axes(-1, -2) }
}

/// A matrix, transposed where it should be.
pub(crate) fn transposed_if(array: &Array, is_transposed: bool) -> Result<Array, Exception> {
    if is_transposed { transposed(array) } else { Ok(array.clone()) }
}

/// The product of rows with a matrix, by whoever takes it.
pub(crate) fn product(x: &Array, w: &Value, is_transposed: bool) -> Result<Array> {
    let product = |arrays: Vec<Array>| Ok(vec![arrays[0].matmul(transposed_if(&arrays[1], is_transposed)?)?]);
    intercept(&[x.into(), w.clone()], product)?.swap_remove(0).dense()
}

/// An error may stand for a result if it says what to do.
pub(crate) fn helpful(error: &str) -> Result<(), String> {
    if error.contains("help:") { Ok(()) } else { Err(format!("the error is {error}, expected a line `help:` in it")) }
}
