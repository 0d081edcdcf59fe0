//! How texts are split before pairs are merged, by llama.cpp's names for it.
//!
//! The expressions are those of `llm_tokenizer_bpe` in `llama-vocab.cpp`. Each splits what the one before it left.

/// A pre-tokenizer, and what its vocabularies have in common.
pub(super) struct PreTokenizer {
    /// `tokenizer.ggml.pre`.
    names: &'static [&'static str],
    pub(super) patterns: &'static [&'static str],
    /// Whether a word of the vocabulary is one token, though no merges make it.
    pub(super) whole_words: bool,
    /// Whether a text begins with a token, where the file does not say it.
    pub(super) begins: bool,
}

pub(super) const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)";
const LLAMA3: &str = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?(?:(?=\p{L})[^a-z])*(?:(?=\p{L})[^A-Z])+|[^\r\n\p{L}\p{N}]?(?:(?=\p{L})[^a-z])+(?:(?=\p{L})[^A-Z])*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// How Hugging Face's files write expressions, and how llama.cpp does.
const WRITTEN: [(&str, &str); 2] = [
    ("(?i:'s|'t|'re|'ve|'m|'ll|'d)", "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"),
    (
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        TEKKEN,
    ),
];

const ALL: &[PreTokenizer] = &[
    plain(&["default"], &[r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"]),
    PreTokenizer {
        whole_words: true,
        begins: true,
        ..plain(&["llama-bpe", "llama3", "llama-v3", "falcon3"], &[LLAMA3])
    },
    plain(&["dbrx", "smaug-bpe"], &[LLAMA3]),
    plain(&["qwen2", "deepseek-r1-qwen", "stablelm2", "megrez"], &[QWEN2]),
    plain(&["gpt-2", "phi-2", "mpt", "olmo"], &[GPT2]),
    plain(&["smollm", "starcoder", "refact", "command-r"], &[r"\p{N}", GPT2]),
    PreTokenizer { whole_words: true, begins: true, ..plain(&["tekken"], &[TEKKEN]) },
];

const fn plain(names: &'static [&'static str], patterns: &'static [&'static str]) -> PreTokenizer {
    PreTokenizer { names, patterns, whole_words: false, begins: false }
}

impl PreTokenizer {
    pub(super) fn named(name: &str) -> Option<&'static Self> {
        ALL.iter().find(|known| known.names.contains(&name))
    }

    /// The first name of the one that splits a text by these expressions.
    pub(super) fn name_of(patterns: &[String], whole_words: bool) -> Option<&'static str> {
        let replaced = |pattern: &String| {
            WRITTEN.iter().fold(pattern.clone(), |pattern, (theirs, own)| pattern.replace(theirs, own))
        };
        let patterns: Vec<String> = patterns.iter().map(replaced).collect();
        let known = ALL.iter().find(|known| known.whole_words == whole_words && *known.patterns == patterns[..]);
        known.and_then(|known| known.names.first().copied())
    }

    pub(super) fn names() -> String {
        ALL.iter().flat_map(|known| known.names).copied().collect::<Vec<_>>().join(", ")
    }
}
