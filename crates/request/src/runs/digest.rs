//! SHA-256 digests that identify clients, runs and requests. The values are not stored.

use ring::digest::{Context, SHA256};

/// SHA-256 over a list of values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Digest([u8; 32]);

/// The identity of a run (a request to which its client may return): its client and the
/// `Idempotency-Key` that the client chose.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RunKey {
    client: Digest,
    key: Digest,
}

impl Digest {
    /// The digest of a list of values. Different lists have different digests, because the length of each value
    /// marks its end.
    pub fn of(values: &[&[u8]]) -> Self {
        let mut context = Context::new(&SHA256);
        for value in values {
            context.update(&(value.len() as u64).to_le_bytes());
            context.update(value);
        }
        let mut bytes = [0; 32];
        bytes.copy_from_slice(context.finish().as_ref());
        Self(bytes)
    }
}

impl RunKey {
    /// The identity of the run that a request with this `Idempotency-Key` begins. `client`: digest of the
    /// identity of the client.
    pub fn new(client: Digest, key: &[u8]) -> Self {
        Self {
            client,
            key: Digest::of(&[key]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differently_divided_lists_have_different_digests() {
        let digests = [
            Digest::of(&[b"ab", b"c"]),
            Digest::of(&[b"a", b"bc"]),
            Digest::of(&[b"abc"]),
        ];
        assert!(digests[0] != digests[1] && digests[1] != digests[2] && digests[0] != digests[2]);
        assert_eq!(digests[0], Digest::of(&[b"ab", b"c"]));
        assert_ne!(RunKey::new(digests[0], b"k"), RunKey::new(digests[1], b"k"));
    }
}
