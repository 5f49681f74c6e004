//! Admission by live sessions as an option.

use crate::rows;
use crate::session_admission::{GatewaySharing, SessionAdmission, Sharing};
use crate::settings::SessionSettings;
use std::sync::atomic::{AtomicU64, Ordering};
use tokenweir_option::prelude::*;
use tokenweir_peer_exchange::PeerExchange;

/// Admission by live sessions as an option.
#[derive(Default)]
pub struct SessionsOption(OnceLock<SessionAdmission>);

impl GatewayOption for SessionsOption {
    type Settings = SessionSettings;
    const ROWS: &'static [MetricDescriptor] = rows::ROWS;

    fn join(
        self: &Arc<Self>,
        settings: SessionSettings,
        gateway: &ProxyContext,
        parts: &mut GatewayParts,
    ) -> Result<(), StartError> {
        let sharing = sharing(parts.find());
        let _ = self.0.set(SessionAdmission::new(&gateway.state, sharing));
        self.configure(settings);
        Ok(())
    }

    fn configure(&self, settings: SessionSettings) {
        if let Some(admission) = self.0.get() {
            admission.configure(settings);
        }
    }

    fn add_status(&self, status: &mut StatusSnapshot, now: Instant) {
        if let Some(block) = self.0.get().and_then(|admission| admission.status(now)) {
            status.blocks.add(block);
        }
    }
}

/// How the gateways share the backends. While the exchange is away, those share them that it knew last.
fn sharing(exchange: Option<Arc<PeerExchange>>) -> GatewaySharing {
    let last_known = AtomicU64::new(1);
    Arc::new(move |now| {
        let Some(exchange) = &exchange else {
            return Sharing::Separate(1);
        };
        let status = exchange.status(now);
        if status.connected {
            last_known.store(status.peers as u64 + 1, Ordering::Relaxed);
            return Sharing::Exchange;
        }
        Sharing::Separate(last_known.load(Ordering::Relaxed))
    })
}
