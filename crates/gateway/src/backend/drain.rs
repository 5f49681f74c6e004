//! A drain: the period in which a backend gets no new requests because an operator or the
//! configuration excludes it.

use std::fmt;
use std::net::IpAddr;
use std::time::{Duration, Instant, SystemTime};
use tokenweir_protocol::clock;

/// The drain of one backend, for status pages, logs and verdicts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Drain {
    /// Who began the drain.
    pub initiator: DrainInitiator,
    /// The reason that the operator gave. `None`: the operator gave no reason.
    pub reason: Option<Box<str>>,
    /// Wall-clock time at which the drain began, for display.
    pub started: SystemTime,
    /// Start of the drain on the monotonic clock.
    pub began_at: Instant,
    /// Time at which the drain ends by itself. `None`: the drain lasts until an operator ends it.
    pub ends_at: Option<Instant>,
}

/// The part of the system that begins or ends a drain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DrainInitiator {
    /// The key `drained` of the backend in the configuration.
    Configuration,
    /// A request to the admin listener.
    Operator {
        /// The IP address from which the request came. `None`: not known.
        peer: Option<IpAddr>,
        /// Whether the request had the admin token.
        has_token: bool,
    },
    /// The timer of a drain with a duration.
    Expiry,
}

impl Drain {
    /// A drain that begins now, and ends by itself after `duration`.
    pub fn begin(
        initiator: DrainInitiator,
        reason: Option<Box<str>>,
        duration: Option<Duration>,
    ) -> Self {
        let began_at = clock::now();
        let ends_at = duration.and_then(|duration| began_at.checked_add(duration));
        Self {
            initiator,
            reason,
            started: clock::wall_time(),
            began_at,
            ends_at,
        }
    }

    pub(super) fn is_over(&self, now: Instant) -> bool {
        self.ends_at.is_some_and(|ends_at| ends_at <= now)
    }
}

impl fmt::Display for DrainInitiator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Configuration => f.write_str("the configuration"),
            Self::Expiry => f.write_str("its expiry"),
            Self::Operator { peer, has_token } => {
                f.write_str("an operator")?;
                if let Some(peer) = peer {
                    write!(f, " at {peer}")?;
                }
                if *has_token {
                    f.write_str(" with the admin token")
                } else {
                    Ok(())
                }
            }
        }
    }
}
