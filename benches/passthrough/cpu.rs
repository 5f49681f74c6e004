//! The CPU time of a process in nanoseconds, from the scheduler statistics of its threads.

use std::fs;
use std::time::Duration;

/// Returns the CPU time of all threads of a process so far.
pub(crate) fn of(process: u32) -> Duration {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).unwrap();
    let of_task = |task: fs::DirEntry| -> u64 {
        let times = fs::read_to_string(task.path().join("schedstat")).unwrap_or_default();
        times
            .split(' ')
            .next()
            .and_then(|nanos| nanos.parse().ok())
            .unwrap_or(0)
    };
    Duration::from_nanos(tasks.map(|task| of_task(task.unwrap())).sum())
}
