//! The panes of the view.

/// A pane of the view.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Pane {
    /// The list of backends.
    #[default]
    Backends,
    /// The list of open streams.
    Streams,
    /// The list of ended requests.
    Ended,
}

impl Pane {
    /// All panes, in the order of the screen.
    pub const ALL: [Self; 3] = [Self::Backends, Self::Streams, Self::Ended];

    pub(super) const fn index(self) -> usize {
        match self {
            Self::Backends => 0,
            Self::Streams => 1,
            Self::Ended => 2,
        }
    }

    pub(super) const fn after(self, steps: usize) -> Self {
        Self::ALL[(self.index() + steps) % 3]
    }
}
