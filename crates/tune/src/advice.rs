//! From arithmetic to settings.

use super::memory::{Budget, thousands};
use super::model::Model;
use super::pace::Pace;
use super::report::{Advice, Line, Report};
use super::request::Request;

/// vLLM 0.32's own defaults for its server, by the memory of the GPU: tokens and requests of a step.
const DEFAULTS: [(u64, u64, u64); 3] =
    [(160 << 30, 16_384, 1_024), (70 << 30, 8_192, 1_024), (0, 2_048, 256)];
/// Steps are rounded to so many tokens.
const ROUND: u64 = 64;
/// Requests of a step beyond which its own cost is no longer small.
const MOST_REQUESTS: f64 = 1_024.0;

fn defaults(request: &Request) -> (u64, u64) {
    let known = DEFAULTS.iter().find(|(memory, ..)| request.gpu_memory >= *memory);
    known.map_or((2_048, 256), |(_, tokens, requests)| (*tokens, *requests))
}

/// Tokens and requests of a step: within the bounds of the targets, and otherwise vLLM's own.
pub(super) fn steps(request: &Request, pace: &Pace) -> (u64, u64) {
    let (tokens, requests) = defaults(request);
    let tokens = tokens.max(pace.least.unwrap_or(0).next_multiple_of(ROUND));
    // The gaps of running answers come first: everybody sees those.
    let tokens = pace.most.map_or(tokens, |most| tokens.min((most / ROUND * ROUND).max(ROUND)));
    (tokens, requests)
}

pub(super) fn advise(
    report: &mut Report,
    model: &Model,
    request: &Request,
    budget: &Budget,
    pace: &Pace,
    (batched, _): (u64, u64),
) {
    let set = |flag, value: String, reason: String| Advice { flag, value, reason };
    let mut advice = Vec::new();
    advice.push(set(
        "--gpu-memory-utilization",
        request.utilization.to_string(),
        "what the arithmetic above is about; vLLM 0.32 takes 0.92 itself, older ones 0.9"
            .to_owned(),
    ));
    if budget.tensor_parallel > 1 {
        advice.push(set(
            "--tensor-parallel-size",
            budget.tensor_parallel.to_string(),
            "with fewer GPUs there is no room for 16 requests of mean length".to_owned(),
        ));
    }
    advice.extend(context(report, model, budget));
    advice.push(requests(report, request, budget));
    let reason = match (pace.least, pace.most) {
        (None, None) => "vLLM's own for such a GPU: no target and speed says otherwise".to_owned(),
        _ => "between the bounds above".to_owned(),
    };
    advice.push(set("--max-num-batched-tokens", batched.to_string(), reason));
    advice.extend(smaller_kv(report, model, request, budget));
    report.advice = advice;
    replicas(report, request, budget);
}

/// The longest request, and how many of them the log of vLLM says to fit.
fn context(report: &mut Report, model: &Model, budget: &Budget) -> Option<Advice> {
    let longest = model.longest?;
    let served = longest.min(budget.longest());
    let concurrency = budget.concurrency(served);
    report.lines.push(Line::shown(
        "the longest at once",
        &format!(
            "{} blocks ÷ {} for {served} tokens: the log's Maximum concurrency; its size is {} tokens",
            thousands(budget.capacity / budget.block),
            served.div_ceil(budget.block),
            thousands((concurrency * served as f64) as u64)
        ),
        concurrency,
        format!("{concurrency:.2}"),
    ));
    (served < longest).then(|| Advice {
        flag: "--max-model-len",
        value: served.to_string(),
        reason: format!(
            "the model allows {longest}, of which a request would not fit, and vLLM keeps a block \
             for itself: it would not start"
        ),
    })
}

/// Requests that run at once: as many as fit while their answers are half done on the mean.
fn requests(report: &mut Report, request: &Request, budget: &Budget) -> Advice {
    let (prompt, output) = (request.prompt, request.output);
    let running = prompt.mean + output.mean / 2.0;
    let fit = budget.fit(running);
    report.lines.push(Line::shown(
        "requests at once",
        &format!("KV cache ÷ ({:.0} prompt + {:.0} ÷ 2 answer)", prompt.mean, output.mean),
        fit,
        format!("{fit:.1}"),
    ));
    let long = budget.fit(prompt.p95 + output.p95);
    report.lines.push(Line::shown(
        "the same, all long",
        &format!("KV cache ÷ ({:.0} prompt + {:.0} answer, both p95)", prompt.p95, output.p95),
        long,
        format!("{long:.1}"),
    ));
    if long < 2.0 {
        report
            .warnings
            .push("two long requests do not fit at once: one of them will be preempted".to_owned());
    }
    let value = fit.min(MOST_REQUESTS).floor().max(1.0);
    let reason = if fit > MOST_REQUESTS {
        "more would fit, but each step gets slower with them: measure before raising it".to_owned()
    } else {
        "as many as fit; more are preempted and computed twice, fewer wait without need".to_owned()
    };
    Advice { flag: "--max-num-seqs", value: format!("{value:.0}"), reason }
}

/// Half the bytes, twice the room.
fn smaller_kv(
    report: &mut Report,
    model: &Model,
    request: &Request,
    budget: &Budget,
) -> Option<Advice> {
    let kv_bytes = request.kv_bytes.unwrap_or(model.bytes);
    if kv_bytes == 1 {
        return Some(Advice {
            flag: "--kv-cache-dtype",
            value: "fp8".to_owned(),
            reason: "as asked; whether answers stay as good has to be measured".to_owned(),
        });
    }
    let more = budget.capacity * kv_bytes;
    report.lines.push(Line::tokens(
        "with --kv-cache-dtype fp8",
        "1 byte for each value",
        more as f64,
    ));
    let running = request.prompt.mean + request.output.mean / 2.0;
    let wanted = wanted(request)?;
    (wanted > budget.fit(running)).then(|| Advice {
        flag: "--kv-cache-dtype",
        value: "fp8".to_owned(),
        reason: format!(
            "the targets want {wanted:.0} requests at once; try it, and measure whether answers stay as good"
        ),
    })
}

/// Requests that must run at once for the throughput: each makes a token in every step (Little's law).
fn wanted(request: &Request) -> Option<f64> {
    let gap = request.speed.step.or(request.targets.tbt)?;
    Some(request.targets.throughput? * gap)
}

fn replicas(report: &mut Report, request: &Request, budget: &Budget) {
    let Some(throughput) = request.targets.throughput else { return };
    let running = request.prompt.mean + request.output.mean / 2.0;
    let (each, how) = match (request.speed.output, request.speed.step.or(request.targets.tbt)) {
        (Some(output), _) => (output, "as measured".to_owned()),
        (None, Some(gap)) => {
            let fit = budget.fit(running).min(MOST_REQUESTS);
            (
                fit / gap,
                format!("at most: {fit:.0} requests ÷ {:.1} ms for a token each", gap * 1e3),
            )
        }
        (None, None) => {
            report.warnings.push(
                "the throughput says nothing without --tbt, --step or --from-bench".to_owned(),
            );
            return;
        }
    };
    let per_second = format!("{} tokens/s", thousands(each as u64));
    report.lines.push(Line::shown("output of a replica", &how, each, per_second));
    let count = (throughput / each.max(1e-9)).ceil();
    let how = format!("{throughput:.0} tokens/s ÷ {each:.0}");
    report.lines.push(Line::shown("replicas for the target", &how, count, format!("{count:.0}")));
}

/// Price of an hour ÷ output tokens of a GPU in an hour × a million.
pub(super) fn cost(report: &mut Report, request: &Request) -> Option<f64> {
    let price = request.price?;
    let Some(output) = request.speed.output else {
        report.warnings.push(
            "the cost needs the output of a replica: give --from-bench or --output-rate".to_owned(),
        );
        return None;
    };
    let per_gpu = output / report.gpus as f64;
    let cost = price / (per_gpu * 3600.0) * 1e6;
    let how = format!(
        "{price} an hour ÷ ({output:.0} tokens/s ÷ {} GPUs × 3600 s) × 1,000,000",
        report.gpus
    );
    report.lines.push(Line::shown("cost of a million tokens", &how, cost, format!("{cost:.4}")));
    Some(cost)
}
