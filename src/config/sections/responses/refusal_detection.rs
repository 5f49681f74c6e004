//! The section `refusal_detection`: detection of model refusals.

use tokenweir_protocol::settings;
use tokenweir_settings::{CheckResult, ConfigSection, require};

settings! {
    /// Detection of model refusals.
    #[derive(Default, Eq)]
    pub struct RefusalDetectionConfig {
        /// Phrases that mark a response as a model refusal. Case is ignored.
        pub refusal_phrases: Vec<String>,
    }
}

/// Values, rules and reload class of the section `refusal_detection`.
pub struct Section;

impl<C> ConfigSection<C> for Section {
    type Values = RefusalDetectionConfig;

    fn check(detection: &RefusalDetectionConfig, _: &C) -> CheckResult {
        for (index, phrase) in detection.refusal_phrases.iter().enumerate() {
            let path = format!("refusal_detection.refusal_phrases.{index}");
            require(
                phrase.trim().len() >= 3,
                &path,
                "a phrase has at least 3 characters",
            )?;
        }
        Ok(())
    }
}
