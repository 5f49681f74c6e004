//! The settings of the alerts that the gateway sends.

use http::HeaderValue;
use http::uri::PathAndQuery;
use std::sync::Arc;
use std::time::Duration;
use tokenweir_core::address::BackendAddress;
use tokenweir_net::tls::OutboundTls;

/// The settings of the alerts that the gateway sends.
#[derive(Debug, Clone, Default)]
pub struct AlertmanagerSettings {
    /// The Alertmanagers. Each gets all alerts.
    pub endpoints: Vec<AlertmanagerEndpoint>,
    /// The value of the label `instance`: this gateway. Without it, the end of a condition at one
    /// replica would resolve the alert of another replica.
    pub instance: String,
    /// The times between two requests.
    pub intervals: SendIntervals,
}

/// The times between two requests to one Alertmanager.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SendIntervals {
    /// Minimum time between two requests.
    pub min: Duration,
    /// Time from a failed request to the next one.
    pub retry: Duration,
    /// Time after which unchanged alerts are sent again. Alerts are valid for 5 minutes, so four lost
    /// requests do not end an alert.
    pub resend: Duration,
}

impl Default for SendIntervals {
    /// 10 s, 30 s and 1 minute.
    fn default() -> Self {
        Self {
            min: Duration::from_secs(10),
            retry: Duration::from_secs(30),
            resend: Duration::from_mins(1),
        }
    }
}

/// An Alertmanager.
#[derive(Debug, Clone)]
pub struct AlertmanagerEndpoint {
    /// Scheme, host and port.
    pub address: BackendAddress,
    /// The path of its API.
    pub path: PathAndQuery,
    /// The trusted authorities and the client certificate of `https` connections.
    pub outbound: Arc<OutboundTls>,
    /// The value of the `Authorization` header. `None`: the header is not sent.
    pub authorization: Option<HeaderValue>,
    /// URL of the page of runbooks, to which alerts link.
    pub runbooks: String,
}
