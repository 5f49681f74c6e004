//! The panes of the terminal view.

/// A pane of the terminal view, which shows one list.
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
    /// All panes, from the top to the bottom of the screen.
    pub const ALL: [Self; 3] = [Self::Backends, Self::Streams, Self::Ended];

    /// The position on the screen, from 0.
    pub(super) const fn index(self) -> usize {
        self as usize
    }

    /// The pane that follows after a number of steps. The first pane follows the last pane.
    pub(super) const fn after(self, steps: usize) -> Self {
        Self::ALL[(self.index() + steps) % 3]
    }
}
