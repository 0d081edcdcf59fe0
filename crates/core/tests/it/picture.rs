//! The drawing of a trace.

use expect_test::expect;
use mlx_rs::{Array, ops};
use tacit_conformance::opaque::Opaque;
use tacit_core::{Explanation, Policy, Value, explain};

fn three_layers() -> Explanation {
    let _allow = Policy::Allow.scope();
    let x = ops::ones::<f32>(&[2, 4]).expect("ones");
    let w = Value::from(Opaque::new(ops::ones::<f32>(&[4, 4]).expect("ones")));
    explain((x, w), |(x, w)| {
        let mut x: Array = x;
        for _ in 0..5 {
            x = x.matmul(w.t())?.exp()?.add(&x)?.abs()?.negative()?;
        }
        x.sum(None)
    })
    .expect("explains")
}

/// How often a text is in another.
fn count(text: &str, part: &str) -> usize {
    text.matches(part).count()
}

#[test]
fn layers_are_drawn_once() {
    let (explanation, svg) = (three_layers(), three_layers().to_svg());
    assert!(explanation.equations.len() > 25);
    assert_eq!(count(&svg, "&#215; "), 1, "{svg}");
    assert!(count(&svg, "class=\"box\"") < 16, "{svg}");
    assert_eq!(count(&svg, "class=\"output\""), 1);
    assert_eq!(count(&svg, "<g"), count(&svg, "</g>"));
    // A weight that a handler does not take is red where it is built.
    assert!(svg.contains("class=\"materialized\""), "{svg}");
}

#[test]
fn the_page_lists_every_node() {
    let explanation = three_layers();
    let page = explanation.to_html();
    assert_eq!(count(&page, "<tr id="), explanation.equations.len());
    assert!(count(&page, "<a href=\"#") < explanation.equations.len());
    expect!["<p>32 ops, 0 handled, 1 materialized (64 B)</p>"].assert_eq(page.lines().nth(2).unwrap_or_default());
}

#[test]
fn nothing_is_a_drawing_too() {
    let told = explain(Array::from_f32(1.0), Ok::<_, tacit_core::Error>).expect("explains");
    let svg = told.to_svg();
    assert_eq!((count(&svg, "class=\"input\""), count(&svg, "class=\"output\"")), (1, 1), "{svg}");
}
