//! The exchange with other gateways as an option.

use crate::exchange::ExchangeFacet;
use crate::section::{PeerExchangeConfig, PeerExchangeError};
use crate::{TASK, rows};
use tokenweir_option::prelude::*;
use tokenweir_request::access::QuotaScope;

/// The exchange as an option. It shows its `PeerExchange` to later options.
#[derive(Debug, Default)]
pub struct ExchangeOption(OnceLock<ExchangeFacet>);

impl GatewayOption for ExchangeOption {
    type Settings = PeerExchangeConfig;
    const ROWS: &'static [MetricDescriptor] = rows::ROWS;
    const TASKS: &'static [BackgroundTask] = &[TASK];

    fn start(
        self: &Arc<Self>,
        settings: PeerExchangeConfig,
        context: &StartContext<'_>,
        parts: &mut OptionParts,
    ) -> Result<(), StartError> {
        if settings.url.is_some() {
            parts.quota_scope = QuotaScope::Shared;
        }
        if let Some(exchange) = settings.start(context.env)? {
            let facet = ExchangeFacet(exchange.clone());
            parts.pool_facets.push(Arc::new(facet.clone()));
            parts.drivers.push(Arc::new(facet.clone()));
            parts.gateway.diagnosis.push(exchange.clone());
            parts.gateway.share(exchange);
            let _ = self.0.set(facet);
        }
        Ok(())
    }

    fn facet(&self) -> Option<Box<dyn BackendFacet>> {
        Some(Box::new(self.0.get()?.clone()))
    }

    fn add_status(&self, status: &mut StatusSnapshot, now: Instant) {
        let exchange = self.0.get().map(|facet| facet.0.status(now));
        status.blocks.add(exchange);
    }

    fn obstacles(settings: &PeerExchangeConfig, context: &StartContext<'_>) -> Vec<Obstacle> {
        match settings.start(context.env) {
            Err(error @ PeerExchangeError::Key(_)) => vec![Obstacle {
                path: "peer_exchange.key".to_owned(),
                error: error.into(),
            }],
            _ => Vec::new(),
        }
    }
}
