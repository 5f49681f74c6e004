//! Hash functions of the policies.

/// Mixes the bits of a number with the finalizer of splitmix64 (Steele, Lea and Flood 2014).
pub const fn mix(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

/// Maps a uniformly distributed `u64` to `[0, 1)`.
pub fn unit(number: u64) -> f64 {
    (number >> 11) as f64 / (1_u64 << 53) as f64
}

/// The score of a target for a key in weighted rendezvous hashing (highest random weight, Thaler and
/// Ravishankar 1996): −weight ÷ ln(u), where u in `[0, 1)` is a hash of target and key. The target with the
/// highest score gets the key. So each target gets a share of the keys in proportion to its weight, and adding
/// a target does not change the scores of others.
pub fn rendezvous_score(target: u64, key: u64, weight: u32) -> f64 {
    let uniform = unit(mix(key ^ target));
    -f64::from(weight) / uniform.max(f64::MIN_POSITIVE).ln()
}
