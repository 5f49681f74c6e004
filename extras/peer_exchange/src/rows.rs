//! Status and metrics of the exchange with other gateways.

use crate::status::PeerExchangeStatus;
use tokenweir_gateway::metric::prelude::*;
use tokenweir_gateway::status::{StatusBlock, StatusSnapshot};

impl StatusBlock for PeerExchangeStatus {
    const KEY: Option<&'static str> = Some("peer_exchange");
}

/// The metrics of the exchange with other gateways.
pub const ROWS: &[MetricDescriptor] = &[
    value(
        "tokenweir_peer_exchange_connected",
        "1 while the gateway is connected to the message bus.",
        |status| exchange(status).map(|exchange| f64::from(exchange.connected)),
    ),
    value(
        "tokenweir_peer_gateways",
        "Other gateways that sent a message within the last 5 s.",
        |status| exchange(status).map(|exchange| exchange.peers as f64),
    ),
    row(
        "tokenweir_peer_messages_total",
        "Messages of the exchange with other gateways, by result.",
        &[computed("result", PeerExchangeStatus::message_results)],
        Status(|status, emit| {
            let results = exchange(status)
                .into_iter()
                .flat_map(|exchange| &exchange.messages);
            results.for_each(|(result, count)| emit(&[result], *count as f64));
        }),
    ),
    row(
        "tokenweir_peer_decisions_total",
        "Routing decisions that the gateways exchange, by result. dropped: the queue was full, or the message bus not connected.",
        &[fixed("result", &PeerExchangeStatus::DECISION_RESULTS)],
        Status(|status, emit| {
            let results = exchange(status)
                .into_iter()
                .flat_map(|exchange| &exchange.decisions);
            results.for_each(|(result, count)| emit(&[result], *count as f64));
        }),
    ),
    value(
        "tokenweir_peer_sent_bytes_total",
        "Bytes of the messages that the gateway sent to other gateways.",
        |status| exchange(status).map(|exchange| exchange.sent_bytes as f64),
    ),
];

fn exchange(status: &StatusSnapshot) -> Option<&PeerExchangeStatus> {
    let exchange: &Option<PeerExchangeStatus> = status.blocks.get()?;
    exchange.as_ref()
}
