//! OCP's microscaling formats: groups of 32 along the last axis, and a power of two for each.

pub use tacit_kernels::ScaleRule;

pub(crate) const GROUP: usize = 32;

pub(crate) fn rule_option(rule: ScaleRule) -> String {
    match rule {
        ScaleRule::Ceil => "",
        ScaleRule::Round => ":round",
        ScaleRule::Floor => ":floor",
    }
    .to_owned()
}

pub(crate) fn read_rule(options: &[&str]) -> Option<ScaleRule> {
    match options {
        [] | ["ceil"] => Some(ScaleRule::Ceil),
        ["round"] => Some(ScaleRule::Round),
        ["floor"] => Some(ScaleRule::Floor),
        _ => None,
    }
}
