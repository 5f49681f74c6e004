//! Who a request is of, if the gateway knows its callers by their keys.

use super::ModelLabel;
use std::sync::Arc;

/// A tenant and one of its keys, by their names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// The tenant.
    pub tenant: Arc<str>,
    /// The key.
    pub key: Arc<str>,
    /// Whether the tenant is a label value.
    pub is_label: bool,
}

impl Caller {
    /// The label value.
    pub fn label(&self) -> &str {
        if self.is_label { &self.tenant } else { ModelLabel::OTHER }
    }
}
