//! The causes of time that requests lose before they reach the engine.

use crate::rule::prelude::*;

/// Minimum number of connection attempts in a minute. Then their minimum mean time in seconds, with a lag and
/// without one.
const MIN_CONNECTS: f64 = 3.0;
const LATE_CONNECT_SECONDS: f64 = 0.05;
const SLOW_CONNECT_SECONDS: f64 = 0.5;
/// Maximum mean TTFT of an engine, in seconds, for a comparison with the first response heads of connections.
/// Some servers send the head only with the first token, and long waits vary too much.
const QUICK_SECONDS: f64 = 0.3;
/// Minimum share of streams among the requests. Streams send their response head at once.
const STREAMS_SHARE: f64 = 0.9;
/// Minimum share of the lost time that opening connections takes.
const CONNECT_PART: f64 = 0.4;
/// Minimum ratio of the value of a peer to that of the backend at which the peer has the same problem.
const PEER_PART: f64 = 0.3;
/// Minimum mean time in seconds to fetch a late metrics page. The server answers such a page without the
/// engine.
const LATE_PAGE_SECONDS: f64 = 0.15;
/// Minimum number of tokens that arrive together, and then the minimum ratio of this number to that of the
/// peers.
const LUMP_TOKENS: f64 = 4.0;
const LUMP_FACTOR: f64 = 3.0;
/// Minimum number of tokens that arrive together if there are no peers. It is higher, because speculative
/// decoding sends several tokens at once.
const LUMP_TOKENS_ALONE: f64 = 8.0;
const MIN_LUMP_TOKENS: f64 = 100.0;
/// Minimum share of streams whose tokens all arrive together, for a buffering proxy.
const BUFFERED_SHARE: f64 = 0.5;
/// Minimum number of streams of a kind, and then the minimum ratio of their wait to that of plain streams.
const MIN_OF_KIND: f64 = 3.0;
const KIND_FACTOR: f64 = 3.0;

/// A kind of request that can wait before the engine while other requests do not.
struct WaitingKind {
    wait: Ratio,
    text: &'static str,
    /// The remedy for this kind. `None`: the remedy of the rule.
    remedy: Option<&'static str>,
}

const KINDS: [WaitingKind; 2] = [
    WaitingKind {
        wait: Ratio::of(
            StepSignal::MediaSeconds,
            StepSignal::MediaOutputs,
            MIN_OF_KIND,
        ),
        text: "only requests with media wait: the API server fetches or decodes the media before the engine gets the request",
        remedy: Some(
            "Look at the host of the media and at the processing of media in the API server (--api-server-count); send smaller media, \
             or give these requests a model name with backends of its own (models).",
        ),
    },
    WaitingKind {
        wait: Ratio::of(
            StepSignal::LongSeconds,
            StepSignal::LongOutputs,
            MIN_OF_KIND,
        ),
        text: "only requests with long prompts wait: the API server needs the time for their tokens and templates",
        remedy: None,
    },
];

/// The backends whose metrics pages are late.
pub(in crate::rules) enum PagePlace {
    /// Only the pages of this backend are late.
    ThisBackend,
    /// The pages of this backend and of at least half of its peers are late.
    Everywhere,
}

/// The backends whose metrics pages are late. `None`: the pages of this backend are on time, or their times are
/// unknown.
pub(in crate::rules) fn late_pages(evaluation: &Evaluation<'_>) -> Option<PagePlace> {
    let page = |window: &StepWindow<'_>| window.mean(StepSignal::PageSeconds);
    let own = page(&evaluation.recent).filter(|own| *own >= LATE_PAGE_SECONDS)?;
    let others = windows(evaluation.others.iter().copied(), RECENT);
    let others: Vec<f64> = others.iter().filter_map(page).collect();
    let late = others.iter().filter(|other| **other >= PEER_PART * own);
    if others.is_empty() || 2 * late.count() < others.len() {
        Some(PagePlace::ThisBackend)
    } else {
        Some(PagePlace::Everywhere)
    }
}

struct Connects {
    count: f64,
    seconds: f64,
}

impl Connects {
    /// The connection attempts of a window. Streams send their response head at once, so for them the time to
    /// the first head on a new connection also counts, less the TTFT of the engine: the kernel accepts
    /// connections before the server does. The delay that heads on open connections also have does not count.
    fn of(window: &StepWindow<'_>) -> Self {
        let sum = |signal| window.total(signal);
        let streams = window.ratio(StepSignal::Streams, StepSignal::Finished, 1.0);
        let engine = window.ratio(StepSignal::FirstTokenSeconds, StepSignal::FirstTokens, 1.0);
        let heads = sum(StepSignal::FirstHeads);
        let seconds = sum(StepSignal::ConnectSeconds);
        let connects = Self {
            count: sum(StepSignal::Connects),
            seconds,
        };
        // An engine may need time to refuse a request, so the heads of refusals can be late.
        let is_streaming = streams.is_some_and(|share| share >= STREAMS_SHARE)
            && sum(StepSignal::RefusedAttempts) < 1.0;
        let of_new = sum(StepSignal::FirstHeadSeconds);
        let others = sum(StepSignal::Heads) - heads;
        let of_others = if others >= MIN_CONNECTS {
            ((sum(StepSignal::HeadSeconds) - of_new) / others).max(0.0)
        } else {
            0.0
        };
        match engine {
            Some(engine) if is_streaming && heads >= 1.0 && engine <= QUICK_SECONDS => Self {
                seconds: seconds.max(of_new - heads * engine.max(of_others)),
                ..connects
            },
            _ => connects,
        }
    }

    fn mean(&self) -> f64 {
        self.seconds / self.count.max(1.0)
    }
}

/// The match for a backend with very slow new connections. It needs no lag of the front end, because most
/// requests use open connections.
pub(super) fn slow_connects(evaluation: &Evaluation<'_>) -> Option<RuleMatch> {
    if is_buffered(&evaluation.recent) {
        return None;
    }
    let connects = Connects::of(&evaluation.minute);
    let recent = Connects::of(&evaluation.recent);
    let is_over = recent.count > 0.0 && recent.mean() < LATE_CONNECT_SECONDS;
    if connects.count < MIN_CONNECTS || connects.mean() < SLOW_CONNECT_SECONDS || is_over {
        return None;
    }
    let found = RuleMatch::new(2, Vec::new());
    Some(match WaitingKind::of(evaluation) {
        Some(kind) => kind.explain(found),
        None => because_of_connects(found, evaluation, &connects),
    })
}

fn because_of_connects(
    found: RuleMatch,
    evaluation: &Evaluation<'_>,
    connects: &Connects,
) -> RuleMatch {
    let own = connects.mean();
    let others = windows(evaluation.others.iter().copied(), FAST);
    let others: Vec<Connects> = others
        .iter()
        .map(Connects::of)
        .filter(|other| other.count > 0.0)
        .collect();
    let late = others
        .iter()
        .filter(|other| other.mean() >= PEER_PART * own);
    let is_everywhere = !others.is_empty() && 2 * late.count() >= others.len();
    let evidence = Evidence::new("connect_time_mean", own, "s", FAST.as_secs_f64());
    let mut found = found.remedy(
        "Look at the accept queue of the server (ss -ltn: Recv-Q; net.core.somaxconn), at lost \
         SYN packets (nstat TcpRetransSegs), at firewalls and at TLS. A longer \
         timeouts.connection_age needs fewer connections.",
    );
    found.evidence.insert(0, evidence);
    if is_everywhere {
        found
            .because(
                "opening connections to the backends takes long at all of them: the network, \
                 name resolution, or the machine of the gateway",
            )
            .at(Origin::Network)
    } else {
        let cause = format!(
            "opening a connection to it takes {own:.1} s on average, while open connections \
             work: its accept queue is full, or packets are lost on the way"
        );
        found.because(cause).at(Origin::FrontEnd)
    }
}

/// Whether the tokens of most responses all arrive together.
fn is_buffered(window: &StepWindow<'_>) -> bool {
    let buffered = window.ratio(StepSignal::Buffered, StepSignal::Streams, 3.0);
    buffered.is_some_and(|share| share >= BUFFERED_SHARE)
}

pub(super) fn explained(mut found: RuleMatch, evaluation: &Evaluation<'_>, lag: f64) -> RuleMatch {
    if is_buffered(&evaluation.recent) {
        found.signals += 1;
        return found
            .because(
                "a proxy between the gateway and the engine holds each response until it is \
                 complete: the tokens of a stream arrive all at once, at its end",
            )
            .remedy(
                "Switch the buffering of responses off in the proxy (nginx: proxy_buffering \
                 off).",
            );
    }
    if let Some(cause) = lumps(evaluation) {
        return found.because(cause).remedy(
            "Lower --stream-interval of the engine to 1, or switch off what collects events on \
             the way.",
        );
    }
    if let Some(kind) = WaitingKind::of(evaluation) {
        return kind.explain(found);
    }
    // The window of the lag can be too short to contain new connections.
    let minute = evaluation.minute;
    let connects = Connects::of(&minute);
    let lost = lag * minute.total(StepSignal::FirstOutputs);
    let is_slow = connects.count >= MIN_CONNECTS && connects.mean() >= LATE_CONNECT_SECONDS;
    if is_slow && connects.seconds >= CONNECT_PART * lost {
        return because_of_connects(found, evaluation, &connects);
    }
    because_of_pages(found, evaluation)
}

/// Adds the cause that late metrics pages show.
fn because_of_pages(mut found: RuleMatch, evaluation: &Evaluation<'_>) -> RuleMatch {
    let recent = evaluation.recent;
    if let Some(page) = recent.mean(StepSignal::PageSeconds) {
        let evidence = Evidence::new("metrics_page_time", page, "s", recent.seconds());
        found.evidence.push(evidence);
        found.signals += 1;
    }
    match late_pages(evaluation) {
        Some(PagePlace::Everywhere) => found
            .because(
                "the network between the gateway and the backends: metrics and health pages, \
                 which need no engine, are late at all of them too",
            )
            .at(Origin::Network)
            .remedy(
                "Look for lost packets (nstat TcpRetransSegs, ethtool -S) and for what all \
                 backends share: a switch, a proxy, a VPN.",
            ),
        Some(PagePlace::ThisBackend) => found
            .because(
                "the API server of this backend or the path to it, and not its engine: its \
                 metrics and health pages are late too, those of its peers are not",
            )
            .at(Origin::FrontEnd),
        None if recent.has_signal(StepSignal::PageSeconds) => found
            .because(
                "the API server of the backend: connections and metrics pages are fast, so the \
                 time goes into the work on each request (template, tokenizer, media)",
            )
            .at(Origin::FrontEnd),
        None => found,
    }
}

impl WaitingKind {
    /// The only kind of requests that waits, at all backends together. `None`: there is none.
    fn of(evaluation: &Evaluation<'_>) -> Option<&'static Self> {
        let mut minutes = windows(evaluation.peers(), FAST);
        minutes.push(evaluation.minute);
        KINDS.iter().find(|kind| kind.waits_more(&minutes))
    }

    fn explain(&self, found: RuleMatch) -> RuleMatch {
        let found = found.because(self.text).at(Origin::Requests);
        match self.remedy {
            Some(remedy) => found.remedy(remedy),
            None => found,
        }
    }

    /// Whether streams of this kind wait far longer than plain streams, and lose far more time before the
    /// engine.
    fn waits_more(&self, minutes: &[StepWindow<'_>]) -> bool {
        let plain = Ratio::of(
            StepSignal::PlainSeconds,
            StepSignal::PlainOutputs,
            MIN_OF_KIND,
        );
        let engine = Ratio::of(
            StepSignal::FirstTokenSeconds,
            StepSignal::FirstTokens,
            MIN_OF_KIND,
        );
        if let Some(of_kind) = self.wait.of_all(minutes)
            && let Some(plain) = plain.of_all(minutes)
            && let Some(engine) = engine.of_all(minutes)
        {
            of_kind >= KIND_FACTOR * plain
                && of_kind - engine >= KIND_FACTOR * (plain - engine).max(0.02)
        } else {
            false
        }
    }
}

/// The cause if many tokens arrive together, and far fewer at the peers.
fn lumps(evaluation: &Evaluation<'_>) -> Option<String> {
    let at_once = |window: &StepWindow<'_>| {
        window.ratio(StepSignal::StreamTokens, StepSignal::StreamArrivals, 1.0)
    };
    let window = evaluation.minute;
    let tokens = window.total(StepSignal::StreamTokens);
    if tokens < MIN_LUMP_TOKENS {
        return None;
    }
    let own = at_once(&window)?;
    let peers = windows(evaluation.peers(), FAST);
    let of_peers = peers.iter().filter_map(at_once).reduce(f64::max);
    let is_lump = match of_peers {
        Some(peers) => own >= LUMP_TOKENS && own >= LUMP_FACTOR * peers,
        None => own >= LUMP_TOKENS_ALONE,
    };
    if !is_lump {
        return None;
    }
    let per_event = window.ratio(StepSignal::StreamTokens, StepSignal::StreamEvents, 1.0)?;
    let who = if per_event >= own / 2.0 {
        "the engine sends them so (--stream-interval)"
    } else {
        "a proxy on the way collects them"
    };
    let peers = of_peers.map_or_else(String::new, |peers| format!(", at its peers {peers:.0}"));
    Some(format!(
        "its tokens arrive in lumps of {own:.0}{peers}: {who}"
    ))
}
