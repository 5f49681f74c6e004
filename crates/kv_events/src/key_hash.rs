//! The positions of keys in hash tables.

/// The position of a key in a hash table. `seed`: a random number, so that a publisher of KV events cannot
/// predict the positions. The hash is a folded multiplication, which mixes both the highest and the lowest
/// bits: the tables use both.
pub(crate) fn position(key: u64, seed: u64) -> u64 {
    let product = u128::from(key ^ seed) * u128::from(0x9e37_79b9_7f4a_7c15_u64);
    (product >> 64) as u64 ^ product as u64
}
