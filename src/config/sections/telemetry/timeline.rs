//! The section `timeline`: the file of verdicts, drains, reloads and deploys.

use std::path::PathBuf;
use tokenweir_protocol::settings;
use tokenweir_settings::{CheckResult, ConfigSection, OutputFile, ReloadClass, file_path};

settings! {
    /// Verdicts, drains, reloads and deploys of the last 14 days, for the live page.
    #[derive(Default, Eq)]
    pub struct TimelineConfig {
        /// File of the timeline, up to 2 MiB with its rotated file `FILE.old`. `None`: the timeline ends with the
        /// process.
        pub file: Option<PathBuf>,
    }
}

/// Values, rules and reload class of the section `timeline`.
pub struct Section;

impl<C> ConfigSection<C> for Section {
    type Values = TimelineConfig;
    const RELOAD: ReloadClass = ReloadClass::AfterRestart;

    fn check(timeline: &TimelineConfig, _: &C) -> CheckResult {
        file_path("timeline.file", timeline.file.as_deref())
    }

    fn output_file(timeline: &TimelineConfig) -> Option<OutputFile<'_>> {
        OutputFile::new("timeline.file", timeline.file.as_deref())
    }
}
