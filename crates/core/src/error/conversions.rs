//! Conversions of other errors into ours, and of ours into those of mlx-rs.

use mlx_rs::error::{
    AdaDeltaBuildError, AdafactorBuildError, AsSliceError, ConvBuildError, CrossEntropyBuildError, DropoutBuildError,
    Exception, MultiHeadAttentionBuildError, RmsPropBuildError, TransformerBulidError,
};
use tacit_bridge::kernel::KernelError;
use tacit_bridge::mlx::{self, Refusal};
use tacit_bridge::{BridgeError, GradientError};

use super::Error;

fn of_text(text: &str) -> Error {
    if let Some(error) = tacit_bridge::recover(text) {
        return of_box(error);
    }
    match mlx::refusal(text) {
        Refusal::Traced => Error::EvalInTrace,
        Refusal::OtherThread => Error::OtherThread(mlx::without_place(text).to_owned()),
        Refusal::Shapeless | Refusal::Other => Error::Mlx(mlx::without_place(text).to_owned()),
    }
}

fn of_box(error: tacit_bridge::BoxError) -> Error {
    let error = match error.downcast::<Error>() {
        Ok(ours) => return *ours,
        Err(other) => other,
    };
    let error = match error.downcast::<BridgeError>() {
        Ok(bridge) => return (*bridge).into(),
        Err(other) => other,
    };
    if let Some(gradient) = error.downcast_ref::<GradientError>() {
        return Error::Gradient(gradient.clone());
    }
    if let Some(kernel) = error.downcast_ref::<KernelError>() {
        let KernelError { kernel, failure, poisoned, help } = kernel.clone();
        return Error::Kernel { kernel: kernel.to_owned(), message: failure, poisoned, help };
    }
    match error.downcast::<Exception>() {
        Ok(exception) => (*exception).into(),
        Err(other) => Error::Function(other),
    }
}

impl From<Exception> for Error {
    fn from(exception: Exception) -> Self {
        of_text(exception.what())
    }
}

impl From<AsSliceError> for Error {
    fn from(error: AsSliceError) -> Self {
        match error {
            AsSliceError::Exception(exception) => exception.into(),
            other => Self::Function(Box::new(other)),
        }
    }
}

/// Errors of mlx-rs's builders, some of which are an [`Exception`] of MLX.
macro_rules! of_builders {
    ($($ty:ident $(or $exception:path)?),+ $(,)?) => {$(
        impl From<$ty> for Error {
            fn from(error: $ty) -> Self {
                match error {
                    $($exception(exception) => exception.into(),)?
                    other => Self::Invalid { message: other.to_string(), help: None },
                }
            }
        }
    )+};
}

of_builders!(
    AdaDeltaBuildError,
    AdafactorBuildError,
    ConvBuildError or ConvBuildError::Exception,
    CrossEntropyBuildError,
    DropoutBuildError,
    MultiHeadAttentionBuildError or MultiHeadAttentionBuildError::Exception,
    RmsPropBuildError,
    TransformerBulidError or TransformerBulidError::Exception,
);

impl From<BridgeError> for Error {
    fn from(error: BridgeError) -> Self {
        match error {
            BridgeError::Mlx(text) => of_text(&text),
            BridgeError::Callback(error) => of_box(error),
            other => Self::Invalid { message: other.to_string(), help: None },
        }
    }
}

impl From<Error> for Exception {
    /// For closures that mlx-rs calls: its transforms take no other error type.
    #[track_caller]
    fn from(error: Error) -> Self {
        let text = error.to_string();
        tacit_bridge::remember(Box::new(error));
        Self::custom(text)
    }
}

impl From<std::convert::Infallible> for Error {
    fn from(never: std::convert::Infallible) -> Self {
        match never {}
    }
}
