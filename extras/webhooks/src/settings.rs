//! The settings of the webhooks.

use std::time::Duration;
use tokenweir_net::client::receiver::Receiver;

/// The receivers of verdicts, and how often a message is repeated.
#[derive(Debug, Clone, Default)]
pub struct WebhookSettings {
    /// The webhooks. Each gets all messages.
    pub endpoints: Vec<Receiver>,
    /// The name of this gateway in messages: host name and admin port.
    pub gateway: String,
    /// URL of the page of runbooks, to which messages link.
    pub runbooks: String,
    /// The times and the number of repeated requests for one message.
    pub retries: RetryTimes,
}

/// The times and the number of requests for a message that a webhook does not accept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryTimes {
    /// Maximum number of attempts to send one message. An attempt that finds its idle connection closed is
    /// repeated at once and counts only once.
    pub max_requests: u32,
    /// The pause after the first request. The pause doubles after each further request.
    pub first_pause: Duration,
}

impl Default for RetryTimes {
    /// The default: six requests within 62 s, to which the time of the requests themselves is added.
    fn default() -> Self {
        Self {
            max_requests: 6,
            first_pause: Duration::from_secs(2),
        }
    }
}
