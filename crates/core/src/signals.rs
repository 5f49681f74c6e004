//! What a replica may tell of itself, what is lost if it does not, and what would make it tell: the
//! self-test of a replica's metrics.

use crate::dialect::{Load, Server};
use std::fmt::Write;

/// Something that a metrics page may tell.
pub struct Signal {
    /// The label value.
    pub name: &'static str,
    is_told: fn(&Load) -> bool,
    /// What the gateway cannot do without it. `None`: it is missing from replicas that are well,
    /// so nobody is warned.
    lost: Option<&'static str>,
    /// What makes a server tell it, as far as that is known.
    unlock: fn(Server) -> Option<&'static str>,
}

/// The signals that one page told, as bits in the order of [`SIGNALS`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Signals(u16);

/// All of them.
pub const SIGNALS: [Signal; 11] = [
    Signal {
        name: "queue",
        is_told: |load| load.waiting.is_some() && load.running.is_some(),
        lost: Some("it is routed by the requests in flight from here"),
        unlock: metrics_flag,
    },
    Signal {
        name: "kv_usage",
        is_told: |load| load.kv_usage.is_some(),
        lost: Some("a full KV cache is seen only by the queue before it"),
        unlock: |_| None,
    },
    Signal {
        name: "kv_capacity",
        is_told: |load| load.capacity().is_some(),
        lost: Some("KV pressure is judged by usage only, without what was sent since"),
        unlock: |server| match server {
            Server::Vllm => Some("the Python front end tells it"),
            _ => None,
        },
    },
    Signal {
        name: "waiting_reason",
        is_told: |load| load.waiting_capacity.is_some(),
        lost: Some("waiting for a LoRA adapter or a KV transfer looks like a full cache"),
        unlock: |server| match server {
            Server::Vllm => Some("vLLM 0.20 or later tells it"),
            _ => None,
        },
    },
    Signal {
        name: "preemptions",
        is_told: |load| load.preemptions.is_some(),
        lost: Some("no slow request is put down to preemption"),
        unlock: |_| None,
    },
    Signal {
        name: "prefix_cache",
        is_told: |load| load.prefix_queries.is_some() && load.prefix_hits.is_some(),
        lost: Some("its prefix hits are not known"),
        unlock: |_| None,
    },
    Signal {
        name: "tokens",
        is_told: |load| load.prompt_tokens.is_some() && load.generation_tokens.is_some(),
        lost: Some("its pace is known only from what passes through here"),
        unlock: |_| None,
    },
    Signal {
        name: "queue_time",
        is_told: |load| load.queue_seconds.is_some() && load.queued.is_some(),
        lost: Some("time in its queue is not told apart from prefill"),
        unlock: |_| None,
    },
    Signal {
        name: "prefill_time",
        is_told: |load| load.prefill_seconds.is_some() && load.prefilled.is_some(),
        lost: Some("prefill is not told apart from the network"),
        unlock: |_| None,
    },
    Signal {
        name: "sleep_state",
        is_told: |load| load.awake.is_some(),
        lost: None,
        unlock: |_| None,
    },
    Signal { name: "lora", is_told: |load| load.adapters.is_some(), lost: None, unlock: |_| None },
];

impl Signal {
    /// What the gateway cannot do without it. `None`: it is missing from replicas that are well.
    pub fn lost(&self) -> Option<&'static str> {
        self.lost
    }

    /// What makes a server tell it, as far as that is known.
    pub fn unlock(&self, server: Server) -> Option<&'static str> {
        (self.unlock)(server)
    }

    /// Whether a page told it.
    pub fn is_told(&self, load: &Load) -> bool {
        (self.is_told)(load)
    }
}

impl Signals {
    /// The signals of a page.
    pub fn of(load: &Load) -> Self {
        let bit = |(place, signal): (usize, &Signal)| u16::from((signal.is_told)(load)) << place;
        Self(SIGNALS.iter().enumerate().map(bit).sum())
    }

    /// Each signal, and whether it was told.
    pub fn each(self) -> impl Iterator<Item = (&'static Signal, bool)> {
        SIGNALS.iter().enumerate().map(move |(place, signal)| (signal, self.0 >> place & 1 == 1))
    }

    /// What is lost with the missing ones, for people: `name: what (what would help); …`. `None`:
    /// nothing.
    pub fn losses(self, server: Option<Server>) -> Option<String> {
        let mut losses = String::new();
        for (signal, is_told) in self.each() {
            if let (Some(lost), false) = (signal.lost, is_told) {
                let gap = if losses.is_empty() { "" } else { "; " };
                // Writing to a string cannot fail.
                let _ = write!(losses, "{gap}no {}: {lost}", signal.name);
                if let Some(unlock) = server.and_then(signal.unlock) {
                    let _ = write!(losses, " ({unlock})");
                }
            }
        }
        (!losses.is_empty()).then_some(losses)
    }
}

/// What makes a server show metrics at all.
pub fn metrics_flag(server: Server) -> Option<&'static str> {
    match server {
        Server::Vllm => Some("start it without --disable-log-stats"),
        Server::Sglang => Some("start it with --enable-metrics"),
        Server::LlamaCpp => Some("start it with --metrics"),
        Server::TensorRtLlm | Server::Tgi => None,
    }
}

/// What to do about a metrics page that could not be used.
pub fn scrape_help(error: ScrapeError, server: Option<Server>) -> Option<&'static str> {
    match error {
        ScrapeError::Connect => Some("check that its address accepts connections from here"),
        ScrapeError::Timeout => Some("raise watch.timeout, or look why the page takes so long"),
        ScrapeError::Truncated => {
            Some("look which proxy or restart closes connections in the middle of the page")
        }
        ScrapeError::Encoded => Some("switch off compression of /metrics in the proxy before it"),
        ScrapeError::Exhausted => {
            Some("raise the limit of open files of the gateway (LimitNOFILE, ulimit -n)")
        }
        ScrapeError::TooLarge => Some("raise watch.max_page, or have it export fewer series"),
        ScrapeError::Status | ScrapeError::NotUnderstood => server.and_then(metrics_flag),
    }
}

/// Why a metrics page could not be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ScrapeError {
    /// No connection, or it broke before an answer.
    Connect,
    /// Not in time.
    Timeout,
    /// Not a 200.
    Status,
    /// It broke in the middle of the page.
    Truncated,
    /// Compressed, which was not asked for.
    Encoded,
    /// Longer than the limit.
    TooLarge,
    /// A page without the families to route by.
    NotUnderstood,
    /// The gateway has no file descriptor or port for a connection: not the backend's fault.
    Exhausted,
}

// === impl ScrapeError ===

impl ScrapeError {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Connect,
        Self::Timeout,
        Self::Status,
        Self::Truncated,
        Self::Encoded,
        Self::TooLarge,
        Self::NotUnderstood,
        Self::Exhausted,
    ];

    /// The label value.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::Timeout => "timeout",
            Self::Status => "status",
            Self::Truncated => "truncated",
            Self::Encoded => "encoded",
            Self::TooLarge => "too_large",
            Self::NotUnderstood => "not_understood",
            Self::Exhausted => "gateway_exhausted",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn each_signal_has_its_name_and_its_bit() {
        let names: BTreeSet<&str> = SIGNALS.iter().map(|signal| signal.name).collect();
        assert_eq!(names.len(), SIGNALS.len());
        assert!(SIGNALS.len() <= 16, "the bits of Signals");
        let load = Load { kv_usage: Some(0.5), awake: Some(1.0), ..Load::default() };
        let told: Vec<&str> = Signals::of(&load)
            .each()
            .filter_map(|(signal, is_told)| is_told.then_some(signal.name))
            .collect();
        assert_eq!(told, ["kv_usage", "sleep_state"]);
    }

    #[test]
    fn the_advice_on_a_page_that_cannot_be_used_depends_on_what_is_wrong_with_it() {
        let help = |error| scrape_help(error, Some(Server::Vllm)).unwrap();
        for (error, word) in [
            (ScrapeError::Connect, "address"),
            (ScrapeError::Timeout, "watch.timeout"),
            (ScrapeError::Truncated, "proxy"),
            (ScrapeError::Encoded, "compression"),
            (ScrapeError::TooLarge, "watch.max_page"),
            (ScrapeError::Status, "--disable-log-stats"),
            (ScrapeError::NotUnderstood, "--disable-log-stats"),
        ] {
            assert!(help(error).contains(word), "{error:?}: {}", help(error));
            let is_of_flag = matches!(error, ScrapeError::Status | ScrapeError::NotUnderstood);
            assert_eq!(help(error).contains("--disable-log-stats"), is_of_flag, "{error:?}");
            assert_eq!(scrape_help(error, None).is_none(), is_of_flag, "{error:?}");
        }
    }

    #[test]
    fn a_replica_that_tells_all_that_is_expected_gives_no_warning() {
        let known = Some(1.0);
        let load = Load {
            waiting: known,
            running: known,
            kv_usage: known,
            kv_tokens: known,
            waiting_capacity: known,
            preemptions: known,
            prefix_queries: known,
            prefix_hits: known,
            prompt_tokens: known,
            generation_tokens: known,
            queue_seconds: known,
            queued: known,
            prefill_seconds: known,
            prefilled: known,
            ..Load::default()
        };
        assert_eq!(Signals::of(&load).losses(Some(Server::Vllm)), None);
        let less = Load { kv_tokens: None, ..load };
        let losses = Signals::of(&less).losses(Some(Server::Vllm)).unwrap();
        assert_eq!(
            losses,
            "no kv_capacity: KV pressure is judged by usage only, without what was sent since \
             (the Python front end tells it)"
        );
    }
}
