//! The requests of the trace that a replay sends.

use super::args::ReplayArgs;
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokenweir_replay::trace::{self, TraceError, TraceRequest};
use tokenweir_replay::workload::{ArrivalProcess, Workload};

/// Resolution of rounded time stamps in published traces.
pub(crate) const TIMESTAMP_ROUNDING: Duration = Duration::from_secs(3);

/// A trace cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("{}", file.display())]
pub(super) struct UnreadableTrace {
    file: PathBuf,
    source: TraceError,
}

/// Number of generated requests without `--max-requests`.
const DEFAULT_GENERATED_REQUESTS: usize = 10_000;

/// Reads the trace, and returns its first `--max-requests` requests. With `--workload` it generates
/// them with `seed`.
pub(super) fn read(replay: &ReplayArgs, seed: u64) -> Result<Vec<TraceRequest>, UnreadableTrace> {
    if let Some(shape) = replay.workload {
        let requests = replay.max_requests.unwrap_or(DEFAULT_GENERATED_REQUESTS);
        let bytes_sigma = Workload::DEFAULT_BYTES_SIGMA;
        let arrivals = ArrivalProcess::Poisson;
        return Ok(Workload { shape, arrivals, requests, bytes_sigma }.generate(seed));
    }
    let path = replay.trace.as_deref().unwrap_or(Path::new("-"));
    let opened = File::open(path).map_err(TraceError::from);
    let read = opened.and_then(|file| trace::read(BufReader::new(file)));
    let mut jobs = read.map_err(|source| UnreadableTrace { file: path.to_owned(), source })?;
    jobs.truncate(replay.max_requests.unwrap_or(usize::MAX));
    Ok(jobs)
}

/// Maximum of the random delay that is added to each arrival: `--jitter`, or else the resolution of
/// rounded time stamps, or zero.
pub(super) fn arrival_jitter(replay: &ReplayArgs, jobs: &[TraceRequest]) -> Duration {
    let default =
        || if trace::has_rounded_timestamps(jobs) { TIMESTAMP_ROUNDING } else { Duration::ZERO };
    replay.jitter.unwrap_or_else(default)
}
