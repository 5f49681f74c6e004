//! Enforces the permissions for engine-control fields and headers of a request. Rejects or removes fields of
//! the body, removes headers, and sets a `cache_salt` derived from the tenant.

use super::read_request::ReadRequest;
use crate::proxy::access::AccessControl;
use http::HeaderMap;
use tokenweir_protocol::headers::remove_headers_where;
use tokenweir_protocol::openai::engine_control::supports_cache_salt;
use tokenweir_protocol::openai::request_fields::CacheSaltSpan;
use tokenweir_protocol::openai::{
    FieldEdit, Permission, Permissions, RequestBodyError, RequestFields, Splice,
};
use tokenweir_request::error::GatewayError;
use tokenweir_request::record::RequestRecord;

const CACHE_SALT_FIELD: &str = "cache_salt";

/// The result of the engine-control check of one request: the permissions of the request, and the edits of its
/// body.
pub(crate) struct EngineControlCheck {
    /// The union of the permissions of the principal and of the model.
    permissions: Permissions,
    /// The edits that remove or set engine-control fields of the body.
    pub edits: Vec<FieldEdit>,
    /// The `cache_salt` that the gateway sets. `None`: the gateway forwards the `cache_salt` of the client, if
    /// any.
    pub salt: Option<String>,
}

impl EngineControlCheck {
    /// Checks the engine-control fields of a request. Fails if the body has a field without permission that
    /// cannot be removed.
    pub(crate) fn check(
        access: &AccessControl,
        record: &RequestRecord,
        request: &ReadRequest<'_>,
        body: &[u8],
    ) -> Result<Self, GatewayError> {
        let permissions = request.principal.permissions | request.route.permissions;
        let fields = request.fields;
        let edits = permissions
            .check(&fields.controls, record.api)
            .map_err(|control| {
                let permission = control.permission.as_str();
                GatewayError::EngineControl {
                    field: control.name,
                    permission,
                }
            })?;
        let mut result = Self {
            permissions,
            edits,
            salt: None,
        };
        if !permissions.allow(Permission::CacheSalt) {
            result.derive_salt(access, record, fields, body)?;
        }
        Ok(result)
    }

    /// Adds the edit that replaces `cache_salt` by a hash of the tenant and the client's own `cache_salt`. Does
    /// nothing without a salt key or a tenant, and on API paths without `cache_salt`. Fails if the `cache_salt`
    /// of the client is not a string.
    fn derive_salt(
        &mut self,
        access: &AccessControl,
        record: &RequestRecord,
        fields: &RequestFields,
        body: &[u8],
    ) -> Result<(), GatewayError> {
        let key_and_identity = access.salt_key.as_ref().zip(record.caller.as_ref());
        let Some((key, identity)) = key_and_identity else {
            return Ok(());
        };
        if !supports_cache_salt(record.api, record.route.unwrap_or_default()) {
            return Ok(());
        }
        let salt = key.derive(&identity.tenant, fields.prompt.salt.as_deref());
        let splice = match &fields.cache_salt {
            CacheSaltSpan::WrongType => {
                return Err(RequestBodyError::WrongType(CACHE_SALT_FIELD).into());
            }
            CacheSaltSpan::At(range) => Some(Splice::replace(range.clone(), format!("\"{salt}\""))),
            CacheSaltSpan::Absent => {
                Splice::insert(body, &format!("\"{CACHE_SALT_FIELD}\":\"{salt}\""))
            }
        };
        self.edits.extend(splice.map(|splice| FieldEdit {
            field: CACHE_SALT_FIELD,
            splice,
        }));
        self.salt = Some(salt);
        Ok(())
    }

    pub(crate) const fn allow(&self, permission: Permission) -> bool {
        self.permissions.allow(permission)
    }

    /// Removes the engine-control headers for which the request lacks the permission. Call this only after the
    /// gateway has read the headers, for example the session header.
    pub(crate) fn strip_headers(&self, headers: &mut HeaderMap) {
        remove_headers_where(headers, |name| {
            self.permissions.strips_header(name.as_str())
        });
    }
}
