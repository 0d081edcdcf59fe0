//! A run is recorded, killed, resumed, read back and drawn.

use std::fs;
use std::path::{Path, PathBuf};

use expect_test::expect;
use mlx_rs::{Array, ops};
use tacit_core::Result;
use tacit_record::{Bars, Chart, Histogram, Record, Recorder, Series};

/// A file that no other test has, which is gone after it.
struct Scratch(PathBuf);

impl AsRef<Path> for Scratch {
    fn as_ref(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        drop(fs::remove_file(&self.0));
    }
}

fn scratch(name: &str) -> Scratch {
    Scratch(std::env::temp_dir().join(format!("tacit-record-{}-{name}", std::process::id())))
}

/// The message of a refusal, with one name for where these tests write.
fn said<T>(result: Result<T>) -> String {
    let text = result.err().expect("it is refused").to_string();
    text.replace(std::env::temp_dir().join("").to_str().unwrap(), "/tmp/")
        .replace(&format!("tacit-record-{}-", std::process::id()), "scratch/")
}

#[test]
fn a_line_holds_what_was_recorded_to_the_last_bit() {
    let file = scratch("bits.jsonl");
    let mut recorder = Recorder::create(&file).unwrap();
    let values = [0.1, f64::from(0.1f32), 1e300, -0.0, f64::INFINITY, f64::NEG_INFINITY, f64::NAN];
    for (step, value) in (1..).zip(values) {
        recorder.scalar(step, "x", value).unwrap();
    }
    recorder.histogram(7, "w", &Array::from_slice(&[1.0f32, f32::NAN], &[2])).unwrap();
    let read = Record::read(&file).unwrap();
    let bits: Vec<u64> = read.scalar("x").unwrap().points().iter().map(|(_, value)| value.to_bits()).collect();
    assert_eq!(bits, values.map(f64::to_bits));
    assert_eq!(read.histogram("w").unwrap()[&7].not_finite, 1);
    let text = fs::read_to_string(&file).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], r#"{"step":1,"name":"x","value":0.1}"#);
    assert_eq!(lines[6], r#"{"step":7,"name":"x","value":"NaN"}"#);
}

#[test]
fn nothing_has_an_empty_histogram() {
    let histogram = Histogram::from_array(&ops::zeros::<f32>(&[0, 3]).unwrap()).unwrap();
    assert!(histogram.is_empty() && histogram.not_finite == 0 && histogram.quantile(0.5).is_none());
    let file = scratch("empty.jsonl");
    Recorder::create(&file).unwrap().histogram(1, "w", &ops::zeros::<f32>(&[0]).unwrap()).unwrap();
    assert!(Record::read(&file).unwrap().histogram("w").unwrap()[&1].is_empty());
}

/// Two ranks that record into one file: the second is told, and the first goes on undisturbed.
#[test]
fn one_recorder_writes_a_file_at_a_time() {
    let file = scratch("shared.jsonl");
    let mut first = Recorder::create(&file).unwrap();
    first.scalar(1, "loss", 1.0).unwrap();
    let message = expect![[r#"
        another recorder writes /tmp/scratch/shared.jsonl
        help: let one rank record, or give each a file of its own"#]];
    message.assert_eq(&said(Recorder::create(&file)));
    message.assert_eq(&said(Recorder::resume(&file, 0)));
    first.scalar(2, "loss", 0.5).unwrap();
    assert_eq!(Record::read(&file).unwrap().scalar("loss").unwrap().points(), [(1, 1.0), (2, 0.5)]);
    // Also where the second begins while the first resumes into a new file.
    first.scalar(1, "late", 0.5).unwrap();
    drop(first);
    let mut first = Recorder::resume(&file, 1).unwrap();
    message.assert_eq(&said(Recorder::create(&file)));
    first.scalar(2, "loss", 0.25).unwrap();
    drop(first);
    assert_eq!(Record::read(&file).unwrap().scalar("loss").unwrap().points(), [(1, 1.0), (2, 0.25)]);
    assert_eq!(Record::read(&file).unwrap().scalar("late").unwrap().points(), [(1, 0.5)]);
    Recorder::create(&file).unwrap();
}

#[test]
fn a_device_is_recorded_to_and_stays_one() {
    for _ in 0..2 {
        let mut one = Recorder::create("/dev/null").unwrap();
        let mut other = Recorder::resume("/dev/null", 1).unwrap();
        one.scalar(1, "loss", 1.0).unwrap();
        other.scalar(2, "loss", 0.5).unwrap();
    }
    // What does not take a line is asked again at the next.
    if Path::new("/dev/full").exists() {
        let mut full = Recorder::create("/dev/full").unwrap();
        for step in 1..=2 {
            let error = full.scalar(step, "loss", 1.0).unwrap_err();
            assert!(error.to_string().contains("No space left"), "{error}");
        }
    }
}

/// A disk that is full in the middle of a line: what the system would not take is taken back, and later lines are whole.
#[cfg(target_os = "linux")]
#[test]
fn a_line_that_was_not_written_to_its_end_spoils_no_other() {
    use std::process::Command;

    const FILE: &str = "TACIT_RECORD_LIMITED";
    if let Some(file) = std::env::var_os(FILE) {
        let mut recorder = Recorder::create(&file).unwrap();
        let mut failed = 0;
        for step in 1..=40 {
            failed += usize::from(recorder.scalar(step, "loss", 1.0 / step as f64).is_err());
            // Short lines fit where long ones did not.
            failed += usize::from(recorder.scalar(step, "l", 1.0).is_err());
        }
        assert!(failed > 3, "the limit is not in force");
        return;
    }
    let file = scratch("limited.jsonl");
    // A limit of the size of files, in blocks of 512 bytes or 1024: writes beyond it are cut, as on a disk that is full.
    let own = std::env::current_exe().unwrap();
    let command = format!(
        "trap '' XFSZ; ulimit -f 2; exec '{}' --exact a_line_that_was_not_written_to_its_end_spoils_no_other",
        own.display()
    );
    let output = Command::new("bash").args(["-c", &command]).env(FILE, &file.0).output().unwrap();
    assert!(
        output.status.success(),
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    let text = fs::read_to_string(&file).unwrap();
    assert!(text.ends_with("}\n"), "{text}");
    let record = Record::read(&file).unwrap();
    assert!(
        record.scalar("loss").unwrap().points().len() + record.scalar("l").unwrap().points().len()
            == text.lines().count()
    );
}

#[test]
fn a_resumed_run_continues_its_file_as_if_it_had_not_been_killed() {
    let record = |recorder: &mut Recorder, steps: std::ops::RangeInclusive<u64>| {
        for step in steps {
            recorder.scalar(step, "loss", 1.0 / step as f64).unwrap();
            recorder.histogram(step, "w", &Array::from_slice(&[step as f32, 0.0], &[2])).unwrap();
        }
    };
    let (whole, killed) = (scratch("whole.jsonl"), scratch("killed.jsonl"));
    record(&mut Recorder::create(&whole).unwrap(), 1..=9);
    record(&mut Recorder::create(&killed).unwrap(), 1..=7);
    // Killed within a line, at some of its bytes.
    let written = fs::read(&killed).unwrap();
    let last = written[..written.len() - 1].iter().rposition(|&byte| byte == b'\n').unwrap() + 1;
    for end in (last..written.len()).step_by(20).chain([written.len() - 1, written.len()]) {
        fs::write(&killed, &written[..end]).unwrap();
        assert!(Record::read(&killed).is_ok(), "while it is written");
        record(&mut Recorder::resume(&killed, 5).unwrap(), 6..=9);
        assert_eq!(fs::read(&killed).unwrap(), fs::read(&whole).unwrap(), "killed at byte {end}");
    }
    // Nothing lies beyond the last step.
    record(&mut Recorder::resume(&killed, 9).unwrap(), 10..=10);
    assert_eq!(Record::read(&killed).unwrap().scalar("loss").unwrap().points().len(), 10);
    // A program that always resumes begins so.
    let fresh = scratch("fresh.jsonl");
    record(&mut Recorder::resume(&fresh, 0).unwrap(), 1..=9);
    assert_eq!(fs::read(&fresh).unwrap(), fs::read(&whole).unwrap());
}

#[test]
fn what_is_no_record_is_refused_and_untouched() {
    let file = scratch("other.jsonl");
    for (text, message) in [
        (
            "{\"step\":1,\"name\":\"loss\",\"value\":1.0}\nnotes\n",
            expect![[r#"
                /tmp/scratch/other.jsonl: line 2 is not an entry of a record: expected ident at line 1 column 2
                help: give the path of a file that a `Recorder` wrote"#]],
        ),
        (
            "{\"step\":1,\"name\":\"loss\",\"value\":\"big\"}\n",
            expect![[r#"
                /tmp/scratch/other.jsonl: line 1 is not an entry of a record: invalid value: string "big", expected a number, NaN, inf or -inf at line 1 column 38
                help: give the path of a file that a `Recorder` wrote"#]],
        ),
        (
            "{\"step\":1,\"name\":\"w\",\"histogram\":{\"from\":2.0,\"to\":1.0,\"counts\":[]}}\n",
            expect![[r#"
                /tmp/scratch/other.jsonl: line 1: a histogram of 0 bins from 2 to 1
                help: give the path of a file that a `Recorder` wrote"#]],
        ),
    ] {
        fs::write(&file, text).unwrap();
        message.assert_eq(&said(Record::read(&file)));
        message.assert_eq(&said(Recorder::resume(&file, 0)));
        assert_eq!(fs::read_to_string(&file).unwrap(), text);
    }
}

/// A text without the end of a line is no line that a killed run left.
#[test]
fn what_ends_without_a_line_is_a_record_only_if_it_begins_as_one() {
    let file = scratch("unended.json");
    for (text, message) in [
        (
            "notes",
            expect![[r#"
                /tmp/scratch/unended.json: line 1 is not an entry of a record: expected ident at line 1 column 2
                help: give the path of a file that a `Recorder` wrote"#]],
        ),
        (
            "{\"step\": 100, \"best\": 1.5}",
            expect![[r#"
                /tmp/scratch/unended.json: line 1 is not an entry of a record: missing field `name` at line 1 column 26
                help: give the path of a file that a `Recorder` wrote"#]],
        ),
    ] {
        fs::write(&file, text).unwrap();
        message.assert_eq(&said(Recorder::create(&file)));
        message.assert_eq(&said(Recorder::resume(&file, 0)));
        assert_eq!(fs::read_to_string(&file).unwrap(), text);
    }
    // Killed within the first line, wherever that was.
    let whole = "{\"step\":1,\"name\":\"loss\",\"value\":1.0}";
    for end in 0..=whole.len() {
        fs::write(&file, &whole[..end]).unwrap();
        drop(Recorder::resume(&file, 0).unwrap());
        assert_eq!(fs::read_to_string(&file).unwrap(), "");
        fs::write(&file, &whole[..end]).unwrap();
        Recorder::create(&file).unwrap();
    }
}

#[test]
fn names_and_numbers_that_are_missing_are_said() {
    let file = scratch("names.jsonl");
    let mut recorder = Recorder::create(&file).unwrap();
    let record = Record::read(&file).unwrap();
    expect![[r#"
        no number was recorded as loss
        help: those that were: none at all"#]]
    .assert_eq(&said(record.scalar("loss")));
    recorder.scalar(1, "loss", -1.0).unwrap();
    recorder.scalar(1, "rate", f32::NAN).unwrap();
    let record = Record::read(&file).unwrap();
    expect![[r#"
        no number was recorded as los
        help: those that were: loss, rate"#]]
    .assert_eq(&said(record.scalar("los")));
    expect![[r#"
        no histogram was recorded as scales
        help: those that were: none at all"#]]
    .assert_eq(&said(record.histogram("scales")));
    let logarithmic = Chart::new("loss").logarithmic().line("one", record.scalar("loss").unwrap());
    let message = expect![[r#"
        "loss" has no number that can be drawn
        help: add a line that was recorded, and without `logarithmic` where no number is positive"#]];
    message.assert_eq(&said(logarithmic.to_svg()));
    message.assert_eq(&said(Chart::new("loss").line("one", record.scalar("rate").unwrap()).to_svg()));
    expect![[r#"
        "errors" has no number that can be drawn
        help: add some with `bars`"#]]
    .assert_eq(&said(Bars::new("errors").to_svg()));
    expect![[r#"
        complex numbers have no histogram
        help: record their magnitudes: `array.abs()`"#]]
    .assert_eq(&said(Histogram::from_array(&Array::from_complex(mlx_rs::complex64::new(1.0, 0.0)))));
}

#[test]
fn quantiles_are_those_of_the_elements_up_to_a_bin() {
    let ramp = ops::arange::<_, f32>(0, 1000, None).unwrap().reshape(&[10, 100]).unwrap();
    // A view that is not in rows, too.
    for array in [ramp.clone(), ramp.t(), ramp.as_dtype(mlx_rs::Dtype::Int32).unwrap()] {
        let histogram = Histogram::from_array(&array).unwrap();
        for share in [0.0, 0.1, 0.5, 0.9, 1.0] {
            let found = histogram.quantile(share).unwrap();
            assert!((found - 999.0 * share).abs() < 999.0 / 32.0, "{share}: {found}");
        }
    }
    let same = Histogram::from_array(&ops::full::<f32>(&[7], Array::from_f32(3.0)).unwrap()).unwrap();
    assert_eq!((same.quantile(0.0), same.quantile(1.0), same.len()), (Some(3.0), Some(3.0), 7));
    let none = Histogram::from_array(&Array::from_slice(&[f32::NAN, f32::INFINITY], &[2])).unwrap();
    assert!(none.is_empty() && none.quantile(0.5).is_none() && none.not_finite == 2);
}

#[test]
fn the_memory_of_a_step_is_that_which_its_arrays_take() {
    const BYTES: f64 = 4.0 * 1024.0 * 1024.0;
    let file = scratch("memory.jsonl");
    let mut recorder = Recorder::create(&file).unwrap();
    recorder.memory(0).unwrap();
    let kept = ops::ones::<f32>(&[1024, 1024]).unwrap();
    let passing = ops::zeros::<f32>(&[1024, 1024]).unwrap().add(Array::from_f32(1.0)).unwrap();
    mlx_rs::transforms::eval([&kept, &passing]).unwrap();
    drop(passing);
    recorder.memory(1).unwrap();
    recorder.memory(2).unwrap();
    let record = Record::read(&file).unwrap();
    let by_step = |name: &str| record.scalar(name).unwrap().points().to_vec();
    // Tests of other threads allocate, too, but no such amounts.
    let (active, peak) = (by_step("memory/active"), by_step("memory/peak"));
    assert!(active[1].1 - active[0].1 >= 0.9 * BYTES, "{active:?}");
    assert!(peak[1].1 - active[0].1 >= 1.8 * BYTES, "{peak:?}");
    assert!(peak[2].1 < peak[1].1, "{peak:?}");
    drop(kept);
}

#[test]
fn drawings_fit_a_phone_and_take_the_colors_of_their_page() {
    let loss: Series = [(1, 1.0), (2, f64::NAN), (3, 0.1), (4, 0.01)].into_iter().collect();
    let histogram = Histogram::from_array(&ops::arange::<_, f32>(1, 9, None).unwrap()).unwrap();
    let chart = Chart::new("<loss> & \"rate\"")
        .line("a", loss.clone())
        .bands("b", &[(1, histogram.clone()), (4, histogram)].into())
        .mark(2, "from here")
        .mark(4, "to here");
    let bars = Bars::new("errors").bars("a", [("w".to_owned(), f64::NAN), ("v".to_owned(), 1.0)]);
    let bars = bars.bars("b", [("v".to_owned(), 0.5)]);
    for svg in [chart.to_svg().unwrap(), chart.clone().logarithmic().to_svg().unwrap(), bars.to_svg().unwrap()] {
        assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n") && svg.matches("<svg").count() == 1, "{svg}");
        assert!(svg.contains("viewBox=\"0 0 380 ") && svg.contains("width:100%") && svg.contains("currentColor"));
        // Markdown ends what is HTML at an empty line.
        assert!(!svg.lines().any(|line| line.trim().is_empty()), "{svg}");
    }
    let svg = chart.to_svg().unwrap();
    assert!(
        svg.contains("aria-label=\"&lt;loss&gt; &amp; &quot;rate&quot;\"") && svg.contains("&lt;loss&gt;"),
        "{svg}"
    );
    // The line is in two pieces, and never at a number that is none.
    assert!(!svg.contains("NaN"), "{svg}");
    // One point is a chart as well.
    let point: Series = [(7, 2.0)].into_iter().collect();
    assert!(Chart::new("one").line("a", point.clone()).to_svg().is_ok());
    assert!(Chart::new("one").logarithmic().line("a", point).to_svg().is_ok());
}

#[test]
fn what_is_no_record_is_not_replaced_by_one() {
    let file = scratch("own.txt");
    fs::write(&file, "what somebody wrote\nin two lines\n").unwrap();
    expect![[r#"
        /tmp/scratch/own.txt: line 1 is not an entry of a record: expected value at line 1 column 1
        help: give the path of a file that a `Recorder` wrote"#]]
    .assert_eq(&said(Recorder::create(&file)));
    assert!(fs::read_to_string(&file).unwrap().starts_with("what somebody wrote"));
    fs::write(&file, "").unwrap();
    Recorder::create(&file).unwrap().scalar(1, "loss", 1.0).unwrap();
    // Another run begins in its place.
    Recorder::create(&file).unwrap().scalar(1, "loss", 2.0).unwrap();
    assert_eq!(Record::read(&file).unwrap().scalar("loss").unwrap().points(), [(1, 2.0)]);
}
