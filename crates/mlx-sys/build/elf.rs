//! Gives a shared library another name and search path, for the linker alone: the copy is never loaded.
//!
//! The linker finds both through the sections, so a longer table of strings at the end of the file is all it takes.

/// The parts of a 64-bit little-endian ELF file that hold the name of the library.
struct Layout {
    /// Where the header of the section of strings stands.
    strings_header: usize,
    strings: Vec<u8>,
    /// Where the entries of the dynamic section stand.
    entries: Vec<usize>,
}

const SHT_DYNAMIC: u64 = 6;
const DT_STRSZ: u64 = 10;
const DT_SONAME: u64 = 14;
const DT_RPATH: u64 = 15;
const DT_RUNPATH: u64 = 29;

/// The library under the name `soname`, with the search path that `search` makes of its own; nothing if `library` is
/// not what is built for Linux on x86-64 and Arm.
pub(crate) fn renamed(library: &[u8], soname: &str, search: impl Fn(&str) -> String) -> Option<Vec<u8>> {
    let Layout { strings_header, mut strings, entries } = layout(library)?;
    let mut out = library.to_vec();
    let mut named = false;
    for entry in &entries {
        let (tag, value) = (number(library, *entry, 8)?, number(library, entry + 8, 8)?);
        let text = match tag {
            DT_SONAME => soname.to_owned(),
            DT_RPATH | DT_RUNPATH => {
                let own = strings.get(usize::try_from(value).ok()?..)?.split(|byte| *byte == 0).next()?;
                search(std::str::from_utf8(own).ok()?)
            }
            _ => continue,
        };
        named |= tag == DT_SONAME;
        write(&mut out, entry + 8, strings.len());
        strings.extend_from_slice(text.as_bytes());
        strings.push(0);
    }
    for entry in entries {
        if number(library, entry, 8)? == DT_STRSZ {
            write(&mut out, entry + 8, strings.len());
        }
    }
    write(&mut out, strings_header + 24, library.len());
    write(&mut out, strings_header + 32, strings.len());
    out.extend(strings);
    named.then_some(out)
}

fn layout(library: &[u8]) -> Option<Layout> {
    if !library.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    let word = |at, size| usize::try_from(number(library, at, size)?).ok();
    let (sections, size, count) = (word(40, 8)?, word(58, 2)?, word(60, 2)?);
    let header = |index: usize| sections + index * size;
    let contents = |header: usize| Some((word(header + 24, 8)?, word(header + 32, 8)?));
    let dynamic = (0..count).map(header).find(|header| number(library, header + 4, 4) == Some(SHT_DYNAMIC))?;
    let strings_header = header(word(dynamic + 40, 4)?);
    let (start, length) = contents(strings_header)?;
    let strings = library.get(start..start.checked_add(length)?)?.to_vec();
    let (start, length) = contents(dynamic)?;
    Some(Layout { strings_header, strings, entries: (0..length / 16).map(|index| start + index * 16).collect() })
}

fn number(file: &[u8], at: usize, size: usize) -> Option<u64> {
    let bytes = file.get(at..at.checked_add(size)?)?;
    Some(bytes.iter().rev().fold(0, |value, byte| (value << 8) | u64::from(*byte)))
}

fn write(file: &mut [u8], at: usize, value: usize) {
    file[at..at + 8].copy_from_slice(&(value as u64).to_le_bytes());
}
