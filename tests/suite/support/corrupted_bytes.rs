//! Messages for property tests: bodies with chunked framing, and bytes that are corrupted at random.

use proptest::prelude::*;
use proptest::sample::Index;

/// Generates the bytes of `wire`, with one to three of them replaced by random bytes.
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

/// Builds a body in chunks of `size` bytes, with an extension in each chunk and a trailer at the end.
pub(crate) fn chunked(body: &[u8], size: usize) -> Vec<u8> {
    let mut framed = Vec::new();
    for chunk in body.chunks(size) {
        framed.extend(
            [
                format!("{:x};a=b\r\n", chunk.len()).as_bytes(),
                chunk,
                b"\r\n",
            ]
            .concat(),
        );
    }
    framed.extend(b"0\r\nx-trailer: a\r\n\r\n");
    framed
}
