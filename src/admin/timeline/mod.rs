//! The timeline: verdicts, drains, reloads, deploys and starts of the last days, for `GET /history`.

mod file;

use file::TimelineFile;
use std::collections::VecDeque;
use std::io;
use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokenweir_api::{Mark, MarkKind};
use tokenweir_protocol::limits::push_bounded;
use tokenweir_protocol::mutex::lock;

/// The marks of the last days. They take at most 0.5 MiB of memory.
#[derive(Default)]
pub struct Timeline(Mutex<TimelineState>);

#[derive(Default)]
struct TimelineState {
    /// The marks in the order in which they were stored.
    marks: VecDeque<Mark>,
    /// The file. `None`: the marks are in memory only.
    file: Option<TimelineFile>,
}

/// Maximum number of marks. A further mark replaces the oldest one.
const MAX_MARKS: usize = 1_000;
/// Maximum length of the reason of a mark, in characters.
const MAX_REASON_CHARS: usize = 200;
/// Maximum gap after its end for which a repeated event continues the earlier mark.
const MAX_GAP: Duration = Duration::from_mins(1);
/// Maximum age of the marks that are read from the file.
const MAX_AGE: Duration = Duration::from_hours(14 * 24);

impl Timeline {
    /// Reads the marks of earlier processes from the file, and adds the start of this process at `now`. Fails
    /// if the file cannot be written. `None`: no file.
    pub fn open(file: Option<&Path>, now: SystemTime) -> io::Result<Self> {
        let mut marks = VecDeque::new();
        let mut opened = None;
        if let Some(path) = file {
            let oldest = unix_seconds(now).saturating_sub(MAX_AGE.as_secs());
            for mark in file::read(path) {
                if mark.began >= oldest {
                    store(&mut marks, mark);
                }
            }
            opened = Some(TimelineFile::open(path)?);
        }
        let state = TimelineState {
            marks,
            file: opened,
        };
        let timeline = Self(Mutex::new(state));
        let start = Mark {
            kind: MarkKind::Start,
            name: env!("CARGO_PKG_VERSION").to_owned(),
            ..Mark::default()
        };
        timeline.observe(&[], vec![start], now);
        Ok(timeline)
    }

    /// Stores the events that began or ended since the previous call. `held`: the events that are active at
    /// `now`. An event without `began` begins at `now`. `moments`: events without a duration at `now`.
    pub fn observe(&self, held: &[Mark], moments: Vec<Mark>, now: SystemTime) {
        let now = unix_seconds(now);
        let mut state = lock(&self.0);
        let TimelineState { marks, file } = &mut *state;
        let mut changed = Vec::new();
        for mark in marks.iter_mut().filter(|mark| mark.holds) {
            if !held.iter().any(|other| other.is_same(mark)) {
                mark.holds = false;
                mark.ended = Some(now);
                changed.push(mark.clone());
            }
        }
        for mark in held {
            let is_known = marks.iter().any(|known| known.holds && known.is_same(mark));
            if !is_known {
                let began = if mark.began == 0 { now } else { mark.began };
                changed.push(Mark {
                    began: first_begin(marks, mark, now).unwrap_or(began),
                    holds: true,
                    ..mark.clone()
                });
            }
        }
        changed.extend(moments.into_iter().map(|mark| Mark {
            began: first_begin(marks, &mark, now).unwrap_or(now),
            ended: Some(now),
            ..mark
        }));
        for mut mark in changed {
            mark.reason = mark.reason.chars().take(MAX_REASON_CHARS).collect();
            if let Some(file) = file {
                file.write(&mark);
            }
            store(marks, mark);
        }
    }

    /// The marks in the order in which they were stored.
    pub fn marks(&self) -> Vec<Mark> {
        lock(&self.0).marks.iter().cloned().collect()
    }
}

/// The start of an equal event that ended less than [`MAX_GAP`] ago, so that repeated events share one mark.
/// `None`: no such event.
fn first_begin(marks: &VecDeque<Mark>, mark: &Mark, now: u64) -> Option<u64> {
    let is_recent = |ended: u64| now.saturating_sub(ended) <= MAX_GAP.as_secs();
    let before = marks
        .iter()
        .rev()
        .find(|known| known.is_same(mark) && known.ended.is_some_and(is_recent));
    before.map(|before| before.began)
}

/// Adds a mark, or replaces the mark of the same event with the same start.
fn store(marks: &mut VecDeque<Mark>, mark: Mark) {
    let known = marks
        .iter_mut()
        .rev()
        .find(|known| known.began == mark.began && known.is_same(&mark));
    match known {
        Some(known) => *known = mark,
        None => {
            push_bounded(marks, mark, MAX_MARKS);
        }
    }
}

pub(crate) fn unix_seconds(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_secs()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    const DAY: u64 = 24 * 3_600;

    fn at(seconds: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(100 * DAY + seconds)
    }

    fn verdict(name: &str) -> Mark {
        Mark {
            kind: MarkKind::Verdict,
            name: name.to_owned(),
            backend: "gpu-0".to_owned(),
            ..Mark::default()
        }
    }

    #[test]
    fn a_verdict_has_a_start_and_an_end() {
        let timeline = Timeline::default();
        timeline.observe(&[verdict("shedding")], Vec::new(), at(5));
        timeline.observe(&[verdict("shedding")], Vec::new(), at(10));
        let begun = timeline.marks();
        assert_eq!(
            (begun.len(), begun[0].began, begun[0].holds),
            (1, 100 * DAY + 5, true)
        );
        timeline.observe(&[], Vec::new(), at(20));
        assert_eq!(timeline.marks()[0].ended, Some(100 * DAY + 20));
        timeline.observe(&[verdict("shedding")], Vec::new(), at(30));
        timeline.observe(&[], Vec::new(), at(40));
        let ended = timeline.marks();
        assert_eq!(
            (ended.len(), ended[0].ended),
            (1, Some(100 * DAY + 40)),
            "it came and went"
        );
        timeline.observe(&[verdict("shedding")], Vec::new(), at(200));
        assert_eq!(timeline.marks().len(), 2, "it begins again");
    }

    #[test]
    fn the_number_of_marks_is_bounded() {
        let timeline = Timeline::default();
        for second in 0..3_000 {
            timeline.observe(&[verdict(&second.to_string())], Vec::new(), at(second));
        }
        assert_eq!(timeline.marks().len(), MAX_MARKS);
    }

    #[test]
    fn the_file_keeps_marks_over_a_restart() {
        let folder = std::env::temp_dir().join(format!("timeline-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("timeline.jsonl");
        let open = |seconds| Timeline::open(Some(&path), at(seconds)).unwrap();
        let before = open(0);
        before.observe(&[verdict("shedding"), verdict("stalls")], Vec::new(), at(5));
        before.observe(&[verdict("stalls")], Vec::new(), at(9));
        drop(before);
        // A full disk can cut a line within a character.
        std::fs::write(path.with_extension("jsonl.old"), b"{broken \xe2\n").unwrap();
        let marks = open(100).marks();
        let shown: Vec<_> = marks
            .iter()
            .map(|mark| (&*mark.name, mark.ended.is_some()))
            .collect();
        let version = env!("CARGO_PKG_VERSION");
        assert_eq!(
            shown,
            [
                (version, true),
                ("shedding", true),
                ("stalls", false),
                (version, true)
            ]
        );
        assert!(
            marks.iter().all(|mark| !mark.holds),
            "the end of `stalls` is not known"
        );
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(open(30 * DAY).marks().len(), 1, "old marks are not read");
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
