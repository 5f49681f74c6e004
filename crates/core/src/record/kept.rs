//! Why the trace of a request is kept.

/// Why the spans of a finished request are exported. A request that is several of these is the
/// first of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kept {
    /// It failed.
    Error,
    /// Its client left.
    Aborted,
    /// It found no room, or gave up waiting for it.
    Shed,
    /// It was sent more than once.
    Retried,
    /// Its stream fell silent.
    Stalled,
    /// Its first token came later than nearly all others' lately.
    SlowFirstToken,
    /// It took longer than nearly all others lately.
    Slow,
    /// Its trace is among those that are kept whatever happens.
    Sampled,
}

impl Kept {
    /// All reasons, the most telling first.
    pub const ALL: [Self; 8] = [
        Self::Error,
        Self::Aborted,
        Self::Shed,
        Self::Retried,
        Self::Stalled,
        Self::SlowFirstToken,
        Self::Slow,
        Self::Sampled,
    ];

    /// One word.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Aborted => "aborted",
            Self::Shed => "shed",
            Self::Retried => "retried",
            Self::Stalled => "stalled",
            Self::SlowFirstToken => "slow_first_token",
            Self::Slow => "slow",
            Self::Sampled => "sampled",
        }
    }
}
