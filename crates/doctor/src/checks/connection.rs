//! Checks of the path between the gateway and a backend: clocks, idle connections, proxies and
//! streams.

use crate::facts::{BackendFacts, DoctorFacts, GatheredResponse, IdleConnection, StreamProbe};
use crate::finding::{FindingSeverity, Remark};
use http::StatusCode;
use http::header::{CONTENT_ENCODING, DATE};
use std::time::Duration;
use tokenweir_protocol::headers::media_type;

/// Maximum age of the `Date` header of a server with a correct clock. The header has a resolution of one
/// second, and servers update it once per second.
const MAX_DATE_LAG: Duration = Duration::from_secs(2);
/// Greatest clock skew that the check accepts.
const MAX_CLOCK_SKEW: Duration = Duration::from_secs(1);
/// A backend should keep idle connections longer than the gateway by at least this time.
const KEEP_ALIVE_MARGIN: Duration = Duration::from_millis(500);

pub(super) fn clock(backend: &BackendFacts, _: &DoctorFacts) -> Option<Remark> {
    let (by, direction) = clock_skew(backend.health.as_ref().ok()?)?;
    if by <= MAX_CLOCK_SKEW {
        return None;
    }
    let observation = format!(
        "its clock is at least {} s {direction} this machine's",
        by.as_secs()
    );
    let reason = "Spans of the engine are displaced from those of the gateway in a trace, and \
                  times of log lines do not match.";
    let remedy = "run an NTP client, such as chrony, on both";
    Some(Remark::warning(observation).because(reason).remedy(remedy))
}

/// The least possible difference between the server's clock and the local clock, and its direction. `None`: the
/// clocks may be equal, or there is no `Date` header.
fn clock_skew(answer: &GatheredResponse) -> Option<(Duration, &'static str)> {
    let date = httpdate::parse_http_date(answer.header(DATE)?).ok()?;
    if let Ok(ahead) = date.duration_since(answer.received_at) {
        return Some((ahead, "ahead of"));
    }
    let behind = answer.sent_at.duration_since(date + MAX_DATE_LAG).ok()?;
    Some((behind, "behind"))
}

pub(super) fn keep_alive(backend: &BackendFacts, facts: &DoctorFacts) -> Option<Remark> {
    let gateway_timeout = facts.config.idle_connection;
    let closed = match backend.idle {
        Some(IdleConnection::Open(after)) if after < gateway_timeout + KEEP_ALIVE_MARGIN => {
            let observation = format!(
                "it keeps an idle connection for {} or longer",
                format_seconds(after)
            );
            let reason = format!(
                "The gateway keeps it for {} (timeouts.idle_connection). Whether the backend \
                 keeps it for longer is unknown.",
                format_seconds(gateway_timeout)
            );
            let longer = (gateway_timeout + KEEP_ALIVE_MARGIN).as_secs() + 1;
            let remedy = format!("observe longer: --idle {longer}s");
            return Some(Remark::note(observation).because(reason).remedy(remedy));
        }
        None | Some(IdleConnection::Open(_)) => return None,
        Some(IdleConnection::Closed(after)) => after,
    };
    let observation = format!(
        "it closes an idle connection after {}",
        format_seconds(closed)
    );
    let raise_timeout = if backend.is_vllm() {
        "VLLM_HTTP_TIMEOUT_KEEP_ALIVE=120 vllm serve …"
    } else {
        "raise its keep-alive timeout"
    };
    if closed < gateway_timeout + KEEP_ALIVE_MARGIN {
        let reason = format!(
            "The gateway keeps it for {} (timeouts.idle_connection): requests are sent on \
             connections that the backend is closing, and are retried or fail.",
            format_seconds(gateway_timeout)
        );
        let remedy = format!("{raise_timeout}, or a shorter timeouts.idle_connection");
        return Some(Remark::warning(observation).because(reason).remedy(remedy));
    }
    let reason = format!(
        "The gateway closes it after {} (timeouts.idle_connection), in time; after a pause, \
         requests wait for a new connection.",
        format_seconds(gateway_timeout)
    );
    let remedy = format!("{raise_timeout}, and timeouts.idle_connection: 1m");
    Some(Remark::note(observation).because(reason).remedy(remedy))
}

/// A time as text in seconds, with one decimal digit.
fn format_seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

pub(super) fn intermediary(backend: &BackendFacts, _: &DoctorFacts) -> Option<Remark> {
    if !backend.is_vllm() {
        return None;
    }
    let header = backend.intermediary_header()?;
    let remark = Remark::note(format!("a proxy is between here and vLLM ({header})"));
    let reason =
        "The proxy may buffer tokens, abort a stream during a long pause, or close connections.";
    let remedy = if backend.probe.is_some() {
        "give the URL of vLLM itself"
    } else {
        "give the URL of vLLM itself, or check streams with --probe"
    };
    Some(remark.because(reason).remedy(remedy))
}

pub(super) fn stream(backend: &BackendFacts, _: &DoctorFacts) -> Vec<Remark> {
    let probe = match &backend.probe {
        None => return Vec::new(),
        Some(Err(error)) => {
            let remark = Remark::error(format!("the probe request failed: {error}"));
            return vec![remark.because("Requests of clients would fail in the same way.")];
        }
        Some(Ok(probe)) => probe,
    };
    if probe.status != StatusCode::OK {
        return rejected_probe(probe).into_iter().collect();
    }
    let mut remarks = Vec::new();
    let observed = &probe.observed;
    if let Some(encoding) = probe.headers.get(CONTENT_ENCODING) {
        let encoding = String::from_utf8_lossy(encoding.as_bytes()).into_owned();
        let remark = Remark::error(format!(
            "its stream is compressed ({encoding}), unrequested"
        ));
        let reason = "The gateway cannot read its tokens, and compression delays them.";
        remarks.push(
            remark
                .because(reason)
                .remedy("disable compression for text/event-stream"),
        );
    } else if !observed.is_stream {
        let media_type = media_type(&probe.headers).to_owned();
        let remark = Remark::error(format!(
            "it answered a streaming request with `{media_type}`"
        ));
        let reason = "There is no time to first token, and clients wait for the whole response.";
        remarks.push(remark.because(reason));
    } else if observed.error.is_some() {
        let remark = Remark::error(format!("its stream has an error: {}", probe.excerpt.trim()));
        remarks.push(remark.because("Requests of clients would fail in the same way."));
    } else if let Some(after) = probe.gave_up_after {
        let events = observed.output_events;
        let observation =
            format!("its stream had {events} events with tokens in {after:?}, and no end");
        let reason = "An engine that is stuck still answers /health with 200.";
        let remedy = "check the log of vLLM; raise --timeout";
        remarks.push(Remark::error(observation).because(reason).remedy(remedy));
    } else if !observed.is_complete {
        let remark = Remark::error("its stream broke off before its end");
        let reason = "Clients get incomplete responses. The engine may have died, or a proxy may \
                      have a time limit.";
        remarks.push(remark.because(reason).remedy("check the log of vLLM"));
    }
    remarks.extend(bunched_tokens(probe));
    remarks
}

fn rejected_probe(probe: &StreamProbe) -> Option<Remark> {
    let severity = match probe.status {
        // The check `key` reports a missing or wrong key.
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => return None,
        status if status.is_server_error() => FindingSeverity::Error,
        _ => FindingSeverity::Warning,
    };
    let remark = Remark::new(
        severity,
        format!(
            "{} answers {} to the probe request",
            probe.path, probe.status
        ),
    );
    Some(remark.because(format!("The response is: {}", probe.excerpt.trim())))
}

/// Reports tokens that arrive several at a time. `None`: the tokens arrive one by one, or the stream has too
/// few tokens to judge.
fn bunched_tokens(probe: &StreamProbe) -> Option<Remark> {
    let bunched = probe.bunched_events()?;
    let events = probe.arrivals.len();
    let first = probe
        .timings
        .first_output?
        .saturating_duration_since(probe.timings.accepted);
    let observation = format!(
        "{bunched} of {events} events with tokens came together with the one before, the first \
         after {} ms",
        first.as_millis()
    );
    let reason = "A proxy or the server buffers tokens: clients get none until the buffer is sent, \
                  and all measured latencies are wrong.";
    let remedy = "in nginx, `proxy_buffering off;`; elsewhere, do not buffer text/event-stream";
    Some(Remark::warning(observation).because(reason).remedy(remedy))
}
