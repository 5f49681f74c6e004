//! Which path does what, with the status codes and headers of vLLM's Python front end.

use std::sync::Arc;
use std::time::UNIX_EPOCH;

use bytes::Bytes;
use http::header::{ALLOW, CONTENT_TYPE, HeaderName, HeaderValue, SERVER};
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Either, Full};
use hyper::body::Incoming;

use super::engine;
use super::generation::Generation;
use super::replica::Replica;
use super::request::{Body, Work};
use super::server::EventStream;
use super::spans::Call;
use super::text::{Answer, Finish, Prompt};
use super::wire::{Api, Events, Refusal, Reply, documents};
use tokenweir_core::clock;
use tokenweir_core::trace_context::TraceParent;

type ReplyBody = Either<Full<Bytes>, EventStream>;

const TRACE_PARENT: HeaderName = HeaderName::from_static("traceparent");
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const JSON: HeaderValue = HeaderValue::from_static("application/json");
const EVENTS: HeaderValue = HeaderValue::from_static("text/event-stream; charset=utf-8");
const METRICS: HeaderValue = HeaderValue::from_static("text/plain; version=1.0.0; charset=utf-8");

/// What a path leads to.
enum Endpoint {
    Page(fn(&Replica) -> Response<ReplyBody>),
    Generate(Api),
    AboutPrompt(fn(Body, &Replica) -> String),
    Embed,
}

fn endpoint(path: &str) -> Option<Endpoint> {
    Some(match path {
        "/v1/chat/completions" => Endpoint::Generate(Api::Chat),
        "/v1/completions" => Endpoint::Generate(Api::Completions),
        "/v1/responses" => Endpoint::Generate(Api::Responses),
        "/v1/messages" => Endpoint::Generate(Api::Messages),
        "/v1/embeddings" => Endpoint::Embed,
        "/v1/messages/count_tokens" => Endpoint::AboutPrompt(|body, _| {
            documents::count_tokens(body.prompts().iter().map(Prompt::token_count).sum())
        }),
        "/tokenize" => Endpoint::AboutPrompt(|body, replica| {
            let texts = body.return_token_strs == Some(true);
            let prompt = body.prompts().pop().unwrap_or_default();
            documents::tokenize(&prompt, replica.settings().max_model_len(), texts)
        }),
        "/detokenize" => Endpoint::AboutPrompt(|body, _| {
            documents::detokenize(&body.prompts().pop().unwrap_or_default())
        }),
        "/v1/models" => Endpoint::Page(|replica| {
            let settings = replica.settings();
            let limits = settings.limits();
            json(documents::models(limits.models, replica.created(), limits.max_model_len))
        }),
        "/health" | "/ping" => Endpoint::Page(|_| page(None, "")),
        "/version" => Endpoint::Page(|_| json(documents::VERSION)),
        "/metrics" => Endpoint::Page(|replica| page(Some(METRICS), replica.metrics())),
        "/load" => Endpoint::Page(|replica| {
            let stats = replica.stats();
            json(documents::load(stats.requests - stats.aborts - stats.finished))
        }),
        "/sim/stats" => Endpoint::Page(|replica| {
            json(serde_json::to_string(&replica.stats()).unwrap_or_default())
        }),
        _ => return None,
    })
}

/// The answer to a request; `server` and, if the settings ask for it, the request id included.
pub(super) async fn answer(
    request: Request<Incoming>,
    replica: &Arc<Replica>,
) -> Response<ReplyBody> {
    let request_id = request.headers().get(REQUEST_ID).cloned();
    let mut response = route(request, replica).await;
    let headers = response.headers_mut();
    headers.insert(SERVER, HeaderValue::from_static("uvicorn"));
    if replica.settings().request_id_headers {
        let random = || HeaderValue::try_from(replica.random_id()).ok();
        headers.extend(request_id.or_else(random).map(|id| (REQUEST_ID, id)));
    }
    response
}

async fn route(request: Request<Incoming>, replica: &Arc<Replica>) -> Response<ReplyBody> {
    let Some(endpoint) = endpoint(request.uri().path()) else {
        return with_status(StatusCode::NOT_FOUND, json(documents::NOT_FOUND));
    };
    let (allowed, name) = match endpoint {
        Endpoint::Page(_) => (Method::GET, "GET"),
        _ => (Method::POST, "POST"),
    };
    if *request.method() != allowed {
        let mut response = json(documents::METHOD_NOT_ALLOWED);
        response.headers_mut().insert(ALLOW, HeaderValue::from_static(name));
        return with_status(StatusCode::METHOD_NOT_ALLOWED, response);
    }
    let (api, result) = match endpoint {
        Endpoint::Page(page) => return page(replica),
        Endpoint::Generate(api) => (Some(api), generate(request, api, replica).await),
        Endpoint::AboutPrompt(about) => {
            let (_, body) = read(request).await;
            (None, body.map(|body| json(about(body, replica))))
        }
        Endpoint::Embed => (None, embed(request, replica).await),
    };
    result.unwrap_or_else(|refusal| {
        let status = StatusCode::from_u16(refusal.status).unwrap_or(StatusCode::BAD_REQUEST);
        with_status(status, json(refusal.body(api)))
    })
}

async fn generate(
    request: Request<Incoming>,
    api: Api,
    replica: &Arc<Replica>,
) -> Result<Response<ReplyBody>, Refusal> {
    let (headers, body) = read(request).await;
    let body = body?;
    let stream = body.stream == Some(true);
    let (temperature, top_p) = (body.temperature.unwrap_or(1.0), body.top_p.unwrap_or(1.0));
    let settings = replica.settings();
    let work = body.work(api, settings.limits())?;
    let id = answer_id(api, &headers, replica);
    let generation = submit(&work, replica, Some(call(&work, &headers, &id)))?;
    let reply = Reply {
        api,
        id,
        item_id: format!("msg_{}", replica.random_id()),
        created: unix_seconds(),
        model: settings.model().to_owned(),
        prompt_tokens: work.prompt_tokens(),
        answers: work.answers,
        include_usage: work.include_usage,
        continuous_usage: work.continuous_usage,
        temperature,
        top_p,
        max_output_tokens: work.max_output_tokens,
    };
    if stream {
        let mut response = page(Some(EVENTS), "");
        *response.body_mut() = Either::Right(EventStream::new(Events::new(reply), generation));
        return Ok(response);
    }
    let wanted: Vec<u32> = reply.answers.iter().map(|answer| answer.tokens).collect();
    let cached_tokens = generation.finished(&wanted).await;
    let whole = reply.whole(cached_tokens).freeze();
    generation.count_bytes(whole.len());
    Ok(json(whole))
}

/// A pooling model has no output; one token stands for the pass over the prompt.
async fn embed(
    request: Request<Incoming>,
    replica: &Arc<Replica>,
) -> Result<Response<ReplyBody>, Refusal> {
    let (_, body) = read(request).await;
    let body = body?;
    let settings = replica.settings();
    body.check_model(settings.limits())?;
    let base64 = body.encoding_format.as_deref() == Some("base64");
    let prompts = body.prompts();
    let answers = prompts.iter().map(|prompt| Answer {
        seed: prompt.hash(),
        tokens: 1,
        finish: Finish::Stop,
    });
    let work = Work { answers: answers.collect(), prompts, ..Work::default() };
    submit(&work, replica, None)?.finished(&vec![1; work.prompts.len()]).await;
    let id = format!("embd-{}", replica.random_id());
    let (created, model) = (unix_seconds(), settings.model());
    Ok(json(documents::embeddings(&id, created, model, &work.prompts, base64)))
}

/// What the span of a request tells.
fn call(work: &Work, headers: &HeaderMap, id: &str) -> Call {
    let parent = headers.get(TRACE_PARENT).and_then(|value| value.to_str().ok());
    Call {
        parent: parent.and_then(TraceParent::parse),
        request_id: id.to_owned(),
        prompt_tokens: work.prompt_tokens(),
        output_tokens: work.answers.iter().map(|answer| answer.tokens).sum(),
        max_tokens: work.max_output_tokens,
    }
}

fn submit(work: &Work, replica: &Arc<Replica>, call: Option<Call>) -> Result<Generation, Refusal> {
    let block_size = replica.settings().block_size;
    let each = work.answers.len() / work.prompts.len().max(1);
    let requests = work.answers.iter().enumerate().map(|(index, answer)| {
        let prompt = &work.prompts[index / each.max(1)];
        let request = engine::Request {
            prompt_tokens: prompt.token_count(),
            block_hashes: prompt.block_hashes(answer, block_size),
            output_tokens: answer.tokens,
        };
        (request, answer.finish)
    });
    replica.submit(requests, call).map_err(|error| Refusal::bad_value(&error.to_string(), None))
}

/// The headers, and the body once all of it is here.
async fn read(request: Request<Incoming>) -> (HeaderMap, Result<Body, Refusal>) {
    let (parts, body) = request.into_parts();
    // A body that breaks off ends the connection, so its answer is never seen.
    let bytes = body.collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
    let content_type = parts.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let body = Body::read(content_type, &bytes);
    (parts.headers, body)
}

/// The id of the request with the prefix of the API. Responses have an id of their own.
fn answer_id(api: Api, headers: &HeaderMap, replica: &Replica) -> String {
    let given = headers.get(REQUEST_ID).and_then(|value| value.to_str().ok());
    match given.filter(|_| api != Api::Responses) {
        Some(id) => format!("{}{id}", api.id_prefix()),
        None => format!("{}{}", api.id_prefix(), replica.random_id()),
    }
}

fn json(body: impl Into<Bytes>) -> Response<ReplyBody> {
    page(Some(JSON), body)
}

fn page(content_type: Option<HeaderValue>, body: impl Into<Bytes>) -> Response<ReplyBody> {
    let mut response = Response::new(Either::Left(Full::new(body.into())));
    response.headers_mut().extend(content_type.map(|value| (CONTENT_TYPE, value)));
    response
}

fn with_status<B>(status: StatusCode, mut response: Response<B>) -> Response<B> {
    *response.status_mut() = status;
    response
}

fn unix_seconds() -> u64 {
    clock::wall().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}
