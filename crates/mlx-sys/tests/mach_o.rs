//! What the build makes of a shared library of Apple's, for the linker.

#[path = "../build/mach_o.rs"]
mod mach_o;

use mach_o::renamed;

/// A library with a command before that of its name and one behind it, and a section 64 bytes behind them.
fn library(name: &str) -> Vec<u8> {
    let words = |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>();
    let id_length = (24 + name.len() + 1).next_multiple_of(8);
    let size = 16 + id_length + 152;
    let mut file = words(&[0xfeed_facf, 0, 0, 6, 3, size as u32, 0, 0]);
    file.extend(words(&[0x1b, 16, 7, 7]));
    file.extend(words(&[0xd, id_length as u32, 24, 1, 2, 3]));
    file.extend(name.as_bytes());
    file.resize(32 + 16 + id_length, 0);
    let mut segment = words(&[0x19, 152]);
    segment.resize(152, 0);
    segment[64..68].copy_from_slice(&1_u32.to_le_bytes());
    segment[72 + 48..72 + 52].copy_from_slice(&((32 + size + 64) as u32).to_le_bytes());
    file.extend(segment);
    file.resize(32 + size + 64, 0);
    file.extend(b"code");
    file
}

#[test]
fn a_library_is_given_a_longer_or_a_shorter_name() {
    for name in ["/a/path/that/is/longer/than/the/name/libmlx.dylib", "/b"] {
        let old = library("@rpath/libmlx.dylib");
        let new = renamed(&old, name).unwrap();
        assert_eq!(new.len(), old.len());
        // What a library of that name has, up to the last command, which is what it was.
        let expected = library(name);
        let segment = expected.len() - 68 - 152;
        assert_eq!(new[..segment], expected[..segment]);
        assert_eq!(new[segment..segment + 152], old[old.len() - 68 - 152..old.len() - 68]);
        assert!(new.ends_with(b"code"));
    }
}

#[test]
fn what_is_no_library_or_has_no_room_is_told() {
    assert!(renamed(b"\x7fELF\x02\x01", "/a").is_none());
    assert!(renamed(&library("@rpath/libmlx.dylib")[..100], "/a").is_none());
    assert!(renamed(&library("/a"), &"long".repeat(30)).is_none());
    // A program has no name.
    let mut program = library("/a");
    program[32 + 16] = 0x1b;
    assert!(renamed(&program, "/b").is_none());
}
