//! Where the time of a run goes.

use mlx_rs::ops;
use tacit::Result;
use tacit::compile::Phases;
use tacit_executable::{Executable, Mode};

use crate::types::aval;

/// `commit` builds and hands over, `wait` waits: what each took is told apart.
#[test]
fn a_committed_run_tells_its_time_by_phase() -> Result<()> {
    let mut executable = Executable::builder("square")
        .input("x", aval(&[64, 64]))
        .output("y")
        .mode(Mode::Compiled)
        .build(|given| Ok(vec![given.get("x")?.square()?.exp()?]))?;
    let x = ops::ones::<f32>(&[64, 64])?;
    executable.run(&[("x", &x)])?;
    assert!(!executable.stats().phases.trace.is_zero() && executable.stats().phases.build.is_zero());
    let (committed, first) = Phases::during(|| executable.commit(&[("x", &x)]));
    committed?;
    assert!(!first.build.is_zero() && !first.encode.is_zero() && first.wait.is_zero() && first.trace.is_zero());
    let (waited, second) = Phases::during(|| executable.wait());
    assert!(waited?.get("y")?.dense()?.all_close(x.exp()?, None, None, None)?);
    assert!(second.build.is_zero() && !second.wait.is_zero());
    assert_eq!(executable.stats().phases.build, first.build);
    Ok(())
}
