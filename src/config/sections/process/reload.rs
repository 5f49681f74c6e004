//! The section `reload`: reloads of the configuration without SIGHUP.

use tokenweir_protocol::settings;
use tokenweir_settings::ConfigSection;

settings! {
    /// Reloads of the configuration without SIGHUP.
    #[derive(Copy, Default, Eq)]
    pub struct ReloadConfig {
        /// Whether a change of the configuration file causes a reload. The file is polled every second.
        pub watch: bool,
    }
}

/// Values, rules and reload class of the section `reload`.
pub struct Section;

impl<C> ConfigSection<C> for Section {
    type Values = ReloadConfig;
}
