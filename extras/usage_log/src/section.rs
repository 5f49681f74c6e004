//! The section `usage_log`: what each request used, in a file and pushed to a receiver.

use crate::usage_file::UsageLogSettings;
use std::path::PathBuf;
use tokenweir_protocol::{settings, units};
use tokenweir_settings::{
    CheckResult, ConfigSection, Environment, OutputFile, ReceiverConfig, ReceiverError,
    ReloadClass, SecretList, file_path, require, violation_of,
};

settings! {
    /// What each request used, in a file and pushed to a receiver.
    #[derive(Eq)]
    pub struct UsageLogConfig {
        /// File of the records. `None`: no records.
        pub file: Option<PathBuf>,
        /// Maximum size of the file together with its rotated file `FILE.old`. At least 1MiB.
        #[serde(with = "units::Size")]
        pub max_bytes: usize,
        /// Receiver of the records as `CloudEvents`. `None`: none.
        pub push: Option<ReceiverConfig>,
    }
}

/// Minimum of `usage_log.max_bytes`, in bytes.
const MIN_FILE_BYTES: usize = 1 << 20;
const RECEIVER: &str = "usage_log.push";

impl Default for UsageLogConfig {
    /// The default: there is no usage log. If only a file is configured, it has up to 1 GiB.
    fn default() -> Self {
        Self {
            file: None,
            max_bytes: 1 << 30,
            push: None,
        }
    }
}

impl UsageLogConfig {
    /// The settings of the usage log. `None`: no file is configured. `gateway`: the name of this gateway.
    pub fn settings(
        &self,
        gateway: &str,
        env: impl Environment,
    ) -> Result<Option<UsageLogSettings>, ReceiverError> {
        let Some(file) = self.file.clone() else {
            return Ok(None);
        };
        let push = self
            .push
            .as_ref()
            .map(|push| push.receiver(RECEIVER, env))
            .transpose()?;
        let max_bytes = self.max_bytes as u64;
        Ok(Some(UsageLogSettings {
            file,
            max_bytes,
            gateway: gateway.to_owned(),
            push,
        }))
    }
}

impl<C> ConfigSection<C> for UsageLogConfig {
    type Values = Self;
    const RELOAD: ReloadClass = ReloadClass::AfterRestart;

    fn check(log: &UsageLogConfig, _: &C) -> CheckResult {
        file_path("usage_log.file", log.file.as_deref())?;
        let is_long = log.max_bytes >= MIN_FILE_BYTES;
        require(is_long, "usage_log.max_bytes", "this must be at least 1MiB")?;
        let Some(push) = &log.push else { return Ok(()) };
        push.check("usage_log.push.url")?;
        if log.file.is_none() {
            let problem = "the push reads the records from usage_log.file: set it";
            return Err(violation_of(["usage_log.push", "usage_log.file"], problem));
        }
        Ok(())
    }

    fn list_secrets<'a>(log: &'a UsageLogConfig, list: &mut SecretList<'a>) {
        if let Some(push) = &log.push {
            list.add("usage_log.push.url", push.url_secret(RECEIVER));
            list.add("usage_log.push.token", push.token_secret(RECEIVER));
        }
    }

    fn output_file(log: &UsageLogConfig) -> Option<OutputFile<'_>> {
        OutputFile::new("usage_log.file", log.file.as_deref())
    }
}
