//! What a client may make the engine do: the check of engine-control fields, the headers that are
//! removed, and the `cache_salt` that is derived from the tenant.

use super::access::{Access, Visitor};
use http::{HeaderMap, HeaderName};
use tokenweir_core::error::Error;
use tokenweir_core::openai::Splice;
use tokenweir_core::openai::control::{Edit, Permission, Permissions, has_cache_salt};
use tokenweir_core::openai::request::{Peek, PeekError, SaltSlot};
use tokenweir_core::record::RequestRecord;

const CACHE_SALT: &str = "cache_salt";

/// The check of a request, by the permissions of its client.
pub(super) struct Control {
    allowed: Permissions,
    /// The changes of its body.
    pub(super) edits: Vec<Edit>,
    /// The salt of its prompt, if it is not the client's own.
    pub(super) salt: Option<String>,
}

impl Control {
    /// Checks a request. `model` is what the configuration allows for its model.
    pub(super) fn check(
        access: &Access,
        visitor: &Visitor,
        model: Permissions,
        record: &RequestRecord,
        peek: &Peek,
        body: &[u8],
    ) -> Result<Self, Error> {
        let allowed = visitor.allowed | model;
        let edits = allowed.check(&peek.controls, record.api).map_err(|control| {
            let permission = control.permission.as_str();
            Error::EngineControl { field: control.name, permission }
        })?;
        let mut control = Self { allowed, edits, salt: None };
        if !allowed.allow(Permission::CacheSalt) {
            control.derive_salt(access, record, peek, body)?;
        }
        Ok(control)
    }

    /// Puts the tenant's salt into the body, where the engine reads one.
    fn derive_salt(
        &mut self,
        access: &Access,
        record: &RequestRecord,
        peek: &Peek,
        body: &[u8],
    ) -> Result<(), Error> {
        let key = access.salt_key().zip(record.caller.as_ref());
        let Some((key, caller)) = key else { return Ok(()) };
        if !has_cache_salt(record.api, record.route.unwrap_or_default()) {
            return Ok(());
        }
        let salt = key.derive(&caller.tenant, peek.prompt.salt.as_deref());
        let splice = match &peek.cache_salt {
            SaltSlot::WrongType => return Err(PeekError::WrongType(CACHE_SALT).into()),
            SaltSlot::At(at) => Some(Splice::replace(at.clone(), format!("\"{salt}\""))),
            SaltSlot::Absent => Splice::insert(body, &format!("\"{CACHE_SALT}\":\"{salt}\"")),
        };
        self.edits.extend(splice.map(|splice| Edit { field: CACHE_SALT, splice }));
        self.salt = Some(salt);
        Ok(())
    }

    /// Removes the headers that the client may not send to an engine. Nothing of the gateway may
    /// read them after that.
    pub(super) fn strip(&self, headers: &mut HeaderMap) {
        let unwanted = headers.keys().filter(|name| self.allowed.strips_header(name.as_str()));
        let unwanted: Vec<HeaderName> = unwanted.cloned().collect();
        for name in unwanted {
            headers.remove(name);
        }
    }
}
