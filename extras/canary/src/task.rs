//! The task that sends the canary requests of one backend, one at a time.

use crate::answer;
use crate::facet::{CanaryFacet, SentCanary};
use crate::settings::CanarySettings;
use std::future;
use std::sync::Arc;
use std::time::Duration;
use tokenweir_gateway::backend::Backend;
use tokenweir_net::client::HttpClient;
use tokenweir_protocol::clock;
use tokenweir_routing::resilience::Availability;
use tokio::sync::watch;

/// The canary requests of one backend.
#[derive(Clone)]
pub(crate) struct CanaryTask {
    pub(crate) backend: Arc<Backend>,
    pub(crate) client: HttpClient,
    pub(crate) settings: watch::Receiver<CanarySettings>,
}

impl CanaryTask {
    /// Sends canary requests while the option is on. A change of the settings cancels an open request.
    pub(crate) async fn run(mut self) {
        let backend = self.backend.clone();
        let Some(facet) = backend.facets.get::<CanaryFacet>() else {
            return;
        };
        loop {
            let settings = *self.settings.borrow_and_update();
            if !settings.enabled {
                facet.switch_off();
            }
            tokio::select! {
                changed = self.settings.changed() => {
                    if changed.is_err() {
                        return;
                    }
                }
                () = send_all(&backend, facet, &self.client, settings) => {}
            }
        }
    }
}

/// Sends canary requests in an endless loop. If the option is off, the loop only waits.
async fn send_all(
    backend: &Backend,
    facet: &CanaryFacet,
    client: &HttpClient,
    settings: CanarySettings,
) {
    if !settings.enabled {
        return future::pending().await;
    }
    let mut next = clock::now() + offset(settings.interval, backend.identity.id_hash);
    loop {
        tokio::time::sleep_until(next.into()).await;
        if is_due(backend, facet, settings.interval) {
            let sent = SentCanary::now(backend);
            if let Some(answer) = answer::ask(backend, client, settings.timeout).await {
                facet.add(backend, sent, answer);
            }
        }
        next = (next + settings.interval).max(clock::now());
    }
}

/// The part of the interval before the first canary request. It depends on the name of the backend, so that not
/// all backends get a request at the same time.
fn offset(interval: Duration, id_hash: u64) -> Duration {
    let thousandths = id_hash % 1_000;
    interval.mul_f64(thousandths as f64 / 1_000.0)
}

/// Whether the backend gets a canary request now. It must be available for client requests, but have neither an
/// open one nor one that was answered in the interval, because a client request shows more. A backend that is
/// itself a gateway gets none, because it would count there as traffic.
fn is_due(backend: &Backend, facet: &CanaryFacet, interval: Duration) -> bool {
    if backend.availability(clock::now()) != Availability::Available {
        facet.end_silence();
        return false;
    }
    let has_traffic = backend.load.in_flight() > 0 || backend.has_output_since(interval);
    !has_traffic && !backend.health.state().is_gateway
}
