//! A pass that there is not, which a variable names: it is said once, and the passes that there are run.

#[path = "../../../bridge/tests/it/itself.rs"]
mod itself;

use mlx_rs::Array;
use tacit_core::compile;
use tacit_core::pass::PASSES_VARIABLE;

#[test]
#[ignore = "the process that another test starts"]
fn compile_a_function_twice() {
    for rows in [1, 2] {
        let x = Array::from_iter(0..rows, &[rows]).as_dtype(mlx_rs::Dtype::Float32).expect("floats");
        compile(|x: Array| x.exp()).call(x).expect("runs");
    }
}

#[test]
fn it_is_said() {
    let mut command = itself::command();
    command.args(["--exact", "--ignored", "--nocapture", "unknown::compile_a_function_twice"]);
    let output = command.env(PASSES_VARIABLE, "cse,bogus").output().expect("it starts");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    let lines: Vec<&str> = error.lines().filter(|line| line.contains(PASSES_VARIABLE)).collect();
    expect_test::expect!["warning: TACIT_PASSES names the pass bogus, which is not one of identities, transposed, cse, programs, plan; `off` runs none"].assert_eq(&lines.join("\n"));
}
