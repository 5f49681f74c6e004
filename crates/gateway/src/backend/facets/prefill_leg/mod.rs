//! The role of a backend: whether it computes prompts for other backends, or reads prompts that others have
//! computed.

use super::facet::{BackendFacet, RequestPart, Suitability};
use std::sync::atomic::{AtomicU8, Ordering};
use tokenweir_engine::address::BackendId;
use tokenweir_engine::prefill_leg::Role;
use tokenweir_protocol::atomic::AtomicFlag;
use tokenweir_protocol::clock;
use tokenweir_request::record::RequestRecord;
use tokenweir_routing::LoadEstimator;
use tokenweir_routing::resilience::FailureKind;

/// The role of one backend.
#[derive(Debug, Default)]
pub struct PrefillLegFacet {
    /// Index in [`Role::ALL`], plus 1. 0: the backend has no role.
    role: AtomicU8,
    /// Whether, since its start, the backend answered a prefill leg without naming KV blocks, because it
    /// has no KV connector.
    lacks_blocks: AtomicFlag,
}

impl PrefillLegFacet {
    /// The legs of requests that the backend serves. `None`: whole requests only.
    pub fn role(&self) -> Option<Role> {
        let index = self.role.load(Ordering::Relaxed).checked_sub(1)?;
        Role::ALL.get(usize::from(index)).copied()
    }

    /// Sets the legs of requests that the backend serves. `None`: whole requests only.
    pub fn set_role(&self, role: Option<Role>) {
        let index = role.and_then(|role| Role::ALL.iter().position(|other| *other == role));
        let value = index.map_or(0, |index| index as u8 + 1);
        self.role.store(value, Ordering::Relaxed);
    }

    /// Records that the response to a prefill leg names no KV blocks that another backend could fetch.
    /// Until the backend restarts, it gets no prefill leg.
    pub(crate) fn on_leg_without_blocks(&self, id: &BackendId) {
        if !self.lacks_blocks.replace(true) {
            tracing::warn!(backend = %id, "the backend keeps no KV cache blocks for decode backends: it gets no prefill legs until it restarts");
        }
    }

    /// Whether the backend learns from the record of a request.
    pub(super) fn learns_from(record: &RequestRecord) -> bool {
        record.is_prefilled_elsewhere()
    }
}

impl BackendFacet for PrefillLegFacet {
    fn adopt_settings(&self, other: &dyn BackendFacet) {
        if let Some(other) = other.downcast::<Self>() {
            self.set_role(other.role());
        }
    }

    fn on_restart(&self) {
        self.lacks_blocks.set(false);
    }

    /// A backend that could not read the blocks of a prefill leg computes the prompt itself.
    fn on_failure(&self, kind: FailureKind, _id: &BackendId) -> bool {
        kind == FailureKind::TransferFailed
    }

    fn on_finished(&self, record: &RequestRecord, estimator: &LoadEstimator) {
        if record.is_prefilled_elsewhere()
            && let Some(ttft) = record.upstream_ttft()
        {
            estimator.on_decode_leg(ttft.as_secs_f64(), clock::now());
        }
    }

    fn suitability(&self, part: RequestPart) -> Suitability {
        let role = self.role();
        match part {
            RequestPart::Whole if role == Some(Role::Prefill) => {
                Suitability::LastChoice("its role is prefill")
            }
            RequestPart::Whole => Suitability::Suitable,
            RequestPart::Prefill => {
                let serves_legs = role.is_some_and(Role::serves_prefill_legs);
                let is_suitable = serves_legs && !self.lacks_blocks.get();
                if is_suitable { Suitability::Suitable } else { Suitability::Unsuitable }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_role_decides_which_parts_a_backend_gets() {
        let facet = PrefillLegFacet::default();
        for role in [None, Some(Role::Prefill), Some(Role::Decode), Some(Role::Both)] {
            facet.set_role(role);
            assert_eq!(facet.role(), role);
            let is_last_choice = facet.suitability(RequestPart::Whole) != Suitability::Suitable;
            assert_eq!(is_last_choice, role == Some(Role::Prefill), "{role:?}");
            let gets_legs = facet.suitability(RequestPart::Prefill) == Suitability::Suitable;
            assert_eq!(gets_legs, role.is_some_and(Role::serves_prefill_legs), "{role:?}");
        }
    }

    #[test]
    fn a_backend_without_blocks_gets_legs_after_a_restart() {
        let facet = PrefillLegFacet::default();
        facet.set_role(Some(Role::Both));
        facet.on_leg_without_blocks(&BackendId::new("a"));
        assert_eq!(facet.suitability(RequestPart::Prefill), Suitability::Unsuitable);
        facet.on_restart();
        assert_eq!(facet.suitability(RequestPart::Prefill), Suitability::Suitable);
    }
}
