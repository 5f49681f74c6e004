//! A JSON document as `serde_json` parses it, with all members of objects in order. A [`serde_json::Value`]
//! cannot be used: of several members with the same name, it keeps only the last.

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::Number;
use std::fmt::{Formatter, Result as Formatted};

/// A JSON value with its contents.
#[derive(Debug, Clone, PartialEq)]
pub enum Tree {
    /// `null`
    Null,
    /// `true` or `false`
    Bool(bool),
    /// A number.
    Number(Number),
    /// A string, with its escapes decoded.
    Text(String),
    /// The elements, in order.
    Array(Vec<Tree>),
    /// The members, in order.
    Object(Vec<(String, Tree)>),
}

impl Tree {
    /// Parses a whole document. `None` if it is not JSON.
    pub fn read(document: &[u8]) -> Option<Self> {
        serde_json::from_slice(document).ok()
    }

    /// All values at a path of names joined by `.`. There are several if an object has a name twice.
    pub fn at(&self, path: &str) -> Vec<&Self> {
        path.split('.').fold(vec![self], |values, name| {
            values
                .into_iter()
                .flat_map(|tree| tree.members(name))
                .collect()
        })
    }

    fn members(&self, wanted: &str) -> impl Iterator<Item = &Self> {
        let members = if let Self::Object(members) = self {
            members.as_slice()
        } else {
            &[]
        };
        members
            .iter()
            .filter(move |(name, _)| name == wanted)
            .map(|(_, value)| value)
    }
}

impl<'de> Deserialize<'de> for Tree {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Reader)
    }
}

struct Reader;

impl<'de> Visitor<'de> for Reader {
    type Value = Tree;

    fn expecting(&self, f: &mut Formatter<'_>) -> Formatted {
        f.write_str("a JSON value")
    }

    fn visit_unit<E: Error>(self) -> Result<Tree, E> {
        Ok(Tree::Null)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Tree, E> {
        Ok(Tree::Bool(value))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Tree, E> {
        Ok(Tree::Number(value.into()))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Tree, E> {
        Ok(Tree::Number(value.into()))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Tree, E> {
        Number::from_f64(value)
            .map(Tree::Number)
            .ok_or_else(|| E::custom("not finite"))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Tree, E> {
        Ok(Tree::Text(value.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Tree, A::Error> {
        let mut array = Vec::new();
        while let Some(element) = elements.next_element()? {
            array.push(element);
        }
        Ok(Tree::Array(array))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Tree, A::Error> {
        let mut object = Vec::new();
        while let Some(member) = members.next_entry()? {
            object.push(member);
        }
        Ok(Tree::Object(object))
    }
}
