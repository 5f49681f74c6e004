//! Finds valid settings that contradict each other, so that one of them has no effect or harms requests. The
//! gateway starts with such settings.

use super::backends::section::BackendConfig;
use super::load::LoadedConfig;
use super::root::Config;
use super::text::source::ConfigSource;
use std::net::{IpAddr, SocketAddr};
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
    /// The path of the setting that has no effect or does harm.
    pub path: String,
    /// The problem, as text for operators.
    pub problem: String,
}

/// The contradictions that were found.
#[derive(Default)]
struct Contradictions(Vec<Contradiction>);

impl Contradictions {
    fn add(&mut self, path: impl Into<String>, problem: impl Into<String>) {
        self.0.push(Contradiction {
            path: path.into(),
            problem: problem.into(),
        });
    }
}

impl LoadedConfig {
    /// Returns the settings that contradict other settings.
    pub fn contradictions(&self) -> Vec<Contradiction> {
        let config = &self.config;
        let is_set = |path: &str| self.sources.source_of(path) != ConfigSource::Default;
        let mut found = Contradictions::default();
        own_addresses(config, &mut found);
        repeated_addresses(config, &mut found);
        weights(config, &mut found);
        duplicate_tiers(config, &mut found);
        ineffective_timeouts(config, is_set, &mut found);
        ineffective_counts(config, &mut found);
        if is_set("drain.delay") {
            ineffective_drain(config, &mut found);
        }
        idle_connections(config, &mut found);
        found.0
    }
}

/// Finds backends whose URL is a listener of the gateway itself.
fn own_addresses(config: &Config, found: &mut Contradictions) {
    for (index, BackendConfig { url, .. }) in config.backends.iter().enumerate() {
        let key = if is_listener(url, *config.listen) {
            "listen"
        } else if is_listener(url, *config.admin) {
            "admin"
        } else {
            continue;
        };
        let problem = format!("{url} is the gateway's own `{key}`, not a backend");
        found.add(format!("backends.{index}.url"), problem);
    }
}

/// Finds backends whose URLs are two names of one address, so that their load would be counted twice.
fn repeated_addresses(config: &Config, found: &mut Contradictions) {
    for (index, BackendConfig { url, .. }) in config.backends.iter().enumerate() {
        let mut earlier = config.backends[..index].iter();
        if let Some(same) = earlier.find(|earlier| earlier.url.is_same_local_endpoint(url)) {
            let problem = format!("{url} is another name of {}: remove one", same.url);
            found.add(format!("backends.{index}.url"), problem);
        }
    }
}

/// Finds a pool without any backend that gets requests.
fn weights(config: &Config, found: &mut Contradictions) {
    let is_known = !config.backends.is_empty() && config.discovery.is_empty();
    if is_known && config.backends.iter().all(|backend| backend.weight == 0) {
        let problem = "the weight of every backend is 0, so no backend gets requests";
        found.add("backends.0.weight", problem);
    }
}

fn is_listener(url: &BackendAddress, listener: SocketAddr) -> bool {
    let (host, port) = url.host_and_port();
    let is_any = listener.ip().is_unspecified();
    let is_host = match host.trim_matches(['[', ']']).parse() {
        Ok(ip) => listener.ip() == ip || is_loopback(ip) && is_any,
        Err(_) => host.eq_ignore_ascii_case("localhost") && is_loopback(listener.ip()),
    };
    is_host && port == listener.port()
}

fn is_loopback(ip: IpAddr) -> bool {
    ip.is_loopback() || ip.is_unspecified()
}

fn duplicate_tiers(config: &Config, found: &mut Contradictions) {
    let names = &config.tiers.names;
    for (index, name) in names.iter().enumerate() {
        if names[..index].contains(name) {
            let problem = format!("`{name}` is listed twice: remove one");
            found.add(format!("tiers.names.{index}"), problem);
        }
    }
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

    /// The problem if this time is longer than `end`, which ends the request first.
    fn never_ends_before(&self, end: &Self) -> Option<String> {
        let time = self.time?;
        let earlier = end.time.filter(|earlier| *earlier < time)?;
        Some(format!(
            "{} is longer than {} ({}), which ends the request before",
            units::duration::format(time),
            end.key,
            units::duration::format(earlier)
        ))
    }
}

/// Finds timeouts that never apply, because another timeout ends the request earlier. Reports only timeouts
/// that the operator set, no defaults.
fn ineffective_timeouts(
    config: &Config,
    is_set: impl Fn(&str) -> bool,
    found: &mut Contradictions,
) {
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
    for (limit, end) in pairs {
        let problem = limit.never_ends_before(end);
        if let Some(problem) = problem
            && is_set(limit.key)
        {
            found.add(limit.key, problem);
        }
    }
}

/// Finds limits per client that never apply, because the limit for all clients is lower.
fn ineffective_counts(config: &Config, found: &mut Contradictions) {
    let limits = &config.limits;
    let connections = limits.connections_per_client;
    if let (Some(per_client), Some(all)) = (connections, limits.connections)
        && per_client as usize > all
    {
        let problem =
            format!("{per_client} is more than limits.connections ({all}), which applies before");
        found.add("limits.connections_per_client", problem);
    }
    let requests = limits.requests_per_client;
    if let (Some(per_client), Some(all)) = (requests, limits.requests_in_flight)
        && per_client as usize > all
    {
        let problem = format!(
            "{per_client} is more than limits.requests_in_flight ({all}), which applies before"
        );
        found.add("limits.requests_per_client", problem);
    }
}

/// Finds a drain delay that exceeds the drain timeout.
fn ineffective_drain(config: &Config, found: &mut Contradictions) {
    let drain = &config.drain;
    if drain.delay > drain.timeout {
        let delay = units::duration::format(drain.delay);
        let timeout = units::duration::format(drain.timeout);
        let problem = format!(
            "a shutdown waits {delay} for load balancers, and then {timeout} (drain.timeout) for requests"
        );
        found.add("drain.delay", problem);
    }
}

/// Finds idle timeouts that make requests fail because the sender reuses a connection that the receiver is
/// closing.
fn idle_connections(config: &Config, found: &mut Contradictions) {
    if config.timeouts.idle_connection >= ENGINE_KEEP_ALIVE {
        let problem = "vLLM closes idle connections after 5s, unless VLLM_HTTP_TIMEOUT_KEEP_ALIVE is larger: requests \
                       would meet connections that are being closed";
        found.add("timeouts.idle_connection", problem);
    }
    if config.limits.keep_alive < MIN_KEEP_ALIVE {
        let problem = "clients and load balancers keep idle connections longer: they would send requests on connections \
                       that are being closed";
        found.add("limits.keep_alive", problem);
    }
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
