//! Finds which value of the header `X-data-parallel-rank` selects which data-parallel rank on the
//! metrics page. They can differ: in a group of several hosts, the header numbers the ranks of one
//! server from 0, and the page numbers the ranks of the whole group.

/// The search for the values of the header, one probe after the other.
///
/// Each value is sent twice, the second time in reverse order: otherwise a backend that ignores the
/// header and spreads requests evenly would seem to follow the header.
#[derive(Debug)]
pub(in crate::backend) struct Numbering {
    /// The numbers of the ranks on the metrics page, in ascending order.
    numbers: Vec<u32>,
    /// The values of the header to try.
    values: Vec<u32>,
    /// For each probe request so far, in order: the number of the rank that got it.
    seen: Vec<u32>,
}

/// What the search needs next.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::backend) enum NumberingStep {
    /// A probe with this value.
    Probe(u32),
    /// No probe: the search has found the values. Each pair is the number of a rank and its value
    /// of the header, in the order of the numbers.
    Known(Vec<(u32, u32)>),
    /// No probe: the backend ignores the rank in the header.
    Ignored,
}

impl Numbering {
    /// Begins the search for the ranks with these numbers, which are in ascending order.
    /// `are_values_numbers`: whether the search tries these numbers as values of the header, instead of
    /// the values from 0 on.
    pub(in crate::backend) fn new(numbers: Vec<u32>, are_values_numbers: bool) -> Self {
        let counted = || (0..).zip(&numbers).map(|(value, _)| value).collect();
        let values = if are_values_numbers { numbers.clone() } else { counted() };
        Self { numbers, values, seen: Vec::new() }
    }

    /// Records which rank got the probe of the last step.
    pub(in crate::backend) fn record(&mut self, number: u32) {
        self.seen.push(number);
    }

    /// The next step of the search, after the probes that were recorded so far.
    pub(in crate::backend) fn next(&self) -> NumberingStep {
        let mut probes = self.values.iter().chain(self.values.iter().rev());
        if let Some(value) = probes.nth(self.seen.len()) {
            return NumberingStep::Probe(*value);
        }
        let known = self.numbers.iter().map(|number| {
            let first = self.seen.iter().position(|seen| seen == number)?;
            let last = self.seen.iter().rposition(|seen| seen == number)?;
            let is_same = first + last + 1 == self.seen.len();
            Some((*number, *self.values.get(first)?)).filter(|_| is_same)
        });
        known.collect::<Option<_>>().map_or(NumberingStep::Ignored, NumberingStep::Known)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The result of a search. `rank` simulates the backend: from the index and the header value of a
    /// probe, it returns the number of the rank that gets the probe.
    fn search(numbers: &[u32], rank: impl Fn(usize, u32) -> u32) -> NumberingStep {
        let mut numbering = Numbering::new(numbers.to_vec(), false);
        for index in 0.. {
            match numbering.next() {
                NumberingStep::Probe(value) => numbering.record(rank(index, value)),
                end => return end,
            }
        }
        unreachable!()
    }

    #[test]
    fn the_values_of_a_backend_that_follows_the_header_are_found() {
        let known = NumberingStep::Known(vec![(0, 0), (1, 1)]);
        assert_eq!(search(&[0, 1], |_, value| value), known);
        let known = NumberingStep::Known(vec![(4, 0), (5, 1), (6, 2)]);
        assert_eq!(search(&[4, 5, 6], |_, value| value + 4), known);
        let known = NumberingStep::Known(vec![(0, 1), (1, 0)]);
        assert_eq!(search(&[0, 1], |_, value| 1 - value), known);
    }

    #[test]
    fn a_backend_that_balances_by_itself_does_not_follow_the_header() {
        for count in [2, 3, 8] {
            let numbers: Vec<u32> = (0..count).collect();
            let round_robin = |index: usize, _| index as u32 % count;
            assert_eq!(search(&numbers, round_robin), NumberingStep::Ignored);
            assert_eq!(search(&numbers, |_, _| 0), NumberingStep::Ignored);
        }
    }
}
