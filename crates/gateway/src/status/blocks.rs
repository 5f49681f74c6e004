//! Status blocks: the parts that options add to a status snapshot.

use serde::ser::{Error, SerializeMap};
use serde::{Serialize, Serializer};
use serde_json::value::RawValue;
use std::any::Any;
use std::fmt::Debug;
use std::sync::Arc;
use tokenweir_api::BackendSummary;

/// The part of a status that one option adds. The option's metric rows read it from the snapshot.
pub trait StatusBlock: Serialize + Debug + Send + Sync + 'static {
    /// The key of the block in `/status`. `None`: only metric rows read the block.
    const KEY: Option<&'static str> = None;

    /// Adds the data of the block to the summary of a backend.
    fn summarize(&self, _summary: &mut BackendSummary) {}
}

/// An optional block. `None`: the option has no such value.
impl<B: StatusBlock> StatusBlock for Option<B> {
    const KEY: Option<&'static str> = B::KEY;

    fn summarize(&self, summary: &mut BackendSummary) {
        if let Some(block) = self {
            block.summarize(summary);
        }
    }
}

/// The blocks of one snapshot, at most one of each type. `/status` keeps the order of addition.
#[derive(Debug, Clone, Default)]
pub struct StatusBlocks(Vec<Arc<dyn AnyBlock>>);

trait AnyBlock: Any + Debug + Send + Sync {
    fn key(&self) -> Option<&'static str>;
    fn to_json(&self) -> serde_json::Result<Box<RawValue>>;
    fn add_to(&self, summary: &mut BackendSummary);
}

impl<B: StatusBlock> AnyBlock for B {
    fn key(&self) -> Option<&'static str> {
        B::KEY
    }

    fn to_json(&self) -> serde_json::Result<Box<RawValue>> {
        serde_json::value::to_raw_value(self)
    }

    fn add_to(&self, summary: &mut BackendSummary) {
        self.summarize(summary);
    }
}

impl StatusBlocks {
    /// Adds a block at the end. A snapshot must have only one block of each type.
    pub fn add(&mut self, block: impl StatusBlock) {
        self.0.push(Arc::new(block));
    }

    /// The block of type `B`. `None`: the option has not added it.
    pub fn get<B: StatusBlock>(&self) -> Option<&B> {
        self.0.iter().find_map(|block| {
            let block: &dyn Any = &**block;
            block.downcast_ref()
        })
    }

    /// Lets each block add its data to the summary of a backend.
    pub fn summarize(&self, summary: &mut BackendSummary) {
        self.0.iter().for_each(|block| block.add_to(summary));
    }

    /// Returns a copy of the block of type `B`, or the type's default if no option has added the block.
    pub fn get_or_default<B: StatusBlock + Clone + Default>(&self) -> B {
        self.get().cloned().unwrap_or_default()
    }
}

/// Serializes the blocks that have a key, as the fields of a map.
impl Serialize for StatusBlocks {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut fields = serializer.serialize_map(None)?;
        for block in &self.0 {
            if let Some(key) = block.key() {
                let value = block.to_json().map_err(S::Error::custom)?;
                fields.serialize_entry(key, &value)?;
            }
        }
        fields.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Clone, Default, PartialEq, Serialize)]
    struct Listed {
        second: u32,
        first: u32,
    }

    #[derive(Debug, Clone, Default, PartialEq, Serialize)]
    struct ForMetrics(u32);

    impl StatusBlock for Listed {
        const KEY: Option<&'static str> = Some("listed");
    }

    impl StatusBlock for ForMetrics {}

    #[derive(Serialize)]
    struct Document {
        before: u32,
        #[serde(flatten)]
        blocks: StatusBlocks,
        after: u32,
    }

    #[test]
    fn each_block_is_found_by_its_type() {
        let mut blocks = StatusBlocks::default();
        blocks.add(ForMetrics(3));
        assert_eq!(blocks.get(), Some(&ForMetrics(3)));
        assert_eq!(blocks.get::<Listed>(), None);
        assert_eq!(blocks.get_or_default::<Listed>(), Listed::default());
    }

    #[test]
    fn a_document_has_the_blocks_with_a_key() {
        let mut blocks = StatusBlocks::default();
        blocks.add(ForMetrics(3));
        blocks.add(Listed {
            second: 2,
            first: 1,
        });
        let document = Document {
            before: 0,
            blocks,
            after: 9,
        };
        let expected = r#"{"before":0,"listed":{"second":2,"first":1},"after":9}"#;
        assert_eq!(serde_json::to_string(&document).unwrap(), expected);
    }
}
