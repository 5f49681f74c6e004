//! The state of admission by live sessions.

use serde::{Serialize, Serializer};
use tokenweir_gateway::status::StatusBlock;
use tokenweir_protocol::named_enum;

named_enum! {
    /// Why a turn was let in.
    pub enum AdmissionReason {
        /// It continues a session in progress.
        LiveSession = "live_session",
        /// The session fits.
        Fits = "session_fits",
        /// The session fits after a wait.
        AfterWait = "session_waited",
        /// The session does not fit, but has waited for the longest time.
        Overdue = "session_overdue",
        /// A backend does not report the capacity of its KV cache, so no session waits.
        UnknownCapacity = "unknown_capacity",
    }
}

/// What the live sessions need, and what fits into the KV caches. Nothing, if the option is off.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SessionsStatus {
    /// Number of sessions in progress: running, or idle for a time after which sessions return.
    pub live_sessions: usize,
    /// Number of new sessions that wait.
    pub held_requests: usize,
    /// Tokens that the sessions in progress occupy in KV caches.
    pub needed_tokens: f64,
    /// The same, when the sessions have grown as sessions do.
    pub grown_tokens: f64,
    /// Capacity of the KV caches that is known, in tokens.
    pub capacity_tokens: u64,
    /// Whether all backends report the capacity of their KV caches. If one does not, its sessions do not wait.
    pub is_capacity_known: bool,
    /// Number of turns that were let in, in the order of the reasons.
    pub(crate) admitted: Vec<u64>,
}

impl SessionsStatus {
    /// Number of sessions that fit, at the mean size to which the live sessions will probably grow. `None`: the
    /// capacity is not known, or no session is in progress.
    pub(crate) fn fitting(&self) -> Option<usize> {
        if !self.is_capacity_known || self.grown_tokens <= 0.0 {
            return None;
        }
        let mean_tokens = self.grown_tokens / self.live_sessions as f64;
        Some((self.capacity_tokens as f64 / mean_tokens) as usize)
    }

    /// Number of sessions in progress and of those that wait.
    fn wanted(&self) -> usize {
        self.live_sessions + self.held_requests
    }

    /// A sentence about the sessions that fit.
    pub(crate) fn summary(&self) -> String {
        if !self.is_capacity_known {
            return "the capacity of the KV caches is not known: no session waits".to_owned();
        }
        match self.fitting() {
            Some(fitting) if fitting < self.wanted() => {
                format!(
                    "{fitting} of {} sessions fit into the KV caches",
                    self.wanted()
                )
            }
            _ => "all sessions fit into the KV caches".to_owned(),
        }
    }
}

impl Serialize for SessionsStatus {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serde_json::json!({
            "summary": self.summary(),
            "live_sessions": self.live_sessions,
            "fitting_sessions": self.fitting(),
            "held_requests": self.held_requests,
            "needed_tokens": self.needed_tokens.round(),
            "capacity_tokens": self.is_capacity_known.then_some(self.capacity_tokens),
        })
        .serialize(serializer)
    }
}

impl StatusBlock for SessionsStatus {
    const KEY: Option<&'static str> = Some("sessions");
}
