//! The formats of a decoder's weights, read from text.

use std::path::Path;

use tacit_arrays::format::{AnyFormat, names};
use tacit_core::Result;
use tacit_nn::Rules;

/// The format of a decoder's weights, or rules for them: see [`quantize`](crate::quantize).
#[derive(Clone, Debug)]
pub enum Formats {
    /// One format for the weights of all products.
    One(AnyFormat),
    /// Formats by path.
    Rules(Rules),
}

impl Formats {
    /// Reads the text of a format, such as `nf4:64`, or the name of a file of rules, such as `rules.toml`.
    ///
    /// A text that begins with the name of a format is never taken for a file, whatever options follow.
    ///
    /// ```
    /// use tacit_models::Formats;
    ///
    /// assert!(matches!(Formats::read("codebook:32:-1,-0.25,0.25,1")?, Formats::One(_)));
    /// assert!(Formats::read("no-such-file.toml").is_err());
    /// # Ok::<_, tacit_core::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The text is no format, or as for [`Rules::load`].
    pub fn read(text: &str) -> Result<Self> {
        let name = text.split(':').next().unwrap_or_default().trim();
        let file = Path::new(text);
        if names().contains(&name) || file.extension().is_none() {
            return Ok(Self::One(text.parse()?));
        }
        Ok(Self::Rules(Rules::load(file)?))
    }
}
