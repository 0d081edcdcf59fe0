//! Neural networks: fast ops, activations, pooling and losses.

use mlx_rs::{
    builder::Builder,
    error::Exception,
    fast::{self, ScaledDotProductAttentionMask},
    losses::{
        BinaryCrossEntropy, BinaryCrossEntropyBuilder, CosineSimilarityLoss, CrossEntropy, CrossEntropyBuilder,
        GaussianNllLoss, HingeLoss, HuberLoss, KlDivLoss, L1Loss, LogCoshLoss, MarginRankingLoss, MseLoss, NllLoss,
        SmoothL1Loss, TripletLoss,
    },
    module::Module,
    nn, ops,
};

family! {
    "fast::layer_norm" [0, 1, 2] (x: signed[3, 8], weight: positive[8], bias: signed[8]) =>
        fast::layer_norm(x, weight, bias, 1e-5);
    "fast::layer_norm[plain]" [0] (x: signed[3, 8]) => fast::layer_norm(x, None, None, 1e-5);
    "fast::rms_norm" [0, 1] (x: signed[3, 8], weight: positive[8]) => fast::rms_norm(x, Some(weight), 1e-5);
    "fast::rope" [0] (x: signed[1, 2, 3, 8]) => fast::rope(x, 8, false, 10_000.0, 1.0, 3, None);
    "fast::rope[freqs]" [0, 1] (x: signed[1, 2, 3, 8], freqs: above_one[4]) => fast::rope(x, 8, true, None, 1.0, 0, freqs);
    "fast::rope_dynamic" [0] (x: signed[1, 2, 3, 8], offset: list[5]) =>
        fast::rope_dynamic(x, 8, false, 10_000.0, 1.0, offset, None);
    "fast::scaled_dot_product_attention" [0, 1, 2] (q: signed[1, 2, 3, 4], k: signed[1, 2, 3, 4], v: signed[1, 2, 3, 4]) =>
        fast::scaled_dot_product_attention(q, k, v, (q.dim(-1) as f32).sqrt().recip(), None, None);
    "fast::scaled_dot_product_attention[causal]" [0, 1, 2] (
        q: signed[1, 4, 3, 4], k: signed[1, 2, 3, 4], v: signed[1, 2, 3, 4]
    ) => fast::scaled_dot_product_attention(q, k, v, (q.dim(-1) as f32).sqrt().recip(), ScaledDotProductAttentionMask::Causal, None);
    "fast::scaled_dot_product_attention[mask]" [0, 1, 2] (
        q: signed[1, 2, 3, 4], k: signed[1, 2, 3, 4], v: signed[1, 2, 3, 4], mask: signed[3, 3]
    ) => fast::scaled_dot_product_attention(q, k, v, (q.dim(-1) as f32).sqrt().recip(), mask, None);
    "fast::scaled_dot_product_attention[packed mask]" [3] (
        q: signed[1, 2, 3, 4], k: signed[1, 2, 3, 4], v: signed[1, 2, 3, 4], mask: signed[3, 3]
    ) => fast::scaled_dot_product_attention(q, k, v, (q.dim(-1) as f32).sqrt().recip(), mask, None);

    "softmax" [0] (x: signed[3, 4]) => ops::softmax(x, None);
    "softmax_axis" [0] (x: signed[3, 4]) => ops::softmax_axis(x, -1, true);
    "softmax_axes" [0] (x: signed[2, 3, 4]) => ops::softmax_axes(x, &[0, 2], None);
    "nn::celu" [0] (x: signed[3, 4]) => nn::celu(x, 1.5);
    "nn::elu" [0] (x: signed[3, 4]) => nn::elu(x, None);
    "nn::gelu" [0] (x: wide[3, 4]) => nn::gelu(x);
    "nn::gelu_approximate" [0] (x: wide[3, 4]) => nn::gelu_approximate(x);
    "nn::gelu_fast_approximate" [0] (x: wide[3, 4]) => nn::gelu_fast_approximate(x);
    "nn::glu" [0] (x: signed[3, 4]) => nn::glu(x, -1);
    "nn::hard_swish" [0] (x: wide[3, 4]) => nn::hard_swish(x);
    "nn::leaky_relu" [0] (x: signed[3, 4]) => nn::leaky_relu(x, 0.2);
    "nn::log_sigmoid" [0] (x: wide[3, 4]) => nn::log_sigmoid(x);
    "nn::log_softmax" [0] (x: signed[3, 4]) => nn::log_softmax(x, None);
    "nn::mish" [0] (x: wide[3, 4]) => nn::mish(x);
    "nn::prelu" [0, 1] (x: signed[3, 4], alpha: positive[4]) => nn::prelu(x, alpha);
    "nn::relu" [0] (x: signed[3, 4]) => nn::relu(x);
    "nn::relu6" [0] (x: wide[3, 4]) => nn::relu6(x);
    "nn::selu" [0] (x: signed[3, 4]) => nn::selu(x);
    "nn::silu" [0] (x: wide[3, 4]) => nn::silu(x);
    "nn::softplus" [0] (x: signed[3, 4]) => nn::softplus(x);
    "nn::softsign" [0] (x: signed[3, 4]) => nn::softsign(x);
    "nn::step" [] (x: signed[3, 4]) => nn::step(x, 0.25);

    "nn::AvgPool1d" [0] (x: signed[1, 6, 2]) => nn::AvgPool1d::new(2, 2).forward(x);
    "nn::AvgPool2d" [0] (x: signed[1, 4, 4, 2]) => nn::AvgPool2d::new(2, 2).forward(x);
    "nn::MaxPool1d" [0] (x: signed[1, 6, 2]) => nn::MaxPool1d::new(2, 2).forward(x);
    "nn::MaxPool2d" [0] (x: signed[1, 5, 5, 1]) => nn::MaxPool2d::new(3, 1).forward(x);
    "nn::Upsample" [0] (x: signed[1, 2, 3, 2]) => nn::Upsample::new(2.0, nn::UpsampleMode::Nearest).forward(x);
    "nn::Upsample[linear]" [0] (x: signed[1, 3, 3, 1]) =>
        nn::Upsample::new(2.0, nn::UpsampleMode::Linear { align_corners: true }).forward(x);

    "losses::BinaryCrossEntropy" [0, 1] (logits: signed[3, 4], targets: positive[3, 4]) =>
        BinaryCrossEntropy::new().apply(logits, targets);
    "losses::BinaryCrossEntropy[probabilities]" [0, 1] (p: positive[3, 4], targets: positive[3, 4]) =>
        built(BinaryCrossEntropyBuilder::new().inputs_are_logits(false).build())?.apply(p, targets);
    "losses::CosineSimilarityLoss" [0, 1] (x: signed[3, 4], y: signed[3, 4]) => CosineSimilarityLoss::new().apply(x, y);
    "losses::CrossEntropy" [0] (logits: signed[3, 5], targets: list[4, 0, 2]) =>
        built(CrossEntropy::new())?.apply(logits, targets);
    "losses::CrossEntropy[smoothed]" [0] (logits: signed[3, 5], targets: list[4, 0, 2]) =>
        built(CrossEntropyBuilder::new().label_smoothing(0.1).build())?.apply(logits, targets);
    "losses::GaussianNllLoss" [0, 1, 2] (x: signed[3, 4], targets: signed[3, 4], vars: positive[3, 4]) =>
        GaussianNllLoss::new().apply(x, targets, vars);
    "losses::HingeLoss" [0, 1] (x: signed[3, 4], targets: signed[3, 4]) => HingeLoss::new().apply(x, targets);
    "losses::HuberLoss" [0, 1] (x: wide[3, 4], targets: signed[3, 4]) => HuberLoss::new().apply(x, targets);
    "losses::KlDivLoss" [0, 1] (x: signed[3, 4], targets: signed[3, 4]) => KlDivLoss::new().apply(x, targets);
    "losses::L1Loss" [0, 1] (x: signed[3, 4], targets: signed[3, 4]) => L1Loss::new().apply(x, targets);
    "losses::LogCoshLoss" [0, 1] (x: signed[3, 4], targets: signed[3, 4]) => LogCoshLoss::new().apply(x, targets);
    "losses::MarginRankingLoss" [0, 1, 2] (x: signed[3, 4], y: signed[3, 4], targets: signed[3, 4]) =>
        MarginRankingLoss::new().apply(x, y, targets);
    "losses::MseLoss" [0, 1] (x: signed[3, 4], targets: signed[3, 4]) => MseLoss::new().apply(x, targets);
    "losses::NllLoss" [0] (x: signed[3, 5], targets: list[4, 0, 2]) => NllLoss::new().apply(x, targets);
    "losses::SmoothL1Loss" [0, 1] (x: wide[3, 4], targets: signed[3, 4]) => SmoothL1Loss::new().apply(x, targets);
    "losses::TripletLoss" [0, 1, 2] (anchors: signed[3, 4], positives: signed[3, 4], negatives: signed[3, 4]) =>
        TripletLoss::new().apply(anchors, positives, negatives);
}

fn built<T>(loss: Result<T, impl std::error::Error>) -> Result<T, Exception> {
    loss.map_err(|error| Exception::custom(error.to_string()))
}
