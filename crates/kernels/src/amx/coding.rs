//! How codes become tiles of `bf16`, in as many pieces as their values need.

#[allow(clippy::wildcard_imports)]
use std::arch::x86_64::*;

use super::{EXPONENTS, PIECES, STEP, TILE, Tile, WIDTH};
use crate::{
    Codes, Order,
    integers::Kind,
    matrix::{INTEGERS, OFFSETS, bytes},
};

/// Elements of a row that share a scale.
pub(super) const RUN: usize = 2 * STEP;

/// How codes become `bf16`.
#[derive(Clone, Copy)]
pub(super) enum Coding<'a> {
    /// Four bits, in this order, by one table for each piece.
    Table { bytes: &'a [u8], high_first: bool, tables: [[u16; 2 * TILE]; PIECES], pieces: usize },
    /// Bytes of this kind.
    Bytes { bytes: &'a [u8], kind: Kind },
    /// They are such numbers.
    Bf16 { bytes: &'a [u8] },
}

impl<'a> Coding<'a> {
    pub(super) fn new(codes: Codes<'a>) -> Option<Self> {
        match codes {
            Codes::Table { bytes, bits: 4, order, values } => Self::table(bytes, order, values),
            Codes::Unsigned { bytes, bits: 4 } => Self::table(bytes, Order::LowFirst, &INTEGERS),
            Codes::Offset { bytes, bits: 4 } => Self::table(bytes, Order::LowFirst, &OFFSETS[4]),
            Codes::Unsigned { bytes, bits: 8 } => Some(Self::Bytes { bytes, kind: Kind::Unsigned }),
            Codes::Offset { bytes, bits: 8 } => Some(Self::Bytes { bytes, kind: Kind::Offset }),
            Codes::Signed { codes } => Some(Self::Bytes { bytes: bytes(codes), kind: Kind::Signed }),
            Codes::Bf16 { codes } => Some(Self::Bf16 { bytes: bytes(codes) }),
            _ => None,
        }
    }

    /// `None` for values that are far from one.
    fn table(bytes: &'a [u8], order: Order, values: &[f32; 16]) -> Option<Self> {
        let mut tables = [[0; 2 * TILE]; PIECES];
        let mut pieces = 1;
        for (i, value) in values.iter().enumerate() {
            if *value != 0.0 && !(1e-3..1e3).contains(&value.abs()) {
                return None;
            }
            let mut rest = *value;
            for (p, table) in tables.iter_mut().enumerate() {
                let piece = f32::from_bits(rest.to_bits().wrapping_add(0x8000) & !0xFFFF);
                rest -= piece;
                // The fifth bit of an index is a stranger's.
                [table[i], table[i + TILE]] = [(piece.to_bits() >> 16) as u16; 2];
                if piece != 0.0 {
                    pieces = pieces.max(p + 1);
                }
            }
        }
        let pieces = if pieces == 1 { 1 } else { PIECES };
        Some(Self::Table { bytes, high_first: order == Order::HighFirst, tables, pieces })
    }

    pub(super) fn pieces(&self) -> usize {
        if let Self::Table { pieces, .. } = self { *pieces } else { 1 }
    }

    /// Writes the tiles of a run of [`WIDTH`] rows: for each 16 rows and each step, one of each piece. Says whether all
    /// numbers are in range.
    ///
    /// # Safety
    /// Rows `first..first + rows` lie in a matrix of `k` columns, and the run in the rows; there is room for the tiles; the
    /// machine has AVX-512 with `bf16`.
    #[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
    pub(super) unsafe fn fill(&self, k: usize, first: usize, rows: usize, run: usize, tiles: *mut Tile) -> bool {
        let place = |row: usize, step: usize, piece: usize, pieces: usize| {
            let tile = (row / TILE * 2 + step) * pieces + piece;
            tiles.wrapping_add(tile).cast::<__m512i>().wrapping_add(row % TILE)
        };
        let mut in_range = true;
        match self {
            Self::Table { bytes, high_first, tables, pieces } => {
                let tables = tables.map(|table| {
                    // SAFETY: 32 words.
                    unsafe { _mm512_loadu_si512(table.as_ptr().cast()) }
                });
                for row in 0..rows {
                    // SAFETY: the caller's promise.
                    unsafe {
                        let from = bytes.as_ptr().add((first + row) * (k / 2) + run * STEP);
                        _mm_prefetch::<_MM_HINT_T1>(from.wrapping_add(WIDTH * k / 2).cast());
                        let low = _mm512_cvtepu8_epi16(_mm256_loadu_si256(from.cast()));
                        let high = _mm512_srli_epi16::<4>(low);
                        let (even, odd) = if *high_first { (high, low) } else { (low, high) };
                        for (piece, table) in tables.iter().enumerate().take(*pieces) {
                            _mm512_store_si512(place(row, 0, piece, *pieces), _mm512_permutexvar_epi16(even, *table));
                            _mm512_store_si512(place(row, 1, piece, *pieces), _mm512_permutexvar_epi16(odd, *table));
                        }
                    }
                }
            }
            Self::Bytes { bytes, kind } => {
                // Offset binary is signed with its highest bit flipped.
                let flip = _mm512_set1_epi8(if *kind == Kind::Offset { i8::MIN } else { 0 });
                for row in 0..rows {
                    // SAFETY: the caller's promise.
                    unsafe {
                        let from = bytes.as_ptr().add((first + row) * k + run * RUN);
                        _mm_prefetch::<_MM_HINT_T1>(from.wrapping_add(WIDTH * k).cast());
                        let words = _mm512_xor_si512(_mm512_loadu_si512(from.cast()), flip);
                        let (even, odd) = if *kind == Kind::Unsigned {
                            (_mm512_and_si512(words, _mm512_set1_epi16(255)), _mm512_srli_epi16::<8>(words))
                        } else {
                            (_mm512_srai_epi16::<8>(_mm512_slli_epi16::<8>(words)), _mm512_srai_epi16::<8>(words))
                        };
                        for (step, words) in [even, odd].into_iter().enumerate() {
                            let low = _mm512_cvtepi16_epi32(_mm512_castsi512_si256(words));
                            let high = _mm512_cvtepi16_epi32(_mm512_extracti64x4_epi64::<1>(words));
                            // Integers of eight bits are `bf16` numbers.
                            let floats = _mm512_cvtne2ps_pbh(_mm512_cvtepi32_ps(high), _mm512_cvtepi32_ps(low));
                            _mm512_store_si512(
                                place(row, step, 0, 1),
                                std::mem::transmute::<__m512bh, __m512i>(floats),
                            );
                        }
                    }
                }
            }
            Self::Bf16 { bytes } => {
                let even: [u16; STEP] = std::array::from_fn(|i| 2 * i as u16);
                // SAFETY: 32 words.
                let even = unsafe { _mm512_loadu_si512(even.as_ptr().cast()) };
                let odd = _mm512_add_epi16(even, _mm512_set1_epi16(1));
                let magnitude = |words| _mm512_and_si512(words, _mm512_set1_epi16(i16::MAX));
                let power = |exponent: i32| _mm512_set1_epi16(((exponent + 127) << 7) as i16);
                let (least, limit) = (power(EXPONENTS.start), power(EXPONENTS.end));
                for row in 0..rows {
                    // SAFETY: the caller's promise.
                    unsafe {
                        let from = bytes.as_ptr().add(2 * ((first + row) * k + run * RUN));
                        let ahead = from.wrapping_add(2 * WIDTH * k);
                        _mm_prefetch::<_MM_HINT_T1>(ahead.cast());
                        _mm_prefetch::<_MM_HINT_T1>(ahead.wrapping_add(2 * STEP).cast());
                        let low = _mm512_loadu_si512(from.cast());
                        let high = _mm512_loadu_si512(from.add(2 * STEP).cast());
                        _mm512_store_si512(place(row, 0, 0, 1), _mm512_permutex2var_epi16(low, even, high));
                        _mm512_store_si512(place(row, 1, 0, 1), _mm512_permutex2var_epi16(low, odd, high));
                        let max = _mm512_max_epu16(magnitude(low), magnitude(high));
                        let small = _mm512_cmpge_epu16_mask(max, least) == 0 && _mm512_test_epi16_mask(max, max) != 0;
                        in_range &= !small && _mm512_cmpge_epu16_mask(max, limit) == 0;
                    }
                }
            }
        }
        in_range
    }
}
