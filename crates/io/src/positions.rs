//! Configurations that have the keys of positions twice.

use std::borrow::Cow;

use crate::json::Json;

const SCALING: &str = "rope_scaling";
const PARAMETERS: &str = "rope_parameters";
const FULL: &str = "full_attention";

/// The configuration with `rope_scaling` or `rope_parameters`, and not with both.
///
/// Older versions of transformers write the first, and newer ones the second. Where both are there, transformers takes
/// `rope_scaling` unless it is empty. Where `rope_parameters` has a section for each type of layers, `rope_scaling` changes the one for
/// full attention.
///
/// ```
/// use tacit_io::json::Json;
/// use tacit_io::positions_once;
///
/// let both = r#"{"rope_scaling": {"factor": 4.0}, "rope_parameters": {"rope_type": "default"}}"#;
/// assert_eq!(positions_once(&Json::parse(both)?).line(), r#"{"rope_scaling": {"factor": 4.0}}"#);
/// # Ok::<_, String>(())
/// ```
#[must_use]
pub fn positions_once(config: &Json) -> Cow<'_, Json> {
    let object = |key: &str| config.get(key).filter(|value| matches!(value, Json::Object(_)));
    let (Some(scaling), Some(parameters)) = (object(SCALING), object(PARAMETERS)) else {
        return Cow::Borrowed(config);
    };
    let mut once = config.clone();
    let full = parameters.get(FULL).filter(|value| matches!(value, Json::Object(_)));
    if scaling.entries().is_empty() {
        once.remove(SCALING);
    } else if let Some(full) = full {
        let (mut full, mut parameters) = (full.clone(), parameters.clone());
        // Either key says which change it is, and that of `rope_scaling` counts.
        if ["rope_type", "type"].iter().any(|key| scaling.get(key).is_some()) {
            full.remove("rope_type");
            full.remove("type");
        }
        for (key, value) in scaling.entries() {
            full.set(key, value.clone());
        }
        parameters.set(FULL, full);
        once.set(PARAMETERS, parameters);
        once.remove(SCALING);
    } else {
        once.remove(PARAMETERS);
    }
    Cow::Owned(once)
}
