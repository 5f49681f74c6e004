//! The models that a tenant may use, identified by the model names that clients request.

/// Allowed model names, and prefixes of allowed model names. A prefix is written with a final `*`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ModelAllowlist(Option<Box<[String]>>);

impl ModelAllowlist {
    /// Allows all models.
    pub const ALL: Self = Self(None);

    /// Allows the models of a list: names, or prefixes with a final `*`. `None`: allows all models.
    pub(super) fn new(list: Option<&[String]>) -> Self {
        Self(list.map(Into::into))
    }

    /// Whether a request for `model` is allowed. `None`: the requested model is not known. The
    /// request is then allowed only if all models are allowed.
    pub fn allow(&self, model: Option<&str>) -> bool {
        match (&self.0, model) {
            (None, _) => true,
            (Some(_), None) => false,
            (Some(patterns), Some(model)) => {
                patterns
                    .iter()
                    .any(|pattern| match pattern.strip_suffix('*') {
                        Some(prefix) => model.starts_with(prefix),
                        None => pattern == model,
                    })
            }
        }
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
    fn no_list_allows_all_an_empty_list_none() {
        assert!(
            ModelAllowlist::new(None).allow(Some("any")) && ModelAllowlist::new(None).allow(None)
        );
        assert!(!ModelAllowlist::new(Some(&[])).allow(Some("any")));
        assert!(ModelAllowlist::new(Some(&["*".to_owned()])).allow(Some("any")));
    }
}
