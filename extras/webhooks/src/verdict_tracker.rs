//! Follows the verdicts of the diagnosis from their start to their end, and decides which webhook
//! messages they cause. Does no I/O.

use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::{Duration, Instant, SystemTime};
use tokenweir_diagnose::{Diagnosis, Verdict, VerdictSeverity};

/// The verdicts that hold now or held recently, each by the name of its rule and of its backend.
#[derive(Debug, Default)]
pub(super) struct VerdictTracker(BTreeMap<(String, String), TrackedVerdict>);

#[derive(Debug)]
struct TrackedVerdict {
    verdict: Verdict,
    began_at: Instant,
    began_wall_time: SystemTime,
    last_found: Instant,
    /// Severity of the verdict in the last webhook message about it. `None`: no message was sent
    /// yet.
    reported: Option<VerdictSeverity>,
}

/// The start or the end of a verdict, or a rise of its severity, for a webhook message.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct VerdictEvent {
    pub(super) verdict: Verdict,
    pub(super) began_at: SystemTime,
    /// When the verdict ended. `None`: the verdict has begun, or its severity has risen.
    pub(super) ended_at: Option<SystemTime>,
}

/// The JSON body of a webhook message about one verdict event.
#[derive(Serialize)]
struct Message<'a> {
    text: String,
    event: &'static str,
    gateway: &'a str,
    began_at: String,
    ended_at: Option<String>,
    runbook_url: String,
    /// URL of the live page at the time of the start of the verdict. `None`: the URL is unknown.
    moment_url: Option<String>,
    #[serde(flatten)]
    verdict: &'a Verdict,
}

/// Time for which a verdict must hold before a message reports its start, so that a condition that
/// fluctuates causes few messages.
pub const BEGINS_AFTER: Duration = Duration::from_mins(1);
/// Time without the verdict after which a message reports its end.
pub const ENDS_AFTER: Duration = Duration::from_mins(2);
/// Maximum number of verdicts that are followed at a time. The diagnosis sorts verdicts by severity, so
/// the verdicts beyond this number are the least severe.
const MAX_VERDICTS: usize = 200;
/// Maximum length of the text of a message, in bytes. Drain reasons of operators can make a text long.
const MAX_TEXT_BYTES: usize = 2_000;

impl VerdictTracker {
    /// Updates the followed verdicts with a diagnosis. Returns an event for each verdict that
    /// began, ended or became more severe.
    pub(super) fn update(
        &mut self,
        diagnosis: &Diagnosis,
        now: Instant,
        wall_time: SystemTime,
    ) -> Vec<VerdictEvent> {
        let harmful = diagnosis
            .verdicts
            .iter()
            .filter(|it| it.severity > VerdictSeverity::Info);
        for verdict in harmful {
            let key = (verdict.verdict.to_string(), verdict.backend.clone());
            let is_full = self.0.len() >= MAX_VERDICTS;
            if let Some(known) = self.0.get_mut(&key) {
                known.verdict = verdict.clone();
                known.last_found = now;
            } else if !is_full {
                let tracked = TrackedVerdict {
                    verdict: verdict.clone(),
                    began_at: now,
                    began_wall_time: wall_time,
                    last_found: now,
                    reported: None,
                };
                self.0.insert(key, tracked);
            }
        }
        let mut events = Vec::new();
        self.0.retain(|_, verdict| {
            let (event, is_over) = verdict.advance(now, wall_time);
            events.extend(event);
            !is_over
        });
        events
    }
}

impl TrackedVerdict {
    /// Returns the event to report at `now`, and whether the verdict is no longer to be followed.
    fn advance(&mut self, now: Instant, wall_time: SystemTime) -> (Option<VerdictEvent>, bool) {
        let since = |at| now.saturating_duration_since(at);
        let is_found = self.last_found == now;
        let event = |ended_at| VerdictEvent {
            verdict: self.verdict.clone(),
            began_at: self.began_wall_time,
            ended_at,
        };
        let severity = self.verdict.severity;
        match self.reported {
            None if !is_found => (None, true),
            None if since(self.began_at) < BEGINS_AFTER => (None, false),
            Some(_) if since(self.last_found) >= ENDS_AFTER => (Some(event(Some(wall_time))), true),
            Some(reported) if !is_found || severity <= reported => (None, false),
            None | Some(_) => {
                let event = event(None);
                self.reported = Some(severity);
                (Some(event), false)
            }
        }
    }
}

impl VerdictEvent {
    /// Returns the event as the JSON body of a request to a webhook. `runbooks`: URL of the page of
    /// runbooks.
    pub(super) fn to_json(&self, gateway: &str, runbooks: &str) -> serde_json::Result<Vec<u8>> {
        let time = |time| humantime::format_rfc3339_seconds(time).to_string();
        serde_json::to_vec(&Message {
            text: self.text(gateway),
            event: if self.ended_at.is_none() {
                "begin"
            } else {
                "end"
            },
            gateway,
            began_at: time(self.began_at),
            ended_at: self.ended_at.map(time),
            runbook_url: format!("{runbooks}#{}", self.verdict.verdict),
            moment_url: runbooks
                .strip_suffix("/runbooks")
                .map(|page| format!("{page}/#at={}", time(self.began_at))),
            verdict: &self.verdict,
        })
    }

    /// Returns the event as a text for chat programs.
    fn text(&self, gateway: &str) -> String {
        let Verdict {
            verdict: name,
            severity,
            meaning,
            cause,
            remedy,
            ..
        } = &self.verdict;
        let severity = severity.as_str();
        let subject = self.verdict.subject();
        if let Some(ended_at) = self.ended_at {
            let held = ended_at
                .duration_since(self.began_at)
                .unwrap_or_default()
                .as_secs();
            let held = humantime::format_duration(Duration::from_secs(held));
            return format!("{gateway}: ended after {held}: {name} at {subject}");
        }
        let mut text = format!("{gateway}: {severity}: {name} at {subject}. {meaning}");
        if let Some(cause) = cause {
            // Writing to a string cannot fail.
            let _ = write!(text, " Cause: {cause}.");
        }
        let _ = write!(text, " Remedy: {remedy}");
        text.truncate(text.floor_char_boundary(MAX_TEXT_BYTES));
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::UNIX_EPOCH;
    use tokenweir_protocol::clock;

    /// A verdict tracker that gets a diagnosis every 5 s.
    struct Evaluations {
        tracker: VerdictTracker,
        start: Instant,
        seconds: u64,
    }

    impl Evaluations {
        fn new() -> Self {
            Self {
                tracker: VerdictTracker::default(),
                start: clock::now(),
                seconds: 0,
            }
        }

        /// Passes this diagnosis to the tracker every 5 s for `time`. Returns the events.
        fn during(&mut self, time: Duration, diagnosis: &Diagnosis) -> Vec<VerdictEvent> {
            let mut events = Vec::new();
            for _ in 0..time.as_secs() / 5 {
                let passed = Duration::from_secs(self.seconds);
                let now = self.start + passed;
                events.extend(self.tracker.update(diagnosis, now, UNIX_EPOCH + passed));
                self.seconds += 5;
            }
            events
        }
    }

    fn with_verdict(severity: VerdictSeverity) -> Diagnosis {
        let verdict = Verdict {
            verdict: "kv_thrashing".into(),
            backend: "gpu-0".into(),
            meaning: "It thrashes.".into(),
            remedy: "Lower it.".into(),
            severity,
            ..Verdict::default()
        };
        Diagnosis {
            verdicts: vec![verdict],
            ..Diagnosis::default()
        }
    }

    const STEP: Duration = Duration::from_secs(5);

    #[test]
    fn a_short_gap_sends_nothing() {
        let mut evaluations = Evaluations::new();
        let holds = with_verdict(VerdictSeverity::Warning);
        assert_eq!(evaluations.during(BEGINS_AFTER, &holds), []);
        let begin = evaluations.during(STEP, &holds);
        assert_eq!((begin.len(), begin[0].ended_at), (1, None));
        assert_eq!(
            evaluations.during(ENDS_AFTER.saturating_sub(2 * STEP), &Diagnosis::default()),
            []
        );
        assert_eq!(evaluations.during(STEP, &holds), []);
        let end = evaluations.during(ENDS_AFTER, &Diagnosis::default());
        assert_eq!(end.len(), 1);
        assert_eq!(
            (end[0].began_at, end[0].ended_at.is_some()),
            (UNIX_EPOCH, true)
        );
        assert_eq!(evaluations.during(ENDS_AFTER, &Diagnosis::default()), []);
    }

    #[test]
    fn a_rise_of_the_severity_is_sent() {
        let mut evaluations = Evaluations::new();
        let long = 10 * BEGINS_AFTER;
        assert_eq!(
            evaluations.during(long, &with_verdict(VerdictSeverity::Info)),
            []
        );
        let short = with_verdict(VerdictSeverity::Warning);
        for _ in 0..5 {
            assert_eq!(
                evaluations.during(BEGINS_AFTER.saturating_sub(STEP), &short),
                []
            );
            assert_eq!(evaluations.during(STEP, &Diagnosis::default()), []);
        }
        assert_eq!(evaluations.during(long, &short).len(), 1);
        let risen = evaluations.during(long, &with_verdict(VerdictSeverity::Critical));
        assert_eq!(risen.len(), 1);
        assert_eq!(risen[0].verdict.severity, VerdictSeverity::Critical);
        assert_eq!(
            evaluations.during(long, &short),
            [],
            "a lower severity is no event"
        );
    }

    #[test]
    fn a_message_has_verdict_times_and_link() {
        let mut evaluations = Evaluations::new();
        let holds = with_verdict(VerdictSeverity::Critical);
        let begin = evaluations.during(BEGINS_AFTER + STEP, &holds).remove(0);
        let read = |event: &VerdictEvent| -> serde_json::Value {
            let body = event
                .to_json("gateway-0:9090", "http://gateway-0:9090/runbooks")
                .unwrap();
            serde_json::from_slice(&body).unwrap()
        };
        let message = read(&begin);
        for (key, value) in [
            ("event", "begin"),
            ("gateway", "gateway-0:9090"),
            ("verdict", "kv_thrashing"),
            ("backend", "gpu-0"),
            ("severity", "critical"),
            ("began_at", "1970-01-01T00:00:00Z"),
            ("runbook_url", "http://gateway-0:9090/runbooks#kv_thrashing"),
            (
                "moment_url",
                "http://gateway-0:9090/#at=1970-01-01T00:00:00Z",
            ),
            (
                "text",
                "gateway-0:9090: critical: kv_thrashing at gpu-0. It thrashes. Remedy: Lower it.",
            ),
        ] {
            assert_eq!(message[key], value, "{key}");
        }
        let end = evaluations
            .during(ENDS_AFTER + STEP, &Diagnosis::default())
            .remove(0);
        let message = read(&end);
        assert_eq!(message["event"], "end");
        assert_eq!(
            message["text"],
            "gateway-0:9090: ended after 3m: kv_thrashing at gpu-0"
        );
    }

    #[test]
    fn the_number_of_messages_is_bounded() {
        let mut evaluations = Evaluations::new();
        let verdict = |number: usize| Verdict {
            backend: format!("gpu-{number}"),
            severity: VerdictSeverity::Warning,
            ..Verdict::default()
        };
        let verdicts = (0..MAX_VERDICTS + 50).map(verdict).collect();
        let diagnosis = Diagnosis {
            verdicts,
            ..Diagnosis::default()
        };
        assert_eq!(
            evaluations.during(BEGINS_AFTER + STEP, &diagnosis).len(),
            MAX_VERDICTS
        );
    }
}
