//! The section `shared_limits`: where the usage of limits outlasts a restart.

use std::path::PathBuf;
use tokenweir_protocol::settings;
use tokenweir_settings::{CheckResult, ConfigSection, OutputFile, ReloadClass, file_path};

settings! {
    /// Limits of tenants over restarts. Gateways with a `peer_exchange` count limits together.
    #[derive(Default, Eq)]
    pub struct SharedLimitsConfig {
        /// File with what tenants have used of limits per day and per month. Each gateway needs its own. `None`: a
        /// restart of a gateway without `peer_exchange` forgets it.
        pub file: Option<PathBuf>,
    }
}

impl<C> ConfigSection<C> for SharedLimitsConfig {
    type Values = Self;
    const RELOAD: ReloadClass = ReloadClass::AfterRestart;

    fn check(limits: &SharedLimitsConfig, _: &C) -> CheckResult {
        file_path("shared_limits.file", limits.file.as_deref())
    }

    fn output_file(limits: &SharedLimitsConfig) -> Option<OutputFile<'_>> {
        OutputFile::new("shared_limits.file", limits.file.as_deref())
    }
}
