//! Changes of what the header of a GGUF file says, of which most leave the rest of it readable.

use std::ops::Range;

use crate::bytes;
use crate::random::Random;

/// Changes a number of the header, wherever it stands, or a few bytes.
pub(crate) fn mutate(file: &mut Vec<u8>, random: &mut Random) {
    let mut walk = Walk { file, at: 8, numbers: Vec::new() };
    let _ = walk.header();
    let numbers = walk.numbers;
    if random.once_in(8) || numbers.is_empty() {
        return bytes::mutate(file, random);
    }
    // Long lists have most of the numbers, and what breaks the structure is refused at once.
    let role = match random.below(8) {
        0 => Role::Structure,
        1 | 2 => Role::Element,
        _ => Role::Value,
    };
    let from: Vec<_> = numbers.into_iter().filter(|(_, own)| *own == role).map(|(place, _)| place).collect();
    let Some(place) = from.get(random.below(from.len())).cloned() else { return };
    let other = random.one_of(&from).clone();
    let number = match random.below(8) {
        0 => file[other].to_vec(),
        1 => f32::NAN.to_le_bytes().to_vec(),
        2 => random.one_of(&[0.5_f32, -1.0, 1e-40, 3e38, f32::INFINITY]).to_le_bytes().to_vec(),
        3 => random.bits().to_le_bytes().to_vec(),
        4 => u64::MAX.to_le_bytes().to_vec(),
        _ => random.odd_number().to_le_bytes().to_vec(),
    };
    file[place].iter_mut().zip(number).for_each(|(own, other)| *own = other);
}

/// What a number of a header is.
#[derive(Clone, Copy, PartialEq)]
enum Role {
    /// A length or a type.
    Structure,
    /// An element of a list.
    Element,
    /// The value of a key, an extent or a place.
    Value,
}

/// Where the numbers of a header are.
struct Walk<'f> {
    file: &'f [u8],
    at: usize,
    numbers: Vec<(Range<usize>, Role)>,
}

impl Walk<'_> {
    fn number(&mut self, width: usize, role: Role) -> Option<u64> {
        let place = self.at..self.at.checked_add(width)?;
        let bytes = self.file.get(place.clone())?;
        self.at = place.end;
        self.numbers.push((place, role));
        Some(bytes.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte)))
    }

    fn text(&mut self) -> Option<()> {
        let length = self.number(8, Role::Structure)? as usize;
        self.at = self.at.checked_add(length)?;
        Some(())
    }

    fn value(&mut self, kind: u64, role: Role) -> Option<()> {
        match kind {
            0 | 1 | 7 => self.number(1, role).map(drop),
            2 | 3 => self.number(2, role).map(drop),
            4..=6 => self.number(4, role).map(drop),
            10..=12 => self.number(8, role).map(drop),
            8 => self.text(),
            _ => {
                let (kind, count) = (self.number(4, Role::Structure)?, self.number(8, Role::Structure)?);
                (0..count).try_for_each(|_| self.value(kind, Role::Element))
            }
        }
    }

    fn header(&mut self) -> Option<()> {
        let (tensors, keys) = (self.number(8, Role::Structure)?, self.number(8, Role::Structure)?);
        for _ in 0..keys {
            self.text()?;
            let kind = self.number(4, Role::Structure)?;
            self.value(kind, Role::Value)?;
        }
        for _ in 0..tensors {
            self.text()?;
            let extents = self.number(4, Role::Structure)?;
            (0..extents).try_for_each(|_| self.number(8, Role::Value).map(drop))?;
            self.number(4, Role::Structure)?;
            self.number(8, Role::Value)?;
        }
        Some(())
    }
}
