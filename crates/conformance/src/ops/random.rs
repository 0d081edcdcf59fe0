//! Random draws, each with its key as an operand so that no global state takes part.

use mlx_rs::random;

family! {
    "random::bernoulli" [] (p: positive[3, 4], key: key[1]) => random::bernoulli(p, &[3, 4], key);
    "random::categorical" [] (logits: signed[3, 4], key: key[2]) => random::categorical(logits, -1, None, key);
    "random::gumbel" [] (key: key[3]) => random::gumbel::<f32>(&[3, 4], key);
    "random::multivariate_normal" [0] (mean: signed[3], covariance: spd[3], key: key[4]) =>
        random::multivariate_normal::<f32>(mean, covariance, &[2], key);
    "random::normal" [] (key: key[5]) => random::normal::<f32>(&[3, 4], 0.5, 2.0, key);
    "random::randint" [] (low: list[0, 5, 10], high: list[5, 10, 20], key: key[6]) =>
        random::randint::<_, i32>(low.clone(), high.clone(), &[4, 3], key);
    "random::split" [] (key: key[7]) => random::split(key, 2);
    "random::truncated_normal" [0, 1] (low: signed[4], high: above_one[4], key: key[8]) =>
        random::truncated_normal::<_, f32>(low.clone(), high.clone(), &[3, 4], key);
    "random::uniform" [0, 1] (low: signed[4], high: above_one[4], key: key[9]) =>
        random::uniform::<_, f32>(low.clone(), high.clone(), &[3, 4], key);
}
