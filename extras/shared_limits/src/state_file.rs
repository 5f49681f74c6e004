//! The file with what this gateway has used of quotas of days and months. A damaged or missing file never keeps
//! the gateway from starting.

use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fs::{self, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use tokenweir_net::file_watcher::open_regular;
use tokenweir_request::access::{Quota, QuotaPeriod, SubjectUsage};

/// The content of the file.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct SavedUsage {
    /// The id of the gateway at the server of the exchange.
    pub(crate) gateway: String,
    /// The last known number of gateways, with this one.
    pub(crate) gateways: u64,
    pub(crate) quotas: Vec<SavedQuota>,
}

/// What was used of a quota.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct SavedQuota {
    pub(crate) subject: String,
    pub(crate) unit: String,
    pub(crate) period: String,
    /// The number of the period.
    pub(crate) number: u64,
    pub(crate) used: u64,
}

/// Greatest length of the file, in bytes.
const MAX_BYTES: u64 = 64 << 20;

impl SavedUsage {
    /// Reads a file. `None`: there is no file.
    pub(crate) fn read(file: &Path) -> io::Result<Option<Self>> {
        let opened = match open_regular(file) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened?,
        };
        let mut content = Vec::new();
        opened.take(MAX_BYTES).read_to_end(&mut content)?;
        Ok(Some(serde_json::from_slice(&content)?))
    }

    /// Replaces a file.
    pub(crate) fn write(&self, file: &Path) -> io::Result<()> {
        let content = serde_json::to_vec(self)?;
        let mut name = file.file_name().unwrap_or_default().to_owned();
        name.push(".new");
        let new = file.with_file_name(name);
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600);
        let mut opened = options.open(&new)?;
        opened.write_all(&content)?;
        opened.sync_all()?;
        fs::rename(new, file)
    }

    /// What the subjects have used of quotas that outlast a restart.
    pub(crate) fn collect<'a>(
        subjects: impl Iterator<Item = &'a Arc<SubjectUsage>>,
    ) -> Vec<SavedQuota> {
        let mut saved = Vec::new();
        for subject in subjects {
            subject.with_quotas(|quotas| {
                for quota in quotas.iter().filter(|quota| is_saved(quota)) {
                    let (number, used) = quota.in_period();
                    saved.push(SavedQuota {
                        subject: subject.name.to_string(),
                        unit: quota.unit.as_str().to_owned(),
                        period: quota.period.as_str().to_owned(),
                        number,
                        used,
                    });
                }
            });
        }
        saved
    }

    /// Restores what the subjects had used, in periods that have not ended at `now`.
    pub(crate) fn restore<'a>(
        &self,
        subjects: impl Iterator<Item = &'a Arc<SubjectUsage>>,
        now: u64,
    ) {
        let mut by_subject: HashMap<&str, Vec<&SavedQuota>> = HashMap::new();
        for saved in &self.quotas {
            by_subject.entry(&saved.subject).or_default().push(saved);
        }
        for subject in subjects {
            let Some(saved) = by_subject.get(&*subject.name) else {
                continue;
            };
            subject.with_quotas(|quotas| {
                for quota in quotas {
                    let of_quota = saved.iter().find(|saved| {
                        saved.unit == quota.unit.as_str() && saved.period == quota.period.as_str()
                    });
                    if let Some(saved) = of_quota {
                        quota.restore(saved.number, saved.used, now);
                    }
                }
            });
        }
    }
}

fn is_saved(quota: &Quota) -> bool {
    let is_long = matches!(quota.period, QuotaPeriod::Day | QuotaPeriod::Month);
    is_long && quota.used() > 0
}
