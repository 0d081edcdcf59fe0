//! Gives a shared library of Apple's another name, for the linker alone: the copy is never loaded.
//!
//! Linkers of Apple's kind leave room behind the load commands, so that a command may become longer without anything that
//! follows it moving. What `install_name_tool` does, and there is none where a program for a Mac is built elsewhere.

const MAGIC: &[u8] = b"\xcf\xfa\xed\xfe";
const LC_ID_DYLIB: u32 = 0xd;
const LC_SEGMENT_64: u32 = 0x19;

/// Bytes of the header, before the load commands.
const HEADER: usize = 32;

/// Bytes of the command that holds the name, before it.
const ID: usize = 24;

/// The library under the name `name`; nothing if `library` is not one for 64 bits, or has no room for it.
pub(crate) fn renamed(library: &[u8], name: &str) -> Option<Vec<u8>> {
    if !library.starts_with(MAGIC) {
        return None;
    }
    let (count, size) = (number(library, 16)?, number(library, 20)? as usize);
    let end = HEADER.checked_add(size)?;
    let mut commands = Vec::new();
    let mut named = false;
    let mut rest = library.get(HEADER..end)?;
    for _ in 0..count {
        let (command, after) = rest.split_at_checked(number(rest, 4)? as usize)?;
        rest = after;
        if number(command, 0)? == LC_ID_DYLIB {
            named = true;
            let length = (ID + name.len() + 1).next_multiple_of(8);
            commands.extend_from_slice(&command[..4]);
            commands.extend_from_slice(&u32::try_from(length).ok()?.to_le_bytes());
            // Where the name begins, a time, and the two versions.
            commands.extend_from_slice(command.get(8..ID)?);
            commands.extend_from_slice(name.as_bytes());
            commands.resize(commands.len() + length - ID - name.len(), 0);
        } else {
            commands.extend_from_slice(command);
        }
    }
    // Behind the commands nothing is but room, up to the first section.
    if !named || HEADER + commands.len() > first_section(library, count)?.max(end) {
        return None;
    }
    let mut out = library.to_vec();
    out[20..24].copy_from_slice(&u32::try_from(commands.len()).ok()?.to_le_bytes());
    // What a longer name was before stays, where nobody reads it.
    out[HEADER..HEADER + commands.len()].copy_from_slice(&commands);
    Some(out)
}

/// Where the first section of the file begins.
fn first_section(library: &[u8], commands: u32) -> Option<usize> {
    let (mut at, mut first) = (HEADER, library.len());
    for _ in 0..commands {
        if number(library, at)? == LC_SEGMENT_64 {
            for section in 0..number(library, at + 64)? as usize {
                // Of sections that are all zeros the file has none.
                let offset = number(library, at + 72 + 80 * section + 48)? as usize;
                if offset > 0 {
                    first = first.min(offset);
                }
            }
        }
        at += number(library, at + 4)? as usize;
    }
    Some(first)
}

fn number(file: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*file.get(at..)?.first_chunk()?))
}
