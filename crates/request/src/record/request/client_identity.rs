//! The identity that the API key of a request proves.

use crate::record::ModelLabel;
use std::sync::Arc;

/// The tenant of a request and the API key that the request used, by their names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientIdentity {
    /// The tenant's name in the key file.
    pub tenant: Arc<str>,
    /// The key's name in the key file, or the pseudonym of a token's subject.
    pub key: Arc<str>,
    /// Whether the tenant's name is a label value in metrics.
    pub is_tenant_label: bool,
}

impl ClientIdentity {
    /// The prefix of key names that stand for tokens. No name in the key file has it.
    pub const TOKEN_KEY_PREFIX: char = '_';

    /// Whether a token, instead of a key of the key file, proved the identity.
    pub fn is_of_token(&self) -> bool {
        self.key.starts_with(Self::TOKEN_KEY_PREFIX)
    }

    /// The label value of the tenant: its name, or [`ModelLabel::OTHER`].
    pub fn tenant_label(&self) -> &str {
        if self.is_tenant_label {
            &self.tenant
        } else {
            ModelLabel::OTHER
        }
    }
}
