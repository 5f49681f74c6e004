//! Finds valid settings that contradict each other, so that one of them has no effect or harms requests. The
//! gateway starts with such settings.

use super::load::LoadedConfig;
use super::root::Config;
use super::text::source::ConfigSource;
use std::net::SocketAddr;
use std::time::Duration;
use tokenweir_engine::address::BackendAddress;
use tokenweir_protocol::units;

/// Idle time after which vLLM closes a connection, unless `VLLM_HTTP_TIMEOUT_KEEP_ALIVE` sets another time.
const ENGINE_KEEP_ALIVE: Duration = Duration::from_secs(5);

/// Minimum of `limits.keep_alive`. HTTP clients and load balancers may reuse a connection that has been idle
/// for this long.
const MIN_KEEP_ALIVE: Duration = Duration::from_secs(5);

/// A setting that contradicts another setting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Contradiction {
    /// The path of the setting.
    pub path: String,
    /// The problem, as text for operators.
    pub problem: String,
}

impl Contradiction {
    fn new(path: impl Into<String>, problem: impl Into<String>) -> Self {
        Self {
            path: path.into(),
            problem: problem.into(),
        }
    }
}

impl LoadedConfig {
    /// Returns the settings that contradict other settings.
    pub fn contradictions(&self) -> Vec<Contradiction> {
        let config = &self.config;
        let is_set = |path: &str| self.sources.source_of(path) != ConfigSource::Default;
        let mut found = own_addresses(config);
        found.extend(repeated_addresses(config));
        found.extend(weights(config));
        found.extend(duplicate_tiers(config));
        found.extend(ineffective_timeouts(config, is_set));
        found.extend(ineffective_counts(config));
        if is_set("drain.delay") {
            found.extend(ineffective_drain(config));
        }
        found.extend(idle_connections(config));
        found
    }
}

/// Finds backends whose URL is a listener of the gateway itself.
fn own_addresses(config: &Config) -> Vec<Contradiction> {
    let mut found = Vec::new();
    for (index, backend) in config.backends.iter().enumerate() {
        let key = if is_listener(&backend.url, *config.listen) {
            "listen"
        } else if is_listener(&backend.url, *config.admin) {
            "admin"
        } else {
            continue;
        };
        let problem = format!(
            "{} is the gateway's own `{key}`, not a backend",
            backend.url
        );
        found.push(Contradiction::new(format!("backends.{index}.url"), problem));
    }
    found
}

/// Finds backends whose URLs are two names of one address, so that their load would be counted twice.
fn repeated_addresses(config: &Config) -> Vec<Contradiction> {
    let mut found = Vec::new();
    for (index, backend) in config.backends.iter().enumerate() {
        let earlier = config.backends[..index].iter();
        let mut same = earlier.filter(|earlier| earlier.url.is_same_local_endpoint(&backend.url));
        if let Some(earlier) = same.next() {
            let problem = format!(
                "{} is another name of {}: remove one",
                backend.url, earlier.url
            );
            found.push(Contradiction::new(format!("backends.{index}.url"), problem));
        }
    }
    found
}

/// Finds a pool without any backend that gets requests.
fn weights(config: &Config) -> Option<Contradiction> {
    if config.backends.is_empty() || !config.discovery.is_empty() {
        return None;
    }
    if config.backends.iter().any(|backend| backend.weight > 0) {
        return None;
    }
    let problem = "the weight of every backend is 0, so no backend gets requests";
    Some(Contradiction::new("backends.0.weight", problem))
}

fn is_listener(url: &BackendAddress, listener: SocketAddr) -> bool {
    let (host, port) = url.host_and_port();
    let host = host.trim_matches(['[', ']']);
    let is_host = match host.parse() {
        Ok(ip) => listener.ip() == ip || is_loopback(ip) && listener.ip().is_unspecified(),
        Err(_) => {
            host.eq_ignore_ascii_case("localhost")
                && (is_loopback(listener.ip()) || listener.ip().is_unspecified())
        }
    };
    is_host && port == listener.port()
}

fn is_loopback(ip: std::net::IpAddr) -> bool {
    ip.is_loopback() || ip.is_unspecified()
}

fn duplicate_tiers(config: &Config) -> Vec<Contradiction> {
    let names = &config.tiers.names;
    let mut found = Vec::new();
    for (index, name) in names.iter().enumerate() {
        if names[..index].contains(name) {
            let problem = format!("`{name}` is listed twice: remove one");
            found.push(Contradiction::new(format!("tiers.names.{index}"), problem));
        }
    }
    found
}

/// A timeout, with its configuration key. `None`: no timeout.
struct TimeLimit {
    key: &'static str,
    time: Option<Duration>,
}

impl TimeLimit {
    fn new(key: &'static str, time: impl Into<Option<Duration>>) -> Self {
        Self {
            key,
            time: time.into(),
        }
    }

    /// The contradiction if this time is longer than `end`, which ends the request first.
    fn never_ends_before(&self, end: &Self) -> Option<Contradiction> {
        let time = self.time?;
        let earlier = end.time?;
        if time <= earlier {
            return None;
        }
        let problem = format!(
            "{} is longer than {} ({}), which ends the request before",
            units::duration::format(time),
            end.key,
            units::duration::format(earlier)
        );
        Some(Contradiction::new(self.key, problem))
    }
}

/// Finds timeouts that never apply, because another timeout ends the request earlier. Reports only timeouts
/// that the operator set, no defaults.
fn ineffective_timeouts(config: &Config, is_set: impl Fn(&str) -> bool) -> Vec<Contradiction> {
    let timeouts = &config.timeouts;
    let connect = TimeLimit::new("timeouts.connect", timeouts.connect);
    let headers = TimeLimit::new("timeouts.response_headers", timeouts.response_headers);
    let first_output = TimeLimit::new("timeouts.first_output", timeouts.first_output);
    let total = TimeLimit::new("timeouts.total", timeouts.total);
    let max_wait = TimeLimit::new("admission.max_wait", config.admission.max_wait);
    let backend_wait = TimeLimit::new(
        "admission.max_backend_wait",
        config.admission.max_backend_wait,
    );
    let pairs = [
        (&connect, &first_output),
        (&connect, &total),
        (&headers, &total),
        (&first_output, &total),
        (&max_wait, &first_output),
        (&max_wait, &total),
        (&backend_wait, &first_output),
        (&backend_wait, &total),
    ];
    let mut found = Vec::new();
    for (limit, end) in pairs {
        if is_set(limit.key) {
            found.extend(limit.never_ends_before(end));
        }
    }
    found
}

/// Finds limits per client that never apply, because the limit for all clients is lower.
fn ineffective_counts(config: &Config) -> Vec<Contradiction> {
    let limits = &config.limits;
    let mut found = Vec::new();
    if let (Some(per_client), Some(all)) = (limits.connections_per_client, limits.connections)
        && per_client as usize > all
    {
        let problem =
            format!("{per_client} is more than limits.connections ({all}), which applies before");
        found.push(Contradiction::new("limits.connections_per_client", problem));
    }
    if let (Some(per_client), Some(all)) = (limits.requests_per_client, limits.requests_in_flight)
        && per_client as usize > all
    {
        let problem = format!(
            "{per_client} is more than limits.requests_in_flight ({all}), which applies before"
        );
        found.push(Contradiction::new("limits.requests_per_client", problem));
    }
    found
}

/// Finds a drain delay that exceeds the drain timeout.
fn ineffective_drain(config: &Config) -> Option<Contradiction> {
    let drain = &config.drain;
    if drain.delay <= drain.timeout {
        return None;
    }
    let delay = units::duration::format(drain.delay);
    let timeout = units::duration::format(drain.timeout);
    let problem = format!(
        "a shutdown waits {delay} for load balancers, and then {timeout} (drain.timeout) for requests"
    );
    Some(Contradiction::new("drain.delay", problem))
}

/// Finds idle timeouts that make requests fail because the sender reuses a connection that the receiver is
/// closing.
fn idle_connections(config: &Config) -> Vec<Contradiction> {
    let mut found = Vec::new();
    if config.timeouts.idle_connection >= ENGINE_KEEP_ALIVE {
        let problem = "vLLM closes idle connections after 5s, unless VLLM_HTTP_TIMEOUT_KEEP_ALIVE is larger: requests \
                       would meet connections that are being closed";
        found.push(Contradiction::new("timeouts.idle_connection", problem));
    }
    if config.limits.keep_alive < MIN_KEEP_ALIVE {
        let problem = "clients and load balancers keep idle connections longer: they would send requests on connections \
                       that are being closed";
        found.push(Contradiction::new("limits.keep_alive", problem));
    }
    found
}

#[cfg(test)]
mod tests {
    use crate::config::tests::parse;

    fn paths(text: &str) -> Vec<String> {
        parse(text)
            .unwrap()
            .contradictions()
            .into_iter()
            .map(|found| found.path)
            .collect()
    }

    #[test]
    fn contradictions_are_reported_at_set_values() {
        for (text, expected) in [
            (
                "backends: [{ url: 'http://127.0.0.1:8080' }]",
                "backends.0.url",
            ),
            (
                "backends: [{ url: a:1 }, { url: 'localhost:9090' }]",
                "backends.1.url",
            ),
            (
                "listen: 0.0.0.0:8080\nbackends: [{ url: 'http://[::1]:8080' }]",
                "backends.0.url",
            ),
            (
                "listen: 10.0.0.1:80\nbackends: [{ url: 'http://10.0.0.1' }]",
                "backends.0.url",
            ),
            (
                "backends: [{ url: 'http://localhost:8000' }, { url: '127.0.0.1:8000' }]",
                "backends.1.url",
            ),
            (
                "backends: [{ url: a:1, weight: 0 }, { url: b:1, weight: 0 }]",
                "backends.0.weight",
            ),
            ("tiers: { names: [gold, silver, gold] }", "tiers.names.2"),
            (
                "timeouts: { connect: 30s, first_output: 5s }",
                "timeouts.connect",
            ),
            (
                "timeouts: { first_output: 1m, total: 30s }",
                "timeouts.first_output",
            ),
            (
                "timeouts: { first_output: 30s }\nadmission: { max_wait: 1m }",
                "admission.max_wait",
            ),
            (
                "timeouts: { idle_connection: 1m }",
                "timeouts.idle_connection",
            ),
            ("limits: { keep_alive: 1s }", "limits.keep_alive"),
            (
                "limits: { connections: 10, connections_per_client: 20 }",
                "limits.connections_per_client",
            ),
            ("drain: { delay: 20m, timeout: 10s }", "drain.delay"),
        ] {
            assert_eq!(paths(text), [expected], "{text}");
        }
    }

    #[test]
    fn usual_settings_have_no_contradictions() {
        for text in [
            "",
            "timeouts: { total: 5s }",
            "timeouts: { first_output: 1s }",
            "backends: [{ url: 'http://127.0.0.1:8000' }, { url: 'http://gateway:8080' }]",
            "backends: [{ url: 'http://127.0.0.1:8000' }, { url: 'http://localhost:8001' }]",
            "backends: [{ url: 'http://localhost:1/a' }, { url: 'http://127.0.0.1:1/b' }]",
            "backends: [{ url: a:1, weight: 0 }, { url: b:1 }]",
            "listen: 10.0.0.1:8080\nbackends: [{ url: 'http://127.0.0.1:8080' }]",
            include_str!("../../config/tokenweir.yaml"),
            include_str!("../../config/production.yaml"),
        ] {
            assert_eq!(paths(text), Vec::<String>::new(), "{text}");
        }
    }
}
