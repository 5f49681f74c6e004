//! The source of a value of the configuration.

use std::fmt;

/// Where a value of the configuration comes from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum ConfigSource {
    /// The default: no other source sets the value.
    #[default]
    Default,
    /// The configuration file sets the value.
    File,
    /// The environment variable with this name.
    Environment(String),
    /// The flag with this name, which includes the dashes.
    Flag(String),
}

impl fmt::Display for ConfigSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File => f.write_str("file"),
            Self::Environment(name) => write!(f, "environment {name}"),
            Self::Flag(name) => write!(f, "flag {name}"),
        }
    }
}
