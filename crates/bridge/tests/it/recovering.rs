//! Errors that cross MLX as text and come back as themselves.

use std::thread;

use tacit_bridge::{BoxError, recover, remember};

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
fn an_error_is_found_once_by_any_message_that_holds_its_text() {
    keep("recovering: first");
    assert_eq!(own(recover("[grad] recovering: first, said MLX")), Some("recovering: first".to_owned()));
    assert!(recover("[grad] recovering: first, said MLX").is_none());
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
    thread::spawn(|| keep("recovering: from a thread")).join().expect("it does not panic");
    assert!(recover("recovering: from a thread").is_some());
}
