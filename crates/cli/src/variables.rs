//! The environment variables that every program with Tacit reads when it runs.

use std::time::Duration;

use tacit_core::pass::Passes;

pub(crate) struct Variable {
    pub(crate) name: &'static str,
    /// What it may be, for a reader.
    pub(crate) values: &'static str,
    /// What it does.
    pub(crate) doc: &'static str,
    /// Whether it may be this.
    pub(crate) reads: fn(&str) -> bool,
}

/// The passes of Tacit itself, in the order in which they run.
pub(crate) const PASSES: [&str; 6] = ["identities", "transposed", "cse", "programs", "plan", "agreement"];

pub(crate) const VARIABLES: [Variable; 12] = [
    Variable {
        name: "TACIT_MATERIALIZE",
        values: "allow, warn or deny",
        doc: "what happens when a call needs an implicit array materialized, where no guard says so; `warn` where it is not set",
        reads: |text| ["allow", "warn", "deny"].contains(&text.to_ascii_lowercase().as_str()),
    },
    Variable {
        name: "TACIT_DEVICE_FALLBACK",
        values: "dense or cpu",
        doc: "what stands for a kernel on a GPU for which it has no source: plain ops there, or the kernel itself on the CPU; `dense` where it is not set",
        reads: |text| ["dense", "cpu"].contains(&text.to_ascii_lowercase().as_str()),
    },
    Variable {
        name: "TACIT_GPU_SOURCES",
        values: "on or off",
        doc: "`off` runs kernels on a GPU as if they had no source for it, where its compiler refuses one; `on` where it is not set",
        reads: |text| ["on", "off"].contains(&text.to_ascii_lowercase().as_str()),
    },
    Variable {
        name: "TACIT_COMPILE",
        values: "on or off",
        doc: "`off` runs compiled functions as they are written",
        reads: |text| ["on", "off", "1", "0", "true", "false"].contains(&text.to_ascii_lowercase().as_str()),
    },
    Variable {
        name: "MLX_DISABLE_COMPILE",
        values: "not set",
        doc: "a variable of MLX: where it has any value, compiled functions run as they are written, and `compile::enable` changes nothing",
        reads: |_| false,
    },
    Variable {
        name: "TACIT_PASSES",
        values: "off, or names with commas between them: identities, transposed, cse, programs, plan, agreement",
        doc: "which passes rewrite the graphs of compiled functions; all of them where it is not set",
        // A program may have passes of its own.
        reads: |text| {
            let plain = |name: &String| {
                !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || ['-', '_', '.', ':'].contains(&c))
            };
            Passes::named(text).names().iter().all(plain)
        },
    },
    Variable {
        name: "TACIT_MODE",
        values: "eager, lazy or compiled",
        doc: "how executables run whose builder does not say it; `compiled` where it is not set",
        reads: |text| ["eager", "lazy", "compiled"].contains(&text.to_ascii_lowercase().as_str()),
    },
    Variable {
        name: "TACIT_THREADS",
        values: "a number",
        doc: "how many threads a kernel may use, at most 1024; that of the cores where it is not set or 0",
        reads: |text| text.trim().parse::<usize>().is_ok(),
    },
    Variable {
        name: "TACIT_MLX_TMPDIR",
        values: "an absolute path, or keep",
        doc: "where MLX keeps the loops that it compiles, a folder that nobody else may write to, and a private one where it is not set; `keep` is MLX's own choice",
        reads: |text| text == "keep" || text.starts_with('/'),
    },
    Variable {
        name: "TACIT_WATCH",
        values: "a host and port of rank 0, or off",
        doc: "where the ranks of a group meet to watch each other; beside the ring where it is not set, and under MPI at a port that rank 0 chooses",
        reads: |text| {
            text == "off"
                || text.rsplit_once(':').is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok())
        },
    },
    Variable {
        name: "TACIT_WATCH_LIMITS",
        values: "join, silence and wait with seconds, as in join=300 silence=30",
        doc: "how long a group waits for all ranks to come, for a sign of life of each, and for one collective; 60, 10 and 600 where it is not set",
        reads: |text| {
            text.split_whitespace().all(|word| {
                word.split_once('=').is_some_and(|(name, seconds)| {
                    ["join", "silence", "wait"].contains(&name)
                        && seconds.parse::<f64>().is_ok_and(|seconds| {
                            Duration::try_from_secs_f64(seconds).is_ok_and(|limit| !limit.is_zero())
                        })
                })
            })
        },
    },
    Variable {
        name: "TACIT_JOB",
        values: "letters, digits, dots, dashes and underscores, the same for all ranks of a group",
        doc: "what tells ranks of one start of a program from those of another that come to the same place; `tacit launch` sets it",
        reads: |text| text.chars().all(|c| c.is_ascii_alphanumeric() || ['.', '-', '_'].contains(&c)),
    },
];
