//! The models that a tenant may use, identified by the model names that clients request.

use std::sync::Arc;

/// Allowed model names, and prefixes of allowed model names. A prefix is written with a final `*`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ModelAllowlist {
    /// The list of the tenant. `None`: all models.
    tenant: Option<Arc<[String]>>,
    /// The list in a token of the tenant. `None`: all models of the tenant.
    token: Option<Arc<[String]>>,
}

impl ModelAllowlist {
    /// A tenant without a list of models.
    pub const ALL: Self = Self {
        tenant: None,
        token: None,
    };

    /// Allows the models of a list: names, or prefixes with a final `*`. `None`: allows all models.
    pub(super) fn new(list: Option<&[String]>) -> Self {
        Self {
            tenant: list.map(Into::into),
            token: None,
        }
    }

    /// Allows the models that both `self` and the list of a token allow. `None`: only `self` counts.
    pub(super) fn narrowed(&self, token: Option<&[String]>) -> Self {
        Self {
            tenant: self.tenant.clone(),
            token: token.map(Into::into),
        }
    }

    /// Whether a request for `model` is allowed. `None`: the requested model is not known, and the request is
    /// allowed only if all models are.
    pub fn allow(&self, model: Option<&str>) -> bool {
        is_listed(self.tenant.as_deref(), model) && is_listed(self.token.as_deref(), model)
    }
}

/// Whether a pattern stands for a model: it is the name, or a prefix of the name followed by `*`.
pub(super) fn matches(pattern: &str, model: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(prefix) => model.starts_with(prefix),
        None => pattern == model,
    }
}

fn is_listed(list: Option<&[String]>, model: Option<&str>) -> bool {
    match (list, model) {
        (None, _) => true,
        (Some(_), None) => false,
        (Some(patterns), Some(model)) => patterns.iter().any(|pattern| matches(pattern, model)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_prefixes_allow_models() {
        let list = ["qwen".to_owned(), "llama-*".to_owned()];
        let models = ModelAllowlist::new(Some(&list));
        for allowed in ["qwen", "llama-", "llama-3"] {
            assert!(models.allow(Some(allowed)), "{allowed}");
        }
        for other in ["qwen2", "qwe", "QWEN", "llama", "my-llama-3", "", "*"] {
            assert!(!models.allow(Some(other)), "{other}");
        }
        assert!(!models.allow(None));
    }

    #[test]
    fn a_token_only_narrows_the_list() {
        let own = ["qwen".to_owned(), "llama-*".to_owned()];
        let token = ["llama-3".to_owned(), "gpt".to_owned()];
        let models = ModelAllowlist::new(Some(&own)).narrowed(Some(&token));
        assert!(models.allow(Some("llama-3")));
        for other in ["qwen", "gpt", "llama-2"] {
            assert!(!models.allow(Some(other)), "{other}");
        }
        assert!(
            ModelAllowlist::ALL
                .narrowed(Some(&token))
                .allow(Some("gpt"))
        );
        assert!(!ModelAllowlist::ALL.narrowed(Some(&[])).allow(Some("gpt")));
    }

    #[test]
    fn only_an_empty_list_allows_no_model() {
        assert!(
            ModelAllowlist::new(None).allow(Some("any")) && ModelAllowlist::new(None).allow(None)
        );
        assert!(!ModelAllowlist::new(Some(&[])).allow(Some("any")));
        assert!(ModelAllowlist::new(Some(&["*".to_owned()])).allow(Some("any")));
    }
}
