//! Records the starts and ends of the processes of this gateway in a small file. They show whether the gateway
//! is killed repeatedly. If the file cannot be used, earlier starts are unknown.

use crate::config::LoadedConfig;
use std::fs::{self, DirBuilder, OpenOptions};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokenweir_diagnose::RecentStarts;

#[derive(Debug)]
pub(crate) struct ProcessStarts {
    /// The file. `None`: there is no suitable folder.
    file: Option<PathBuf>,
    started: SystemTime,
    before: Vec<Process>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Process {
    id: u32,
    /// Start time of the process, in seconds since 1970.
    started: u64,
    /// Whether the process ended cleanly, with its last step.
    is_ended: bool,
}

/// Maximum number of processes in the file, and maximum length of the file in bytes.
const MAX_PROCESSES: usize = 32;
const MAX_BYTES: u64 = 4_096;
/// Maximum age of a start that counts.
const WINDOW: Duration = Duration::from_mins(10);
/// The environment variables in which systemd names the folders of a service.
const FOLDERS: [&str; 2] = ["STATE_DIRECTORY", "RUNTIME_DIRECTORY"];

impl ProcessStarts {
    /// Reads the earlier starts, and writes this start at `now`.
    pub(crate) fn begin(loaded: &LoadedConfig, now: SystemTime) -> Self {
        Self::begin_in(place(loaded), now)
    }

    fn begin_in(file: Option<PathBuf>, now: SystemTime) -> Self {
        let own = std::process::id();
        let read = file.as_deref().and_then(|file| read(file).ok());
        let mut before = read.unwrap_or_default();
        // A process that is still running has not ended uncleanly.
        for process in &mut before {
            let is_running =
                process.id != own && Path::new(&format!("/proc/{}", process.id)).exists();
            process.is_ended |= is_running;
        }
        let starts = Self {
            file,
            started: now,
            before,
        };
        starts.write(false);
        starts
    }

    /// Writes that this process ends cleanly.
    pub(crate) fn end(&self) {
        self.write(true);
    }

    /// The starts of the last ten minutes at `now`.
    pub(crate) fn recent(&self, now: SystemTime) -> RecentStarts {
        let since = unix_seconds(now).saturating_sub(WINDOW.as_secs());
        let recent = self.before.iter().filter(|it| it.started >= since);
        let age = now.duration_since(self.started).unwrap_or_default();
        let is_recent = age < WINDOW;
        RecentStarts {
            age_seconds: age.as_secs_f64(),
            starts: recent.clone().count() as u64 + u64::from(is_recent),
            unclean_ends: recent.filter(|it| !it.is_ended).count() as u64,
        }
    }

    fn write(&self, is_ended: bool) {
        let Some(file) = &self.file else { return };
        let own = Process {
            id: std::process::id(),
            started: unix_seconds(self.started),
            is_ended,
        };
        let skipped = (self.before.len() + 1).saturating_sub(MAX_PROCESSES);
        let lines = self.before.iter().skip(skipped).chain([&own]).map(|it| {
            let end = if it.is_ended { "ended" } else { "open" };
            format!("{} {} {end}\n", it.id, it.started)
        });
        let written = write(file, &lines.collect::<String>());
        if let Err(error) = written {
            tracing::debug!(file = %file.display(), %error, "earlier starts of the gateway are not known");
        }
    }
}

/// The file of this gateway. `None`: there is no suitable folder, or the port of the gateway changes with each
/// start.
fn place(loaded: &LoadedConfig) -> Option<PathBuf> {
    let config = &loaded.config;
    if let Some(timeline) = &config.timeline.file {
        let mut file = timeline.clone().into_os_string();
        file.push(".starts");
        return Some(file.into());
    }
    if config.listen.port() == 0 || config.admin.port() == 0 {
        return None;
    }
    let mut hasher = DefaultHasher::new();
    loaded.file.hash(&mut hasher);
    config.listen.hash(&mut hasher);
    config.admin.hash(&mut hasher);
    let name = format!("tokenweir-{:016x}.starts", hasher.finish());
    let named = FOLDERS.iter().find_map(std::env::var_os);
    let folder = named.map(PathBuf::from).or_else(private_folder)?;
    Some(folder.join(name))
}

/// A folder for temporary files that no other user can write to. `None`: there is none.
fn private_folder() -> Option<PathBuf> {
    let own = fs::metadata("/proc/self").ok()?.uid();
    let folder = std::env::temp_dir().join(format!("tokenweir-{own}"));
    // The folder may already exist.
    let _ = DirBuilder::new().mode(0o700).create(&folder);
    let found = fs::symlink_metadata(&folder).ok()?;
    let is_of_others = found.mode() & 0o077;
    let is_private = found.is_dir() && found.uid() == own && is_of_others == 0;
    is_private.then_some(folder)
}

fn read(file: &Path) -> io::Result<Vec<Process>> {
    let mut text = String::new();
    let opened = tokenweir_net::file_watcher::open_regular(file)?;
    opened.take(MAX_BYTES).read_to_string(&mut text)?;
    let parse = |line: &str| {
        let mut words = line.split(' ');
        Some(Process {
            id: words.next()?.parse().ok()?,
            started: words.next()?.parse().ok()?,
            is_ended: words.next()? == "ended",
        })
    };
    Ok(text.lines().filter_map(parse).collect())
}

fn write(file: &Path, text: &str) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    options.open(file)?.write_all(text.as_bytes())
}

fn unix_seconds(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_secs()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_without_its_last_step_was_killed() {
        let name = format!("tokenweir-starts-test-{}", std::process::id());
        let file = || Some(std::env::temp_dir().join(&name));
        let at = |seconds: u64| UNIX_EPOCH + Duration::from_secs(1_000_000 + seconds);
        let first = ProcessStarts::begin_in(file(), at(0));
        assert_eq!(first.recent(at(1)).unclean_ends, 0);
        first.end();
        let second = ProcessStarts::begin_in(file(), at(10));
        assert_eq!(second.recent(at(11)).unclean_ends, 0);
        let third = ProcessStarts::begin_in(file(), at(20));
        let recent = third.recent(at(23));
        assert_eq!((recent.starts, recent.unclean_ends), (3, 1));
        assert!((recent.age_seconds - 3.0).abs() < 1e-9);
        assert_eq!(third.recent(at(700)).unclean_ends, 0);
        let _ = fs::remove_file(std::env::temp_dir().join(&name));
    }

    #[test]
    fn without_a_file_nothing_is_known() {
        let starts = ProcessStarts::begin_in(None, UNIX_EPOCH);
        assert_eq!(starts.recent(UNIX_EPOCH).starts, 1);
        let folder = Some(PathBuf::from("/nonexistent/starts"));
        let starts = ProcessStarts::begin_in(folder, UNIX_EPOCH);
        assert_eq!(starts.recent(UNIX_EPOCH).unclean_ends, 0);
    }
}
