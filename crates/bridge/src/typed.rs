//! The typed view of every MLX primitive, and the table from which they, the printer and the reference pages come.
//!
//! The table is `primitives.tbl`, and a build script makes of each row a type that is named as MLX names the primitive,
//! without the blanks: [`Transpose`], [`AddMM`], [`ScatterSum`].

use mlx_rs::Dtype;

use crate::error::ParamError;
use crate::param::{FromParam, Param};

include!(concat!(env!("OUT_DIR"), "/primitives.rs"));

/// An MLX primitive with its static parameters as fields.
pub trait TypedPrimitive: Sized {
    /// MLX's name of it, as in [`Description::name`].
    const NAME: &'static str;
    /// Its index in [`TABLE`].
    const ID: usize;
    /// What it does, as far as rules depend on it.
    const CLASS: Class;
    /// Whether its two operands may be swapped.
    const COMMUTATIVE: bool;

    /// Reads the fields from the parameters, which are given in the fields' order.
    fn from_params(params: &[Param]) -> Result<Self, ParamError>;
}

/// What is known of a primitive before one is seen.
#[derive(Debug)]
pub struct Description {
    /// MLX's name of it.
    pub name: &'static str,
    /// Whether every name that begins with `name` is meant: `View` appends a dtype, `Compiled` what it fused.
    pub prefix: bool,
    /// Its name in printed traces.
    pub printed: &'static str,
    /// Its C++ class in `mlx::core`.
    pub cpp: &'static str,
    /// What it does, as far as rules depend on it.
    pub class: Class,
    /// Whether its two operands may be swapped.
    pub commutative: bool,
    /// What a derivative does.
    pub derivative: Derivative,
    /// What becomes of the errors of floats.
    pub errors: Errors,
    /// What becomes of rows.
    pub rows: Rows,
    /// Which operands are indices.
    pub indices: Indices,
    /// The first MLX that has it, where older ones that Tacit takes do not.
    pub since: Option<[u32; 3]>,
    /// Its parameters.
    pub fields: &'static [Field],
    /// A sentence on the results, which names the operands in order.
    pub doc: &'static str,
}

/// A static parameter of a primitive.
#[derive(Debug)]
pub struct Field {
    /// Its name.
    pub name: &'static str,
    /// Its Rust type in the typed view.
    pub ty: &'static str,
    /// The first MLX whose primitive has it; before that the field is `None`.
    pub since: Option<[u32; 3]>,
    /// A sentence on its meaning.
    pub doc: &'static str,
}

/// The index in [`TABLE`] of the primitive that MLX calls `name`; `None` for a primitive that is not MLX's.
#[must_use]
pub fn find(name: &str) -> Option<usize> {
    match TABLE.binary_search_by(|row| row.name.cmp(name)) {
        Ok(id) => Some(id),
        // The rows of which `name` may be an extension are before its place.
        Err(place) => (0..place)
            .rev()
            .take_while(|id| TABLE[*id].name.as_bytes().first() == name.as_bytes().first())
            .find(|id| TABLE[*id].prefix && name.starts_with(TABLE[*id].name)),
    }
}

/// What is known of the primitive that MLX calls `name`; `None` for a primitive that is not MLX's.
#[must_use]
pub fn describe(name: &str) -> Option<&'static Description> {
    find(name).map(|id| &TABLE[id])
}

/// The name in printed traces of the primitive that MLX calls `name`: `slice_update` for `SliceUpdate`.
///
/// A primitive that is not MLX's keeps its name.
#[must_use]
pub fn snake(name: &str) -> String {
    describe(name).map_or(name, |row| row.printed).to_owned()
}

/// A primitive and its parameters in one word: `transpose[axes=(1,0)]`.
///
/// Parameters that the table does not name are printed without a name.
#[must_use]
pub fn print(name: &str, params: &[Param]) -> String {
    let fields = describe(name).map_or(&[][..], |row| row.fields);
    print_fields(
        name,
        params.iter().enumerate().map(|(index, param)| (fields.get(index).map(|field| field.name), param)),
    )
}

/// As [`print`], with parameters that bring their names.
pub(crate) fn print_named(name: &str, params: &[(&'static str, Param)]) -> String {
    print_fields(name, params.iter().map(|(name, param)| (Some(*name), param)))
}

fn print_fields<'a>(name: &str, params: impl Iterator<Item = (Option<&'static str>, &'a Param)>) -> String {
    let mut out = snake(name);
    let mut separator = '[';
    for (field, param) in params {
        out.push(std::mem::replace(&mut separator, ','));
        if let Some(field) = field {
            out.push_str(field);
            out.push('=');
        }
        out.push_str(&param.to_string());
    }
    if separator == ',' {
        out.push(']');
    }
    out
}

fn exactly<'a, const N: usize>(primitive: &'static str, params: &'a [Param]) -> Result<&'a [Param; N], ParamError> {
    params.try_into().map_err(|_| ParamError::Count { primitive, expected: N, found: params.len() })
}

/// The integers in the parameter of this name: one, or as many as it has.
///
/// # Errors
///
/// The primitive has no such parameter, or it is none of 32-bit integers.
pub fn integers(description: &Description, params: &[Param], name: &'static str) -> Result<Vec<i32>, ParamError> {
    let place = description.fields.iter().position(|field| field.name == name);
    match place.and_then(|place| params.get(place)).unwrap_or(&Param::None) {
        one @ Param::Int(_) => field(description.name, name, one).map(|one| vec![one]),
        several => field(description.name, name, several),
    }
}

fn field<T: FromParam>(primitive: &'static str, field: &'static str, param: &Param) -> Result<T, ParamError> {
    T::from_param(param).ok_or_else(|| ParamError::Field {
        primitive,
        field,
        expected: T::EXPECTED,
        found: param.to_string(),
    })
}

#[cfg(test)]
#[path = "../build/primitives.rs"]
mod generator;

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    const TEXT: &str = include_str!("../primitives.tbl");

    /// Class and name of each primitive in the headers that the crate was built against.
    const HEADERS: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/primitive_headers.rs"));

    #[test]
    fn the_generated_table_is_the_parsed_one_sorted() {
        let rows = generator::parse(TEXT).unwrap_or_else(|error| panic!("{error}")).rows;
        assert!(rows.iter().map(|row| (&*row.name, row.prefix)).eq(TABLE.iter().map(|row| (row.name, row.prefix))));
        assert!(TABLE.is_sorted_by(|a, b| a.name < b.name));
    }

    #[test]
    fn every_name_in_the_headers_has_a_row_of_its_class() {
        assert!(HEADERS.len() > 150, "the headers were not found when the crate was built");
        for (class, name) in HEADERS {
            let found = describe(name).and_then(|row| row.cpp.rsplit("::").next());
            assert_eq!(found, Some(*class), "{name}");
        }
        let version: Vec<u32> = crate::mlx::VERSION.split('.').map(|part| part.parse().unwrap()).collect();
        let unexpected: Vec<_> = TABLE
            .iter()
            .filter(|row| {
                let expected = row.since.is_none_or(|since| *version >= since[..]);
                !row.prefix && expected != HEADERS.iter().any(|(_, name)| *name == row.name)
            })
            .collect();
        assert!(unexpected.is_empty(), "{unexpected:?}");
    }

    #[test]
    fn a_name_is_found_whole_or_by_its_beginning() {
        assert_eq!(find("Transpose"), Some(Transpose::ID));
        assert_eq!(find("Scatter Sum"), Some(ScatterSum::ID));
        assert_eq!(find("View int32"), Some(View::ID));
        assert_eq!(find("CompiledAddExpMultiply"), Some(Compiled::ID));
        assert_eq!(find("TransposeMore"), None);
        assert_eq!(find(""), None);
        for (id, row) in TABLE.iter().enumerate() {
            assert_eq!(find(row.name), Some(id));
        }
    }

    #[test]
    fn typed_views_read_their_parameters() {
        let axes = [Param::Ints(vec![1, 0])];
        assert_eq!(Transpose::from_params(&axes), Ok(Transpose { axes: vec![1, 0] }));
        assert_eq!(AddMM::from_params(&[Param::Float(1.0), Param::Float(0.5)]), Ok(AddMM { alpha: 1.0, beta: 0.5 }));
        assert_eq!(Matmul::from_params(&[]), Ok(Matmul));
        let (commutative, ordered) = (Add::COMMUTATIVE, Subtract::COMMUTATIVE);
        assert!(commutative && !ordered);
        assert_eq!(
            Matmul::from_params(&axes).unwrap_err().to_string().lines().next(),
            Some("Matmul has 0 parameters, but 1 were given")
        );
        let error = Transpose::from_params(&[Param::Int(3)]).unwrap_err().to_string();
        let expected = Some("parameter axes of Transpose is 3, which is not a list of 32-bit integers");
        assert_eq!(error.lines().next(), expected);
    }

    #[test]
    fn integers_are_read_by_the_name_of_their_parameter() {
        let (one, several) = (&TABLE[Concatenate::ID], &TABLE[Transpose::ID]);
        assert_eq!(integers(one, &[Param::Int(-1)], "axis"), Ok(vec![-1]));
        assert_eq!(integers(several, &[Param::Ints(vec![1, 0])], "axes"), Ok(vec![1, 0]));
        let absent = integers(several, &[Param::Ints(vec![1, 0])], "axis").unwrap_err().to_string();
        let expected = Some("parameter axis of Transpose is none, which is not a list of 32-bit integers");
        assert_eq!(absent.lines().next(), expected);
    }

    #[test]
    fn primitives_print_with_their_parameters() {
        assert_eq!(print("Transpose", &[Param::Ints(vec![1, 0])]), "transpose[axes=(1,0)]");
        assert_eq!(print("AddMM", &[Param::Float(1.0), Param::Float(1.0)]), "addmm[alpha=1,beta=1]");
        assert_eq!(print("View bfloat16", &[Param::Dtype(Dtype::Bfloat16)]), "view[dtype=bf16]");
        assert_eq!(snake("SliceUpdate Sum"), "slice_update_sum");
        assert_eq!(print("Matmul", &[]), "matmul");
        assert_eq!(print("nf4_matmul", &[Param::Int(64)]), "nf4_matmul[64]");
    }

    #[test]
    fn a_malformed_row_is_reported_with_its_line() {
        let error = |text: &str| generator::parse(text).err().unwrap_or_default();
        assert_eq!(error("# x\nAbs | abs"), "line 2: expected 7 columns, found 2");
        assert_eq!(error("Abs | abs | Abs | odd | | | Doc."), "line 1: unknown class `odd`");
        assert_eq!(error("Abs | abs | Abs | unary | fast | | Doc."), "line 1: unknown flag `fast`");
        assert_eq!(
            error("Abs | abs | Abs | unary | | | Doc"),
            "line 1: expected a sentence that ends in a period, found `Doc`"
        );
        assert_eq!(error("Abs | abs | Abs | unary | | x:y | Doc."), "line 1: parameter `x` has the unknown type `y`");
        assert_eq!(error("Abs | abs | Abs | unary | | x:int | Doc."), "line 1: parameter `x` has no `field` line");
        assert_eq!(
            error("field axis = X.\nA | a | A | moving | picked | | X."),
            "line 2: what is `picked` needs the parameter `axis:int`"
        );
        assert_eq!(
            error("A | a | A | unary | | | X.\nA | b | A | unary | | | X."),
            "line 2: `A` names the same type as line 1"
        );
        assert_eq!(
            error("A | a | A | unary | | | X.\nB | a | B | unary | | | X."),
            "line 2: `a` is printed as line 1 is"
        );
        assert_eq!(
            error("A | a | A | unary | | | X.\nB | b | A | unary | | _ | X."),
            "line 2: the parameters of `A` differ from those in line 1"
        );
        assert_eq!(error("field x = X."), "field `x` is described, but no primitive has it");
        assert_eq!(error("A | a | A | unary | since=1.x | | X."), "line 1: `1.x` is no version of MLX");
        assert_eq!(
            error("field x = X.\nfield y = Y.\nA | a | A | unary | | x:int since 1.2.3, y:int | X."),
            "line 3: a parameter that came with a version is followed by an older one"
        );
    }

    #[test]
    fn the_generator_writes_the_rows_of_the_bridge() {
        let out = Path::new(env!("OUT_DIR")).join("generator_test");
        std::fs::create_dir_all(&out).unwrap();
        generator::generate(&Path::new(env!("CARGO_MANIFEST_DIR")).join("primitives.tbl"), &out, "0.32.2");
        let rows = std::fs::read_to_string(out.join("primitives.inc")).unwrap();
        for row in [
            "TACIT_PARAMETERS(\"N3mlx4core9TransposeE\", Transpose, kind::Ints)",
            "TACIT_PARAMETERS(\"N3mlx4core4fast9LayerNormE\", fast::LayerNorm, kind::Skip, kind::Float)",
            "TACIT_NO_PARAMETERS(\"N3mlx4core3AddE\", Add)",
        ] {
            assert!(rows.lines().any(|line| line == row), "{row}");
        }
    }

    #[test]
    fn what_came_with_a_version_is_written_for_that_version_and_newer_ones() {
        let out = Path::new(env!("OUT_DIR")).join("versions_test");
        std::fs::create_dir_all(&out).unwrap();
        let table = out.join("two.tbl");
        let text = "field x = X.\nfield y = Y.\nA | a | A | unary | | x:int, y:bool since 1.2.10 | A.\n\
                    B | b | B | unary | since=1.2.9 | | B.\n";
        std::fs::write(&table, text).unwrap();
        let both = |version: &str| {
            generator::generate(&table, &out, version);
            ["primitives.inc", "primitives.rs"].map(|file| std::fs::read_to_string(out.join(file)).unwrap())
        };
        let [a, b] =
            ["TACIT_PARAMETERS(\"N3mlx4core1AE\", A, kind::Int", "TACIT_NO_PARAMETERS(\"N3mlx4core1BE\", B)\n"];
        let [old, old_views] = both("1.2.8");
        assert_eq!(old, format!("{a})\n"));
        assert!(old_views.contains("let [x] = exactly") && old_views.contains("y: None, "), "{old_views}");
        let [middle, middle_views] = both("1.2.9");
        assert_eq!((middle, middle_views), (format!("{a})\n{b}"), old_views.clone()));
        let [new, new_views] = both("1.2.10");
        assert_eq!(new, format!("{a}, kind::Bool)\n{b}"));
        assert!(new_views.contains("let [x, y] = exactly") && !new_views.contains("y: None"), "{new_views}");
        // What is written in Rust against one version compiles against all.
        for views in [old_views, new_views] {
            assert!(views.contains("pub y: Option<bool>,") && views.contains("pub struct B;"), "{views}");
        }
    }
}
