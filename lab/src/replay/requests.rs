//! Reads or generates the requests that a replay sends.

use super::args::ReplayArgs;
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokenweir_replay::trace::{self, TraceError, TraceRequest};
use tokenweir_replay::workload;

/// Resolution of the time stamps in published traces whose time stamps are rounded.
const TIMESTAMP_ROUNDING: Duration = Duration::from_secs(3);

/// The error that a trace cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("{}", file.display())]
pub(crate) struct UnreadableTrace {
    file: PathBuf,
    source: TraceError,
}

const DEFAULT_GENERATED_REQUESTS: usize = 10_000;

/// Reads the trace, and returns its first `--max-requests` requests. With `--workload`, generates the
/// requests with `seed` instead.
pub(super) fn read(replay: &ReplayArgs, seed: u64) -> Result<Vec<TraceRequest>, UnreadableTrace> {
    if let Some(shape) = replay.workload {
        let requests = replay.max_requests.unwrap_or(DEFAULT_GENERATED_REQUESTS);
        return Ok(workload::generate(shape, requests, seed));
    }
    let mut jobs = read_trace(replay.trace.as_deref().unwrap_or(Path::new("-")))?;
    jobs.truncate(replay.max_requests.unwrap_or(usize::MAX));
    Ok(jobs)
}

pub(crate) fn read_trace(file: &Path) -> Result<Vec<TraceRequest>, UnreadableTrace> {
    let opened = File::open(file).map_err(TraceError::from);
    let read = opened.and_then(|opened| trace::read(BufReader::new(opened)));
    read.map_err(|source| UnreadableTrace {
        file: file.to_owned(),
        source,
    })
}

/// Maximum of the random delay that is added to each arrival. It is the value of `--jitter`. Without the flag
/// it is 3 s if the time stamps of the trace are rounded, otherwise zero.
pub(crate) fn arrival_jitter(flag: Option<Duration>, jobs: &[TraceRequest]) -> Duration {
    let default = || {
        if trace::has_rounded_timestamps(jobs) {
            TIMESTAMP_ROUNDING
        } else {
            Duration::ZERO
        }
    };
    flag.unwrap_or_else(default)
}
