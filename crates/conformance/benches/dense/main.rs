//! A dense matrix product through the exported BLAS, against the BLAS that MLX's wheel brings.
//!
//! MLX takes `cblas_sgemm` from the executable that it runs in, so the baseline is another executable, which has its turns
//! beside this one.

mod product;

use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use tacit_blas as _;
use tacit_figures::Unit;

use product::Product;

fn main() -> Result<(), Box<dyn Error>> {
    let bench = tacit_figures::bench!("dense");
    let product = Product::new()?;
    let mut wheel =
        Command::new(env!("CARGO_BIN_EXE_wheel-product")).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let mut ask = wheel.stdin.take().ok_or("no way to ask the baseline")?;
    let mut answers = BufReader::new(wheel.stdout.take().ok_or("no answers of the baseline")?).lines();
    let rounds = bench
        .turns()
        .measure("ours", || Ok::<_, Box<dyn Error>>(product.seconds()?))
        .seldom("the BLAS of MLX's wheel", || {
            writeln!(ask)?;
            Ok(answers.next().ok_or("the baseline ended")??.parse()?)
        })
        .take()?;
    rounds.record("128x4096x4096", Unit::time("ms"));
    drop(rounds);
    drop(ask);
    assert!(wheel.wait()?.success(), "the baseline fails");
    Ok(())
}
