//! The models that a tenant may use, by the names that clients write.

/// A list of names, and of prefixes that end with `*`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Models(Option<Vec<Pattern>>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Pattern {
    Name(Box<str>),
    Prefix(Box<str>),
}

impl Models {
    /// All that there are.
    pub const ALL: Self = Self(None);

    /// Those of a list. `None`: all.
    pub(super) fn new(list: Option<&[String]>) -> Self {
        Self(list.map(|list| list.iter().map(|text| Pattern::of(text)).collect()))
    }

    /// Whether a model is among them. A request that names none may use one that it would get
    /// anyway, if that is known.
    pub fn allow(&self, model: Option<&str>) -> bool {
        match (&self.0, model) {
            (None, _) => true,
            (Some(_), None) => false,
            (Some(patterns), Some(model)) => patterns.iter().any(|pattern| pattern.is_of(model)),
        }
    }
}

impl Pattern {
    fn of(text: &str) -> Self {
        match text.strip_suffix('*') {
            Some(prefix) => Self::Prefix(prefix.into()),
            None => Self::Name(text.into()),
        }
    }

    fn is_of(&self, model: &str) -> bool {
        match self {
            Self::Name(name) => **name == *model,
            Self::Prefix(prefix) => model.starts_with(&**prefix),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_is_allowed_by_its_name_or_by_its_prefix() {
        let list = ["qwen".to_owned(), "llama-*".to_owned()];
        let models = Models::new(Some(&list));
        for allowed in ["qwen", "llama-", "llama-3"] {
            assert!(models.allow(Some(allowed)), "{allowed}");
        }
        for other in ["qwen2", "qwe", "QWEN", "llama", "my-llama-3", "", "*"] {
            assert!(!models.allow(Some(other)), "{other}");
        }
        assert!(!models.allow(None));
    }

    #[test]
    fn without_a_list_every_model_is_allowed_and_with_an_empty_one_none() {
        assert!(Models::new(None).allow(Some("any")) && Models::new(None).allow(None));
        assert!(!Models::new(Some(&[])).allow(Some("any")));
        assert!(Models::new(Some(&["*".to_owned()])).allow(Some("any")));
    }
}
