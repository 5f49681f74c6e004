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
/// Maximum clock skew that the check accepts.
const MAX_CLOCK_SKEW: Duration = Duration::from_secs(1);
/// Minimum time by which a backend should keep idle connections longer than the gateway.
const KEEP_ALIVE_MARGIN: Duration = Duration::from_millis(500);
/// The reason that remarks state about a failed probe.
const FAILED_PROBE: &str = "Requests of clients would fail in the same way.";

pub(super) fn clock(backend: &BackendFacts, _: &DoctorFacts) -> Option<Remark> {
    let (by, direction) = clock_skew(backend.health.as_ref().ok()?)?;
    if by <= MAX_CLOCK_SKEW {
        return None;
    }
    let seconds = by.as_secs();
    Some(
        Remark::warning(format!(
            "its clock is at least {seconds} s {direction} this machine's"
        ))
        .because(
            "Spans of the engine are displaced from those of the gateway in a trace, and times of \
             log lines do not match.",
        )
        .remedy("run an NTP client, such as chrony, on both"),
    )
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
    let gateway = format_seconds(facts.config.idle_connection);
    let needed = facts.config.idle_connection + KEEP_ALIVE_MARGIN;
    let closed = match backend.idle? {
        IdleConnection::Open(after) if after < needed => {
            let open = format_seconds(after);
            let longer = needed.as_secs() + 1;
            return Some(
                Remark::note(format!("it keeps an idle connection for {open} or longer"))
                    .because(format!(
                        "The gateway keeps it for {gateway} (timeouts.idle_connection). Whether the \
                         backend keeps it for longer is unknown."
                    ))
                    .remedy(format!("observe longer: --idle {longer}s")),
            );
        }
        IdleConnection::Open(_) => return None,
        IdleConnection::Closed(after) => after,
    };
    let after = format_seconds(closed);
    let observation = format!("it closes an idle connection after {after}");
    let raise_timeout = if backend.is_vllm() {
        "VLLM_HTTP_TIMEOUT_KEEP_ALIVE=120 vllm serve …"
    } else {
        "raise its keep-alive timeout"
    };
    Some(if closed < needed {
        Remark::warning(observation)
            .because(format!(
                "The gateway keeps it for {gateway} (timeouts.idle_connection): requests are sent on \
                 connections that the backend is closing, and are retried or fail."
            ))
            .remedy(format!(
                "{raise_timeout}, or a shorter timeouts.idle_connection"
            ))
    } else {
        Remark::note(observation)
            .because(format!(
                "The gateway closes it after {gateway} (timeouts.idle_connection), in time; after a \
                 pause, requests wait for a new connection."
            ))
            .remedy(format!("{raise_timeout}, and timeouts.idle_connection: 1m"))
    })
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
    let remedy = if backend.probe.is_some() {
        "give the URL of vLLM itself"
    } else {
        "give the URL of vLLM itself, or check streams with --probe"
    };
    Some(
        Remark::note(format!("a proxy is between here and vLLM ({header})"))
            .because(
                "The proxy may buffer tokens, abort a stream during a long pause, or close connections.",
            )
            .remedy(remedy),
    )
}

pub(super) fn stream(backend: &BackendFacts, _: &DoctorFacts) -> Vec<Remark> {
    let probe = match &backend.probe {
        None => return Vec::new(),
        Some(Err(error)) => {
            let remark = Remark::error(format!("the probe request failed: {error}"));
            return vec![remark.because(FAILED_PROBE)];
        }
        Some(Ok(probe)) => probe,
    };
    if probe.status != StatusCode::OK {
        return rejected_probe(probe).into_iter().collect();
    }
    let faulty = faulty_stream(probe);
    faulty.into_iter().chain(bunched_tokens(probe)).collect()
}

/// Reports a stream that the gateway cannot read, that has an error, or that has no end.
fn faulty_stream(probe: &StreamProbe) -> Option<Remark> {
    let observed = &probe.observed;
    if let Some(encoding) = probe.headers.get(CONTENT_ENCODING) {
        let encoding = String::from_utf8_lossy(encoding.as_bytes());
        let remark = Remark::error(format!(
            "its stream is compressed ({encoding}), unrequested"
        ));
        return Some(
            remark
                .because("The gateway cannot read its tokens, and compression delays them.")
                .remedy("disable compression for text/event-stream"),
        );
    }
    if !observed.is_stream {
        let media_type = media_type(&probe.headers);
        let observation = format!("it answered a streaming request with `{media_type}`");
        let reason = "There is no time to first token, and clients wait for the whole response.";
        return Some(Remark::error(observation).because(reason));
    }
    if observed.error.is_some() {
        let remark = Remark::error(format!("its stream has an error: {}", probe.excerpt.trim()));
        return Some(remark.because(FAILED_PROBE));
    }
    if let Some(after) = probe.gave_up_after {
        let events = observed.output_events;
        return Some(
            Remark::error(format!(
                "its stream had {events} events with tokens in {after:?}, and no end"
            ))
            .because("An engine that is stuck still answers /health with 200.")
            .remedy("check the log of vLLM; raise --timeout"),
        );
    }
    (!observed.is_complete).then(|| {
        Remark::error("its stream broke off before its end")
            .because(
                "Clients get incomplete responses. The engine may have died, or a proxy may have a \
                 time limit.",
            )
            .remedy("check the log of vLLM")
    })
}

fn rejected_probe(probe: &StreamProbe) -> Option<Remark> {
    let severity = match probe.status {
        // The check `key` reports a missing or wrong key.
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => return None,
        status if status.is_server_error() => FindingSeverity::Error,
        _ => FindingSeverity::Warning,
    };
    let StreamProbe { path, status, .. } = probe;
    let remark = Remark::new(
        severity,
        format!("{path} answers {status} to the probe request"),
    );
    Some(remark.because(format!("The response is: {}", probe.excerpt.trim())))
}

/// Reports tokens that arrive several at a time. `None`: the tokens arrive one by one, or the stream has too
/// few tokens to judge.
fn bunched_tokens(probe: &StreamProbe) -> Option<Remark> {
    let bunched = probe.bunched_events()?;
    let events = probe.arrivals.len();
    let timings = &probe.timings;
    let first = timings
        .first_output?
        .saturating_duration_since(timings.accepted);
    Some(
        Remark::warning(format!(
            "{bunched} of {events} events with tokens came together with the one before, the first \
             after {} ms",
            first.as_millis()
        ))
        .because(
            "A proxy or the server buffers tokens: clients get none until the buffer is sent, and \
             all measured latencies are wrong.",
        )
        .remedy("in nginx, `proxy_buffering off;`; elsewhere, do not buffer text/event-stream"),
    )
}
