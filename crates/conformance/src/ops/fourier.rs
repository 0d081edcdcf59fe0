//! Fourier transforms.

use mlx_rs::{
    Axes,
    fft::{self, FftnOptions},
};

family! {
    "fft::fft" [0] (x: complex[3, 8]) => fft::fft(x, None, None);
    "fft::fft[real, padded]" [0] (x: signed[3, 6]) => fft::fft(x, 8, -1);
    "fft::fft2" [0] (x: complex[3, 4]) => fft::fft2(x, None, None);
    "fft::fftn" [0] (x: complex[2, 3, 4]) => fft::fftn(x, FftnOptions::default());
    "fft::ifft" [0] (x: complex[3, 8]) => fft::ifft(x, None, 0);
    "fft::ifft2" [0] (x: complex[3, 4]) => fft::ifft2(x, None, None);
    "fft::ifftn" [0] (x: complex[2, 3, 4]) => fft::ifftn(x, some_axes());
    "fft::rfft" [0] (x: signed[3, 8]) => fft::rfft(x, None, None);
    "fft::rfft2" [0] (x: signed[3, 4]) => fft::rfft2(x, None, None);
    "fft::rfftn" [0] (x: signed[2, 3, 4]) => fft::rfftn(x, some_axes());
    "fft::irfft" [0] (x: complex[3, 5]) => fft::irfft(x, None, None);
    "fft::irfft2" [0] (x: complex[4, 3]) => fft::irfft2(x, None, None);
    "fft::irfftn" [0] (x: complex[2, 3, 3]) => fft::irfftn(x, some_axes());
    "fft::fftshift" [0] (x: signed[3, 5]) => fft::fftshift(x, None);
    "fft::ifftshift" [0] (x: signed[3, 5]) => fft::ifftshift(x, &[1]);
}

fn some_axes() -> FftnOptions {
    FftnOptions { lengths: None, axes: Axes::Axes(vec![0, 2]) }
}
