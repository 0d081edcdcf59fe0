//! The codec of a matrix' codes.

use std::marker::PhantomData;

use crate::{
    Isa,
    codec::{Bf16, Bytes, Codec, E4m3, F16, Looked, Offset, Signed, Stream, Table, Unsigned},
    matrix::{Codes, INTEGERS, OFFSETS, Order, bytes},
};

/// Something to do with the codes of a matrix, once their format is known.
pub(crate) trait Job {
    type Output;
    fn run<C: Codec>(self, codes: C) -> Self::Output;
}

/// Runs the job on codes that were checked.
pub(crate) fn dispatch<J: Job>(isa: Isa, codes: Codes, job: J) -> J::Output {
    if isa == Isa::Scalar {
        return job.run(codes);
    }
    match codes {
        Codes::Table { bytes, bits, order, values } => match bits {
            1 => job.run(Table::<1> { bytes, values, order }),
            2 => job.run(Table::<2> { bytes, values, order }),
            3 => job.run(Stream::<3> { bytes, values }),
            _ => job.run(Table::<4> { bytes, values, order }),
        },
        Codes::Unsigned { bytes, bits } => match bits {
            1..=4 => dispatch(isa, Codes::Table { bytes, bits, order: Order::LowFirst, values: &INTEGERS }, job),
            5 => job.run(Stream::<5> { bytes, values: &INTEGERS }),
            6 => job.run(Stream::<6> { bytes, values: &INTEGERS }),
            7 => job.run(Stream::<7> { bytes, values: &INTEGERS }),
            _ => job.run(Bytes::<Unsigned> { bytes, of: PhantomData }),
        },
        Codes::Offset { bytes, bits } => match bits {
            1..=4 => {
                let values = &OFFSETS[bits as usize];
                dispatch(isa, Codes::Table { bytes, bits, order: Order::LowFirst, values }, job)
            }
            5 => job.run(Stream::<5, true> { bytes, values: &INTEGERS }),
            6 => job.run(Stream::<6, true> { bytes, values: &INTEGERS }),
            7 => job.run(Stream::<7, true> { bytes, values: &INTEGERS }),
            _ => job.run(Bytes::<Offset> { bytes, of: PhantomData }),
        },
        Codes::Signed { codes } => job.run(Bytes::<Signed> { bytes: bytes(codes), of: PhantomData }),
        Codes::E4m3 { bytes } => job.run(Bytes::<E4m3> { bytes, of: PhantomData }),
        Codes::Bytes { bytes, values } => job.run(Looked { bytes, values }),
        Codes::F16 { codes } => job.run(Bytes::<F16> { bytes: bytes(codes), of: PhantomData }),
        Codes::Bf16 { codes } => job.run(Bytes::<Bf16> { bytes: bytes(codes), of: PhantomData }),
    }
}
