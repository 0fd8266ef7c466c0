//! JSON objects of requests, whose values keep their text: a number that fits none of our types
//! comes back with all of its digits.

use std::collections::BTreeSet;
use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::error::ControlError;
use crate::diagnostic::shorten;

/// Keys and values in their order; a key may be there more than once.
pub(super) struct Object<'t>(Vec<(String, &'t RawValue)>);

impl<'t> Object<'t> {
    /// Parses `text`; if it is no object, the error sentence begins with `what`.
    pub(super) fn parse(text: &'t str, what: &str) -> Result<Self, ControlError> {
        serde_json::from_str(text).map_err(|error| {
            ControlError::new(
                "bad-request",
                match error.is_data() {
                    true => format!("{what} is no JSON object"),
                    false => format!("not JSON: {error}"),
                },
            )
        })
    }

    /// Refuses an object with a duplicate key: either value could be the intended one.
    pub(super) fn check_unique(&self) -> Result<(), ControlError> {
        let mut seen = BTreeSet::new();
        match self.keys().find(|key| !seen.insert(*key)) {
            None => Ok(()),
            Some(key) => {
                let message = format!("key `{}` is given twice: give it once", shorten(key));
                Err(ControlError::new("bad-request", message))
            }
        }
    }

    /// The value of `key`; `None` if the object does not have it, or has it twice.
    pub(super) fn get(&self, key: &str) -> Option<&'t RawValue> {
        let mut values = self.0.iter().filter(|(own, _)| own == key).map(|(_, value)| *value);
        values.next().filter(|_| values.next().is_none())
    }

    /// The keys in their order.
    pub(super) fn keys(&self) -> impl Iterator<Item = &String> {
        self.0.iter().map(|(key, _)| key)
    }

    /// An object without keys.
    pub(super) fn empty() -> Self {
        Self(Vec::new())
    }
}

impl<'de> Deserialize<'de> for Object<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Pairs)
    }
}

struct Pairs;

impl<'de> Visitor<'de> for Pairs {
    type Value = Object<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Object<'de>, A::Error> {
        let mut pairs = Vec::new();
        while let Some(pair) = map.next_entry()? {
            pairs.push(pair);
        }
        Ok(Object(pairs))
    }
}
