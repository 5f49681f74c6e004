//! What lies between the gateway and a replica: clocks, connections, and whoever buffers.

use crate::facts::{Answer, Facts, Idle, Probe, Replica};
use crate::finding::{Remark, Severity};
use http::StatusCode;
use http::header::{CONTENT_ENCODING, DATE};
use std::time::{Duration, SystemTime};
use tokenweir_core::headers::media_type;

/// `Date` has whole seconds, and servers make it anew once in a second.
const DATE_LAG: Duration = Duration::from_secs(2);
/// A skew below it disturbs nobody who reads logs.
const SKEW: Duration = Duration::from_secs(1);
/// A connection should be kept by the replica for so much longer than by the gateway.
const MARGIN: Duration = Duration::from_millis(500);

pub(super) fn clock(replica: &Replica, _: &Facts) -> Vec<Remark> {
    let skew = replica.health.as_ref().ok().and_then(skew);
    let Some((by, direction)) = skew.filter(|(by, _)| *by > SKEW) else { return Vec::new() };
    let seen = format!("its clock is at least {} s {direction} this machine's", by.as_secs());
    let why = "Spans of the engine stand beside those of the gateway in time, and log lines do not \
               line up.";
    vec![Remark::warning(seen).because(why).change("run an NTP client, such as chrony, on both")]
}

/// The least by which the clock of whoever answered is wrong, if ours is right.
fn skew(answer: &Answer) -> Option<(Duration, &'static str)> {
    let date = httpdate::parse_http_date(answer.header(DATE)?).ok()?;
    let [asked, answered] = answer.clock;
    let later = |later: SystemTime, earlier: SystemTime| later.duration_since(earlier).ok();
    let ahead = later(date, answered).map(|by| (by, "ahead of"));
    ahead.or_else(|| later(asked, date + DATE_LAG).map(|by| (by, "behind")))
}

pub(super) fn keep_alive(replica: &Replica, facts: &Facts) -> Vec<Remark> {
    let kept = facts.config.idle_connection;
    let closed = match replica.idle {
        Some(Idle::Open(after)) if after < kept + MARGIN => {
            let seen = format!("it keeps an idle connection for {} or longer", seconds(after));
            let why = format!(
                "The gateway keeps it for {} (timeouts.idle_connection): which is longer is not \
                 known.",
                seconds(kept)
            );
            let change = format!("look for longer: --idle {}s", (kept + MARGIN).as_secs() + 1);
            return vec![Remark::note(seen).because(why).change(change)];
        }
        None | Some(Idle::Open(_)) => return Vec::new(),
        Some(Idle::Closed(after)) => after,
    };
    let seen = format!("it closes an idle connection after {}", seconds(closed));
    let longer = if replica.is_vllm() {
        "VLLM_HTTP_TIMEOUT_KEEP_ALIVE=120 vllm serve …"
    } else {
        "raise its keep-alive timeout"
    };
    if closed < kept + MARGIN {
        let why = format!(
            "The gateway keeps it for {} (timeouts.idle_connection): requests meet connections \
             that are being closed, and are sent twice or fail.",
            seconds(kept)
        );
        let change = format!("{longer}, or a shorter timeouts.idle_connection");
        return vec![Remark::warning(seen).because(why).change(change)];
    }
    let why = format!(
        "The gateway gives it up after {} (timeouts.idle_connection), in time; after a pause, \
         requests wait for a new connection.",
        seconds(kept)
    );
    let change = format!("{longer}, and timeouts.idle_connection: 1m");
    vec![Remark::note(seen).because(why).change(change)]
}

/// With one digit after the point.
fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

pub(super) fn in_between(replica: &Replica, _: &Facts) -> Vec<Remark> {
    let Some(sign) = replica.in_between().filter(|_| replica.is_vllm()) else { return Vec::new() };
    let remark = Remark::note(format!("something stands between here and vLLM ({sign})"));
    let why = "It may collect tokens before it sends them on, cut a long silence, or close \
               connections.";
    let change = if replica.probe.is_some() {
        "give the URL of vLLM itself"
    } else {
        "give the URL of vLLM itself, or see with --probe what it does to streams"
    };
    vec![remark.because(why).change(change)]
}

pub(super) fn stream(replica: &Replica, _: &Facts) -> Vec<Remark> {
    let probe = match &replica.probe {
        None => return Vec::new(),
        Some(Err(silence)) => {
            let remark = Remark::error(format!("a small request failed: {silence}"));
            return vec![remark.because("Requests of clients would fail as well.")];
        }
        Some(Ok(probe)) => probe,
    };
    if probe.status != StatusCode::OK {
        return refused(probe).into_iter().collect();
    }
    let mut remarks = Vec::new();
    let observed = &probe.observed;
    if let Some(encoding) = probe.headers.get(CONTENT_ENCODING) {
        let encoding = String::from_utf8_lossy(encoding.as_bytes()).into_owned();
        let remark = Remark::error(format!("its stream is compressed ({encoding}), unasked"));
        let why = "The gateway cannot see tokens in it, and what compresses also collects.";
        remarks.push(remark.because(why).change("switch compression off for text/event-stream"));
    } else if !observed.is_stream {
        let media_type = media_type(&probe.headers).to_owned();
        let remark = Remark::error(format!("a stream was asked for, and `{media_type}` came"));
        let why = "There is no time to first token, and clients wait for the whole answer.";
        remarks.push(remark.because(why));
    } else if observed.error.is_some() {
        let remark = Remark::error(format!("its stream told an error: {}", probe.excerpt.trim()));
        remarks.push(remark.because("Requests of clients would fail as well."));
    } else if let Some(after) = probe.given_up {
        let events = observed.output_events;
        let seen = format!("its stream had {events} events with tokens in {after:?}, and no end");
        let why = "An engine that is stuck still answers /health with 200.";
        let change = "look at the log of vLLM; give --timeout more time";
        remarks.push(Remark::error(seen).because(why).change(change));
    } else if !observed.is_terminal {
        let remark = Remark::error("its stream broke off before its end");
        let why = "Clients get half an answer. An engine that dies does so, or a time limit in \
                   between.";
        remarks.push(remark.because(why).change("look at the log of vLLM"));
    }
    remarks.extend(bunched(probe));
    remarks
}

fn refused(probe: &Probe) -> Option<Remark> {
    let severity = match probe.status {
        // That is of its key.
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => return None,
        status if status.is_server_error() => Severity::Error,
        _ => Severity::Warning,
    };
    let remark = Remark::new(
        severity,
        format!("{} answers {} to a small request", probe.path, probe.status),
    );
    Some(remark.because(format!("It says: {}", probe.excerpt.trim())))
}

/// Tokens that were collected before they were sent on, as often as it was tried.
fn bunched(probe: &Probe) -> Option<Remark> {
    let together = probe.together()?;
    let events = probe.arrivals.len();
    let first = probe.timings.first_output?.saturating_duration_since(probe.timings.accepted);
    let seen = format!(
        "{together} of {events} events with tokens came together with the one before, the first \
         after {} ms",
        first.as_millis()
    );
    let why = "Something collects tokens before it sends them on: clients see none until then, and \
               every latency that is measured is wrong.";
    let change = "in nginx, `proxy_buffering off;`; elsewhere, let text/event-stream pass at once";
    Some(Remark::warning(seen).because(why).change(change))
}
