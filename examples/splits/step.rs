//! A training step over a network.

use super::{Collective, Network};

/// What a step has to do: a stack of equal layers, and the tokens that go through it.
///
/// A token costs two operations for a parameter on the way forward and four on the way back, of which two are the gradient
/// of the parameter and are left out where it is not trained.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Step {
    /// How many layers.
    pub(crate) layers: usize,
    /// Parameters of a layer.
    pub(crate) parameters: f64,
    /// Bits of a stored parameter, with its share of the scales.
    pub(crate) bits: f64,
    /// Parameters of a layer that are trained; their gradients are what is summed.
    pub(crate) trained: f64,
    /// Elements of a token's activation between layers.
    pub(crate) width: f64,
    /// Tokens of a step, of all ranks together.
    pub(crate) tokens: f64,
    /// Bytes of an element of an activation or gradient.
    pub(crate) element: f64,
}

/// What each rank has of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Split {
    /// All parameters, and its part of the tokens: gradients are summed at the end of each layer's way back.
    Data,
    /// All tokens, and its part of each layer, whose halves each end in a sum of the activations, forward and back.
    Tensor,
    /// Its part of the tokens, and its part of each parameter: layers are gathered as they are stored, once for each way, and
    /// gradients are summed into parts.
    FullySharded,
    /// Its part of the tokens, and some of the experts that a layer is made of: tokens are gathered before them and their
    /// results summed into parts after them, on both ways. Each token meets this share of a layer's parameters.
    Experts {
        /// The share, such as 2 of 16.
        met: f64,
    },
}

/// What a step costs a rank.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Estimate {
    /// Seconds from its begin to its end.
    pub(crate) seconds: f64,
    /// The part of it that computes; the rest is waiting.
    pub(crate) computing: f64,
    /// Bytes that the rank gives to collectives, which is what `Group::traffic` counts.
    pub(crate) given: f64,
    /// Bytes that the engine sends from this rank for them.
    pub(crate) bytes: f64,
    /// Messages that have to wait for each other.
    pub(crate) messages: f64,
    /// Calls of collectives.
    pub(crate) collectives: usize,
}

impl Step {
    /// The cost of one step on so many equal ranks, each of which does `rate` operations in a second.
    ///
    /// Sending and computing go on at the same time, each in its own order, as on MLX's two streams: a collective begins when
    /// its array is there and the one before is done, and what needs its result waits for it.
    pub(crate) fn estimate(&self, split: Split, network: &Network, rate: f64, ranks: usize) -> Estimate {
        let n = ranks as f64;
        let met = if let Split::Experts { met } = split { met } else { 1.0 };
        let forward = 2.0 * self.parameters * met * self.tokens / n / rate;
        let back = forward + 2.0 * self.trained * met * self.tokens / n / rate;
        let activations = self.tokens * self.width * self.element;
        let stored = self.parameters * self.bits / 8.0;
        let gradients = self.trained * self.element;
        let mut lanes = Lanes { network, ranks, computed: 0.0, sent: 0.0, estimate: Estimate::default() };
        match split {
            Split::Data => {
                lanes.compute(forward * self.layers as f64);
                for _ in 0..self.layers {
                    lanes.compute(back);
                    lanes.send(Collective::AllSum, gradients);
                }
            }
            Split::Tensor => {
                for seconds in [forward, back] {
                    for _ in 0..2 * self.layers {
                        lanes.compute(seconds / 2.0);
                        let done = lanes.send(Collective::AllSum, activations);
                        lanes.wait(done);
                    }
                }
            }
            Split::FullySharded => {
                // Parts are there from the begin, so that gathering runs ahead.
                for seconds in [forward, back] {
                    let gathered: Vec<f64> =
                        (0..self.layers).map(|_| lanes.send_from(0.0, Collective::AllGather, stored)).collect();
                    for done in gathered {
                        lanes.wait(done);
                        lanes.compute(seconds);
                    }
                }
                // The gradients of all but the last layer have been on their way meanwhile.
                for left in (0..self.layers).rev() {
                    lanes.send_from(lanes.computed - back * left as f64, Collective::SumScatter, gradients);
                }
            }
            Split::Experts { .. } => {
                for seconds in [forward, back] {
                    for _ in 0..self.layers {
                        let done = lanes.send(Collective::AllGather, activations);
                        lanes.wait(done);
                        lanes.compute(seconds);
                        let done = lanes.send(Collective::SumScatter, activations);
                        lanes.wait(done);
                    }
                }
            }
        }
        lanes.estimate.seconds = lanes.computed.max(lanes.sent);
        lanes.estimate
    }
}

/// What computes, and what sends, each up to some time.
struct Lanes<'a> {
    network: &'a Network,
    ranks: usize,
    computed: f64,
    sent: f64,
    estimate: Estimate,
}

impl Lanes<'_> {
    fn compute(&mut self, seconds: f64) {
        self.computed += seconds;
        self.estimate.computing += seconds;
    }

    fn wait(&mut self, done: f64) {
        self.computed = self.computed.max(done);
    }

    /// Sends what has just been computed; the time when it is done.
    fn send(&mut self, collective: Collective, bytes: f64) -> f64 {
        self.send_from(self.computed, collective, bytes)
    }

    /// Sends what is there at a time; the time when it is done.
    fn send_from(&mut self, from: f64, collective: Collective, bytes: f64) -> f64 {
        let cost = self.network.cost(collective, bytes, self.ranks);
        self.sent = self.sent.max(from) + cost.seconds;
        let parts = if collective == Collective::AllGather { self.ranks } else { 1 };
        self.estimate.given += if self.ranks > 1 { bytes / parts as f64 } else { 0.0 };
        self.estimate.bytes += cost.bytes;
        self.estimate.messages += cost.messages;
        self.estimate.collectives += 1;
        self.sent
    }
}

#[cfg(test)]
mod tests {
    use super::super::Engine;
    use super::*;

    const STEP: Step =
        Step { layers: 4, parameters: 1e6, bits: 4.5, trained: 1e6, width: 1000.0, tokens: 1000.0, element: 4.0 };
    const SPLITS: [Split; 4] = [Split::Data, Split::Tensor, Split::FullySharded, Split::Experts { met: 0.25 }];

    #[test]
    fn one_rank_computes_and_sends_nothing() {
        let network = Network { engine: Engine::Ring, latency: 1.0, bandwidth: 1.0 };
        for split in SPLITS {
            let estimate = STEP.estimate(split, &network, 1e9, 1);
            let whole = if matches!(split, Split::Experts { .. }) { 6.0 } else { 24.0 };
            assert!((estimate.seconds - whole).abs() < 1e-9 && estimate.bytes == 0.0, "{split:?} {estimate:?}");
        }
    }

    #[test]
    fn bytes_are_those_of_the_formulas() {
        let network = Network { engine: Engine::Ring, latency: 0.0, bandwidth: 1e9 };
        let sent = |split| STEP.estimate(split, &network, 1e9, 4).bytes / STEP.layers as f64;
        assert!((sent(Split::Data) - 1.5 * 4e6).abs() < 1.0);
        assert!((sent(Split::Tensor) - 4.0 * 1.5 * 4e6).abs() < 1.0);
        assert!((sent(Split::FullySharded) - (2.0 * 0.75 * 562_500.0 + 1.5 * 4e6)).abs() < 1.0);
        let given = STEP.estimate(Split::FullySharded, &network, 1e9, 4).given / STEP.layers as f64;
        assert!((given - (2.0 * 562_500.0 / 4.0 + 4e6)).abs() < 1.0, "{given}");
        assert!((sent(Split::Experts { met: 0.25 }) - 2.0 * (0.75 + 1.5) * 4e6).abs() < 1.0);
    }

    #[test]
    fn what_can_be_sent_while_computing_is() {
        let quick = Network { engine: Engine::Ring, latency: 0.0, bandwidth: 1e9 };
        // A layer's sum takes 6 ms and its way back 1 s: only the last sum is waited for.
        let data = STEP.estimate(Split::Data, &quick, 1e9, 4);
        assert!((data.seconds - data.computing - 6e-3).abs() < 1e-9, "{data:?}");
        // Every sum of activations is waited for.
        let tensor = STEP.estimate(Split::Tensor, &quick, 1e9, 4);
        assert!((tensor.seconds - tensor.computing - 16.0 * 6e-3).abs() < 1e-9, "{tensor:?}");
        // The first gather is, and the last sum.
        let sharded = STEP.estimate(Split::FullySharded, &quick, 1e9, 4);
        assert!((sharded.seconds - sharded.computing - 6e-3 - 0.75 * 562_500e-9).abs() < 1e-9, "{sharded:?}");
        // On a slow network nothing is hidden but the computing.
        let slow = Network { bandwidth: 1e3, ..quick };
        for split in SPLITS {
            let estimate = STEP.estimate(split, &slow, 1e12, 4);
            assert!((estimate.seconds * 1e3 / estimate.bytes - 1.0).abs() < 1e-3, "{split:?} {estimate:?}");
        }
    }
}
