//! The context lengths of a model at its backends.

use std::collections::HashSet;
use std::sync::Arc;

/// The maximum number of tokens (prompt plus output) that each backend accepts for a model.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct ModelLengths {
    /// The context length in tokens, by position of the backend. 0: not known.
    by_position: Arc<[u32]>,
    /// Whether the lengths differ, so that a request can be too long for only some backends.
    pub(in crate::backend) is_uneven: bool,
}

impl ModelLengths {
    /// The lengths at the backends `positions`. `listed`: for each group of backends with equal model lists,
    /// their positions and the context length in their list. `sets`: the lengths of other models. Models with
    /// equal lengths share one copy.
    pub(super) fn new<'a>(
        listed: impl Iterator<Item = (&'a [usize], Option<u32>)>,
        positions: &[usize],
        sets: &mut HashSet<Self>,
    ) -> Self {
        let end = positions.last().map_or(0, |last| last + 1);
        let mut by_position = vec![0; end];
        for (group, length) in listed {
            for position in group {
                if let Some(at) = by_position.get_mut(*position) {
                    *at = length.unwrap_or(0);
                }
            }
        }
        let mut lengths = positions
            .iter()
            .filter_map(|position| by_position.get(*position));
        let first = lengths.next().copied().unwrap_or(0);
        let is_uneven = lengths.any(|length| *length != first);
        if first == 0 && !is_uneven {
            return Self::default();
        }
        let lengths = Self {
            by_position: by_position.into(),
            is_uneven,
        };
        sets.get(&lengths).cloned().unwrap_or_else(|| {
            sets.insert(lengths.clone());
            lengths
        })
    }

    /// The context length at the backend at this position. `None`: not known.
    pub(in crate::backend) fn at(&self, position: usize) -> Option<u32> {
        self.by_position
            .get(position)
            .copied()
            .filter(|length| *length > 0)
    }

    /// The maximum context length at the backends `positions`. `None`: no length is known.
    pub(crate) fn greatest(&self, positions: impl Iterator<Item = usize>) -> Option<u32> {
        positions.filter_map(|position| self.at(position)).max()
    }
}
