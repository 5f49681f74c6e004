//! The rule about the gateway's own settings: a timeout or a limit of the gateway ends requests that could be
//! served, or keeps clients from connecting.

mod table;

pub use table::LIMIT_SETTINGS;

use super::observation::{FleetObservation, ObservedTtft, SettingValue, first_of};
use crate::debounce::VerdictDebounce;
use crate::harm::HARMED_SHARE;
use crate::recent::{CountGrowth, Recent};
use crate::rule::prelude::*;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use table::{GatewayLimit, LIMITS, LimitKind};
use tokenweir_request::significance::is_share_above;

/// Length of the window whose requests are counted.
const WINDOW: Duration = Duration::from_secs(30);
/// Minimum number of requests that a limit ends, and then their minimum share of all requests.
const MIN_ENDED: u64 = 3;
const MIN_SHARE: f64 = 0.01;
/// A timeout is too short if the p95 of the successful times is at least this share of the timeout. A timeout
/// far above all usual times is not the cause, because it ends only requests that make no progress.
const TIGHT_PART: f64 = 0.25;
/// If no usual times are known, a timeout of at most this many seconds counts as too short.
const SHORT_SECONDS: f64 = 30.0;
/// Maximum number of limits of the key file that the cause lists.
const MAX_NAMED: usize = 2;
/// The verdict about refused connections ends if no further connection is refused for this time.
const CONNECTION_HOLD: Duration = Duration::from_secs(30);

pub(super) static GATEWAY_LIMIT: DiagnosisRule = DiagnosisRule {
    name: "gateway_limit",
    severity: "warning, critical if more than 5 % of requests end or clients cannot connect",
    meaning: "A setting of the gateway itself ends requests that backends could serve, or keeps clients from \
              connecting.",
    evidence: "In two of three evaluations, one timeout or limit of the gateway ended three or more requests \
               of 30 s, significantly more than 1 % (5 % for limits of clients). A timeout for backends counts only if the p95 \
               of the TTFT is at least a quarter of it. Or in 30 s a connection was refused because of \
               `limits.connections`, or for lack of a file descriptor.",
    excluded: "one client reached `limits.connections_per_client`, or the timeout is far above all usual times (see \
               `stalls` and `backend_failing`)",
    remedy: "Raise the setting that the cause names.",
    disproof: "The access log has no request of the last minute that the gateway ended for the reason.",
    pages: true,
    ..DiagnosisRule::GATEWAY
};

/// The state of the rule between two evaluations.
#[derive(Debug, Default)]
pub(super) struct GatewayLimits {
    debounce: VerdictDebounce,
    /// The numbers of requests that the gateway ended in the last [`WINDOW`], by reason.
    recent: Recent<BTreeMap<&'static str, u64>>,
    /// The result of the last evaluation that found the condition.
    found: Option<Finding>,
    refused_connections: CountGrowth,
}

#[derive(Debug, Clone)]
struct Finding {
    limit: &'static GatewayLimit,
    count: u64,
    /// The verdict without its evidence.
    verdict: Verdict,
}

impl GatewayLimits {
    /// The verdict of the rule, if its condition holds at `now`.
    pub(super) fn judge(&mut self, fleet: &FleetObservation, now: Instant) -> Option<Verdict> {
        self.recent.forget(WINDOW, now);
        if !fleet.unforwarded.ends.is_empty() {
            self.recent.add(fleet.unforwarded.ends.clone(), now);
        }
        let found = self.find(fleet);
        self.debounce.update(found.is_some(), now);
        if found.is_some() {
            self.found = found;
        }
        if let Some(refused) = self.refused_connections(fleet, now) {
            return Some(refused);
        }
        self.debounce.since()?;
        let found = self.found.as_ref()?;
        let limit = found.limit;
        let count =
            |measure, count| Evidence::new(measure, count as f64, "requests", WINDOW.as_secs_f64());
        let mut evidence = vec![
            count("ended_by_gateway", found.count),
            count("requests", fleet.counts.requests),
        ];
        if limit.kind == LimitKind::BackendTime
            && let Some(ttft) = fleet.ttft
        {
            evidence.push(Evidence::new("ttft_p50", ttft.p50, "s", 60.0));
        }
        Some(found.verdict.clone().with(evidence))
    }

    /// Whether a timeout of the gateway explains failed attempts of this kind.
    pub(super) fn excuses(&self, kind: &str) -> bool {
        let is_timeout =
            |found: &Finding| found.limit.kind == LimitKind::BackendTime && found.limit.ends(kind);
        self.debounce.is_active_or_pending() && self.found.as_ref().is_some_and(is_timeout)
    }

    /// The limit that ended most requests of the window. `None`: no limit ended enough requests.
    fn find(&self, fleet: &FleetObservation) -> Option<Finding> {
        let counted = LIMITS.iter().map(|limit| (limit, self.count(limit)));
        let relevant = counted.filter(|(limit, count)| is_relevant(limit, *count, fleet));
        let (limit, count) = relevant.max_by_key(|(_, count)| *count)?;
        let severity = match limit.kind {
            LimitKind::Client | LimitKind::Keys => VerdictSeverity::Warning,
            LimitKind::BackendTime | LimitKind::Gateway => {
                VerdictSeverity::of_harm(count, fleet.counts.requests)
            }
        };
        let cause = cause(limit, count, self.main_reason(limit), fleet);
        let verdict = GATEWAY_LIMIT.verdict(severity).because(cause);
        let verdict = verdict.remedy(limit.remedy);
        Some(Finding {
            limit,
            count,
            verdict: if limit.kind == LimitKind::Keys {
                verdict.at(Origin::Client)
            } else {
                verdict
            },
        })
    }

    fn count(&self, limit: &GatewayLimit) -> u64 {
        self.ends_by(limit).map(|(_, count)| count).sum()
    }

    fn ends_by(&self, limit: &GatewayLimit) -> impl Iterator<Item = (&'static str, u64)> {
        let ends = self.recent.iter().flatten();
        let of_limit = ends.filter(|(reason, _)| limit.reasons.contains(reason));
        of_limit.map(|(reason, count)| (*reason, *count))
    }

    /// The most frequent reason for which the gateway ended requests because of this limit.
    fn main_reason(&self, limit: &GatewayLimit) -> Option<&'static str> {
        let mut counts = BTreeMap::new();
        for (reason, count) in self.ends_by(limit) {
            *counts.entry(reason).or_insert(0) += count;
        }
        let most = counts.into_iter().max_by_key(|(_, count)| *count)?;
        Some(most.0)
    }

    fn refused_connections(&mut self, fleet: &FleetObservation, now: Instant) -> Option<Verdict> {
        let count = fleet.gateway.refused_connections;
        if !self
            .refused_connections
            .has_grown(count, CONNECTION_HOLD, now)
        {
            return None;
        }
        let name = match fleet.setting("limits.connections") {
            Some(setting) => named(setting),
            None => "the number of open files of the process (LimitNOFILE=, ulimit -n)".to_owned(),
        };
        let mut cause = format!("clients cannot connect: {name} is reached");
        if let Some(client) = &fleet.main_client {
            cause = format!("{cause}; {client}");
        }
        let found = GATEWAY_LIMIT.verdict(VerdictSeverity::Critical);
        Some(found.because(cause).remedy(
            "Raise limits.connections, or the open files of the process if they are lower \
             (LimitNOFILE= in systemd, ulimit -n), or start a second gateway.",
        ))
    }
}

fn is_relevant(limit: &GatewayLimit, count: u64, fleet: &FleetObservation) -> bool {
    let least = match limit.kind {
        LimitKind::Client | LimitKind::Keys => HARMED_SHARE,
        LimitKind::BackendTime | LimitKind::Gateway => MIN_SHARE,
    };
    count >= MIN_ENDED
        && is_share_above(count, fleet.counts.requests.max(count), least)
        && is_tight(limit, fleet)
}

/// Whether a timeout for backends is too short for usual times. Always true for other limits.
fn is_tight(limit: &GatewayLimit, fleet: &FleetObservation) -> bool {
    if limit.kind != LimitKind::BackendTime {
        return true;
    }
    let Some(seconds) = limit.setting(fleet).and_then(|setting| setting.seconds) else {
        return false;
    };
    match fleet.ttft {
        Some(ttft) if limit.reasons.contains(&"first_output_timeout") => {
            ttft.p95 >= TIGHT_PART * seconds
        }
        _ => seconds <= SHORT_SECONDS,
    }
}

/// The cause as text: the setting, its value, its effect, and the usual values for comparison.
fn cause(
    limit: &GatewayLimit,
    count: u64,
    reason: Option<&str>,
    fleet: &FleetObservation,
) -> String {
    let name = match limit.setting(fleet) {
        Some(setting) => named(setting),
        None => {
            of_key_file(reason, fleet).unwrap_or_else(|| limit.name_without_setting().to_owned())
        }
    };
    let requests = fleet.counts.requests.max(count).max(1);
    let share = (100.0 * count as f64 / requests as f64).max(1.0);
    let mut cause = format!(
        "{name} {}; it ended {share:.0} % of the requests",
        limit.effect
    );
    if limit.kind == LimitKind::BackendTime
        && let Some(ttft) = fleet.ttft
    {
        cause.push_str(&relative(ttft));
    }
    let is_of_clients = matches!(limit.kind, LimitKind::Client | LimitKind::Keys);
    let common = &fleet.counts.common;
    if is_of_clients && let Some(common) = common.get("rejected").or_else(|| common.get("refused"))
    {
        cause = format!("{cause}, {common}");
    }
    // The client that causes most of the work is not the client that reaches its own limit.
    let client = match &fleet.limited_client {
        Some(client) if limit.refuses_one_client() => Some(format!(
            "{:.0} % of the refused requests of the last minute are of {}",
            100.0 * client.refused_share,
            client.name
        )),
        _ if is_of_clients => None,
        _ => fleet.main_client.clone(),
    };
    match client {
        Some(client) => format!("{cause}; {client}"),
        None => cause,
    }
}

/// The limits of the key file, with their values, that apply to the client with most of the refused requests.
/// `None`: unknown.
fn of_key_file(reason: Option<&str>, fleet: &FleetObservation) -> Option<String> {
    let limits = &fleet.limited_client.as_ref()?.limits;
    let unit = match reason? {
        "token_limit" => ".tokens_per_",
        "request_limit" => ".requests_per_",
        "concurrency_limit" => ".concurrency",
        _ => return None,
    };
    let of_unit = limits.iter().filter(|(path, _)| path.contains(unit));
    let named = of_unit.map(|(path, value)| format!("{path} ({value})"));
    Some(first_of(named, MAX_NAMED, " or ")).filter(|named| !named.is_empty())
}

fn relative(ttft: ObservedTtft) -> String {
    format!(
        ", and the TTFT of those that came is {:.2} s (p50) and {:.2} s (p95)",
        ttft.p50, ttft.p95
    )
}

/// A setting with its value, such as `timeouts.first_output (1s)`.
pub(super) fn named(setting: &SettingValue) -> String {
    format!("{} ({})", setting.name, setting.value)
}

impl GatewayLimit {
    /// The configured setting of this limit. Of two settings the first one is returned. For the reason
    /// `overloaded`, it is returned only while the memory is full.
    fn setting<'a>(&self, fleet: &'a FleetObservation) -> Option<&'a SettingValue> {
        let mut set = self.settings.iter().filter_map(|name| fleet.setting(name));
        let first = set.next();
        match set.next() {
            Some(other)
                if self.reasons.contains(&"overloaded") && !fleet.gateway.is_memory_full =>
            {
                Some(other)
            }
            _ => first,
        }
    }

    /// Whether the limit applies to a single client, whose excess requests are refused with 429.
    fn refuses_one_client(&self) -> bool {
        let is_own = |reason: &&str| ["client_busy", "token_limit"].contains(reason);
        self.reasons.iter().any(is_own)
    }

    /// Whether the limit ends attempts of this kind. Some reasons have another name for attempts.
    fn ends(&self, kind: &str) -> bool {
        let reason = match kind {
            "timeout_first_output" => "first_output_timeout",
            "timeout_headers" => "timeout",
            other => other,
        };
        self.reasons.contains(&reason)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::observation::{LimitedClient, RecentCounts};
    use tokenweir_protocol::clock;

    fn setting(name: &'static str, value: &str, seconds: Option<f64>) -> SettingValue {
        SettingValue {
            name,
            value: value.to_owned(),
            seconds,
        }
    }

    /// A fleet in which the gateway ended `count` of 100 requests of the last evaluation for `reason`.
    fn fleet(reason: &'static str, count: u64) -> FleetObservation {
        let settings = vec![
            setting("timeouts.first_output", "1s", Some(1.0)),
            setting("limits.memory", "64MiB", None),
            setting("limits.body", "1MiB", None),
        ];
        let mut fleet = FleetObservation {
            settings,
            counts: RecentCounts {
                requests: 100,
                ..RecentCounts::default()
            },
            ttft: Some(ObservedTtft {
                count: 90,
                p50: 0.5,
                p95: 0.9,
            }),
            ..FleetObservation::default()
        };
        fleet.unforwarded.ends.insert(reason, count);
        fleet
    }

    /// The severities and causes after each of two equal evaluations.
    fn judged(fleet: &FleetObservation) -> Option<String> {
        let mut rule = GatewayLimits::default();
        rule.judge(fleet, clock::epoch());
        let found = rule.judge(fleet, clock::epoch() + Duration::from_secs(5))?;
        Some(format!("{} {}", found.severity.as_str(), found.cause?))
    }

    #[test]
    fn a_short_timeout_is_named_with_usual_times() {
        let cause = "critical timeouts.first_output (1s) ends streams whose first output comes later; it ended 24 % of \
                     the requests, and the TTFT of those that came is 0.50 s (p50) and 0.90 s (p95)";
        assert_eq!(
            judged(&fleet("first_output_timeout", 12)).as_deref(),
            Some(cause)
        );
    }

    #[test]
    fn a_timeout_far_above_usual_is_no_cause() {
        let mut fleet = fleet("first_output_timeout", 12);
        fleet.settings[0].seconds = Some(600.0);
        assert_eq!(judged(&fleet), None);
        fleet.ttft = None;
        assert_eq!(judged(&fleet), None, "nothing came at all");
        fleet.settings[0].seconds = Some(5.0);
        assert!(judged(&fleet).is_some());
    }

    #[test]
    fn limits_of_the_gateway_are_named() {
        let cause = judged(&fleet("overloaded", 45)).unwrap();
        let expected = "critical limits.memory (64MiB) is reached: new requests get 503; it ended 90 % of the requests";
        assert_eq!(cause, expected);
        let cause = judged(&fleet("gateway_exhausted", 45)).unwrap();
        assert!(cause.contains("LimitNOFILE"), "{cause}");
    }

    #[test]
    fn limits_of_clients_need_many_requests() {
        assert_eq!(judged(&fleet("body_too_large", 2)), None);
        let cause = judged(&fleet("body_too_large", 10)).unwrap();
        assert!(cause.starts_with("warning limits.body (1MiB)"), "{cause}");
        assert_eq!(judged(&fleet("bad_body", 50)), None, "no limit");
    }

    #[test]
    fn a_limit_names_the_tenant_that_it_refuses() {
        let mut fleet = fleet("token_limit", 30);
        fleet.main_client = Some("89 % of the prompt tokens are of tenant web".to_owned());
        let path = |name: &str| format!("tenants[etl].limits.{name}");
        let limits = [(path("tokens_per_minute"), 2_000), (path("concurrency"), 9)];
        fleet.limited_client = Some(LimitedClient {
            name: "tenant etl, key k".to_owned(),
            limits: limits.into(),
            refused_share: 1.0,
        });
        let expected = "warning tenants[etl].limits.tokens_per_minute (2000) ends requests of clients; it ended 60 % of \
                        the requests; 100 % of the refused requests of the last minute are of tenant etl, key k";
        assert_eq!(judged(&fleet).as_deref(), Some(expected));
    }

    #[test]
    fn refused_connections_are_reported_for_30_seconds() {
        let mut rule = GatewayLimits::default();
        let start = clock::epoch();
        let mut is_named = |seconds, refused_connections| {
            let mut fleet = FleetObservation::default();
            fleet.gateway.refused_connections = refused_connections;
            let now = start + Duration::from_secs(seconds);
            rule.judge(&fleet, now).is_some()
        };
        assert!(!is_named(0, 9), "these are old");
        assert!(is_named(5, 10) && is_named(30, 10) && !is_named(35, 10));
    }
}
