//! One event: its fields, in the array encoding or in the map encoding.

use super::msgpack::{DecodeError, Reader, Value};
use super::values::{BlockHash, BlockHashes, CacheKind, Medium, read_hash};

/// An event of an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KvEvent<'a> {
    /// Blocks were stored.
    Stored(BlockStored<'a>),
    /// Blocks were removed.
    Removed(BlockRemoved<'a>),
    /// All blocks were removed.
    AllCleared,
    /// An event of another type.
    Unknown,
}

/// Blocks were stored, each a child of the block before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockStored<'a> {
    /// Hashes of the blocks.
    pub block_hashes: BlockHashes<'a>,
    /// Hash of the parent of the first block. `None`: the first block begins a prompt.
    pub parent: Option<BlockHash>,
    /// Number of tokens in each block. 0: the event does not state it.
    pub block_size: u32,
    /// The memory that contains the blocks.
    pub medium: Medium,
    /// Number of the group of model layers. `None`: this version of vLLM does not number groups.
    pub group: Option<u32>,
    /// Kind of cache that this group of layers has.
    pub cache_kind: CacheKind,
    /// Header `X-Session-ID` of the request that stored the blocks. `None`: the request has none.
    pub session_id: Option<&'a str>,
    /// Number of the LoRA adapter. `None`: the request uses no adapter.
    pub lora_id: Option<u64>,
    /// Name of the LoRA adapter. `None`: the request uses no adapter, or vLLM does not send the name.
    pub lora_name: Option<&'a str>,
    /// Whether a block has extra keys: a LoRA adapter, a cache salt or multimodal input.
    pub has_extra_keys: bool,
}

/// Blocks were removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockRemoved<'a> {
    /// Hashes of the blocks.
    pub block_hashes: BlockHashes<'a>,
    /// The memory that contained the blocks.
    pub medium: Medium,
    /// Number of the group of model layers. `None`: this version of vLLM does not number groups.
    pub group: Option<u32>,
}

/// The fields of all kinds of events. Each event sets some of them.
#[derive(Debug, Clone, Copy, Default)]
struct Fields<'a> {
    block_hashes: Option<BlockHashes<'a>>,
    parent: Option<BlockHash>,
    block_size: u32,
    medium: Option<&'a str>,
    group: Option<u32>,
    cache_kind: Option<&'a str>,
    session_id: Option<&'a str>,
    lora_id: Option<u64>,
    lora_name: Option<&'a str>,
    has_extra_keys: bool,
}

/// A field of an event, as the map encoding names it.
#[derive(Debug, Clone, Copy)]
enum Field {
    BlockHashes,
    Parent,
    TokenIds,
    BlockSize,
    LoraId,
    Medium,
    LoraName,
    ExtraKeys,
    Group,
    CacheKind,
    SessionId,
}

/// Fields of `BlockStored` in the array encoding, in order, after the element with the event type. Later
/// elements are skipped.
const STORED_FIELDS: [Field; 10] = [
    Field::BlockHashes,
    Field::Parent,
    Field::TokenIds,
    Field::BlockSize,
    Field::LoraId,
    Field::Medium,
    Field::LoraName,
    Field::ExtraKeys,
    Field::Group,
    Field::CacheKind,
];
/// Fields of `BlockRemoved` in the array encoding, in order, after the element with the event type.
const REMOVED_FIELDS: [Field; 3] = [Field::BlockHashes, Field::Medium, Field::Group];

/// Reads the next event.
pub(super) fn read<'a>(reader: &mut Reader<'a>) -> Result<KvEvent<'a>, DecodeError> {
    let mut fields = Fields::default();
    let kind = match reader.value()? {
        Value::Map(count) => fields.read_map(reader, count)?,
        Value::Array(count) => fields.read_array(reader, count)?,
        _ => return Err(DecodeError::WrongType),
    };
    match kind {
        "BlockStored" => fields.stored().map(KvEvent::Stored),
        "BlockRemoved" => fields.removed().map(KvEvent::Removed),
        "AllBlocksCleared" => Ok(KvEvent::AllCleared),
        _ => Ok(KvEvent::Unknown),
    }
}

impl<'a> Fields<'a> {
    /// Reads the pairs of a map. Returns the type of the event.
    fn read_map(&mut self, reader: &mut Reader<'a>, count: usize) -> Result<&'a str, DecodeError> {
        let mut kind = None;
        for _ in 0..count {
            let mut key = Reader::new(reader.skip()?);
            let name = if let Value::Text(name) = key.value()? { name } else { "" };
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

    /// Reads the elements of an array. Returns the type of the event.
    fn read_array(
        &mut self,
        reader: &mut Reader<'a>,
        count: usize,
    ) -> Result<&'a str, DecodeError> {
        let others = count.checked_sub(1).ok_or(DecodeError::WrongType)?;
        let kind = text(reader)?.ok_or(DecodeError::WrongType)?;
        let order: &[Field] = match kind {
            "BlockStored" => &STORED_FIELDS,
            "BlockRemoved" => &REMOVED_FIELDS,
            _ => &[],
        };
        for index in 0..others {
            match order.get(index) {
                Some(field) => self.read(*field, reader)?,
                None => drop(reader.skip()?),
            }
        }
        Ok(kind)
    }

    fn read(&mut self, field: Field, reader: &mut Reader<'a>) -> Result<(), DecodeError> {
        match field {
            Field::BlockHashes => self.block_hashes = Some(BlockHashes::read(reader)?),
            Field::Parent => self.parent = read_hash(reader)?,
            Field::TokenIds => drop(reader.skip()?),
            Field::BlockSize => self.block_size = small(number(reader)?)?.unwrap_or(0),
            Field::LoraId => self.lora_id = number(reader)?,
            Field::Medium => self.medium = text(reader)?,
            Field::LoraName => self.lora_name = text(reader)?,
            Field::ExtraKeys => self.has_extra_keys = has_content(reader.skip()?)?,
            Field::Group => self.group = small(number(reader)?)?,
            Field::CacheKind => self.cache_kind = text(reader)?,
            Field::SessionId => self.session_id = text(reader)?,
        }
        Ok(())
    }

    fn stored(self) -> Result<BlockStored<'a>, DecodeError> {
        Ok(BlockStored {
            block_hashes: self.block_hashes.ok_or(DecodeError::WrongType)?,
            parent: self.parent,
            block_size: self.block_size,
            medium: self.medium.map_or(Medium::Gpu, Medium::from_name),
            group: self.group,
            cache_kind: self.cache_kind.map_or(CacheKind::Contiguous, CacheKind::from_name),
            session_id: self.session_id,
            lora_id: self.lora_id,
            lora_name: self.lora_name,
            has_extra_keys: self.has_extra_keys,
        })
    }

    fn removed(self) -> Result<BlockRemoved<'a>, DecodeError> {
        Ok(BlockRemoved {
            block_hashes: self.block_hashes.ok_or(DecodeError::WrongType)?,
            medium: self.medium.map_or(Medium::Gpu, Medium::from_name),
            group: self.group,
        })
    }
}

impl Field {
    fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "block_hashes" => Self::BlockHashes,
            "parent_block_hash" => Self::Parent,
            "token_ids" => Self::TokenIds,
            "block_size" => Self::BlockSize,
            "lora_id" => Self::LoraId,
            "medium" => Self::Medium,
            "lora_name" => Self::LoraName,
            "extra_keys" => Self::ExtraKeys,
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

fn number(reader: &mut Reader<'_>) -> Result<Option<u64>, DecodeError> {
    match reader.value()? {
        Value::Unsigned(number) => Ok(Some(number)),
        Value::Nil => Ok(None),
        _ => Err(DecodeError::WrongType),
    }
}

fn small(number: Option<u64>) -> Result<Option<u32>, DecodeError> {
    number.map(u32::try_from).transpose().map_err(|_| DecodeError::WrongType)
}

/// Whether a value has content: anything except nil, empty arrays, and arrays of these.
fn has_content(value: &[u8]) -> Result<bool, DecodeError> {
    let mut reader = Reader::new(value);
    while !reader.is_at_end() {
        if !matches!(reader.value()?, Value::Nil | Value::Array(_)) {
            return Ok(true);
        }
    }
    Ok(false)
}
