//! Where the nodes of a graph are drawn: in layers from top to bottom.

/// A node with the nodes that it takes, all before it, and the width that it needs.
pub(super) struct Node {
    pub(super) takes: Vec<usize>,
    pub(super) width: f32,
}

/// Where the middle of a node is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Place {
    pub(super) x: f32,
    pub(super) y: f32,
}

const GAP: f32 = 24.0;
const LAYER: f32 = 84.0;
const MARGIN: f32 = 40.0;
/// Sweeps down and up, after which few lines cross.
const SWEEPS: usize = 4;

/// The places, and the width and height of the drawing.
pub(super) fn layered(nodes: &[Node]) -> (Vec<Place>, [f32; 2]) {
    let mut layer_of = vec![0_usize; nodes.len()];
    for (at, node) in nodes.iter().enumerate() {
        layer_of[at] = node.takes.iter().map(|&taken| layer_of[taken] + 1).max().unwrap_or(0);
    }
    let mut taken_by = vec![Vec::new(); nodes.len()];
    for (at, node) in nodes.iter().enumerate() {
        node.takes.iter().for_each(|&taken| taken_by[taken].push(at));
    }
    // What is taken late, such as the weight of a last layer, is drawn right above what takes it.
    for at in (0..nodes.len()).rev() {
        if let Some(first) = taken_by[at].iter().map(|&by| layer_of[by]).min() {
            layer_of[at] = first.saturating_sub(1);
        }
    }
    let mut layers: Vec<Vec<usize>> = vec![Vec::new(); layer_of.iter().max().map_or(0, |last| last + 1)];
    for (at, &layer) in layer_of.iter().enumerate() {
        layers[layer].push(at);
    }
    let mut x = vec![0.0; nodes.len()];
    let place = |layer: &[usize], x: &mut [f32]| {
        let total: f32 = layer.iter().map(|&at| nodes[at].width + GAP).sum();
        let mut left = -total / 2.0;
        for &at in layer {
            let room = nodes[at].width + GAP;
            x[at] = left + room / 2.0;
            left += room;
        }
    };
    for layer in &layers {
        place(layer, &mut x);
    }
    for sweep in 0..SWEEPS {
        let down = sweep % 2 == 0;
        let order: Vec<usize> = if down { (0..layers.len()).collect() } else { (0..layers.len()).rev().collect() };
        for layer in order {
            let beside = |at: usize| if down { &nodes[at].takes } else { &taken_by[at] };
            let middle = |at: usize, x: &[f32]| {
                let near = beside(at);
                if near.is_empty() { x[at] } else { near.iter().map(|&near| x[near]).sum::<f32>() / near.len() as f32 }
            };
            let middles: Vec<f32> = (0..nodes.len()).map(|at| middle(at, &x)).collect();
            layers[layer].sort_by(|&a, &b| middles[a].total_cmp(&middles[b]));
            place(&layers[layer], &mut x);
        }
    }
    let half = nodes.iter().zip(&x).map(|(node, x)| x.abs() + node.width / 2.0).fold(0.0, f32::max);
    let places =
        x.iter().zip(&layer_of).map(|(x, &layer)| Place { x: x + half + MARGIN, y: MARGIN + LAYER * layer as f32 });
    (places.collect(), [2.0 * (half + MARGIN), 2.0 * MARGIN + LAYER * layers.len().saturating_sub(1) as f32])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(takes: &[&[usize]]) -> Vec<Place> {
        let nodes: Vec<Node> = takes.iter().map(|takes| Node { takes: takes.to_vec(), width: 10.0 }).collect();
        layered(&nodes).0
    }

    #[test]
    fn what_takes_another_is_below_it() {
        let takes: [&[usize]; 5] = [&[], &[0], &[0], &[1, 2], &[3, 0]];
        let places = places(&takes);
        for (at, takes) in takes.iter().enumerate() {
            assert!(takes.iter().all(|&taken| places[taken].y < places[at].y), "{places:?}");
        }
        assert!(places[1].y.to_bits() == places[2].y.to_bits() && (places[1].x - places[2].x).abs() >= 10.0);
    }

    #[test]
    fn an_input_is_above_what_takes_it_first() {
        let places = places(&[&[], &[], &[0], &[2], &[3, 1]]);
        assert!(places[1].y.to_bits() == places[3].y.to_bits(), "{places:?}");
    }

    #[test]
    fn nothing_needs_no_room() {
        assert_eq!(layered(&[]).0, []);
    }
}
