//! The book's page on what splits cost: the estimates of `splits/plan.rs` in tables, and a drawing of them.

#[path = "splits/plan.rs"]
mod plan;

// ANCHOR: use
use std::fmt::Write;

use tacit::prelude::*;
use tacit::record::Chart;

use self::plan::{Collective, Engine, Network, Split, Step};
// ANCHOR_END: use

/// A title, and the function that makes what the page shows.
type Section = (&'static str, fn() -> Result<String>);

/// In the page's order.
pub(crate) const SECTIONS: [Section; 3] = [("sums", sums), ("layers", layers), ("steps", steps)];

// ANCHOR: networks
/// A ring over Thunderbolt: half of the round trips that users see, and the bandwidth that MLX's authors reached.
const THUNDERBOLT: Network = Network { engine: Engine::Ring, latency: 200e-6, bandwidth: 6e9 };
/// The same cables, a rank connected to each other one: a tenth of the latency, as MLX's documentation has it.
const JACCL: Network = Network { engine: Engine::Jaccl, latency: 20e-6, bandwidth: 6e9 };
/// Ethernet of 10 Gbit/s.
const ETHERNET: Network = Network { engine: Engine::Mpi, latency: 50e-6, bandwidth: 1.25e9 };
/// GPUs with a network card of 200 Gbit/s each: 93 microseconds for the least sum of sixteen.
const NCCL: Network = Network { engine: Engine::Nccl, latency: 12e-6, bandwidth: 25e9 };
// ANCHOR_END: networks

const RANKS: [usize; 5] = [2, 4, 16, 128, 1000];

// ANCHOR: sums
fn sums() -> Result<String> {
    let engines = [Engine::Ring, Engine::Mpi, Engine::Nccl];
    let mut text = "seconds of one sum, all at 50 us and 1.25 GB/s\n\n".to_owned();
    let _ = writeln!(text, "{:>10} {:>6} {:>12} {:>12} {:>12}", "bytes", "ranks", "ring", "MPI", "NCCL");
    for bytes in [4.0, 65_536.0, 16_777_216.0] {
        for ranks in RANKS {
            let _ = write!(text, "{bytes:>10} {ranks:>6}");
            for engine in engines {
                let cost = Network { engine, ..ETHERNET }.cost(Collective::AllSum, bytes, ranks);
                let _ = write!(text, " {:>12.6}", cost.seconds);
            }
            text.push('\n');
        }
    }
    Ok(text)
}
// ANCHOR_END: sums

// ANCHOR: layers
/// A layer of a decoder 4096 wide, in 4 bits, adapters of rank 16 beside it; or trained as a whole.
const ADAPTED: Step =
    Step { layers: 32, parameters: 202e6, bits: 4.5, trained: 1.7e6, width: 4096.0, tokens: 16_384.0, element: 2.0 };
const WHOLE: Step = Step { bits: 16.0, trained: 202e6, ..ADAPTED };

fn splits() -> [(&'static str, Split); 4] {
    [
        ("data", Split::Data),
        ("tensor", Split::Tensor),
        ("fully sharded", Split::FullySharded),
        ("experts", Split::Experts { met: 0.25 }),
    ]
}

fn layers() -> Result<String> {
    let mut text = "what a rank of 8 sends for a layer, over a ring\n\n".to_owned();
    let _ = writeln!(text, "{:<16} {:>12} {:>14} {:>16}", "split", "collectives", "messages", "megabytes");
    for (what, step) in [("adapters in 4 bits", ADAPTED), ("all in 16 bits", WHOLE)] {
        let _ = writeln!(text, "{what}");
        for (name, split) in splits() {
            let all = step.estimate(split, &THUNDERBOLT, 1e13, 8);
            let each = |all: f64| all / step.layers as f64;
            let (calls, messages) = (each(all.collectives as f64), each(all.messages));
            let _ = writeln!(text, "  {name:<14} {calls:>12} {messages:>14} {:>16.1}", each(all.bytes) / 1e6);
        }
    }
    Ok(text)
}
// ANCHOR_END: layers

// ANCHOR: steps
/// Operations that a rank does in a second: a large Mac's GPU.
const RATE: f64 = 2e13;

fn steps() -> Result<String> {
    let mut text = "tokens in a second, and the part of it that is not waiting\n\n".to_owned();
    let networks = [
        ("Thunderbolt, ring", THUNDERBOLT),
        ("Thunderbolt, JACCL", JACCL),
        ("Ethernet, MPI", ETHERNET),
        ("NCCL", NCCL),
    ];
    for (what, step) in [("adapters in 4 bits", ADAPTED), ("all in 16 bits", WHOLE)] {
        let _ = writeln!(text, "{what:<20} {:<14} {:>15} {:>15} {:>15}", "", "2 ranks", "8 ranks", "128 ranks");
        for (place, network) in networks {
            for (name, split) in splits() {
                let _ = write!(text, "  {place:<18} {name:<14}");
                for ranks in [2, 8, 128] {
                    let estimate = step.estimate(split, &network, RATE, ranks);
                    let used = 100.0 * estimate.computing / estimate.seconds;
                    let _ = write!(text, " {:>8.0} {used:>4.0} %", step.tokens / estimate.seconds);
                }
                text.push('\n');
            }
        }
    }
    Ok(text)
}
// ANCHOR_END: steps

/// Seconds of one sum of 4 bytes and of 16 MiB, each time the ranks are doubled.
pub(crate) fn drawing() -> Result<String> {
    let mut chart = Chart::new("seconds of a sum, each time the ranks are doubled").by("doubling").logarithmic();
    for (engine, name) in [(Engine::Ring, "ring"), (Engine::Mpi, "MPI"), (Engine::Nccl, "NCCL")] {
        for (bytes, size) in [(4.0, "4 bytes"), (16_777_216.0, "16 MiB")] {
            let seconds = |doublings: u64| {
                let cost = Network { engine, ..ETHERNET }.cost(Collective::AllSum, bytes, 1 << doublings);
                (doublings, cost.seconds)
            };
            chart = chart.line(format!("{name}, {size}"), (1..=10).map(seconds).collect());
        }
    }
    chart.to_svg()
}

pub(crate) fn main() -> Result<()> {
    for (title, section) in SECTIONS {
        println!("== {title}\n{}", section()?);
    }
    println!("{} bytes of SVG", drawing()?.len());
    Ok(())
}
