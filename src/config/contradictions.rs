//! Finds settings that are valid but contradict each other, so that one of them has no effect or harms
//! requests. The gateway starts with such settings.

use super::load::LoadedConfig;
use super::root::Config;
use super::text::source::ConfigSource;
use std::net::SocketAddr;
use std::time::Duration;
use tokenweir_engine::address::BackendAddress;
use tokenweir_protocol::units;

/// vLLM closes a connection that is idle for this time, unless `VLLM_HTTP_TIMEOUT_KEEP_ALIVE` sets
/// another time.
const ENGINE_KEEP_ALIVE: Duration = Duration::from_secs(5);

/// Minimum of `limits.keep_alive`. HTTP clients and load balancers reuse a connection that has been idle
/// for up to this time or longer.
const MIN_KEEP_ALIVE: Duration = Duration::from_secs(5);

impl LoadedConfig {
    /// Returns the path of each setting that contradicts another setting, and the problem as text.
    pub fn contradictions(&self) -> Vec<(String, String)> {
        let is_set = |path: &str| self.sources.source_of(path) != ConfigSource::Default;
        let mut found = own_addresses(&self.config);
        found.extend(repeated_addresses(&self.config));
        found.extend(weights(&self.config));
        found.extend(duplicate_tiers(&self.config));
        found.extend(ineffective_limits(&self.config, is_set));
        found.extend(idle_connections(&self.config));
        found
    }
}

/// Finds backends whose URL is a listener of the gateway itself.
fn own_addresses(config: &Config) -> Vec<(String, String)> {
    let listeners = [("listen", *config.listen), ("admin", *config.admin)];
    let backends = config.backends.iter().enumerate();
    let own = backends.filter_map(|(index, backend)| {
        let (key, _) =
            listeners.iter().find(|(_, listener)| is_listener(&backend.url, *listener))?;
        let problem = format!("{} is the gateway's own `{key}`, not a backend", backend.url);
        Some((format!("backends.{index}.url"), problem))
    });
    own.collect()
}

/// Finds backends whose URLs are two names of one address: their load would be counted twice.
fn repeated_addresses(config: &Config) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for (index, backend) in config.backends.iter().enumerate() {
        let earlier = config.backends[..index].iter();
        let mut same = earlier.filter(|earlier| earlier.url.is_same_local_endpoint(&backend.url));
        if let Some(earlier) = same.next() {
            let problem = format!("{} is another name of {}: remove one", backend.url, earlier.url);
            found.push((format!("backends.{index}.url"), problem));
        }
    }
    found
}

/// Finds a fleet without a backend that gets requests.
fn weights(config: &Config) -> Option<(String, String)> {
    let is_idle = !config.backends.is_empty()
        && config.discovery.is_empty()
        && config.backends.iter().all(|backend| backend.weight == 0);
    let problem = "the weight of every backend is 0, so no backend gets requests";
    is_idle.then(|| ("backends.0.weight".to_owned(), problem.to_owned()))
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

fn duplicate_tiers(config: &Config) -> Vec<(String, String)> {
    let names = config.tiers.names.iter().enumerate();
    let is_duplicate = |(index, name): &(usize, &String)| {
        config.tiers.names.iter().take(*index).any(|other| other == *name)
    };
    let duplicates = names.filter(is_duplicate);
    let problem = |(index, name)| {
        (format!("tiers.names.{index}"), format!("`{name}` is listed twice: remove one"))
    };
    duplicates.map(problem).collect()
}

/// Finds limits that never apply, because another limit ends the request or the connection earlier.
/// Reports only timeouts that the operator set, not default timeouts.
fn ineffective_limits(config: &Config, is_set: impl Fn(&str) -> bool) -> Vec<(String, String)> {
    let (timeouts, limits) = (&config.timeouts, &config.limits);
    let first_output = ("timeouts.first_output", timeouts.first_output);
    let total = ("timeouts.total", timeouts.total);
    let (max_wait, max_backend_wait) =
        (config.admission.max_wait, config.admission.max_backend_wait);
    let limited_by = [
        ("timeouts.connect", Some(timeouts.connect), &[first_output, total][..]),
        ("timeouts.response_headers", Some(timeouts.response_headers), &[total]),
        (first_output.0, first_output.1, &[total]),
        ("admission.max_wait", Some(max_wait), &[first_output, total]),
        ("admission.max_backend_wait", max_backend_wait, &[first_output, total]),
    ];
    let durations = limited_by.iter().flat_map(|(path, longer, ends)| {
        let is_set = &is_set;
        ends.iter().filter_map(move |(other, shorter)| {
            let (longer, shorter) = (longer.as_ref()?, shorter.as_ref()?);
            let [a, b] = [*longer, *shorter].map(units::duration::format);
            (longer > shorter && is_set(path)).then(|| {
                (*path, format!("{a} is longer than {other} ({b}), which ends the request before"))
            })
        })
    });
    let counts = [
        (
            "limits.connections_per_client",
            limits.connections_per_client,
            "limits.connections",
            limits.connections,
        ),
        (
            "limits.requests_per_client",
            limits.requests_per_client,
            "limits.requests_in_flight",
            limits.requests_in_flight,
        ),
    ];
    let counts = counts.into_iter().filter_map(|(path, per_client, other, all)| {
        let (per_client, all) = (per_client?, all?);
        (per_client as usize > all).then(|| {
            (path, format!("{per_client} is more than {other} ({all}), which applies before"))
        })
    });
    let drain = &config.drain;
    let [delay, timeout] = [drain.delay, drain.timeout].map(units::duration::format);
    let drain = (drain.delay > drain.timeout && is_set("drain.delay")).then(|| {
        let problem = format!("a shutdown waits {delay} for load balancers, and then {timeout} (drain.timeout) for requests");
        ("drain.delay", problem)
    });
    let found = durations.chain(counts).chain(drain);
    found.map(|(path, problem)| (path.to_owned(), problem)).collect()
}

/// Finds idle timeouts that make requests fail, because the sender uses an idle connection that the
/// receiver is just closing.
fn idle_connections(config: &Config) -> Vec<(String, String)> {
    let mut found = Vec::new();
    if config.timeouts.idle_connection >= ENGINE_KEEP_ALIVE {
        let problem = "vLLM closes idle connections after 5s, unless VLLM_HTTP_TIMEOUT_KEEP_ALIVE is larger: requests \
                       would meet connections that are being closed";
        found.push(("timeouts.idle_connection".to_owned(), problem.to_owned()));
    }
    if config.limits.keep_alive < MIN_KEEP_ALIVE {
        let problem = "clients and load balancers keep idle connections longer: they would send requests on connections \
                       that are being closed";
        found.push(("limits.keep_alive".to_owned(), problem.to_owned()));
    }
    found
}

#[cfg(test)]
mod tests {
    use crate::config::tests::parse;

    fn paths(text: &str) -> Vec<String> {
        parse(text).unwrap().contradictions().into_iter().map(|(path, _)| path).collect()
    }

    #[test]
    fn a_contradiction_between_settings_is_reported_at_a_value_that_the_operator_set() {
        for (text, expected) in [
            ("backends: [{ url: 'http://127.0.0.1:8080' }]", "backends.0.url"),
            ("backends: [{ url: a:1 }, { url: 'localhost:9090' }]", "backends.1.url"),
            ("listen: 0.0.0.0:8080\nbackends: [{ url: 'http://[::1]:8080' }]", "backends.0.url"),
            ("listen: 10.0.0.1:80\nbackends: [{ url: 'http://10.0.0.1' }]", "backends.0.url"),
            (
                "backends: [{ url: 'http://localhost:8000' }, { url: '127.0.0.1:8000' }]",
                "backends.1.url",
            ),
            ("backends: [{ url: a:1, weight: 0 }, { url: b:1, weight: 0 }]", "backends.0.weight"),
            ("tiers: { names: [gold, silver, gold] }", "tiers.names.2"),
            ("timeouts: { connect: 30s, first_output: 5s }", "timeouts.connect"),
            ("timeouts: { first_output: 1m, total: 30s }", "timeouts.first_output"),
            ("timeouts: { first_output: 30s }\nadmission: { max_wait: 1m }", "admission.max_wait"),
            ("timeouts: { idle_connection: 1m }", "timeouts.idle_connection"),
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
    fn default_and_usual_settings_do_not_contradict_each_other() {
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
