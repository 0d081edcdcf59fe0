//! Labelled pairs of sentences that differ in who does what to whom, made of words by rule.
//!
//! `The nurse thanked the pilot` says the same as `The pilot was thanked by the nurse`, and not what `The nurse was thanked
//! by the pilot` says. Pairs of either kind are in the same forms and of the same words, and the held-out pairs are of other
//! nouns and verbs, so that no form and no word gives the answer away.

/// People, and what one does to another: as a past tense, and as a participle.
pub(crate) struct Words {
    people: &'static [&'static str],
    verbs: &'static [(&'static str, &'static str)],
}

pub(crate) const TRAINING: Words = Words {
    people: &[
        "nurse", "pilot", "farmer", "teacher", "painter", "lawyer", "sailor", "baker", "singer", "judge", "plumber",
        "poet", "guard", "miner", "tailor", "waiter",
    ],
    verbs: &[
        ("thanked", "thanked"),
        ("saw", "seen"),
        ("helped", "helped"),
        ("hired", "hired"),
        ("followed", "followed"),
        ("beat", "beaten"),
        ("called", "called"),
        ("forgave", "forgiven"),
        ("blamed", "blamed"),
        ("invited", "invited"),
        ("paid", "paid"),
        ("rescued", "rescued"),
    ],
};

pub(crate) const HELD_OUT: Words = Words {
    people: &["doctor", "soldier", "student", "driver", "chemist", "actor", "priest", "hunter"],
    verbs: &[
        ("praised", "praised"),
        ("chose", "chosen"),
        ("warned", "warned"),
        ("taught", "taught"),
        ("visited", "visited"),
        ("trusted", "trusted"),
    ],
};

/// Three sentences: an anchor, one that says the same, and one in which the two people have changed places.
#[derive(Clone, Debug)]
pub(crate) struct Example {
    pub(crate) sentences: [String; 3],
}

/// The forms in which it is said that `a` did something to `b`.
const FORMS: usize = 4;

fn said(form: usize, a: &str, (past, participle): (&str, &str), b: &str) -> String {
    match form {
        0 => format!("The {a} {past} the {b}."),
        1 => format!("The {b} was {participle} by the {a}."),
        2 => format!("It was the {a} who {past} the {b}."),
        _ => format!("It was the {b} who was {participle} by the {a}."),
    }
}

impl Words {
    /// One example for each two people in either order; the two sentences beside the anchor are in one form.
    pub(crate) fn examples(&self) -> Vec<Example> {
        let mut examples = Vec::new();
        for (i, a) in self.people.iter().enumerate() {
            for (j, b) in self.people.iter().enumerate().filter(|(j, _)| *j != i) {
                let number = examples.len();
                let verb = self.verbs[number % self.verbs.len()];
                // Every form meets every other one, and never itself: that would be the same sentence.
                let (first, second) = ((i + j) % FORMS, (i + j + 1 + number % (FORMS - 1)) % FORMS);
                examples.push(Example {
                    sentences: [said(first, a, verb, b), said(second, a, verb, b), said(second, b, verb, a)],
                });
            }
        }
        examples
    }
}
