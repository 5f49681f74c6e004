//! The section `reload`: reloads of the configuration without SIGHUP.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokenweir_settings::ConfigSection;

/// Reloads of the configuration without SIGHUP.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ReloadConfig {
    /// Whether a change of the configuration file causes a reload. The file is polled every second.
    pub watch: bool,
}

/// The section `reload`.
pub struct Section;

impl<C> ConfigSection<C> for Section {
    type Values = ReloadConfig;
}
