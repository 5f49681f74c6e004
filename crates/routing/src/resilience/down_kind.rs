//! Determines from an error text why a backend cannot be reached or is not healthy, and the remedy.

/// A kind of error with which a backend cannot be reached or is not healthy, and the remedy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DownKind {
    /// Parts of error texts that identify this kind.
    texts: &'static [&'static str],
    /// The cause as a clause about the backend, without variable values.
    pub cause: &'static str,
    /// The remedy for an operator, in sentences.
    pub remedy: &'static str,
}

/// All kinds. If an error text matches several kinds, the first of them is used.
const KINDS: [DownKind; 14] = [
    // The host name of the backend has no address.
    DownKind {
        texts: &[
            "failed to lookup address",
            "Name or service not known",
            "name resolution",
        ],
        cause: "its host name has no address",
        remedy: "Correct the host name in the URL of the backend, or its DNS record: getent hosts \
            HOST on the machine of the gateway.",
    },
    // The URL has `https` and the server uses no TLS.
    DownKind {
        texts: &["InvalidContentType", "corrupt message"],
        cause: "its URL has https, and the server uses no TLS",
        remedy: "Write http:// in the URL of the backend, or give the backend a certificate.",
    },
    // The certificate of the backend has expired.
    DownKind {
        texts: &["certificate expired", "Expired"],
        cause: "its certificate has expired",
        remedy: "Renew the certificate of the backend, and restart the backend so that it reads \
            it.",
    },
    // The certificate of the backend is not valid yet.
    DownKind {
        texts: &["not valid yet", "NotValidYet"],
        cause: "its certificate is not valid yet",
        remedy: "Compare the clocks of the gateway and of the backend, and the dates of its \
            certificate.",
    },
    // The authority of the certificate is not trusted.
    DownKind {
        texts: &["UnknownIssuer", "unknown issuer", "CaUsedAsEndEntity"],
        cause: "its certificate is not signed by a trusted authority",
        remedy: "Set backend_tls.ca to the certificate of the authority, or give the backend a \
            certificate of a trusted one.",
    },
    // The certificate does not match the host, or another step of the TLS handshake failed.
    DownKind {
        texts: &["certificate", "TLS", "handshake", "alert"],
        cause: "the TLS handshake fails",
        remedy: "Check that the certificate has the host name of the URL, and backend_tls in the \
            configuration: tokenweir doctor shows the error.",
    },
    // No process accepts connections at the address.
    DownKind {
        texts: &["onnection refused"],
        cause: "connection refused: no process listens there",
        remedy: "Start the backend (vllm serve MODEL --host HOST --port PORT), or correct the host \
            and the port in its URL. The gateway uses it again when a health check passes.",
    },
    // The network does not reach the address.
    DownKind {
        texts: &[
            "unreachable",
            "No route to host",
            "not respond to connections",
            "timeout: no answer",
        ],
        cause: "it does not respond to connections: its machine cannot be reached, or its process \
            is stopped",
        remedy: "Check the machine of the backend, the route to it, and firewalls and network \
            policies in between.",
    },
    // The engine has requests and makes no progress.
    DownKind {
        texts: &["engine has requests"],
        cause: "its engine has requests and makes no progress",
        remedy: "Read the log of the backend and nvidia-smi: a hung collective or GPU needs a \
            restart of the backend.",
    },
    // The backend accepts connections and does not respond.
    DownKind {
        texts: &[
            "does not respond",
            "timeout",
            "timed out",
            "no answer within",
        ],
        cause: "it accepts connections and does not respond: its process is stopped, still loads, \
            or waits for its engine",
        remedy: "Read the log of the backend: is it still loading its model, or stopped? Restart \
            it if it does not continue.",
    },
    // The health check requires a key.
    DownKind {
        texts: &["answered 401", "answered 403"],
        cause: "its health check requires a key",
        remedy: "Set api_key of the backend to the key with which it was started (--api-key).",
    },
    // The server has no health check: the port or the path is wrong.
    DownKind {
        texts: &[
            "answered 404",
            "answered 405",
            "answered 30",
            "answered 400",
        ],
        cause: "the server at its address has no health check",
        remedy: "Correct the port and the path in the URL of the backend: another server answers \
            there.",
    },
    // The health check reports that the engine is dead.
    DownKind {
        texts: &["answered 503", "answered 500"],
        cause: "its health check reports that the engine is dead",
        remedy: "Read the log of the backend for the error of its engine, and restart it.",
    },
    // The server closed the connection without a response, or its response is not HTTP.
    DownKind {
        texts: &[
            "Closed",
            "Truncated",
            "reset by peer",
            "invalid HTTP",
            "not HTTP",
            "closed before",
        ],
        cause: "it closes connections without an HTTP response",
        remedy: "Check that the URL has the port of vLLM's HTTP server, and https:// if the server \
            requires TLS.",
    },
];

impl DownKind {
    /// Whether the cause can be in the network or a proxy between the gateway and the backend.
    pub fn may_be_between(&self) -> bool {
        let mut texts = self.texts.iter();
        texts.any(|text| ["unreachable", "Closed"].contains(text))
    }

    /// The kind that matches an error text of a health check or a connection. `None`: no known kind.
    pub fn of_reason(reason: &str) -> Option<Self> {
        let is_shown = |kind: &DownKind| kind.texts.iter().any(|text| reason.contains(text));
        KINDS.into_iter().find(is_shown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_text_shows_the_kind() {
        for (reason, cause) in [
            (
                "failed to lookup address information: Name or service not known",
                "its host name",
            ),
            ("Connection refused (os error 111)", "connection refused"),
            (
                "No route to host (os error 113)",
                "it does not respond to connections",
            ),
            (
                "timeout: the backend does not respond to connections: its process is",
                "it does not respond to connections",
            ),
            (
                "invalid peer certificate: certificate expired: verification time 1795692474 (UNIX), but \
                 certificate is not valid after 1794828310 (864164 seconds ago)",
                "its certificate has expired",
            ),
            (
                "TLS: invalid peer certificate: Expired",
                "its certificate has expired",
            ),
            (
                "invalid peer certificate: UnknownIssuer",
                "its certificate is not signed",
            ),
            (
                "invalid peer certificate: NotValidForName",
                "the TLS handshake fails",
            ),
            (
                "received corrupt message of type InvalidContentType",
                "its URL has https",
            ),
            (
                "/health: timeout: the backend accepts connections and does not respond",
                "it accepts connections and does not respond",
            ),
            (
                "/health answered 404",
                "the server at its address has no health check",
            ),
            ("/health answered 401", "its health check requires a key"),
            (
                "/health answered 503",
                "its health check reports that the engine is dead",
            ),
            ("/health: Closed", "it closes connections"),
            (
                "engine has requests and showed no progress for 120 s",
                "its engine has requests",
            ),
        ] {
            let shown = DownKind::of_reason(reason).map_or("", |kind| kind.cause);
            assert!(shown.starts_with(cause), "{reason}: {shown}");
        }
        for kind in KINDS {
            assert!(
                kind.remedy.ends_with('.') && !kind.cause.ends_with('.'),
                "{kind:?}"
            );
        }
        assert_eq!(DownKind::of_reason("something else"), None);
    }
}
