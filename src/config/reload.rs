//! A configuration that is read again while the gateway runs: what of it holds at once, what needs
//! a restart, and which of its keys have changed.

use super::{Config, Limits, Loaded, Routing};
use serde_json::Value;
use std::collections::BTreeMap;

/// What reading a configuration again comes to. Keys are paths, such as `drain.timeout`; an entry
/// of a list is named by its name or its URL, as in `backends[gpu-0].weight`.
#[derive(Debug, Clone, PartialEq)]
pub struct Reloaded {
    /// What holds from now on.
    pub loaded: Loaded,
    /// The keys that have changed.
    pub changed: Vec<String>,
    /// The keys that have changed in the file, and will when the gateway starts again.
    pub held: Vec<String>,
}

impl Loaded {
    /// Puts a configuration that was read again in the place of this one.
    pub fn reload(&self, new: Self) -> Reloaded {
        let config = in_force(&self.config, &new.config);
        let changed = differences(&self.config, &config);
        let held = differences(&config, &new.config);
        Reloaded { loaded: Self { config, ..new }, changed, held }
    }
}

/// What of a new configuration may hold while the gateway runs, and the old one's where it may not.
/// This is the one place that says so: it names every section, so that a section which says nothing
/// does not compile.
fn in_force(old: &Config, new: &Config) -> Config {
    Config {
        // Taken at once: a request has them for its whole life.
        backends: new.backends.clone(),
        discovery: new.discovery.clone(),
        models: new.models.clone(),
        admission: new.admission.clone(),
        // How much is let in stands with the descriptors that are there for it.
        limits: Limits {
            connections: old.limits.connections,
            connections_per_client: old.limits.connections_per_client,
            requests_in_flight: old.limits.requests_in_flight,
            requests_per_client: old.limits.requests_per_client,
            memory: old.limits.memory,
            ..new.limits
        },
        retry: new.retry,
        health: new.health,
        streams: new.streams,
        timeouts: new.timeouts,
        watch: new.watch,
        usage: new.usage,
        continuous_usage: new.continuous_usage,
        stalls: new.stalls,
        slow: new.slow,
        answers: new.answers.clone(),
        tiers: new.tiers.clone(),
        drain: new.drain,
        reload: new.reload,
        // The ring has its memory from the start.
        routing: Routing { explain_ring: old.routing.explain_ring, ..new.routing.clone() },
        // Their files are read again by themselves.
        access: old.access.clone(),
        tls: old.tls.clone(),
        backend_tls: old.backend_tls.clone(),
        // Sockets are bound, threads run, files are open, and bounds of histograms stand.
        listen: old.listen,
        listen_reuse_port: old.listen_reuse_port,
        admin: old.admin,
        slos: old.slos.clone(),
        metrics: old.metrics.clone(),
        log: old.log.clone(),
        quality: old.quality.clone(),
        tracing: old.tracing.clone(),
        capture: old.capture.clone(),
    }
}

/// The keys whose values differ.
fn differences(old: &Config, new: &Config) -> Vec<String> {
    let value = |config| serde_json::to_value(config).unwrap_or_default();
    let mut found = Vec::new();
    compare("", &value(old), &value(new), &mut found);
    found
}

fn compare(path: &str, old: &Value, new: &Value, found: &mut Vec<String>) {
    let below = |key: &str| if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") };
    match (old, new) {
        (old, new) if old == new => {}
        (Value::Object(olds), Value::Object(news)) => {
            let gone = olds.keys().filter(|key| !news.contains_key(*key));
            found.extend(gone.map(|key| below(key)));
            for (key, new) in news {
                compare(&below(key), olds.get(key).unwrap_or(&Value::Null), new, found);
            }
        }
        (Value::Array(olds), Value::Array(news)) => match (named(olds), named(news)) {
            (Some(olds), Some(news)) => entries(path, &olds, &news, found),
            _ => found.push(path.to_owned()),
        },
        _ => found.push(path.to_owned()),
    }
}

fn entries(
    path: &str,
    olds: &BTreeMap<&str, &Value>,
    news: &BTreeMap<&str, &Value>,
    found: &mut Vec<String>,
) {
    let before = found.len();
    for name in olds.keys().filter(|name| !news.contains_key(*name)) {
        found.push(format!("{path}[{name}] removed"));
    }
    for (name, new) in news {
        match olds.get(name) {
            Some(old) => compare(&format!("{path}[{name}]"), old, new, found),
            None => found.push(format!("{path}[{name}] added")),
        }
    }
    if found.len() == before {
        found.push(format!("{path} in another order"));
    }
}

/// The entries of a list, by what each is called. `None`: they have no names.
fn named(items: &[Value]) -> Option<BTreeMap<&str, &Value>> {
    items.iter().map(|item| Some((name(item)?, item))).collect()
}

fn name(item: &Value) -> Option<&str> {
    ["name", "url", "tier"].iter().find_map(|key| item.get(key)?.as_str())
}

#[cfg(test)]
mod tests {
    use super::super::Overrides;
    use super::*;
    use std::path::Path;

    fn loaded(text: &str) -> Loaded {
        Config::parse(text, Path::new("gateway.yaml"), Overrides::default()).unwrap()
    }

    fn reloaded(old: &str, new: &str) -> Reloaded {
        loaded(old).reload(loaded(new))
    }

    #[test]
    fn what_has_changed_is_named_by_its_key_and_its_name_and_never_by_its_value() {
        let old = "backends: [{ url: a:1, name: x, api_key: { env: OLD } }, { url: b:1 }]\n";
        let new = "backends: [{ url: c:1, weight: 2 }, { url: a:1, name: x, api_key: { env: NEW } }]\n\
                   routing: { policy: p2c, session_headers: [x-user] }\ndrain: { timeout: 1m }\n";
        let Reloaded { changed, held, loaded } = reloaded(old, new);
        assert_eq!(
            changed,
            [
                "backends[http://b:1] removed",
                "backends[http://c:1] added",
                "backends[x].api_key.env",
                "drain.timeout",
                "routing.policy",
                "routing.session_headers",
            ]
        );
        assert_eq!(held, [""; 0]);
        assert_eq!(loaded.config.backends.len(), 2);
    }

    #[test]
    fn what_needs_a_restart_keeps_its_value_and_is_named() {
        let old = "listen: 127.0.0.1:1\nrouting: { explain_ring: 5 }\nlog: { level: warn }\n";
        let new = "listen: 127.0.0.1:2\nrouting: { explain_ring: 6 }\nlog: { level: info }\n\
                   usage: passive\n";
        let Reloaded { changed, held, loaded } = reloaded(old, new);
        assert_eq!(changed, ["usage"]);
        assert_eq!(held, ["listen", "log.level", "routing.explain_ring"]);
        assert_eq!((loaded.config.listen.port(), loaded.config.routing.explain_ring), (1, 5));
    }

    #[test]
    fn the_same_text_changes_nothing() {
        let text = "backends: [{ url: a:1 }]\nmodels: [{ name: a, served_as: b }]\n";
        let again = reloaded(text, text);
        assert_eq!((again.changed, again.held), (Vec::new(), Vec::new()));
    }

    #[test]
    fn another_order_is_a_change() {
        let (old, new) = ("backends: [a:1, b:1]", "backends: [b:1, a:1]");
        let listed =
            |text: &str| text.replace("a:1", "{ url: a:1 }").replace("b:1", "{ url: b:1 }");
        assert_eq!(reloaded(&listed(old), &listed(new)).changed, ["backends in another order"]);
    }
}
