//! The declaration of settings that a configuration file contains.

/// Declares settings with the traits that the configuration needs. A missing key has its default, and an unknown key
/// in a file is an error.
#[macro_export]
macro_rules! settings {
    ($(#[$attribute:meta])* $visibility:vis struct $name:ident { $($fields:tt)* }) => {
        $(#[$attribute])*
        #[derive(Debug, Clone, PartialEq, ::serde::Serialize, ::serde::Deserialize, ::schemars::JsonSchema)]
        #[serde(deny_unknown_fields, default)]
        $visibility struct $name {
            $($fields)*
        }
    };
}
