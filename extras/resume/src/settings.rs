//! The settings of `streams.resume`.

use std::time::Duration;
use tokenweir_protocol::{settings, units};
use tokenweir_request::runs::RunSettings;
use tokenweir_settings::{CheckResult, at_least_1ms, require};

settings! {
    /// Requests that go on while their client is away. Needs the permission `resume`.
    #[derive(Copy, Eq)]
    pub struct ResumeConfig {
        /// How long a request, also an ended one, waits for its client to return. `null`: off.
        #[serde(rename = "for", with = "units::OptionalDuration")]
        pub window: Option<Duration>,
        /// Maximum memory of all kept responses. A tenant may use half of it, one response a sixteenth.
        /// Beyond these limits a client cannot return to its request.
        #[serde(with = "units::Size")]
        pub memory: usize,
    }
}

impl Default for ResumeConfig {
    fn default() -> Self {
        Self {
            window: None,
            memory: 256 << 20,
        }
    }
}

/// Minimum of `memory`, in bytes. One response may take a sixteenth of it: 64 KiB.
const MIN_MEMORY: usize = 1 << 20;

impl ResumeConfig {
    /// Returns the first violation of the rules. `path`: the path of the settings.
    pub fn check(&self, path: &str) -> CheckResult {
        at_least_1ms(&format!("{path}.for"), self.window)?;
        let has_memory = self.memory >= MIN_MEMORY;
        let problem = "this must be 1MiB or more";
        require(has_memory, &format!("{path}.memory"), problem)
    }

    /// Returns the settings of requests whose clients may lose their connection and return. `None`: clients
    /// cannot return.
    pub fn settings(&self) -> Option<RunSettings> {
        self.window.map(|window| RunSettings {
            window,
            memory: self.memory,
        })
    }
}
