//! Chooses one option for each of several things, at the least cost within a budget of bytes.
//!
//! It is the multiple-choice knapsack problem (Sinha and Zoltners, 1979). Along the convex hull of cost over bytes of each
//! thing the steepest step is the best there is, but for the last one, which may not fit: until then the choice is that of the
//! linear relaxation, whose cost bounds that of every choice from below.

/// What a thing may become.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Choice {
    pub(super) bytes: u64,
    /// Not below zero.
    pub(super) cost: f64,
}

/// The places of what was chosen of each thing.
#[derive(Debug)]
pub(super) struct Chosen {
    pub(super) places: Vec<usize>,
    /// What no choice can cost less than.
    pub(super) bound: f64,
}

/// Exchanges after which it is enough; each lowers the cost.
const EXCHANGES: usize = 1000;

/// A choice of small cost whose bytes are not above `allowed`; nothing where there is none.
pub(super) fn choose(things: &[&[Choice]], allowed: u64) -> Option<Chosen> {
    let fronts: Vec<Vec<usize>> = things.iter().map(|choices| front(choices)).collect();
    let hulls: Vec<Vec<usize>> = fronts.iter().zip(things).map(|(front, choices)| hull(front, choices)).collect();
    let mut places: Vec<usize> = fronts.iter().map(|front| front.first().copied()).collect::<Option<_>>()?;
    let bytes = |places: &[usize]| -> u64 { things.iter().zip(places).map(|(of, &place)| of[place].bytes).sum() };
    let mut spare = allowed.checked_sub(bytes(&places))?;

    let mut steps: Vec<(f64, usize, usize)> = Vec::new();
    for (thing, hull) in hulls.iter().enumerate() {
        for (step, pair) in hull.windows(2).enumerate() {
            let [from, to] = [things[thing][pair[0]], things[thing][pair[1]]];
            steps.push(((from.cost - to.cost) / (to.bytes - from.bytes) as f64, thing, step));
        }
    }
    // Those of one thing are steeper first; of the same slope they stay in their order.
    steps.sort_by(|a, b| b.0.total_cmp(&a.0));
    let mut bound = things.iter().zip(&places).map(|(of, &place)| of[place].cost).sum::<f64>();
    let (mut relaxed, mut stopped) = (true, vec![false; things.len()]);
    for (slope, thing, step) in steps {
        let [from, to] = [hulls[thing][step], hulls[thing][step + 1]].map(|place| things[thing][place]);
        let more = to.bytes - from.bytes;
        if relaxed {
            // The relaxation takes a part of the first step that does not fit, and nothing after it.
            bound -= slope * more.min(spare) as f64;
            relaxed = more <= spare;
        }
        if more <= spare && !stopped[thing] {
            places[thing] = hulls[thing][step + 1];
            spare -= more;
        } else {
            stopped[thing] = true;
        }
    }
    for _ in 0..EXCHANGES {
        let Some(changes) = exchange(things, &fronts, &places, spare) else { break };
        for (thing, place) in changes {
            spare = spare + things[thing][places[thing]].bytes - things[thing][place].bytes;
            places[thing] = place;
        }
    }
    Some(Chosen { places, bound: bound.max(0.0) })
}

/// The change of one thing, or of two, that fits and lowers the cost most.
fn exchange(things: &[&[Choice]], fronts: &[Vec<usize>], places: &[usize], left: u64) -> Option<Vec<(usize, usize)>> {
    // What each change takes more and gains.
    let (mut up, mut down) = (Vec::new(), Vec::new());
    for (thing, front) in fronts.iter().enumerate() {
        let now = things[thing][places[thing]];
        for &place in front {
            let to = things[thing][place];
            if to.bytes > now.bytes {
                up.push((to.bytes - now.bytes, now.cost - to.cost, thing, place));
            } else if to.bytes < now.bytes {
                down.push(Down { less: now.bytes - to.bytes, loss: to.cost - now.cost, thing, place });
            }
        }
    }
    let givers = Givers::new(down);
    let mut best: Option<(f64, Vec<(usize, usize)>)> = None;
    let mut offer = |gain: f64, changes: &dyn Fn() -> Vec<(usize, usize)>| {
        if gain > best.as_ref().map_or(0.0, |(most, _)| *most) {
            best = Some((gain, changes()));
        }
    };
    for &(more, gain, thing, place) in &up {
        if more <= left {
            offer(gain, &|| vec![(thing, place)]);
        } else if let Some(other) = givers.least_loss(more - left, thing) {
            // What gives bytes first, so that they are there.
            offer(gain - other.loss, &|| vec![(other.thing, other.place), (thing, place)]);
        }
    }
    best.map(|(_, changes)| changes)
}

/// A change that takes fewer bytes.
#[derive(Clone, Copy, Debug)]
struct Down {
    less: u64,
    loss: f64,
    thing: usize,
    place: usize,
}

/// Changes that take fewer bytes, looked up by what they give: with thousands of things there are too many pairs to go through.
struct Givers {
    /// The bytes that each gives, fewer first.
    less: Vec<u64>,
    /// The one of the least loss from each on, and of those of other things than its.
    least: Vec<(Down, Option<Down>)>,
}

impl Givers {
    fn new(mut down: Vec<Down>) -> Self {
        let before = |a: &Down, b: &Down| a.loss.total_cmp(&b.loss).then(a.thing.cmp(&b.thing)).is_lt();
        down.sort_by_key(|down| down.less);
        let mut least: Vec<(Down, Option<Down>)> = Vec::with_capacity(down.len());
        for &down in down.iter().rev() {
            least.push(match least.last() {
                None => (down, None),
                Some(&(first, second)) if before(&down, &first) => {
                    (down, if first.thing == down.thing { second } else { Some(first) })
                }
                Some(&(first, second)) => {
                    let other = first.thing != down.thing && second.is_none_or(|second| before(&down, &second));
                    (first, if other { Some(down) } else { second })
                }
            });
        }
        least.reverse();
        Self { less: down.iter().map(|down| down.less).collect(), least }
    }

    /// The change of the least loss that gives at least so many bytes, of another thing than this one.
    fn least_loss(&self, bytes: u64, thing: usize) -> Option<Down> {
        let &(first, second) = self.least.get(self.less.partition_point(|&less| less < bytes))?;
        if first.thing == thing { second } else { Some(first) }
    }
}

/// The places of the choices that cost less than all of as few bytes, by their bytes.
fn front(choices: &[Choice]) -> Vec<usize> {
    let mut places: Vec<usize> = (0..choices.len()).collect();
    places.sort_by(|&a, &b| choices[a].bytes.cmp(&choices[b].bytes).then(choices[a].cost.total_cmp(&choices[b].cost)));
    let mut least = f64::INFINITY;
    places.retain(|&place| {
        let better = choices[place].cost < least;
        least = least.min(choices[place].cost);
        better
    });
    places
}

/// The choices of a front from which the slopes to the next are ever less steep.
fn hull(front: &[usize], choices: &[Choice]) -> Vec<usize> {
    let slope = |from: usize, to: usize| {
        (choices[from].cost - choices[to].cost) / (choices[to].bytes - choices[from].bytes) as f64
    };
    let mut hull: Vec<usize> = Vec::new();
    for &place in front {
        while let [.., before, last] = hull[..]
            && slope(before, last) <= slope(last, place)
        {
            hull.pop();
        }
        hull.push(place);
    }
    hull
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// Numbers that look drawn: a linear congruential generator, whose high bits are used.
    struct Drawn(Cell<u64>);

    impl Drawn {
        fn below(&self, end: u64) -> u64 {
            self.0.set(self.0.get().wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407));
            (self.0.get() >> 33) % end
        }
    }

    /// The least cost of all choices that fit.
    fn least(things: &[&[Choice]], allowed: u64) -> Option<f64> {
        let Some((first, rest)) = things.split_first() else { return Some(0.0) };
        let costs =
            first.iter().filter_map(|choice| Some(choice.cost + least(rest, allowed.checked_sub(choice.bytes)?)?));
        costs.reduce(f64::min)
    }

    #[test]
    fn small_cases_are_near_the_best_of_all_and_above_their_bound() {
        let (drawn, mut exact, mut solved, mut ratios) = (Drawn(Cell::new(1)), 0, 0, 0.0);
        for case in 0..400 {
            let things: Vec<Vec<Choice>> = (0..=case % 5)
                .map(|_| {
                    let size = 1 + drawn.below(50);
                    let scale = 1 + drawn.below(100);
                    // Errors fall by bits as those of formats do, with some that are dominated.
                    let choice = |bits: u64| Choice {
                        bytes: size * bits,
                        cost: (size * scale) as f64
                            * 0.25_f64.powi(bits as i32)
                            * (1.0 + drawn.below(100) as f64 / 50.0),
                    };
                    (0..=drawn.below(6)).map(|_| drawn.below(9)).map(choice).collect()
                })
                .collect();
            let things: Vec<&[Choice]> = things.iter().map(Vec::as_slice).collect();
            let allowed = drawn.below(600);
            let (Some(least), chosen) = (least(&things, allowed), choose(&things, allowed)) else {
                assert!(choose(&things, allowed).is_none());
                continue;
            };
            let chosen = chosen.expect("there is a choice");
            let of = |number: fn(&Choice) -> f64| -> f64 {
                things.iter().zip(&chosen.places).map(|(of, &place)| number(&of[place])).sum()
            };
            let cost = of(|choice| choice.cost);
            assert!(of(|choice| choice.bytes as f64) <= allowed as f64);
            assert!(chosen.bound <= least * (1.0 + 1e-9) + 1e-12, "{} is no bound of {least}", chosen.bound);
            assert!(cost >= least * (1.0 - 1e-9), "{cost} is below the least, {least}");
            solved += 1;
            exact += u32::from(cost <= least * (1.0 + 1e-9));
            ratios += (cost + 1e-9) / (least + 1e-9);
        }
        assert!(solved > 200, "{solved} of 400 can be solved");
        assert!(f64::from(exact) > 0.95 * f64::from(solved), "{exact} of {solved} are the best of all");
        assert!(ratios < 1.01 * f64::from(solved), "{} on the mean", ratios / f64::from(solved));
    }

    #[test]
    fn what_gives_bytes_is_found_as_by_going_through_all() {
        let drawn = Drawn(Cell::new(2));
        for count in 0..40 {
            let down = |_| Down {
                less: 1 + drawn.below(12),
                loss: drawn.below(8) as f64,
                thing: drawn.below(5) as usize,
                place: drawn.below(1000) as usize,
            };
            let down: Vec<Down> = (0..count).map(down).collect();
            let givers = Givers::new(down.clone());
            for (bytes, thing) in (0..14).flat_map(|bytes| (0..6).map(move |thing| (bytes, thing))) {
                let fit = down.iter().filter(|down| down.less >= bytes && down.thing != thing);
                let least = fit.map(|down| down.loss).reduce(f64::min);
                let found = givers.least_loss(bytes, thing);
                assert_eq!(found.map(|down| down.loss), least);
                assert!(found.is_none_or(|down| down.less >= bytes && down.thing != thing));
            }
        }
    }

    #[test]
    fn nothing_fits_and_everything_fits() {
        let of = |bytes, cost| Choice { bytes, cost };
        let thing: &[Choice] = &[of(4, 1.0), of(8, 0.0), of(8, 2.0), of(6, 5.0)];
        assert!(choose(&[thing, thing], 7).is_none());
        assert!(choose(&[thing, &[]], 100).is_none());
        let all = choose(&[thing, thing], 100).expect("everything fits");
        assert_eq!((all.places, all.bound), (vec![1, 1], 0.0));
        let half = choose(&[thing, thing], 13).expect("one fits");
        assert!((half.bound - 0.75).abs() < 1e-12);
        assert_eq!(half.places.iter().filter(|&&place| place == 1).count(), 1);
        assert!(choose(&[], 0).expect("nothing is to be chosen").places.is_empty());
    }
}
