//! The backends that have the stored responses of the Responses API, and the tenants to which the
//! responses belong.
//!
//! vLLM stores a response in the memory of the process that made it, and serves it to every client
//! that names its id. The table of this module is bounded: it forgets the oldest response first.

use super::access::Principal;
use crate::backend::pool::BackendPool;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use tokenweir_engine::address::BackendId;
use tokenweir_protocol::mutex::lock;
use tokenweir_protocol::openai::Api;
use tokenweir_protocol::openai::engine_control::Permission;
use tokenweir_request::error::GatewayError;
use tokenweir_request::observe::Sink;
use tokenweir_request::record::RequestRecord;

/// Maximum number of responses in the table.
const MAX_RESPONSES: usize = 32_768;
/// Maximum length of the id of a response, in bytes. Longer ids are not remembered.
const MAX_ID_BYTES: usize = 128;

/// The stored responses that this gateway has seen. As a sink of records, the table stores the id of a
/// response as soon as the response stream names the id, because a client may cancel a response that is
/// still running.
#[derive(Default)]
pub struct StoredResponses(Mutex<Table>);

/// The result of a lookup.
#[derive(Debug, PartialEq, Eq)]
enum StoredResponse {
    /// The response belongs to the tenant, and this backend has it.
    At(BackendId),
    /// The response belongs to another tenant.
    OfAnotherTenant,
    /// The table does not have the response.
    Unknown,
}

#[derive(Default)]
struct Table {
    by_id: HashMap<Arc<str>, Owner>,
    /// The ids of `by_id`, the oldest first.
    order: VecDeque<Arc<str>>,
}

struct Owner {
    backend: BackendId,
    tenant: Option<Arc<str>>,
}

impl StoredResponses {
    /// Remembers the backend and the tenant of the response with this id, if the backend may have stored
    /// it. A later response of another tenant with the same id does not replace the tenant.
    fn remember(&self, record: &RequestRecord, id: &str) {
        if record.api != Some(Api::Responses)
            || record.options.forbids_store
            || id.len() > MAX_ID_BYTES
        {
            return;
        }
        let Some(backend) = record.backend() else { return };
        let tenant = record.caller.as_ref().map(|identity| identity.tenant.clone());
        let owner = Owner { backend: backend.clone(), tenant };
        lock(&self.0).insert(id, owner);
    }

    /// The backend of the stored response that the request of `record` continues. `None`: the request
    /// continues none, or its backend is unknown. Fails as [`Self::locate`] does.
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

    /// The backend of a stored response. `None`: this gateway did not see the response begin, and
    /// the principal may ask all backends for it. Fails if the response belongs to another tenant,
    /// or if its tenant is unknown and the principal has no permission for such responses.
    pub(super) fn locate(
        &self,
        id: &str,
        principal: &Principal,
        pool: &BackendPool,
    ) -> Result<Option<BackendId>, GatewayError> {
        let tenant = principal.tenant();
        match self.find(id, tenant) {
            StoredResponse::At(backend) => {
                let is_present =
                    pool.backends().iter().any(|present| present.identity.id == backend);
                Ok(Some(backend).filter(|_| is_present))
            }
            StoredResponse::Unknown
                if tenant.is_none() || principal.permissions.allow(Permission::StoredResponses) =>
            {
                Ok(None)
            }
            StoredResponse::Unknown | StoredResponse::OfAnotherTenant => {
                Err(GatewayError::ResponseNotFound { id: id.chars().take(128).collect() })
            }
        }
    }

    /// The backend that has the response `id`, if it belongs to `tenant`.
    fn find(&self, id: &str, tenant: Option<&str>) -> StoredResponse {
        let table = lock(&self.0);
        match table.by_id.get(id) {
            None => StoredResponse::Unknown,
            Some(owner) if owner.tenant.as_deref() == tenant => {
                StoredResponse::At(owner.backend.clone())
            }
            Some(_) => StoredResponse::OfAnotherTenant,
        }
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

impl Table {
    fn insert(&mut self, id: &str, owner: Owner) {
        if let Some(known) = self.by_id.get_mut(id) {
            if known.tenant == owner.tenant {
                known.backend = owner.backend;
            }
            return;
        }
        if self.order.len() >= MAX_RESPONSES
            && let Some(oldest) = self.order.pop_front()
        {
            self.by_id.remove(&oldest);
        }
        let id: Arc<str> = id.into();
        self.order.push_back(id.clone());
        self.by_id.insert(id, owner);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokenweir_request::record::{ClientIdentity, fixtures};

    fn begun(tenant: &str) -> RequestRecord {
        let mut record = fixtures::streamed();
        record.api = Some(Api::Responses);
        let identity =
            ClientIdentity { tenant: tenant.into(), key: "main".into(), is_tenant_label: false };
        record.caller = Some(Arc::new(identity));
        record
    }

    #[test]
    fn a_response_is_found_by_its_tenant_only_and_the_first_tenant_keeps_it() {
        let responses = StoredResponses::default();
        responses.remember(&begun("a"), "resp_1");
        responses.remember(&begun("b"), "resp_1");
        let backend = begun("a").backend().unwrap().clone();
        assert_eq!(responses.find("resp_1", Some("a")), StoredResponse::At(backend));
        assert_eq!(responses.find("resp_1", Some("b")), StoredResponse::OfAnotherTenant);
        assert_eq!(responses.find("resp_1", None), StoredResponse::OfAnotherTenant);
        assert_eq!(responses.find("resp_2", Some("a")), StoredResponse::Unknown);
    }

    #[test]
    fn responses_that_no_backend_stores_are_not_remembered() {
        let responses = StoredResponses::default();
        let mut forbidden = begun("a");
        forbidden.options.forbids_store = true;
        let mut chat = begun("a");
        chat.api = Some(Api::Chat);
        for record in [forbidden, chat] {
            responses.remember(&record, "resp_1");
        }
        responses.remember(&begun("a"), &"x".repeat(MAX_ID_BYTES + 1));
        assert!(responses.0.lock().unwrap().by_id.is_empty());
    }

    #[test]
    fn the_table_is_bounded_and_forgets_the_oldest_response() {
        let responses = StoredResponses::default();
        for index in 0..=MAX_RESPONSES {
            responses.remember(&begun("a"), &format!("resp_{index}"));
        }
        let table = responses.0.lock().unwrap();
        assert_eq!((table.by_id.len(), table.order.len()), (MAX_RESPONSES, MAX_RESPONSES));
        assert!(!table.by_id.contains_key("resp_0") && table.by_id.contains_key("resp_1"));
    }
}
