//! The value of a flag that names backends.

use tokenweir_engine::address::{BackendAddress, BackendAddressError};

/// The backends in one value of a flag or variable: URLs separated by commas or white space.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackendList(Vec<BackendAddress>);

impl BackendList {
    /// Parses a list. A list without a URL is an error.
    pub(crate) fn parse(text: &str) -> Result<Self, BackendAddressError> {
        let urls = text
            .split(|c: char| c == ',' || c.is_whitespace())
            .filter(|url| !url.is_empty());
        let backends: Vec<BackendAddress> =
            urls.map(BackendAddress::parse).collect::<Result<_, _>>()?;
        if backends.is_empty() {
            return BackendAddress::parse(text).map(|backend| Self(vec![backend]));
        }
        Ok(Self(backends))
    }

    /// Joins the backends of several values of a flag into one list.
    pub(crate) fn flatten(lists: Vec<Self>) -> Vec<BackendAddress> {
        lists.into_iter().flat_map(|list| list.0).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spaces_line_breaks_and_final_commas_are_ignored() {
        let expected = ["http://a:1", "http://b:2"];
        for text in [
            "http://a:1,http://b:2",
            " http://a:1, http://b:2,",
            "a:1\nb:2\n",
            "a:1,\n  b:2,\r\n",
        ] {
            let urls = BackendList::flatten(vec![BackendList::parse(text).unwrap()]);
            assert_eq!(
                urls.iter().map(ToString::to_string).collect::<Vec<_>>(),
                expected,
                "{text:?}"
            );
        }
        for text in ["", " , ", "http://a:1 http://b:2/v1"] {
            assert!(BackendList::parse(text).is_err(), "{text:?}");
        }
    }
}
