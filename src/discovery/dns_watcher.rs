//! Resolves a DNS name at an interval and reports changes of its backends.

use super::DiscoverySource;
use super::dns::{DnsQuery, DnsResolver};
use std::time::Duration;
use tokenweir_core::address::BackendAddress;
use tokenweir_core::clock;

/// A discovery source that resolves one name.
pub struct DnsWatcher {
    resolver: DnsResolver,
    query: DnsQuery,
    interval: Duration,
    /// The addresses that were reported last.
    last_reported: Vec<BackendAddress>,
    has_queried: bool,
    is_failing: bool,
}

// === impl DnsWatcher ===

impl DnsWatcher {
    /// Resolves the name at once, and then after each `interval`.
    pub fn new(resolver: DnsResolver, query: DnsQuery, interval: Duration) -> Self {
        Self {
            resolver,
            query,
            interval,
            last_reported: Vec::new(),
            has_queried: false,
            is_failing: false,
        }
    }
}

impl DiscoverySource for DnsWatcher {
    /// Waits until the name resolves to other addresses than before and returns all of them.
    /// Failures and responses without addresses are logged and retried.
    async fn changed(&mut self) -> Vec<BackendAddress> {
        loop {
            if std::mem::replace(&mut self.has_queried, true) {
                tokio::time::sleep_until((clock::now() + self.interval).into()).await;
            }
            let result = self.resolver.resolve(&self.query).await;
            let has_failed = std::mem::replace(&mut self.is_failing, result.is_err());
            let (name, known) = (&self.query, self.last_reported.len());
            match result {
                Err(error) if has_failed => {
                    tracing::debug!(%name, %error, "DNS discovery still fails");
                }
                Err(error) => {
                    tracing::warn!(
                        %name,
                        %error,
                        known,
                        "DNS discovery failed: keeping the known backends of this name"
                    );
                }
                Ok(addresses) => {
                    if has_failed {
                        tracing::info!(%name, "DNS discovery succeeds again");
                    }
                    if addresses != self.last_reported {
                        self.last_reported.clone_from(&addresses);
                        return addresses;
                    }
                }
            }
        }
    }
}
