//! Resolves a DNS name at an interval and reports changes of its backends.

use super::DiscoveryChange;
use super::dns::{DnsQuery, DnsResolver};
use std::time::Duration;
use tokenweir_engine::address::BackendAddress;

/// A discovery source that resolves one DNS name.
pub struct DnsWatcher {
    resolver: DnsResolver,
    query: DnsQuery,
    /// Time from the end of one query to the next query.
    interval: Duration,
    /// The addresses that were reported last. Empty before the first report.
    last_reported: Vec<BackendAddress>,
    /// Whether the first query has been sent.
    has_queried: bool,
    /// Number of queries in succession that failed.
    failures: u32,
}

impl DnsWatcher {
    /// Creates the source. It resolves the name at the first call of [`Self::changed`],
    /// and then `interval` after each result.
    pub fn new(resolver: DnsResolver, query: DnsQuery, interval: Duration) -> Self {
        Self {
            resolver,
            query,
            interval,
            last_reported: Vec::new(),
            has_queried: false,
            failures: 0,
        }
    }

    /// Resolves the name until its addresses change, or until it begins or ceases to fail. Failures are logged. A
    /// response without addresses counts as a failure.
    pub async fn changed(&mut self) -> DiscoveryChange {
        loop {
            if std::mem::replace(&mut self.has_queried, true) {
                tokio::time::sleep(self.interval).await;
            }
            let result = self.resolver.resolve(&self.query).await;
            let failed = self.failures;
            self.failures = if result.is_err() {
                failed.saturating_add(1)
            } else {
                0
            };
            let name = &self.query;
            match result {
                Err(error) if failed == 1 => {
                    return DiscoveryChange::Problem(Some(format!("DNS name {name}: {error}")));
                }
                Err(error) if failed > 1 => {
                    tracing::debug!(%name, %error, "DNS discovery still fails");
                }
                Err(error) => {
                    tracing::warn!(
                        %name,
                        %error,
                        known = self.last_reported.len(),
                        "DNS discovery failed: keeping the known backends of this name"
                    );
                }
                Ok(addresses) => {
                    if failed > 0 {
                        tracing::info!(%name, "DNS discovery succeeds again");
                    }
                    if addresses != self.last_reported {
                        self.last_reported.clone_from(&addresses);
                        let backends = addresses.into_iter().map(Into::into).collect();
                        return DiscoveryChange::Backends(backends);
                    }
                    if failed > 1 {
                        return DiscoveryChange::Problem(None);
                    }
                }
            }
        }
    }
}
