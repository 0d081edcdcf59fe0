//! How much of a checkpoint is written.

use indicatif::{ProgressBar, ProgressStyle};

/// How much of a checkpoint is written, in bytes of its tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// The bytes that are written.
    pub done: usize,
    /// All bytes.
    pub total: usize,
}

/// Shows progress as a bar on stderr, where that is a terminal; elsewhere it shows nothing.
///
/// ```
/// # use mlx_rs::Array;
/// use tacit_io::{Metadata, Writing, progress_bar, write_with};
///
/// # fn main() -> tacit_core::Result<()> {
/// # let path = std::env::temp_dir().join(format!("tacit-progress-{}.safetensors", std::process::id()));
/// let tensors = vec![("weight".to_owned(), Array::from_f32(1.0))];
/// let mut bar = progress_bar();
/// write_with(&path, tensors, &Metadata::new(), Writing { progress: Some(&mut bar), ..Writing::default() })?;
/// # std::fs::remove_file(path).ok();
/// # Ok(())
/// # }
/// ```
pub fn progress_bar() -> impl FnMut(Progress) {
    let bar = ProgressBar::new(0);
    if let Ok(style) = ProgressStyle::with_template("{bar:40} {bytes} of {total_bytes}, {eta} left") {
        bar.set_style(style);
    }
    move |Progress { done, total }| {
        bar.set_length(total as u64);
        bar.set_position(done as u64);
        if done == total {
            bar.finish_and_clear();
        }
    }
}
