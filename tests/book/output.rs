//! What examples print and draw, beside the files that the book shows.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use expect_test::expect_file;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::util::SubscriberInitExt;

use crate::source::source;

type Sections<'a> = &'a [(&'a str, fn() -> tacit::Result<String>)];

/// Compares what each section returns with its file under `book/src/output`, and its warnings with another;
/// `UPDATE_EXPECT=1` writes the files.
pub(crate) fn check(example: &str, sections: Sections) {
    let mut warned = BTreeSet::new();
    for (name, section) in sections {
        let log = Log::default();
        let shown = {
            let _guard = tracing_subscriber::fmt()
                .with_writer(log.clone())
                .without_time()
                .with_level(false)
                .with_target(false)
                .with_ansi(false)
                .set_default();
            section().unwrap_or_else(|error| panic!("{example}, {name}: {error}"))
        };
        let shown = in_examples(&shown);
        let folder = source().join("output").join(example);
        compare(&folder.join(format!("{name}.txt")), &format!("{shown}\n"));
        let warnings = log.text();
        // A chapter shows a warning where it comes first.
        if !warnings.is_empty() && warned.insert(warnings.clone()) {
            compare(&folder.join(format!("{name}.warning.txt")), &warnings);
        }
    }
}

/// The text with the paths of examples as their readers see them, without that by which this program includes them.
pub(crate) fn in_examples(shown: &str) -> String {
    shown.replace("tests/book/../../", "")
}

/// Compares a text with a file; lines of Tacit's own sources may have moved.
pub(crate) fn compare(file: &Path, shown: &str) {
    let same = fs::read_to_string(file).is_ok_and(|known| without_lines(&known) == without_lines(shown));
    if !same {
        expect_file![file].assert_eq(shown);
    }
}

/// Compares the words of drawings with those of the files, and leaves the files what they are where these are equal: each machine
/// draws other lines, because training amplifies the last bit of a sum. What the book says of them is asserted instead. Where the
/// lines are to be others, copy what the example draws when it runs alone: memory is the whole process's.
pub(crate) fn compare_words(example: &str, drawings: Vec<(&str, String)>) {
    let words = |svg: &str| -> Vec<String> {
        let texts = svg.split("</text>").filter_map(|text| Some(text.rsplit_once('>')?.1.to_owned()));
        texts.filter(|text| text.parse::<f64>().is_err()).collect()
    };
    for (name, svg) in drawings {
        let file = source().join("output").join(example).join(format!("{name}.svg"));
        if fs::read_to_string(&file).map_or(true, |known| words(&known) != words(&svg)) {
            expect_file![file].assert_eq(&svg);
        }
    }
}

/// The text without the line after each `crates/..rs:`.
fn without_lines(text: &str) -> String {
    let mut pieces = text.split(".rs:");
    let mut made = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let own = made.rsplit([' ', '(']).next().is_some_and(|file| file.starts_with("crates/"));
        made.push_str(".rs:");
        made.push_str(if own { piece.trim_start_matches(|c: char| c.is_ascii_digit()) } else { piece });
    }
    made
}

/// What a subscriber of `tracing` writes.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    fn text(&self) -> String {
        let bytes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&bytes).trim_start().to_owned()
    }
}

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for Log {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        self.clone()
    }
}
