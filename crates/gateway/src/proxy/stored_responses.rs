//! The backends of the stored responses of the Responses API, and the tenants to which the responses belong.
//!
//! vLLM stores a response in the memory of the process that made it, and serves it to every client that names
//! its id. The table of this module is bounded and drops the oldest response first.

use super::access::Principal;
use crate::backend::pool::BackendPool;
use lru::LruCache;
use std::sync::{Arc, Mutex};
use tokenweir_engine::address::BackendId;
use tokenweir_protocol::mutex::lock;
use tokenweir_protocol::openai::{Api, Permission};
use tokenweir_request::error::GatewayError;
use tokenweir_request::observe::Sink;
use tokenweir_request::record::{ModelLabel, RequestRecord};

/// Maximum number of responses in the table.
const MAX_RESPONSES: usize = 32_768;
/// Maximum length of the id of a response, in bytes. Longer ids are not remembered.
const MAX_ID_BYTES: usize = 128;

/// The stored responses that this gateway has seen, each with its owner. As a sink of records, the table stores
/// the id of a response as soon as the stream names it, because a client may cancel a response that is still
/// running. Use does not promote an entry, so the oldest entry is removed first.
pub struct StoredResponses(Mutex<LruCache<Arc<str>, Owner>>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Owner {
    backend: BackendId,
    tenant: Option<Arc<str>>,
    model: ModelLabel,
}

impl Default for StoredResponses {
    fn default() -> Self {
        Self(Mutex::new(LruCache::unbounded()))
    }
}

impl StoredResponses {
    /// Stores the backend and the tenant of the response with this id, if the backend may have stored the
    /// response. A later response with the same id does not replace the tenant.
    fn remember(&self, record: &RequestRecord, id: &str) {
        if record.api != Some(Api::Responses)
            || record.options.forbids_store
            || id.len() > MAX_ID_BYTES
        {
            return;
        }
        let Some(backend) = record.backend() else {
            return;
        };
        let tenant = record
            .caller
            .as_ref()
            .map(|identity| identity.tenant.clone());
        let owner = Owner {
            backend: backend.clone(),
            tenant,
            model: record.model.clone(),
        };
        let mut table = lock(&self.0);
        match table.peek_mut(id) {
            Some(known) if known.tenant == owner.tenant => *known = owner,
            Some(_) => {}
            None => drop(table.put(id.into(), owner)),
        }
        if table.len() > MAX_RESPONSES {
            table.pop_lru();
        }
    }

    /// The backend of the stored response that the request of `record` continues. `None`: the request continues
    /// no response, or its backend is unknown. Fails as [`Self::locate`] does.
    pub(super) fn locate_previous(
        &self,
        record: &RequestRecord,
        principal: &Principal,
        pool: &BackendPool,
    ) -> Result<Option<BackendId>, GatewayError> {
        match &record.options.parameters.previous_response {
            Some(id) if record.api == Some(Api::Responses) => self.locate(id, principal, pool),
            _ => Ok(None),
        }
    }

    /// The backend of a stored response. `None`: this gateway did not see the response begin, and the principal
    /// may ask all backends. Fails if the response belongs to another tenant, or if its tenant is unknown and
    /// the principal has no permission for such responses.
    pub(super) fn locate(
        &self,
        id: &str,
        principal: &Principal,
        pool: &BackendPool,
    ) -> Result<Option<BackendId>, GatewayError> {
        let tenant = principal.tenant();
        match self.owner(id) {
            Some(Owner {
                backend,
                tenant: of,
                ..
            }) if of.as_deref() == tenant => {
                Ok(Some(backend).filter(|backend| pool.find_backend(backend.as_str()).is_some()))
            }
            None if tenant.is_none()
                || principal.permissions.allow(Permission::StoredResponses) =>
            {
                Ok(None)
            }
            _ => Err(GatewayError::ResponseNotFound {
                id: id.chars().take(128).collect(),
            }),
        }
    }

    /// The model of the stored response that the request of `record` continues. `None`: the request continues
    /// no response, or the table does not have it.
    pub fn previous_model(&self, record: &RequestRecord) -> Option<ModelLabel> {
        let id = record.options.parameters.previous_response.as_deref()?;
        Some(self.owner(id)?.model)
    }

    /// The backend and the tenant of the response `id`. `None`: the table does not have the response.
    fn owner(&self, id: &str) -> Option<Owner> {
        lock(&self.0).peek(id).cloned()
    }
}

impl Sink for StoredResponses {
    fn response_named(&self, record: &RequestRecord, id: &str) {
        self.remember(record, id);
    }

    fn finished(&self, records: &[&RequestRecord]) {
        for record in records {
            if let Some(id) = &record.observed.response_id {
                self.remember(record, id);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::PoolSettings;
    use tokenweir_request::record::{ClientIdentity, fixtures};

    fn begun(tenant: &str) -> RequestRecord {
        let mut record = fixtures::streamed();
        record.api = Some(Api::Responses);
        let identity = ClientIdentity {
            tenant: tenant.into(),
            key: "main".into(),
            is_tenant_label: false,
        };
        record.caller = Some(Arc::new(identity));
        record
    }

    #[test]
    fn the_first_tenant_owns_a_response() {
        let responses = StoredResponses::default();
        responses.remember(&begun("a"), "resp_1");
        responses.remember(&begun("b"), "resp_1");
        let backend = begun("a").backend().unwrap().clone();
        let owner = Owner {
            backend,
            tenant: Some("a".into()),
            model: begun("a").model,
        };
        assert_eq!(responses.owner("resp_1"), Some(owner));
        assert_eq!(responses.owner("resp_2"), None);
        let pool = BackendPool::with_settings(Vec::new(), &PoolSettings::default());
        let found = responses.locate("resp_1", &Principal::default(), &pool);
        assert!(
            matches!(found, Err(GatewayError::ResponseNotFound { .. })),
            "without a tenant"
        );
    }

    #[test]
    fn responses_that_nobody_stores_are_forgotten() {
        let responses = StoredResponses::default();
        let mut forbidden = begun("a");
        forbidden.options.forbids_store = true;
        let mut chat = begun("a");
        chat.api = Some(Api::Chat);
        for record in [forbidden, chat] {
            responses.remember(&record, "resp_1");
        }
        responses.remember(&begun("a"), &"x".repeat(MAX_ID_BYTES + 1));
        assert!(responses.0.lock().unwrap().is_empty());
    }

    #[test]
    fn the_oldest_response_is_removed() {
        let responses = StoredResponses::default();
        for index in 0..=MAX_RESPONSES {
            responses.remember(&begun("a"), &format!("resp_{index}"));
        }
        let table = responses.0.lock().unwrap();
        assert_eq!(table.len(), MAX_RESPONSES);
        assert!(!table.contains("resp_0") && table.contains("resp_1"));
    }
}
