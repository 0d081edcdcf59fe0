//! Times the dense product with the BLAS that MLX's wheel brings: nothing here links another one.

fn main() -> Result<(), mlx_rs::error::Exception> {
    println!("{}", tacit_testing::product::median_seconds(3)?);
    Ok(())
}
