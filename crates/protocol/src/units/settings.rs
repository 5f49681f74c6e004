//! The declaration of settings that a configuration file contains.

/// Declares settings with the traits that the configuration needs. A missing key has its default, and an unknown key
/// in a file is an error. The words of an enum are its names in lower case.
#[macro_export]
macro_rules! settings {
    ($(#[$attribute:meta])* $visibility:vis enum $name:ident { $($variants:tt)* }) => {
        #[derive(Debug, Clone, Copy, PartialEq, Eq, ::serde::Serialize, ::serde::Deserialize, ::schemars::JsonSchema)]
        #[serde(rename_all = "snake_case")]
        $(#[$attribute])*
        $visibility enum $name {
            $($variants)*
        }
    };
    ($(#[$attribute:meta])* $visibility:vis struct $name:ident { $($fields:tt)* }) => {
        $crate::settings_entry! {
            $(#[$attribute])*
            #[serde(default)]
            $visibility struct $name {
                $($fields)*
            }
        }
    };
}

/// Like [`settings!`], for an entry of a list. A key without a default of its own is required.
#[macro_export]
macro_rules! settings_entry {
    ($(#[$attribute:meta])* $visibility:vis struct $name:ident { $($fields:tt)* }) => {
        #[derive(Debug, Clone, PartialEq, ::serde::Serialize, ::serde::Deserialize, ::schemars::JsonSchema)]
        #[serde(deny_unknown_fields)]
        $(#[$attribute])*
        $visibility struct $name {
            $($fields)*
        }
    };
}
