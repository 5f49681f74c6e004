//! Watches a DNS name from its configuration.

use super::result_publisher::{publish_results, retry_until_open};
use crate::config::{BackendConfig, DiscoveryConfig};
use crate::discovery::dns::{DnsQuery, DnsResolver};
use crate::discovery::dns_watcher::DnsWatcher;
use std::future::ready;

/// Publishes the backends of the name each time they change, until the future is dropped.
pub(super) async fn watch(settings: &DiscoveryConfig, publish: impl Fn(Vec<BackendConfig>)) {
    let query = match (&settings.dns, settings.port, &settings.srv) {
        (Some(name), Some(port), _) => DnsQuery::Host { name: name.clone(), port },
        (_, _, Some(name)) => DnsQuery::Service { name: name.clone() },
        // Cannot happen: validation of the configuration requires a target.
        _ => return,
    };
    let message = "no DNS name server: no backends discovered, retrying";
    let resolver = retry_until_open(message, || ready(DnsResolver::from_system_config())).await;
    publish_results(DnsWatcher::new(resolver, query, settings.interval), publish).await;
}
