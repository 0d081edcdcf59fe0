//! Which of a draft's tokens stay (Leviathan et al. 2023, [arXiv:2211.17192](https://arxiv.org/abs/2211.17192)).

use mlx_rs::{Array, Dtype, ops, random};
use tacit_core::Result;

/// How drafted tokens are judged by the probabilities of the model.
///
/// With `p` the model's probabilities and `q` the draft's, a drafted token `d` stays with probability `min(1, p(d) / q(d))`. In
/// place of the first that does not comes a draw from `max(p - q, 0)`, normalized, and after the last, if all stay, one from `p`: what
/// results is distributed as draws from `p` alone.
pub(super) struct Verdict {
    /// The probability that each drafted token stays if those before it do: `f32[drafted]`.
    pub(super) stays: Array,
    /// The probabilities of what comes in place of each, and after the last: `f32[drafted + 1, vocabulary]`.
    pub(super) instead: Array,
}

impl Verdict {
    /// Judges `drafted: u32[n]` by `p: f32[n + 1, vocabulary]` and `q: f32[n, vocabulary]`.
    pub(super) fn new(drafted: &Array, p: &Array, q: &Array) -> Result<Self> {
        let zero = Array::from_f32(0.0);
        let count = q.dim(0);
        let before = p.take_axis(ops::arange::<_, i32>(0, count, None)?, 0)?;
        let at = drafted.expand_dims(-1)?;
        let (ours, theirs) = (before.take_along_axis(&at, -1)?, q.take_along_axis(&at, -1)?);
        let stays = ops::minimum(ours.divide(&theirs)?, Array::from_f32(1.0))?.squeeze_axes(&[-1])?;
        // After all drafted tokens nothing was proposed.
        let proposed = ops::concatenate(&[q, &ops::zeros::<f32>(&[1, q.dim(1)])?], 0)?;
        let more = ops::maximum(p.subtract(proposed)?, &zero)?;
        let total = more.sum_axis(-1, true)?;
        // Equal distributions refuse nothing, but by rounding.
        let instead = ops::select(total.gt(&zero)?, more.divide(&total)?, p)?;
        Ok(Self { stays, instead })
    }

    /// Draws how many stay, `u32[1]`, and the token that follows, `u32[1]`.
    pub(super) fn draw(&self, key: &Array) -> Result<(Array, Array)> {
        let (first, second) = random::split(key, 2)?;
        let drawn = random::uniform::<_, f32>(0.0, 1.0, self.stays.shape(), &first)?;
        let count = leading(&drawn.lt(&self.stays)?)?;
        let chosen = self.instead.take_axis(&count, 0)?;
        Ok((count, random::categorical(chosen.log()?, -1, None, &second)?))
    }
}

/// How many of `bool[n]` are true before the first that is not: `u32[1]`.
pub(super) fn leading(flags: &Array) -> Result<Array> {
    let flags = flags.as_dtype(Dtype::Uint32)?;
    Ok(flags.cumprod(0, None, None)?.sum_axis(0, true)?.as_dtype(Dtype::Uint32)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(rows: i32, width: i32, seed: u64, sharp: f32) -> Result<Array> {
        let logits = random::normal::<f32>(&[rows, width], None, None, &random::key(seed)?)?;
        Ok(ops::softmax_axis(logits.multiply(Array::from_f32(sharp))?, -1, None)?)
    }

    /// The exact law of the tokens that a round gives, over all drafts and outcomes, compared with draws from the model alone.
    fn check(p: &dyn Fn(&[u32]) -> Vec<f32>, q: &dyn Fn(&[u32]) -> Vec<f32>, width: u32) -> Result<()> {
        let words: Vec<u32> = (0..width).collect();
        // The probability that a round begins with one token, and with two given that it gives two.
        let mut first = vec![0f64; width as usize];
        let mut pairs = vec![0f64; (width * width) as usize];
        let mut given_two = vec![0f64; width as usize];
        for &a in &words {
            for &b in &words {
                let draft_probability = f64::from(q(&[])[a as usize]) * f64::from(q(&[a])[b as usize]);
                if draft_probability == 0.0 {
                    continue;
                }
                let ours: Vec<f32> = [p(&[]), p(&[a]), p(&[a, b])].concat();
                let theirs: Vec<f32> = [q(&[]), q(&[a])].concat();
                let verdict = Verdict::new(
                    &Array::from_slice(&[a, b], &[2]),
                    &Array::from_slice(&ours, &[3, width as i32]),
                    &Array::from_slice(&theirs, &[2, width as i32]),
                )?;
                let stays: Vec<f64> = verdict.stays.as_slice::<f32>().iter().map(|&p| f64::from(p)).collect();
                let instead: Vec<f64> = verdict.instead.as_slice::<f32>().iter().map(|&p| f64::from(p)).collect();
                let row = |row: u32| &instead[(row * width) as usize..((row + 1) * width) as usize];
                for &other in &words {
                    first[other as usize] += draft_probability * (1.0 - stays[0]) * row(0)[other as usize];
                    let second = draft_probability * stays[0] * (1.0 - stays[1]) * row(1)[other as usize];
                    pairs[(a * width + other) as usize] += second;
                }
                first[a as usize] += draft_probability * stays[0];
                given_two[a as usize] += draft_probability * stays[0];
                pairs[(a * width + b) as usize] += draft_probability * stays[0] * stays[1];
            }
        }
        for &a in &words {
            let expected = f64::from(p(&[])[a as usize]);
            assert!((first[a as usize] - expected).abs() < 1e-5, "{a}: {} {expected}", first[a as usize]);
            for &b in &words {
                // Where the first stays, the second is the model's.
                let expected = given_two[a as usize] * f64::from(p(&[a])[b as usize]);
                let found = pairs[(a * width + b) as usize];
                assert!((found - expected).abs() < 1e-5, "{a} {b}: {found} {expected}");
            }
        }
        Ok(())
    }

    /// Distributions after nothing, after each token, and after each pair.
    fn law(width: i32, seed: u64, sharp: f32) -> Result<impl Fn(&[u32]) -> Vec<f32>> {
        let table = table(1 + width + width * width, width, seed, sharp)?;
        table.eval()?;
        let rows: Vec<Vec<f32>> = table.as_slice::<f32>().chunks(width as usize).map(<[f32]>::to_vec).collect();
        Ok(move |seen: &[u32]| {
            let width = width as usize;
            let row = match *seen {
                [] => 0,
                [a] => 1 + a as usize,
                [a, b] => 1 + width + a as usize * width + b as usize,
                _ => unreachable!("a round drafts two tokens"),
            };
            rows[row].clone()
        })
    }

    #[test]
    fn a_round_gives_what_the_model_alone_would() -> Result<()> {
        let (p, q) = (law(4, 1, 1.0)?, law(4, 2, 1.0)?);
        check(&p, &q, 4)?;
        // Sharp ones, of which one hardly ever proposes what the other wants.
        check(&law(4, 3, 6.0)?, &law(4, 4, 6.0)?, 4)
    }

    #[test]
    fn a_draft_that_is_the_model_is_never_refused() -> Result<()> {
        let p = law(4, 1, 1.0)?;
        check(&p, &p, 4)?;
        let ours = Array::from_slice(&[p(&[]), p(&[0])].concat(), &[2, 4]);
        let theirs = Array::from_slice(&p(&[]), &[1, 4]);
        let verdict = Verdict::new(&Array::from_slice(&[2u32], &[1]), &ours, &theirs)?;
        assert_eq!(verdict.stays.as_slice::<f32>(), [1.0]);
        Ok(())
    }

    #[test]
    fn what_filters_leave_out_is_refused_and_never_comes_instead() -> Result<()> {
        // The model allows the tokens 0 and 1, the draft 1 and 2.
        let ours = |_: &[u32]| vec![0.25f32, 0.75, 0.0];
        let theirs = |_: &[u32]| vec![0.0f32, 0.5, 0.5];
        check(&ours, &theirs, 3)?;
        let p = Array::from_slice(&[ours(&[]), ours(&[])].concat(), &[2, 3]);
        let q = Array::from_slice(&theirs(&[]), &[1, 3]);
        let verdict = Verdict::new(&Array::from_slice(&[2u32], &[1]), &p, &q)?;
        assert_eq!(verdict.stays.as_slice::<f32>(), [0.0]);
        assert_eq!(verdict.instead.as_slice::<f32>(), [0.5, 0.5, 0.0, 0.25, 0.75, 0.0]);
        for seed in 0..20 {
            let (count, token) = verdict.draw(&random::key(seed)?)?;
            assert_eq!(count.as_slice::<u32>(), [0]);
            assert!(token.as_slice::<u32>()[0] < 2);
        }
        Ok(())
    }
}
