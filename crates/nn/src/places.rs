//! Where the parameters of a module lie.

use std::collections::HashMap;
use std::rc::Rc;

use mlx_rs::module::ModuleParameters;
use mlx_rs::nested::{NestedHashMap, NestedValue};

/// The paths of a module's parameters, sorted, and a number for each, by which one is found without its path being built.
///
/// mlx-rs hands its parameters out in nested maps; flattening them costs several times what the maps do.
#[derive(Clone, Debug, Default)]
pub(crate) struct Places {
    pub(crate) paths: Vec<String>,
    root: HashMap<String, Place>,
}

#[derive(Clone, Debug)]
enum Place {
    Parameter(usize),
    Map(HashMap<String, Place>),
}

impl Places {
    pub(crate) fn from_module(module: &impl ModuleParameters) -> Self {
        let nested = module.parameters().entries;
        let mut paths = Vec::new();
        listed(None, &nested, &mut paths);
        paths.sort_unstable();
        let numbers: HashMap<&str, usize> =
            paths.iter().enumerate().map(|(number, path)| (path.as_str(), number)).collect();
        let root = numbered(None, &nested, &numbers);
        drop(numbers);
        Self { paths, root }
    }

    pub(crate) fn find(&self, path: &str) -> Option<usize> {
        self.paths.binary_search_by(|known| known.as_str().cmp(path)).ok()
    }

    /// What lies at each place; `None` where parameters came or went since.
    pub(crate) fn sorted<T>(&self, nested: NestedHashMap<Rc<str>, T>) -> Option<Vec<T>> {
        let mut values: Vec<Option<T>> = self.paths.iter().map(|_| None).collect();
        placed(&self.root, nested.entries, &mut values)?;
        values.into_iter().collect()
    }
}

type Entries<T> = HashMap<Rc<str>, NestedValue<Rc<str>, T>>;

/// As mlx-rs joins them: a key may be empty, and has a dot behind it as others have.
fn joined(prefix: Option<&str>, key: &str) -> String {
    prefix.map_or_else(|| key.to_owned(), |prefix| format!("{prefix}.{key}"))
}

fn listed<T>(prefix: Option<&str>, entries: &Entries<T>, paths: &mut Vec<String>) {
    for (key, value) in entries {
        let path = joined(prefix, key);
        match value {
            NestedValue::Value(_) => paths.push(path),
            NestedValue::Map(entries) => listed(Some(&path), entries, paths),
        }
    }
}

fn numbered<T>(prefix: Option<&str>, entries: &Entries<T>, numbers: &HashMap<&str, usize>) -> HashMap<String, Place> {
    let place = |(key, value): (&Rc<str>, &NestedValue<Rc<str>, T>)| {
        let path = joined(prefix, key);
        let place = match value {
            NestedValue::Value(_) => Place::Parameter(numbers[path.as_str()]),
            NestedValue::Map(entries) => Place::Map(numbered(Some(&path), entries, numbers)),
        };
        (key.to_string(), place)
    };
    entries.iter().map(place).collect()
}

fn placed<T>(places: &HashMap<String, Place>, entries: Entries<T>, found: &mut [Option<T>]) -> Option<()> {
    for (key, value) in entries {
        match (places.get(&*key)?, value) {
            (Place::Parameter(number), NestedValue::Value(value)) => found[*number] = Some(value),
            (Place::Map(places), NestedValue::Map(entries)) => placed(places, entries, found)?,
            _ => return None,
        }
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_those_that_mlx_rs_makes_of_empty_keys_too() {
        let leaf = || HashMap::from([(Rc::from(""), NestedValue::Value(())), (Rc::from("w"), NestedValue::Value(()))]);
        let entries: Entries<()> =
            HashMap::from([(Rc::from(""), NestedValue::Map(leaf())), (Rc::from("a"), NestedValue::Map(leaf()))]);
        let mut paths = Vec::new();
        listed(None, &entries, &mut paths);
        paths.sort_unstable();
        let mut flat: Vec<String> =
            NestedHashMap { entries }.flatten().into_keys().map(|path| path.to_string()).collect();
        flat.sort_unstable();
        assert_eq!(paths, flat);
    }
}
