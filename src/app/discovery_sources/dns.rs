//! Watches the DNS name that a `discovery` entry of the configuration names.

use super::discovered_backends::DiscoveredBackends;
use super::result_publisher::{publish, retry_until_open};
use crate::config::DiscoveryConfig;
use std::future::ready;
use std::time::Duration;
use tokenweir_discovery::dns::{DnsQuery, DnsResolver};
use tokenweir_discovery::dns_watcher::DnsWatcher;

/// Time from the end of one DNS query to the start of the next one.
const QUERY_INTERVAL: Duration = Duration::from_secs(5);

/// Publishes the backends of the DNS name after each change, until the future is dropped.
pub(super) async fn watch(settings: &DiscoveryConfig, discovered: &DiscoveredBackends) {
    let query = match (settings.dns_host(), &settings.srv) {
        (Some((name, port)), _) => DnsQuery::Host {
            name: name.to_owned(),
            port,
        },
        (_, Some(name)) => DnsQuery::Service { name: name.clone() },
        // Cannot happen, because the validation of the configuration requires a target.
        _ => return,
    };
    let message = "no DNS name server: no backends discovered, retrying";
    let open = || ready(DnsResolver::from_system_config());
    let resolver = retry_until_open(message, discovered, open).await;
    let mut watcher = DnsWatcher::new(resolver, query, QUERY_INTERVAL);
    loop {
        publish(watcher.changed().await, discovered);
    }
}
