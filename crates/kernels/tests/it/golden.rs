//! The bytes that other systems store for the same numbers; `tests/golden/` has the scripts that wrote them.

#![allow(clippy::float_cmp, reason = "the results are exact")]

use tacit_kernels::{
    BlockScales, Codes, Encoder, Matrix, Order, ScaleRule, Scales, affine, code_bytes, dequantize, dynamic8, fp4, mx,
    nf4, nvfp4,
};

use crate::random::Random;

/// The numbers of `inputs.py`.
fn inputs(seed: usize, count: usize) -> Vec<f32> {
    let mut random = Random::new(seed as u64);
    let mut pair = || {
        let bits = random.bits();
        (bits >> 42) + (bits >> 20 & 0x3f_ffff)
    };
    (0..count).map(|_| ((pair() + pair()) as f64 - f64::from(1 << 23)) / f64::from(1 << 21)).map(|x| x as f32).collect()
}

/// A file, read from front to back.
struct Reader(&'static [u8]);

impl Reader {
    fn bytes(&mut self, count: usize) -> &'static [u8] {
        let (now, later) = self.0.split_at(count);
        self.0 = later;
        now
    }

    fn floats(&mut self, count: usize) -> Vec<f32> {
        self.bytes(4 * count).as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
    }
}

type Encode = fn(usize) -> Encoder;

#[test]
fn bitsandbytes() {
    let mut file = Reader(include_bytes!("../golden/bitsandbytes.bin"));
    assert_eq!(file.floats(256), dynamic8::map());
    let formats: [(&[f32; 16], Encode); 2] = [(&nf4::CODEBOOK, nf4::encoder), (&fp4::CODEBOOK, fp4::encoder)];
    for (codebook, encoder) in formats {
        assert_eq!(file.floats(16), codebook);
        for block in [32, 64, 128, 256, 512, 1024, 2048, 4096] {
            let x = inputs(block, 2 * block + 31);
            let (mut packed, mut absmax) = (vec![0; block + 16], vec![0.0; 3]);
            encoder(block).quantize(&x, &mut packed, BlockScales::Floats(&mut absmax)).unwrap();
            assert!(packed == file.bytes(packed.len()), "{block}");
            assert_eq!(absmax, file.floats(3), "{block}");
        }
    }
    for count in [64 * 500, 64 * 256 + 17] {
        let x = inputs(count, count);
        let blocks = count.div_ceil(64);
        let mut absmax = vec![0.0; blocks];
        nf4::encoder(64).quantize(&x, &mut vec![0; count.div_ceil(2)], BlockScales::Floats(&mut absmax)).unwrap();
        let offset = dynamic8::offset(&absmax);
        let shifted: Vec<f32> = absmax.iter().map(|value| value - offset).collect();
        let (mut codes, mut nested) = (vec![0; blocks], vec![0.0; blocks.div_ceil(256)]);
        dynamic8::encoder(256).quantize(&shifted, &mut codes, BlockScales::Floats(&mut nested)).unwrap();
        assert!(codes == file.bytes(blocks));
        assert_eq!(nested, file.floats(nested.len()));
        assert_eq!([offset], *file.floats(1));
    }
    assert!(file.0.is_empty());
}

#[test]
fn mlx_affine() {
    let mut file = Reader(include_bytes!("../golden/affine.bin"));
    for bits in [2, 3, 4, 5, 6, 8] {
        for group in [32, 64, 128] {
            let mut x = inputs(bits as usize * group, 5 * 128);
            x[128..256].iter_mut().for_each(|x| *x = -x.abs() - 0.5);
            x[256..384].iter_mut().for_each(|x| *x = x.abs() + 100.0);
            x[384..512].fill(-0.75);
            x[512..].fill(0.0);
            let mut codes = vec![0; code_bytes(x.len(), bits)];
            let (mut scales, mut biases) = (vec![0.0; x.len() / group], vec![0.0; x.len() / group]);
            affine::encoder(group, bits)
                .quantize(&x, &mut codes, BlockScales::Biased(&mut scales, &mut biases))
                .unwrap();
            assert!(codes == file.bytes(codes.len()), "{bits} {group}");
            assert_eq!(scales, file.floats(scales.len()), "{bits} {group}");
            assert_eq!(biases, file.floats(biases.len()), "{bits} {group}");
        }
    }
    assert!(file.0.is_empty());
}

#[test]
fn mlx_microscaling() {
    let mut file = Reader(include_bytes!("../golden/microscaling.bin"));
    let all = |bits: usize, group: usize, scale: f32| -> Vec<f32> {
        inputs(bits * group, 1024).iter().map(|x| x * scale).collect()
    };
    for scale in [1.0, 1e-3, 300.0] {
        let (mut codes, mut scales) = (vec![0; 512], vec![0; 32]);
        mx::mxfp4(ScaleRule::Ceil).quantize(&all(4, 32, scale), &mut codes, BlockScales::Bytes(&mut scales)).unwrap();
        assert!((&codes[..], &scales[..]) == (file.bytes(512), file.bytes(32)), "mxfp4 {scale}");
    }
    for scale in [1.0, 1e-3, 300.0] {
        let (mut codes, mut scales) = (vec![0; 1024], vec![0; 32]);
        mx::mxfp8(ScaleRule::Ceil).quantize(&all(8, 32, scale), &mut codes, BlockScales::Bytes(&mut scales)).unwrap();
        assert!((&codes[..], &scales[..]) == (file.bytes(1024), file.bytes(32)), "mxfp8 {scale}");
    }
    for scale in [1.0, 1e-3, 300.0] {
        let x = all(4, 16, scale);
        let most = x.iter().fold(0.0_f32, |most, x| most.max(x.abs()));
        let (mut codes, mut scales) = (vec![0; 512], vec![0; 64]);
        nvfp4::encoder(None).quantize(&x, &mut codes, BlockScales::Bytes(&mut scales)).unwrap();
        assert!((&codes[..], &scales[..]) == (file.bytes(512), file.bytes(64)), "nvfp4 {scale}");
        nvfp4::encoder(Some(most)).quantize(&x, &mut codes, BlockScales::Bytes(&mut scales)).unwrap();
        assert!((&codes[..], &scales[..]) == (file.bytes(512), file.bytes(64)), "nvfp4 {scale} with a global scale");
        let matrix = Matrix {
            n: 1,
            k: x.len(),
            codes: Codes::Table { bytes: &codes, bits: 4, order: Order::LowFirst, values: &tacit_kernels::E2M1 },
            scales: Scales::E4m3 { bytes: &scales, factor: nvfp4::factor(Some(most)) },
            biases: None,
            block: 16,
        };
        let mut values = vec![0.0; x.len()];
        dequantize(&matrix, &mut values[..]).unwrap();
        for (ours, theirs) in values.iter().zip(file.floats(x.len())) {
            assert!((ours - theirs).abs() <= 1e-6 * theirs.abs(), "{ours} {theirs}");
        }
    }
    assert!(file.0.is_empty());
}
