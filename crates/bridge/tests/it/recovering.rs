//! Errors that cross MLX as text and come back as themselves.

use std::sync::Barrier;
use std::thread;

use tacit_bridge::{BoxError, recover, remember};

use crate::{itself, turns};

#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Own(String);

fn keep(text: &str) {
    remember(Box::new(Own(text.to_owned())));
}

fn own(error: Option<BoxError>) -> Option<String> {
    error?.downcast::<Own>().ok().map(|own| own.0)
}

#[test]
fn an_error_is_found_once_by_its_text_and_the_place_that_is_added_to_it() {
    keep("recovering: first");
    assert_eq!(own(recover("recovering: first at mlx/c/closure.cpp:386")), Some("recovering: first".to_owned()));
    assert!(recover("recovering: first at mlx/c/closure.cpp:386").is_none());
}

#[test]
fn a_message_that_only_contains_the_text_is_another_error() {
    keep("rec");
    assert!(recover("recovering: shapes cannot be multiplied").is_none());
    assert!(recover("a rec").is_none());
    assert!(recover("rec").is_some());
}

#[test]
fn the_longest_text_that_fits_is_taken() {
    keep("recovering: long");
    keep("recovering: long at heart");
    assert_eq!(own(recover("recovering: long at heart at x.cpp:1")), Some("recovering: long at heart".to_owned()));
    assert_eq!(own(recover("recovering: long at x.cpp:1")), Some("recovering: long".to_owned()));
}

#[test]
fn the_latest_of_equal_texts_is_taken_and_others_stay() {
    keep("recovering: equal");
    keep("recovering: another");
    keep("recovering: equal");
    assert!(recover("recovering: equal").is_some() && recover("recovering: equal").is_some());
    assert!(recover("recovering: equal").is_none());
    assert!(recover("recovering: another").is_some());
}

#[test]
fn an_error_without_a_text_matches_nothing() {
    keep("");
    assert!(recover("recovering: anything").is_none());
}

#[test]
fn it_crosses_threads() {
    let _turn = turns::of_errors();
    thread::spawn(|| keep("recovering: from a thread")).join().expect("it does not panic");
    assert!(recover("recovering: from a thread").is_some());
}

#[test]
fn of_errors_with_one_text_each_thread_gets_its_own() {
    #[derive(Debug, thiserror::Error)]
    #[error("recovering: of two threads")]
    struct Of(u8);

    let both = Barrier::new(2);
    let each = |thread: u8| {
        remember(Box::new(Of(thread)));
        both.wait();
        let found = recover("recovering: of two threads at x.cpp:1").expect("it was kept");
        assert_eq!(found.downcast_ref::<Of>().expect("it is one of them").0, thread);
    };
    thread::scope(|scope| {
        scope.spawn(|| each(0));
        scope.spawn(|| each(1));
    });
}

#[test]
fn an_error_that_is_dropped_may_have_errors_of_its_own() {
    #[derive(Debug, thiserror::Error)]
    #[error("recovering: raises another")]
    struct Raises;

    impl Drop for Raises {
        fn drop(&mut self) {
            keep("recovering: raised while dropped");
            let _ = recover("recovering: nothing of this text");
        }
    }

    // In a process of its own: so many errors would have those of other tests forgotten.
    if std::env::var_os("TACIT_TEST_RAISES").is_none() {
        let name = "recovering::an_error_that_is_dropped_may_have_errors_of_its_own";
        let output = itself::command().args(["--exact", name]).env("TACIT_TEST_RAISES", "1").output().expect("starts");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("1 passed"), "{text}");
        return;
    }
    let (sender, receiver) = std::sync::mpsc::channel();
    thread::spawn(move || {
        remember(Box::new(Raises));
        // It is the oldest of all in the end.
        (0..40).for_each(|i| keep(&format!("recovering: later {i}")));
        sender.send(()).expect("somebody waits");
    });
    receiver.recv_timeout(std::time::Duration::from_mins(1)).expect("nothing is held while an error is dropped");
}
