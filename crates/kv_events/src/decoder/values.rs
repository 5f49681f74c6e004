//! Values in events: block hashes, media, and kinds of caches.

use super::msgpack::{DecodeError, Reader, Value};

/// Hash of an engine block and all blocks before it, as the engine computes it. A longer hash is reduced to its
/// lowest 64 bits. The gateway never computes this hash, because the engine may use a random seed.
pub type BlockHash = u64;

/// The block hashes of an event, decoded only when they are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockHashes<'a> {
    elements: Reader<'a>,
    count: usize,
}

/// The memory that contains a block.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Medium {
    /// Memory of the GPU. An event that names no medium has this one.
    #[default]
    Gpu,
    /// Any other memory: memory of the CPU, a disk, a shared store.
    Offloaded,
}

/// The kind of cache that a group of model layers has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum CacheKind {
    /// The cache keeps all blocks of a prompt from its beginning: full attention and MLA. An event that names
    /// no kind has this kind.
    #[default]
    Contiguous,
    /// Any other kind of cache. For example, the cache drops old blocks (sliding windows) or stores states
    /// instead of blocks (Mamba).
    Other,
}

impl<'a> BlockHashes<'a> {
    /// Reads an array of hashes and checks each of them.
    pub(super) fn read(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let Value::Array(count) = reader.value()? else {
            return Err(DecodeError::WrongType);
        };
        let elements = *reader;
        for _ in 0..count {
            read_hash(reader)?.ok_or(DecodeError::WrongType)?;
        }
        Ok(Self { elements, count })
    }

    /// Number of hashes in the event.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether the event names no block.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Iterates over the hashes, in the order of the event.
    pub fn iter(&self) -> impl Iterator<Item = BlockHash> + use<'a> {
        let mut elements = self.elements;
        // `read` has checked every element.
        (0..self.count).map_while(move |_| read_hash(&mut elements).ok().flatten())
    }
}

impl Default for BlockHashes<'_> {
    fn default() -> Self {
        Self {
            elements: Reader::new(&[]),
            count: 0,
        }
    }
}

impl Medium {
    pub(super) fn from_name(name: &str) -> Self {
        if name == "GPU" {
            Self::Gpu
        } else {
            Self::Offloaded
        }
    }
}

impl CacheKind {
    pub(super) fn from_name(name: &str) -> Self {
        match name {
            "full_attention" | "mla_attention" | "sink_full_attention" => Self::Contiguous,
            _ => Self::Other,
        }
    }
}

/// Reads one hash: a number, or at least 8 bytes, whose last 8 are the number. `None`: the value is nil.
pub(super) fn read_hash(reader: &mut Reader<'_>) -> Result<Option<BlockHash>, DecodeError> {
    match reader.value()? {
        Value::Nil => Ok(None),
        Value::Unsigned(hash) => Ok(Some(hash)),
        Value::Negative(hash) => Ok(Some(hash.cast_unsigned())),
        Value::Bytes(bytes) => {
            let last = bytes.last_chunk().ok_or(DecodeError::WrongType)?;
            Ok(Some(u64::from_be_bytes(*last)))
        }
        _ => Err(DecodeError::WrongType),
    }
}
