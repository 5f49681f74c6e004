//! The section `trace_capture`: capture of the traffic to a file, without texts of prompts and responses.

use std::path::PathBuf;
use tokenweir_protocol::settings;
use tokenweir_settings::{
    CheckResult, ConfigSection, OutputFile, ReloadClass, file_path, sample_share,
};

settings! {
    /// Capture of the traffic to a file, without texts of prompts and responses.
    pub struct TraceCaptureConfig {
        /// File of the capture. `None`: no capture.
        pub file: Option<PathBuf>,
        /// Share of requests in the capture, more than 0 and at most 1. Sessions are captured as a
        /// whole.
        pub sample: f64,
    }
}

impl Default for TraceCaptureConfig {
    /// The default: requests are not captured. With a file, all are.
    fn default() -> Self {
        Self {
            file: None,
            sample: 1.0,
        }
    }
}

impl<C> ConfigSection<C> for TraceCaptureConfig {
    type Values = Self;
    const RELOAD: ReloadClass = ReloadClass::AfterRestart;

    fn check(capture: &TraceCaptureConfig, _: &C) -> CheckResult {
        sample_share("trace_capture.sample", capture.sample)?;
        file_path("trace_capture.file", capture.file.as_deref())
    }

    fn output_file(capture: &TraceCaptureConfig) -> Option<OutputFile<'_>> {
        OutputFile::new("trace_capture.file", capture.file.as_deref())
    }
}
