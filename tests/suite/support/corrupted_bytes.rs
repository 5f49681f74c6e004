//! Random corruption of bytes.

use proptest::prelude::*;
use proptest::sample::Index;

/// The bytes with one to three random bytes replaced.
pub(crate) fn corrupted(wire: impl Strategy<Value = Vec<u8>>) -> impl Strategy<Value = Vec<u8>> {
    let others = proptest::collection::vec((any::<Index>(), any::<u8>()), 1..4);
    (wire, others).prop_map(|(mut wire, others)| {
        for (index, byte) in others {
            let at = index.index(wire.len());
            wire[at] = byte;
        }
        wire
    })
}
