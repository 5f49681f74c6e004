//! Writes event batches for tests.

/// Blocks to store.
pub(crate) struct Stored<'a> {
    pub(crate) blocks: &'a [u64],
    pub(crate) parent: Option<u64>,
    pub(crate) block_size: u8,
    pub(crate) session_id: &'a str,
}

/// A batch with removed and then stored blocks, as vLLM orders them.
pub(crate) fn batch(stored: &[Stored<'_>], removed: &[u64]) -> Vec<u8> {
    let count = (stored.len() + usize::from(!removed.is_empty())) as u16;
    let mut out = vec![0x92, 0xc0, 0xdc];
    out.extend_from_slice(&count.to_be_bytes());
    if !removed.is_empty() {
        out.push(0x82);
        text("type", &mut out);
        text("BlockRemoved", &mut out);
        text("block_hashes", &mut out);
        hashes(removed, &mut out);
    }
    for event in stored {
        out.push(0x85);
        text("type", &mut out);
        text("BlockStored", &mut out);
        text("block_hashes", &mut out);
        hashes(event.blocks, &mut out);
        text("parent_block_hash", &mut out);
        match event.parent {
            Some(parent) => hash(parent, &mut out),
            None => out.push(0xc0),
        }
        text("block_size", &mut out);
        out.push(event.block_size);
        text("session_id", &mut out);
        text(event.session_id, &mut out);
    }
    out
}

fn text(text: &str, out: &mut Vec<u8>) {
    out.extend_from_slice(&[0xd9, text.len() as u8]);
    out.extend_from_slice(text.as_bytes());
}

fn hashes(hashes: &[u64], out: &mut Vec<u8>) {
    out.push(0xdd);
    out.extend_from_slice(&(hashes.len() as u32).to_be_bytes());
    for number in hashes {
        hash(*number, out);
    }
}

fn hash(number: u64, out: &mut Vec<u8>) {
    out.push(0xcf);
    out.extend_from_slice(&number.to_be_bytes());
}
