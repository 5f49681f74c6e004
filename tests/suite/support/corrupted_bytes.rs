//! Corrupts bytes at random, for property tests.

use proptest::prelude::*;
use proptest::sample::Index;

/// The bytes that `wire` generates, with one to three of them replaced by random bytes.
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
