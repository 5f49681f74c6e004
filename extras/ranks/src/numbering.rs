//! Finds which value of the header `X-data-parallel-rank` selects which data-parallel rank on the
//! metrics page. They can differ: in a group of several hosts, the header numbers the ranks of one
//! server from 0, and the page numbers the ranks of the whole group.

/// Returns the values of `X-data-parallel-rank` to send in successive test requests (probes), which
/// find out which rank each of `values` selects.
///
/// Each value is sent twice, the second time in reverse order: otherwise a backend that ignores the
/// header and spreads requests evenly would seem to follow the header.
pub(crate) fn probes(values: &[u32]) -> impl Iterator<Item = u32> {
    values.iter().chain(values.iter().rev()).copied()
}

/// The value of the header for each rank: pairs of the number of a rank and its value, in the order of
/// `numbers`, which are the numbers on the metrics page. `seen`: for each of the [`probes`] of `values`,
/// the number of the rank that got it. `None`: the backend ignores the rank in the header.
pub(crate) fn assign_values(
    numbers: &[u32],
    values: &[u32],
    seen: &[u32],
) -> Option<Vec<(u32, u32)>> {
    let value = |number: &u32| {
        let first = seen.iter().position(|seen| seen == number)?;
        let last = seen.iter().rposition(|seen| seen == number)?;
        let is_same = first + last + 1 == seen.len();
        let value = *values.get(first)?;
        is_same.then_some((*number, value))
    };
    numbers.iter().map(value).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The result of a search. `rank` simulates the backend: from the index and the header value of a
    /// probe, it returns the number of the rank that gets the probe.
    fn search(numbers: &[u32], rank: impl Fn(usize, u32) -> u32) -> Option<Vec<(u32, u32)>> {
        let values: Vec<u32> = (0..numbers.len() as u32).collect();
        let seen = probes(&values)
            .enumerate()
            .map(|(index, value)| rank(index, value));
        assign_values(numbers, &values, &seen.collect::<Vec<_>>())
    }

    #[test]
    fn a_followed_header_shows_each_value() {
        let known = Some(vec![(0, 0), (1, 1)]);
        assert_eq!(search(&[0, 1], |_, value| value), known);
        let known = Some(vec![(4, 0), (5, 1), (6, 2)]);
        assert_eq!(search(&[4, 5, 6], |_, value| value + 4), known);
        let known = Some(vec![(0, 1), (1, 0)]);
        assert_eq!(search(&[0, 1], |_, value| 1 - value), known);
    }

    #[test]
    fn a_spreading_backend_does_not_follow_the_header() {
        for count in [2, 3, 8] {
            let numbers: Vec<u32> = (0..count).collect();
            let round_robin = |index: usize, _| index as u32 % count;
            assert_eq!(search(&numbers, round_robin), None);
            assert_eq!(search(&numbers, |_, _| 0), None);
        }
    }
}
