//! Why a backend cannot be reached or is not healthy, with the remedy, from the text of the error.

/// Why a backend cannot be reached or is not healthy: a kind of error for which the remedy is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DownKind {
    /// The host name of the backend has no address.
    Dns,
    /// No process accepts connections at the address.
    Refused,
    /// The network does not reach the address.
    Unreachable,
    /// The backend accepts connections and does not respond.
    Silent,
    /// The URL has `https` and the server uses no TLS.
    NoTls,
    /// The certificate of the backend has expired.
    ExpiredCertificate,
    /// The certificate of the backend is not valid yet.
    EarlyCertificate,
    /// The authority of the certificate is not trusted.
    UntrustedCertificate,
    /// The certificate does not match the host, or another step of the TLS handshake failed.
    OtherTls,
    /// The server closed the connection without a response, or its response is not HTTP.
    NotHttp,
    /// The health check requires a key.
    Unauthorized,
    /// The server has no health check: the port or the path is wrong.
    WrongServer,
    /// The health check reports that the engine is dead.
    EngineDead,
    /// The engine has requests and makes no progress.
    Stuck,
}

/// For each kind, parts of error texts that show this kind. If an error text contains parts of several
/// kinds, the first of these kinds applies.
const TEXTS: [(DownKind, &[&str]); 14] = [
    (DownKind::Dns, &["failed to lookup address", "Name or service not known", "name resolution"]),
    (DownKind::NoTls, &["InvalidContentType", "corrupt message"]),
    (DownKind::ExpiredCertificate, &["certificate expired", "Expired"]),
    (DownKind::EarlyCertificate, &["not valid yet", "NotValidYet"]),
    (DownKind::UntrustedCertificate, &["UnknownIssuer", "unknown issuer", "CaUsedAsEndEntity"]),
    (DownKind::OtherTls, &["certificate", "TLS", "handshake", "alert"]),
    (DownKind::Refused, &["onnection refused"]),
    (DownKind::Unreachable, &["unreachable", "No route to host", "not respond to connections"]),
    (DownKind::Stuck, &["engine has requests"]),
    (DownKind::Silent, &["does not respond", "timeout", "timed out", "no answer within"]),
    (DownKind::Unauthorized, &["answered 401", "answered 403"]),
    (DownKind::WrongServer, &["answered 404", "answered 405", "answered 30", "answered 400"]),
    (DownKind::EngineDead, &["answered 503", "answered 500"]),
    (
        DownKind::NotHttp,
        &["Closed", "Truncated", "reset by peer", "invalid HTTP", "not HTTP", "closed before"],
    ),
];

impl DownKind {
    /// The kind that an error text of a health check or of a connection shows. `None`: no known kind.
    pub fn of_reason(reason: &str) -> Option<Self> {
        let is_shown = |texts: &&[&str]| texts.iter().any(|text| reason.contains(text));
        TEXTS.iter().find(|(_, texts)| is_shown(texts)).map(|(kind, _)| *kind)
    }

    /// The cause as a clause about the backend, without values that change.
    pub const fn cause(self) -> &'static str {
        match self {
            Self::Dns => "its host name has no address",
            Self::Refused => "connection refused: no process listens there",
            Self::Unreachable => {
                "it does not respond to connections: its machine cannot be reached, or its process is \
                 stopped"
            }
            Self::Silent => {
                "it accepts connections and does not respond: its process is stopped, still loads, or \
                 waits for its engine"
            }
            Self::NoTls => "its URL has https, and the server uses no TLS",
            Self::ExpiredCertificate => "its certificate has expired",
            Self::EarlyCertificate => "its certificate is not valid yet",
            Self::UntrustedCertificate => "its certificate is not signed by a trusted authority",
            Self::OtherTls => "the TLS handshake fails",
            Self::NotHttp => "it closes connections without an HTTP response",
            Self::Unauthorized => "its health check requires a key",
            Self::WrongServer => "the server at its address has no health check",
            Self::EngineDead => "its health check reports that the engine is dead",
            Self::Stuck => "its engine has requests and makes no progress",
        }
    }

    /// What an operator can do against the error, in sentences.
    pub const fn remedy(self) -> &'static str {
        match self {
            Self::Dns => {
                "Correct the host name in the URL of the backend, or its DNS record: getent hosts HOST on \
                 the machine of the gateway."
            }
            Self::Refused => {
                "Start the backend (vllm serve MODEL --host HOST --port PORT), or correct the host and the \
                 port in its URL. The gateway uses it again when a health check passes."
            }
            Self::Unreachable => {
                "Check the machine of the backend, the route to it, and firewalls and network policies in \
                 between."
            }
            Self::Silent => {
                "Read the log of the backend: is it still loading its model, or stopped? Restart it if it \
                 does not continue."
            }
            Self::NoTls => {
                "Write http:// in the URL of the backend, or give the backend a certificate."
            }
            Self::ExpiredCertificate => {
                "Renew the certificate of the backend, and restart the backend so that it reads it."
            }
            Self::EarlyCertificate => {
                "Compare the clocks of the gateway and of the backend, and the dates of its certificate."
            }
            Self::UntrustedCertificate => {
                "Set backend_tls.ca to the certificate of the authority, or give the backend a certificate \
                 of a trusted one."
            }
            Self::OtherTls => {
                "Check that the certificate has the host name of the URL, and backend_tls in the \
                 configuration: tokenweir doctor shows the error."
            }
            Self::NotHttp => {
                "Check that the URL has the port of vLLM's HTTP server, and https:// if the server requires \
                 TLS."
            }
            Self::Unauthorized => {
                "Set api_key of the backend to the key with which it was started (--api-key)."
            }
            Self::WrongServer => {
                "Correct the port and the path in the URL of the backend: another server answers there."
            }
            Self::EngineDead => {
                "Read the log of the backend for the error of its engine, and restart it."
            }
            Self::Stuck => {
                "Read the log of the backend and nvidia-smi: a hung collective or GPU needs a restart of the \
                 backend."
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::DownKind::{self, *};

    #[test]
    fn an_error_text_shows_its_kind() {
        for (reason, kind) in [
            ("failed to lookup address information: Name or service not known", Dns),
            ("Connection refused (os error 111)", Refused),
            ("No route to host (os error 113)", Unreachable),
            ("timeout: the backend does not respond to connections: its process is", Unreachable),
            (
                "invalid peer certificate: certificate expired: verification time 1795692474 (UNIX), but \
                 certificate is not valid after 1794828310 (864164 seconds ago)",
                ExpiredCertificate,
            ),
            ("TLS: invalid peer certificate: Expired", ExpiredCertificate),
            ("invalid peer certificate: UnknownIssuer", UntrustedCertificate),
            ("invalid peer certificate: NotValidForName", OtherTls),
            ("received corrupt message of type InvalidContentType", NoTls),
            ("/health: timeout: the backend accepts connections and does not respond", Silent),
            ("/health answered 404", WrongServer),
            ("/health answered 401", Unauthorized),
            ("/health answered 503", EngineDead),
            ("/health: Closed", NotHttp),
            ("engine has requests and showed no progress for 120 s", Stuck),
        ] {
            assert_eq!(DownKind::of_reason(reason), Some(kind), "{reason}");
            assert!(kind.remedy().ends_with('.') && !kind.cause().ends_with('.'));
        }
        assert_eq!(DownKind::of_reason("something else"), None);
    }
}
