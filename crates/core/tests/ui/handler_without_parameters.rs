extern crate tacit_core as tacit;

use tacit::{Result, Value, handler};

#[handler]
fn nothing() -> Result<Vec<Value>> {
    Ok(Vec::new())
}

fn main() {}
