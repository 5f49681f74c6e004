//! The effects that verdicts observe, and the places in which they locate the cause.

/// Where a verdict places the cause. The values are ordered: a later one has more specific evidence, or can
/// cause an earlier one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Origin {
    /// The evidence does not show the cause.
    #[default]
    Unknown,
    /// More work than the engines can do.
    Load,
    /// The path to the backends, as far as all backends share it.
    Network,
    /// The API server of a backend, or the path to this backend alone.
    FrontEnd,
    /// A client that causes most of the work.
    Client,
    /// Backends that get no requests although they could serve them.
    Excluded,
    /// A backend that cannot get requests.
    Missing,
    /// The engine of a backend, which differs from its peers or from earlier.
    Engine,
    /// A backend that shares an engine with others, or is several engines.
    SharedEngine,
    /// A certain kind of request.
    Requests,
    /// Requests that crash engines.
    FatalRequests,
    /// A setting of the gateway that is too strict.
    Setting,
    /// The machine on which the gateway runs.
    Gateway,
}

/// The harm that a verdict observes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Requests wait for capacity, in the gateway or in engines.
    Waiting,
    /// Requests lose time before the engine.
    Lag,
    /// Streams make no progress or have no first output.
    Stalls,
    SlowTokens,
    /// Clients disconnect before the end of their responses.
    Disconnects,
    Failures,
    /// A backend goes down.
    Outages,
    /// Routing avoids a backend.
    Avoidance,
    /// The backend is not a single engine for this gateway alone.
    Sharing,
    /// Prefixes are computed again although a cache had them.
    Prefixes,
    /// KV blocks or requests are held although nobody needs them.
    HeldBlocks,
    /// A state or a fault that no other verdict explains.
    Other,
}

impl Effect {
    /// The effect that the verdicts of this rule observe.
    pub(crate) fn of(rule: &str) -> Self {
        match rule {
            "gateway_queue" | "kv_thrashing" | "kv_backlog" | "prefill_starvation" => Self::Waiting,
            "front_end_gap" => Self::Lag,
            "stalls" => Self::Stalls,
            "decode_starvation" | "slow_engine" => Self::SlowTokens,
            "abort_spike" => Self::Disconnects,
            "backend_failing" | "backend_ejected" => Self::Failures,
            "backend_down" | "backend_restarting" => Self::Outages,
            "backend_avoided" => Self::Avoidance,
            "shared_backend" => Self::Sharing,
            "prefix_cache_misses" => Self::Prefixes,
            "memory_leak" => Self::HeldBlocks,
            _ => Self::Other,
        }
    }

    /// The effects that a condition of this rule can cause at its own backend. While it holds or was found
    /// recently, later rules about these effects do not match there.
    pub(crate) fn caused_by(rule: &str) -> &'static [Self] {
        use Effect as E;
        match rule {
            "blind" => &[E::Sharing],
            "shared_backend" => &[
                E::Waiting,
                E::SlowTokens,
                E::Lag,
                E::Prefixes,
                E::HeldBlocks,
            ],
            "kv_thrashing" => &[
                E::Waiting,
                E::SlowTokens,
                E::Stalls,
                E::Disconnects,
                E::Avoidance,
                E::Prefixes,
            ],
            "decode_starvation" => &[E::SlowTokens, E::Stalls, E::Disconnects, E::Avoidance],
            "kv_backlog" | "slow_engine" => &[E::Waiting, E::Disconnects, E::Avoidance],
            "prefill_starvation" | "stalls" => &[E::Disconnects, E::Avoidance],
            "front_end_gap" => &[E::Avoidance],
            _ => &[],
        }
    }
}

impl Origin {
    /// The place of the cause in verdicts of this rule, unless a match gives a more specific one.
    pub(crate) fn of_rule(rule: &str) -> Self {
        match rule {
            "gateway_queue" | "shedding" | "kv_thrashing" | "kv_backlog" | "prefill_starvation"
            | "decode_starvation" => Self::Load,
            "backend_down" | "backend_drained" | "backend_ejected" | "backend_restarting" => {
                Self::Missing
            }
            "backend_failing" | "slow_engine" | "memory_leak" | "gpu_throttled" => Self::Engine,
            "shared_backend" => Self::SharedEngine,
            "gateway_limit" => Self::Setting,
            "gateway_starved" => Self::Gateway,
            _ => Self::Unknown,
        }
    }

    pub(crate) fn explains(self, effect: Effect) -> bool {
        use Effect as E;
        let effects: &[E] = match self {
            Self::Unknown | Self::Load => &[],
            Self::Network => &[E::Stalls, E::Avoidance],
            Self::FrontEnd => &[E::Stalls, E::Lag, E::Avoidance],
            Self::Client => &[E::Waiting],
            Self::Excluded | Self::Missing => &[E::Waiting, E::Disconnects],
            Self::Engine => &[
                E::Waiting,
                E::Stalls,
                E::SlowTokens,
                E::Disconnects,
                E::Avoidance,
            ],
            Self::SharedEngine => &[E::Waiting, E::Stalls, E::SlowTokens, E::Disconnects],
            Self::Requests => &[E::Waiting, E::Lag, E::Stalls, E::Disconnects, E::Avoidance],
            Self::FatalRequests => &[
                E::Waiting,
                E::Stalls,
                E::Disconnects,
                E::Failures,
                E::Outages,
            ],
            Self::Setting => &[E::Disconnects],
            Self::Gateway => &[E::Lag, E::Stalls, E::SlowTokens],
        };
        effects.contains(&effect)
    }
}
