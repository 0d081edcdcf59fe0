//! The reference: plain Rust on arrays of eight, which compilers turn into whatever the target's baseline has.

use half::{bf16, f16};

use super::{
    thresholds::Thresholds,
    vector::{Simd, stream_byte},
};
use crate::minifloat::e4m3;

#[derive(Clone, Copy)]
pub(super) struct Portable;

const LANES: usize = 8;

type F = [f32; LANES];
type I = [u32; LANES];

impl Simd for Portable {
    type F = F;
    type I = I;
    type T = [f32; 16];
    type Far<'t> = &'t [f32; 256];
    type Ranks = [f32; 15];
    const LANES: usize = LANES;
    const ROWS: usize = 4;
    const FUSED: bool = cfg!(any(target_arch = "aarch64", target_feature = "fma"));

    methods! { safe;
        fn splat(self, value: f32) -> F = [value; LANES];
        fn splat_words(self, value: u32) -> I = [value; LANES];
        fn add(self, a: F, b: F) -> F = std::array::from_fn(|i| a[i] + b[i]);
        fn sub(self, a: F, b: F) -> F = std::array::from_fn(|i| a[i] - b[i]);
        fn mul(self, a: F, b: F) -> F = std::array::from_fn(|i| a[i] * b[i]);
        fn div(self, a: F, b: F) -> F = std::array::from_fn(|i| a[i] / b[i]);
        fn fma(self, a: F, b: F, c: F) -> F =
            std::array::from_fn(|i| if Self::FUSED { a[i].mul_add(b[i], c[i]) } else { a[i] * b[i] + c[i] });
        fn max(self, a: F, b: F) -> F = std::array::from_fn(|i| if a[i] > b[i] { a[i] } else { b[i] });
        fn min(self, a: F, b: F) -> F = std::array::from_fn(|i| if a[i] < b[i] { a[i] } else { b[i] });
        fn keep(self, values: F, a: F, b: F) -> F = std::array::from_fn(|i| if a[i] < b[i] { 0.0 } else { values[i] });
        fn scale(self, value: F, exponents: I) -> F =
            std::array::from_fn(|i| f32::from_bits(value[i].to_bits().wrapping_add(exponents[i] << 23)));
        fn words(self, a: F) -> I = a.map(f32::to_bits);
        fn max_lane(self, a: F) -> f32 = a.into_iter().fold(f32::NEG_INFINITY, f32::max);
        fn sum(self, a: F) -> f32 = ((a[0] + a[4]) + (a[2] + a[6])) + ((a[1] + a[5]) + (a[3] + a[7]));
        fn and(self, a: I, b: I) -> I = std::array::from_fn(|i| a[i] & b[i]);
        fn add_words(self, a: I, b: I) -> I = std::array::from_fn(|i| a[i].wrapping_add(b[i]));
        fn max_words(self, a: I, b: I) -> I = std::array::from_fn(|i| a[i].max(b[i]));
        fn max_word(self, words: I) -> u32 = words.into_iter().fold(0, u32::max);
        fn raise(self, words: I, by: I, a: F, b: F) -> I =
            std::array::from_fn(|i| if a[i] > b[i] { words[i].wrapping_add(by[i]) } else { words[i] });
        fn all_less(self, a: F, b: F) -> bool = a.iter().zip(&b).all(|(a, b)| a < b);
        fn floats(self, words: I) -> F = words.map(f32::from_bits);
        fn shift_each(self, words: I, bits: I) -> I = std::array::from_fn(|i| words[i] >> bits[i]);
        fn signed(self, words: I) -> F = words.map(|word| f32::from(word as i8));
        fn to_float(self, words: I) -> F = words.map(|word| word as i32 as f32);
        fn e4m3(self, words: I) -> F = words.map(|word| e4m3(word as u8));
        fn f16(self, words: I) -> F = words.map(|word| f16::from_bits(word as u16).to_f32());
        fn bf16(self, words: I) -> F = words.map(|word| bf16::from_bits(word as u16).to_f32());
        fn table(self, values: &[f32; 16]) -> [f32; 16] = *values;
        fn lookup(self, table: [f32; 16], words: I) -> F = words.map(|word| table[(word & 15) as usize]);
        fn far(self, values: &[f32; 256]) -> &[f32; 256] = values;
        fn lookup_far(self, table: Self::Far<'_>, words: I) -> F = words.map(|word| table[usize::from(word as u8)]);
        fn ranks(self, thresholds: &Thresholds) -> [f32; 15] = thresholds.values;
        fn rank(self, ranks: [f32; 15], x: F) -> I =
            x.map(|x| ranks.iter().map(|threshold| u32::from(x > *threshold)).sum());
    }
    methods! { by promise;
        unsafe fn load(self, from: *const f32) -> F = from.cast::<F>().read_unaligned();
        unsafe fn store(self, to: *mut f32, value: F) -> () = to.cast::<F>().write_unaligned(value);
        unsafe fn store_bytes(self, to: *mut u8, words: I) -> () =
            to.cast::<[u8; LANES]>().write(words.map(|word| word as u8));
        unsafe fn load_words(self, from: *const u8) -> I = from.cast::<I>().read_unaligned().map(u32::from_le);
        unsafe fn load_bytes(self, from: *const u8) -> I = from.cast::<[u8; LANES]>().read().map(u32::from);
        unsafe fn load_signed(self, from: *const u8) -> I =
            from.cast::<[i8; LANES]>().read().map(|byte| i32::from(byte) as u32);
        unsafe fn load_f16(self, from: *const u8) -> F = from.cast::<[f16; LANES]>().read_unaligned().map(f16::to_f32);
        unsafe fn load_bf16(self, from: *const u8) -> F = from.cast::<[bf16; LANES]>().read_unaligned().map(bf16::to_f32);
        unsafe fn load_some(self, from: *const f32, count: usize) -> F =
            std::array::from_fn(|i| if i < count { *from.add(i) } else { 0.0 });
        unsafe fn store_some(self, to: *mut f32, count: usize, value: F) -> () =
            std::ptr::copy_nonoverlapping(value.as_ptr(), to, count);
        unsafe fn spread_words(self, from: *const u8, bits: usize) -> I = {
            let mut bytes = [0; 4];
            for (i, byte) in bytes.iter_mut().enumerate().take(bits) {
                *byte = *from.add(i);
            }
            [u32::from_le_bytes(bytes); LANES]
        };
        // The last two bytes of 8 codes are the seventh and the eighth.
        unsafe fn load_stream<const BITS: usize>(self, from: *const u8) -> I = std::array::from_fn(|i| {
            let both = from.add(stream_byte(BITS, i)).cast::<[u8; 2]>().read();
            u32::from(u16::from_le_bytes(both)) >> (i * BITS % 8) & ((1 << BITS) - 1)
        });
        unsafe fn load_spans<const BITS: usize>(self, from: *const u8) -> I = std::array::from_fn(|i| {
            u32::from_le_bytes(from.add(i * BITS / 8).cast::<[u8; 4]>().read()) >> (i * BITS % 8)
        });
        unsafe fn spread(self, from: *const f32, count: usize, index: I) -> F =
            index.map(|i| if (i as usize) < count { *from.add(i as usize) } else { 0.0 });
        unsafe fn transpose_to(self, from: *const u8, stride: usize, to: *mut u32, to_stride: usize) -> () = {
            for row in 0..LANES {
                for (d, word) in self.load_words(from.add(row * stride)).into_iter().enumerate() {
                    *to.add(d * to_stride + row) = word;
                }
            }
        };
    }
}
