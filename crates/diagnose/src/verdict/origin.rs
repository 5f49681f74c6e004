//! What verdicts see, and where they place the cause.

/// Where a verdict places the cause. The later ones are shown by more specific evidence, or are causes of the
/// earlier ones.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Origin {
    /// The evidence does not show it.
    #[default]
    Unknown,
    /// More work than the engines can do.
    Load,
    /// What all backends share on the way to them.
    Network,
    /// The API server of a backend, or the path to it alone.
    FrontEnd,
    /// A client that causes most of the work.
    Client,
    /// Backends get no requests although they could.
    Excluded,
    /// A backend that cannot get requests.
    Missing,
    /// The engine of a backend: it differs from its peers or from its own past.
    Engine,
    /// Backends that are not one engine each.
    SharedEngine,
    /// A kind of requests, compared with the others.
    Requests,
    /// Requests that end the engines.
    FatalRequests,
    /// A setting of the gateway.
    Setting,
    /// The machine of the gateway.
    Gateway,
}

/// What a verdict sees: where requests are late or end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Requests wait for capacity, in the gateway or in engines.
    Waiting,
    /// Requests lose time before the engine.
    Lag,
    /// Streams stand still, or have no first output.
    Stalls,
    SlowTokens,
    /// Clients leave.
    Disconnects,
    Failures,
    /// A backend goes down.
    Outages,
    /// Routing avoids a backend.
    Avoidance,
    /// The backend is not one engine for this gateway alone.
    Sharing,
    /// Prefixes are computed again.
    Prefixes,
    /// KV blocks or requests are held without need.
    HeldBlocks,
    /// A state or a fault that no other verdict explains.
    Other,
}

impl Effect {
    /// What the verdicts of this rule see.
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

    /// What a condition of this rule can cause at its own backend. While it holds or was found recently, the later
    /// rules that see this find nothing there.
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
    /// Where the verdicts of this rule place the cause, unless a match shows it more exactly.
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
