//! The limits of the gateway that can end requests, each with the reasons under which requests record it.

/// A limit of the gateway, and the requests that it ends.
#[derive(Debug)]
pub(super) struct GatewayLimit {
    /// The reasons under which the gateway ends requests: reasons of its errors, and timeouts.
    pub(super) reasons: &'static [&'static str],
    /// The settings, the most probable first.
    pub(super) settings: &'static [&'static str],
    /// The effect of the limit, as a text that follows its name.
    pub(super) effect: &'static str,
    /// The advice to an operator.
    pub(super) remedy: &'static str,
    pub(super) kind: LimitKind,
}

/// The thing that a limit protects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LimitKind {
    /// The time that a backend may take. A backend that makes no progress exceeds any such limit.
    BackendTime,
    /// The memory, the files or the time of the gateway itself.
    Gateway,
    /// The work of one client, tenant or request. Clients may reach this limit deliberately.
    Client,
    /// Access to the gateway.
    Keys,
}

/// The settings whose values the rule reads. `FleetObservation` contains the values of those that are set.
pub const LIMIT_SETTINGS: [&str; 20] = [
    "timeouts.connect",
    "timeouts.first_output",
    "timeouts.response_headers",
    "timeouts.total",
    "stalls.abort_after",
    "limits.memory",
    "limits.requests_in_flight",
    "limits.body_memory",
    "limits.body",
    "limits.body_idle_timeout",
    "limits.write_timeout",
    "limits.requests_per_client",
    "limits.connections",
    "admission.max_wait",
    "admission.max_backend_wait",
    "admission.queue_capacity",
    "admission.max_in_flight",
    "admission.max_kv_usage",
    "circuit_breaker.consecutive_failures",
    "circuit_breaker.failure_ratio",
];

const RAISE_TIME: &str = "Raise the timeout above the longest usual time, or remove it: tokenweir reload applies it at once.";
const RAISE_LIMIT: &str = "Raise the limit, or start a second gateway. More backends do not help.";

/// The limits. If two limits ended the same number of requests, the later one is reported.
pub(super) static LIMITS: [GatewayLimit; 13] = [
    GatewayLimit {
        reasons: &["first_output_timeout"],
        settings: &["timeouts.first_output"],
        effect: "ends streams whose first output comes later",
        remedy: RAISE_TIME,
        kind: LimitKind::BackendTime,
    },
    GatewayLimit {
        reasons: &["timeout"],
        settings: &["timeouts.response_headers"],
        effect: "ends requests whose response head comes later",
        remedy: RAISE_TIME,
        kind: LimitKind::BackendTime,
    },
    GatewayLimit {
        reasons: &["total_timeout"],
        settings: &["timeouts.total"],
        effect: "ends requests that take longer",
        remedy: RAISE_TIME,
        kind: LimitKind::BackendTime,
    },
    GatewayLimit {
        reasons: &["timeout_idle"],
        settings: &["stalls.abort_after", "timeouts.response_headers"],
        effect: "ends streams that pause for longer",
        remedy: RAISE_TIME,
        kind: LimitKind::BackendTime,
    },
    GatewayLimit {
        reasons: &["overloaded"],
        settings: &["limits.memory", "limits.requests_in_flight"],
        effect: "is reached: new requests get 503",
        remedy: RAISE_LIMIT,
        kind: LimitKind::Gateway,
    },
    GatewayLimit {
        reasons: &["body_memory"],
        settings: &["limits.body_memory"],
        effect: "is reached by the bodies of all requests: new requests get 503",
        remedy: RAISE_LIMIT,
        kind: LimitKind::Gateway,
    },
    GatewayLimit {
        reasons: &["gateway_exhausted"],
        settings: &[],
        effect: "is reached: no connection to a backend can be opened",
        remedy: RAISE_LIMIT,
        kind: LimitKind::Gateway,
    },
    GatewayLimit {
        reasons: &["client_write_timeout"],
        settings: &["limits.write_timeout"],
        effect: "ends responses that their clients do not read",
        remedy: RAISE_TIME,
        kind: LimitKind::Client,
    },
    GatewayLimit {
        reasons: &["body_too_large"],
        settings: &["limits.body"],
        effect: "is less than the bodies that clients send: they get 413",
        remedy: RAISE_LIMIT,
        kind: LimitKind::Client,
    },
    GatewayLimit {
        reasons: &["body_timeout"],
        settings: &["limits.body_idle_timeout"],
        effect: "ends uploads that pause for longer, with 408",
        remedy: RAISE_TIME,
        kind: LimitKind::Client,
    },
    GatewayLimit {
        reasons: &["client_busy"],
        settings: &["limits.requests_per_client"],
        effect: "is reached by one address: its requests get 429",
        remedy: "Raise the limit. Behind a proxy, all clients have one address: remove it there.",
        kind: LimitKind::Client,
    },
    GatewayLimit {
        reasons: &["removed_key"],
        settings: &[],
        effect: "does not have these keys any more, which it had before: their requests get 401",
        remedy: "Write the keys into the key file again, or give their clients the new ones.",
        kind: LimitKind::Keys,
    },
    GatewayLimit {
        reasons: &[
            "request_limit",
            "token_limit",
            "concurrency_limit",
            "request_cap",
        ],
        settings: &[],
        effect: "ends requests of clients",
        remedy: "Compare the limits of the tenant and of the key in the key file with what the client needs.",
        kind: LimitKind::Client,
    },
];

impl GatewayLimit {
    pub(super) fn name_without_setting(&self) -> &'static str {
        match self.kind {
            LimitKind::Client => "a limit of the tenant or of the key",
            LimitKind::Keys => "the key file",
            LimitKind::Gateway | LimitKind::BackendTime => {
                "the number of open files of the process (LimitNOFILE=, ulimit -n)"
            }
        }
    }
}
