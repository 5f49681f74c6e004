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
    /// The list of models, which replaces the list of backends.
    Models,
    /// The list of tenants, which replaces the list of backends.
    Tenants,
}

impl Pane {
    /// All panes, in the order of the keys 1 to 5.
    pub const ALL: [Self; 5] = [
        Self::Backends,
        Self::Streams,
        Self::Ended,
        Self::Models,
        Self::Tenants,
    ];

    pub(super) const fn index(self) -> usize {
        self as usize
    }

    /// Whether the pane is one of those at the top of the screen: backends, models or tenants.
    pub(super) const fn is_first(self) -> bool {
        !matches!(self, Self::Streams | Self::Ended)
    }
}
