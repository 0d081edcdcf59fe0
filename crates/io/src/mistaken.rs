//! Recognizes files that are given as safetensors and are of another known kind.

/// What some bytes are and what to do, where they begin like a file of another kind.
///
/// Ask it of what cannot be safetensors: these begin with the length of a header, and `PK\x03\x04` may begin one.
pub(crate) fn kind(bytes: &[u8]) -> Option<(&'static str, &'static str)> {
    let begins = |words: &[u8]| bytes.get(..words.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(words));
    if begins(b"PK\x03\x04") {
        return Some((
            "it is a zip archive, as PyTorch writes it, and no safetensors",
            "take the safetensors of this model, or write them with the program that wrote the archive",
        ));
    }
    if begins(b"version https://git-lfs") {
        return Some(("it is the pointer of Git LFS to a file, and not that file", "fetch the file by `git lfs pull`"));
    }
    if begins(b"<!doctype html") || begins(b"<html") {
        return Some((
            "it is a page of the web, and no safetensors",
            "fetch the file itself, by the address of its download",
        ));
    }
    None
}
