//! Messages within compiled steps: what goes together there must not wait for another rank.

use mlx_rs::{Array, Dtype, transforms};
use tacit_core::pass::PASSES_VARIABLE;
use tacit_core::{Result, compile};
use tacit_distributed::Group;

use crate::case::Case;
use crate::collectives::{assert_equal, numbers};

pub(crate) const CASES: &[Case] = &[
    Case::new("question_and_answer", question_and_answer).sizes(&[2]),
    Case::new("beside_a_sum", beside_a_sum).sizes(&[2]),
];

const SHAPE: [i32; 2] = [6, 4];

fn one() -> Array {
    Array::from_f32(1.0)
}

fn transposed(x: &Array) -> Result<Array> {
    Ok(x.add(one())?.transpose_axes(&[1, 0])?.square()?)
}

/// What rank 0 sends is made beside what it computes of the answer: its step must not wait for the answer with it. Received
/// arrays are taken as they are, and reshaped, which does not depend on what is traced either.
fn question_and_answer(group: &Group) -> Result<()> {
    let other = 1 - group.rank();
    let answer =
        |question: &Array, x: &Array| -> Result<Array> { Ok(question.multiply(transposed(x)?)?.add(question)?) };
    for flat in [false, true] {
        let receive = |dtype: Dtype| -> Result<Array> {
            let shape = [SHAPE[1], SHAPE[0]];
            Ok(if flat {
                group.recv(&[24], dtype, other)?.reshape(&shape)?
            } else {
                group.recv(&shape, dtype, other)?
            })
        };
        let send = |x: &Array| group.send(&if flat { x.reshape(&[24])? } else { x.clone() }, other);
        let mut ask = compile(|x: Array| -> Result<(Array, Array)> {
            let question = transposed(&x)?;
            let sent = send(&question)?;
            let received = receive(x.dtype())?;
            Ok((sent, received.subtract(&question)?.square()?.add(question)?))
        });
        let mut reply = compile(|x: Array| -> Result<(Array, Array)> {
            let answer = answer(&receive(x.dtype())?, &x)?;
            Ok((send(&answer)?, answer.add(one())?))
        });
        for round in 0..3 {
            let (first, second) =
                (numbers(round, &SHAPE, Dtype::Float32)?, numbers(round + 5, &SHAPE, Dtype::Float32)?);
            let question = transposed(&first)?;
            let answered = answer(&question, &second)?;
            let ((sent, found), expected) = if group.rank() == 0 {
                (ask.call(&first)?, answered.subtract(&question)?.square()?.add(question)?)
            } else {
                (reply.call(&second)?, answered.add(one())?)
            };
            let (sent, found) = (sent.dense()?, found.dense()?);
            transforms::eval([&sent, &found])?;
            assert_equal(&found, &expected, &format!("flat {flat}, round {round}"))?;
        }
        if group.rank() == 0 && std::env::var_os(PASSES_VARIABLE).is_none() {
            assert!(ask.stats().nodes.contains_key("Plan"), "{:?}", ask.stats().nodes);
        }
    }
    Ok(())
}

/// Both ranks send, or receive, before they sum, but their outputs lead to these in another order.
fn beside_a_sum(group: &Group) -> Result<()> {
    let other = 1 - group.rank();
    let mut sends = compile(|x: Array| -> Result<(Array, Array)> {
        let sent = group.send(&transposed(&x)?, other)?;
        Ok((group.all_sum(&x.square()?.add(one())?)?.negative()?, sent))
    });
    let mut receives = compile(|x: Array| -> Result<Array> {
        let received = group.recv(&[SHAPE[1], SHAPE[0]], x.dtype(), other)?;
        let sum = group.all_sum(&x.square()?.add(one())?)?;
        Ok(received.add(transposed(&sum)?)?)
    });
    for round in 0..3 {
        let both = [numbers(round, &SHAPE, Dtype::Float32)?, numbers(round + 3, &SHAPE, Dtype::Float32)?];
        let sum = both[0].square()?.add(one())?.add(both[1].square()?.add(one())?)?;
        let (found, expected) = if group.rank() == 0 {
            let (sum_found, sent) = sends.call(&both[0])?;
            let (sum_found, sent) = (sum_found.dense()?, sent.dense()?);
            transforms::eval([&sum_found, &sent])?;
            (sum_found, sum.negative()?)
        } else {
            (receives.call(&both[1])?.dense()?, transposed(&both[0])?.add(transposed(&sum)?)?)
        };
        assert_equal(&found, &expected, &format!("round {round}"))?;
    }
    Ok(())
}
