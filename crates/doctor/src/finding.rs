//! The result of a check: a remark with the backends that it is about.

use serde::Serialize;
pub use tokenweir_api::{FindingSeverity, Remark};

/// A remark with the name of its check and with the backends to which it applies.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The name of the check.
    pub check: &'static str,
    /// The names of the backends. Empty: the finding is about the deployment as a whole.
    pub backends: Vec<String>,
    /// The observation, why it matters, and the remedy.
    #[serde(flatten)]
    pub remark: Remark,
}
