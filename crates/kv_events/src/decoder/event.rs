//! One event and its fields, in the array encoding or in the map encoding.

use super::msgpack::{DecodeError, Reader, Value};
use super::values::{BlockHash, BlockHashes, CacheKind, Medium, read_hash};

/// A change of the prefix cache of an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KvEvent<'a> {
    /// The engine stored blocks, each a child of the block before it.
    Stored(EventBlocks<'a>),
    /// The engine removed blocks from its cache.
    Removed(EventBlocks<'a>),
    /// All blocks were removed.
    AllCleared,
    /// An event of a type that the decoder does not support.
    Unknown,
}

/// The blocks of an event. The event of removed blocks has only their hashes, medium and group.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EventBlocks<'a> {
    /// Hashes of the blocks. Those of stored blocks are in the order of the prompt.
    pub block_hashes: BlockHashes<'a>,
    /// Hash of the parent of the first block. `None`: the first block begins a prompt.
    pub parent: Option<BlockHash>,
    /// Number of tokens in each block. 0: the event does not state it.
    pub block_size: u32,
    /// The memory that contains the blocks.
    pub medium: Medium,
    /// Number of the group of model layers whose cache has the blocks. `None`: this version of vLLM does not
    /// number groups.
    pub group: Option<u32>,
    /// Kind of cache that this group of layers has.
    pub cache_kind: CacheKind,
    /// Header `X-Session-ID` of the request that stored the blocks. `None`: the request has none.
    pub session_id: Option<&'a str>,
}

/// The fields of all kinds of KV events. Each event sets some of them.
#[derive(Debug, Default)]
struct Fields<'a> {
    values: EventBlocks<'a>,
    has_hashes: bool,
}

/// A field of an event that the gateway uses, as the map encoding names it.
#[derive(Debug, Clone, Copy)]
enum Field {
    BlockHashes,
    Parent,
    BlockSize,
    Medium,
    Group,
    CacheKind,
    SessionId,
}

/// Fields of `BlockStored` in the array encoding, in order, after the element with the event type. The decoder
/// skips later elements, and the elements that are `None` here: token ids, LoRA adapter and extra keys.
const STORED_FIELDS: &[Option<Field>] = &[
    Some(Field::BlockHashes),
    Some(Field::Parent),
    None,
    Some(Field::BlockSize),
    None,
    Some(Field::Medium),
    None,
    None,
    Some(Field::Group),
    Some(Field::CacheKind),
];
/// Fields of `BlockRemoved` in the array encoding, in order, after the element with the event type.
const REMOVED_FIELDS: &[Option<Field>] = &[
    Some(Field::BlockHashes),
    Some(Field::Medium),
    Some(Field::Group),
];

pub(super) fn read<'a>(reader: &mut Reader<'a>) -> Result<KvEvent<'a>, DecodeError> {
    let mut fields = Fields::default();
    let kind = match reader.value()? {
        Value::Map(count) => fields.read_map(reader, count)?,
        Value::Array(count) => fields.read_array(reader, count)?,
        _ => return Err(DecodeError::WrongType),
    };
    match kind {
        "BlockStored" => fields.of_blocks().map(KvEvent::Stored),
        "BlockRemoved" => fields.of_blocks().map(KvEvent::Removed),
        "AllBlocksCleared" => Ok(KvEvent::AllCleared),
        _ => Ok(KvEvent::Unknown),
    }
}

impl<'a> Fields<'a> {
    fn read_map(&mut self, reader: &mut Reader<'a>, count: usize) -> Result<&'a str, DecodeError> {
        let mut kind = None;
        for _ in 0..count {
            let mut key = Reader::new(reader.skip()?);
            let name = if let Value::Text(name) = key.value()? {
                name
            } else {
                ""
            };
            if name == "type" {
                kind = text(reader)?;
            } else if let Some(field) = Field::from_name(name) {
                self.read(field, reader)?;
            } else {
                reader.skip()?;
            }
        }
        kind.ok_or(DecodeError::WrongType)
    }

    fn read_array(
        &mut self,
        reader: &mut Reader<'a>,
        count: usize,
    ) -> Result<&'a str, DecodeError> {
        let others = count.checked_sub(1).ok_or(DecodeError::WrongType)?;
        let kind = text(reader)?.ok_or(DecodeError::WrongType)?;
        let order: &[Option<Field>] = match kind {
            "BlockStored" => STORED_FIELDS,
            "BlockRemoved" => REMOVED_FIELDS,
            _ => &[],
        };
        for index in 0..others {
            match order.get(index) {
                Some(Some(field)) => self.read(*field, reader)?,
                _ => drop(reader.skip()?),
            }
        }
        Ok(kind)
    }

    fn read(&mut self, field: Field, reader: &mut Reader<'a>) -> Result<(), DecodeError> {
        let values = &mut self.values;
        match field {
            Field::BlockHashes => {
                values.block_hashes = BlockHashes::read(reader)?;
                self.has_hashes = true;
            }
            Field::Parent => values.parent = read_hash(reader)?,
            Field::BlockSize => values.block_size = number(reader)?.unwrap_or(0),
            Field::Medium => {
                values.medium = text(reader)?.map(Medium::from_name).unwrap_or_default();
            }
            Field::Group => values.group = number(reader)?,
            Field::CacheKind => {
                values.cache_kind = text(reader)?.map(CacheKind::from_name).unwrap_or_default();
            }
            Field::SessionId => values.session_id = text(reader)?,
        }
        Ok(())
    }

    /// Converts the fields of an event that names blocks. Fails if the event has no block hashes.
    fn of_blocks(self) -> Result<EventBlocks<'a>, DecodeError> {
        if self.has_hashes {
            Ok(self.values)
        } else {
            Err(DecodeError::WrongType)
        }
    }
}

impl Field {
    fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "block_hashes" => Self::BlockHashes,
            "parent_block_hash" => Self::Parent,
            "block_size" => Self::BlockSize,
            "medium" => Self::Medium,
            "group_idx" => Self::Group,
            "kv_cache_spec_kind" => Self::CacheKind,
            "session_id" => Self::SessionId,
            _ => return None,
        })
    }
}

fn text<'a>(reader: &mut Reader<'a>) -> Result<Option<&'a str>, DecodeError> {
    match reader.value()? {
        Value::Text(text) => Ok(Some(text)),
        Value::Nil => Ok(None),
        _ => Err(DecodeError::WrongType),
    }
}

fn number(reader: &mut Reader<'_>) -> Result<Option<u32>, DecodeError> {
    match reader.value()? {
        Value::Unsigned(number) => number
            .try_into()
            .map(Some)
            .map_err(|_| DecodeError::WrongType),
        Value::Nil => Ok(None),
        _ => Err(DecodeError::WrongType),
    }
}
