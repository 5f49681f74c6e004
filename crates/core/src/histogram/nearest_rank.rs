//! The nearest rank of a quantile.

/// Rank of the `q` quantile among `count` values in ascending order. The lowest value has rank 1.
/// At least a share `q` of the values is at or below the value with this rank. `None` without
/// values.
pub(super) fn nearest_rank(count: u64, q: f64) -> Option<u64> {
    (count > 0).then(|| ((q * count as f64).ceil() as u64).clamp(1, count))
}
