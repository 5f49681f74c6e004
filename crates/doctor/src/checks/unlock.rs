//! What vLLM tells of requests only if it is started so.

use crate::facts::{Facts, Probe, Replica};
use crate::finding::Remark;
use crate::gather::REQUEST_ID_NAME;
use crate::sight::Version;

/// The first version that tells the times of a request.
const TIMES_SINCE: Version = Version(0, 25);

pub(super) fn request_id(replica: &Replica, _: &Facts) -> Vec<Remark> {
    let Ok(answer) = &replica.version else { return Vec::new() };
    if !replica.is_vllm() || !answer.is_ok() || answer.headers.contains_key(REQUEST_ID_NAME) {
        return Vec::new();
    }
    let remark = Remark::note("its answers do not carry the request id");
    let why = "The gateway sends x-request-id and puts it on answers itself; whoever asks the \
               replica past it cannot name a request in a log.";
    vec![remark.because(why).change("vllm serve --enable-request-id-headers")]
}

pub(super) fn cached_tokens(replica: &Replica, _: &Facts) -> Vec<Remark> {
    let Some(probe) = replica.answered_probe() else { return Vec::new() };
    // The Rust front end says nothing of a prompt of which nothing was cached.
    let is_told = probe.observed.usage.cached.is_some() || replica.is_rust_front_end();
    if is_told || probe.observed.usage.output.is_none() {
        return Vec::new();
    }
    let remark = Remark::note("its usage does not tell how much of a prompt was cached");
    let why = "The gateway guesses how long a prefix stays in the cache, and cached tokens are \
               missing from its metrics, spans and log.";
    vec![remark.because(why).change("vllm serve --enable-prompt-tokens-details")]
}

pub(super) fn engine_times(replica: &Replica, _: &Facts) -> Vec<Remark> {
    let Some(probe) = replica.answered_probe() else { return Vec::new() };
    let knows_how = replica.version_number().is_some_and(|version| version >= TIMES_SINCE);
    if !knows_how || probe.observed.engine.is_some() {
        return Vec::new();
    }
    let remark = Remark::note("its answers do not tell how long the engine took");
    let why = "Time in its queue and in prefill is known as a mean of all requests, not of each \
               slow one. It costs some CPU at high concurrency.";
    vec![remark.because(why).change("vllm serve --enable-per-request-metrics")]
}

/// Nothing that the request asks for puts counts into each event.
pub(super) fn forced_usage(replica: &Replica, _: &Facts) -> Vec<Remark> {
    let Some(probe) = replica.answered_probe() else { return Vec::new() };
    if probe.observed.output_events < 2 || probe.observed.tokens_in_events == 0 {
        return Vec::new();
    }
    let remark = Remark::note("it puts usage into every event of every stream");
    let why = "Clients that did not ask for it get an event without choices, which some cannot \
               read, and every event is some 90 bytes longer. The gateway gets its counts without \
               it.";
    vec![remark.because(why).change("start vLLM without --enable-force-include-usage")]
}

pub(super) fn not_probed(facts: &Facts) -> Vec<Remark> {
    let is_open =
        |replica: &Replica| replica.is_vllm() && replica.is_replica() && replica.probe.is_none();
    if !facts.replicas.iter().any(is_open) {
        return Vec::new();
    }
    let remark = Remark::note("no request was sent that makes an engine work");
    let why = "Whether streams come token by token, and what usage tells, is seen with one of 16 \
               tokens.";
    vec![remark.because(why).change("tokenweir doctor --probe …")]
}

impl Replica {
    /// What came of the probe, if vLLM has answered it with a whole stream.
    fn answered_probe(&self) -> Option<&Probe> {
        let probe = self.probe.as_ref()?.as_ref().ok()?;
        let is_whole = probe.observed.is_stream && probe.observed.is_terminal;
        (self.is_vllm() && probe.status.is_success() && is_whole).then_some(probe)
    }
}
