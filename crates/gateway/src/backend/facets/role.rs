//! The role of a backend with prefill and decode on different backends: it computes prompts for other backends,
//! or reads the KV blocks of prompts that other backends computed.

use super::facet::{BackendFacet, RequestPart, Suitability};
use std::sync::atomic::{AtomicU8, Ordering};
use tokenweir_engine::address::BackendId;
use tokenweir_engine::role::Role;
use tokenweir_protocol::atomic::AtomicFlag;
use tokenweir_routing::resilience::FailureKind;

/// The configured role, and whether the backend has a KV connector.
#[derive(Debug, Default)]
pub struct RoleFacet {
    /// Index in [`Role::ALL`], plus 1. 0: the backend has no role.
    role: AtomicU8,
    /// Whether the backend, since its start, answered a prefill without naming KV blocks. Such a backend has no
    /// KV connector.
    lacks_blocks: AtomicFlag,
}

impl RoleFacet {
    /// The parts of requests that the backend serves. `None`: whole requests only.
    pub fn get(&self) -> Option<Role> {
        let index = self.role.load(Ordering::Relaxed).checked_sub(1)?;
        Role::ALL.get(usize::from(index)).copied()
    }

    /// Sets the parts of requests that the backend serves. `None`: whole requests only.
    pub fn set(&self, role: Option<Role>) {
        let value = role.map_or(0, |role| role as u8 + 1);
        self.role.store(value, Ordering::Relaxed);
    }

    /// Records that the backend computed a prompt for another backend but named no KV blocks to fetch. Until it
    /// restarts, the backend computes no prompts for others.
    pub fn on_prefill_without_blocks(&self, id: &BackendId) {
        if !self.lacks_blocks.replace(true) {
            tracing::warn!(backend = %id, "the backend keeps no KV cache blocks for decode backends: it gets no prefill legs until it restarts");
        }
    }
}

impl BackendFacet for RoleFacet {
    fn adopt_settings(&self, other: &dyn BackendFacet) {
        if let Some(other) = other.downcast::<Self>() {
            self.set(other.get());
        }
    }

    fn on_restart(&self) {
        self.lacks_blocks.set(false);
    }

    /// A decode backend that cannot read the KV blocks of a prefill backend gets the request again without
    /// them.
    fn on_failure(&self, kind: FailureKind, _id: &BackendId) -> bool {
        kind == FailureKind::TransferFailed
    }

    fn suitability(&self, part: RequestPart, _: Option<&str>) -> Suitability {
        let role = self.get();
        match part {
            RequestPart::Whole if role == Some(Role::Prefill) => {
                Suitability::LastChoice("its role is prefill")
            }
            RequestPart::Whole => Suitability::Suitable,
            RequestPart::Prefill => {
                let is_for_others = role.is_some_and(Role::computes_for_others);
                let is_suitable = is_for_others && !self.lacks_blocks.get();
                if is_suitable {
                    Suitability::Suitable
                } else {
                    Suitability::Unsuitable
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_role_decides_which_parts_a_backend_gets() {
        let facet = RoleFacet::default();
        for role in [
            None,
            Some(Role::Prefill),
            Some(Role::Decode),
            Some(Role::Both),
        ] {
            facet.set(role);
            assert_eq!(facet.get(), role);
            let is_last_choice =
                facet.suitability(RequestPart::Whole, None) != Suitability::Suitable;
            assert_eq!(is_last_choice, role == Some(Role::Prefill), "{role:?}");
            let gets_legs = facet.suitability(RequestPart::Prefill, None) == Suitability::Suitable;
            assert_eq!(
                gets_legs,
                role.is_some_and(Role::computes_for_others),
                "{role:?}"
            );
        }
    }

    #[test]
    fn legs_resume_after_a_restart() {
        let facet = RoleFacet::default();
        facet.set(Some(Role::Both));
        facet.on_prefill_without_blocks(&BackendId::new("a"));
        assert_eq!(
            facet.suitability(RequestPart::Prefill, None),
            Suitability::Unsuitable
        );
        facet.on_restart();
        assert_eq!(
            facet.suitability(RequestPart::Prefill, None),
            Suitability::Suitable
        );
    }
}
