//! Routes requests to handlers, with the status codes and headers of vLLM's Python front end.

use std::sync::Arc;
use std::time::UNIX_EPOCH;

use bytes::Bytes;
use http::header::{ALLOW, CONTENT_TYPE, HeaderName, HeaderValue, SERVER};
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Either, Full};
use hyper::body::Incoming;

use super::event_stream::EventStream;
use super::request::{GenerationWork, InferenceRequestBody};
use crate::engine;
use crate::generation::Generation;
use crate::simulated_backend::{SimulatedBackend, SubmittedSequence};
use crate::telemetry::{KvEventPublisher, RequestSpan, SequenceOrigin};
use crate::text::{SimulatedFinishReason, SimulatedOutput, SimulatedPrompt};
use crate::wire::{EventWriter, GenerationApi, SimulatedResponse, VllmError, documents};
use tokenweir_protocol::clock;
use tokenweir_protocol::trace_context::TraceParent;

type ResponseBody = Either<Full<Bytes>, EventStream>;

const TRACE_PARENT_HEADER: HeaderName = HeaderName::from_static("traceparent");
const SESSION_ID_HEADER: HeaderName = HeaderName::from_static("x-session-id");
const REQUEST_ID_HEADER: HeaderName = HeaderName::from_static("x-request-id");
const JSON_CONTENT_TYPE: HeaderValue = HeaderValue::from_static("application/json");
const EVENT_STREAM_CONTENT_TYPE: HeaderValue =
    HeaderValue::from_static("text/event-stream; charset=utf-8");
const METRICS_CONTENT_TYPE: HeaderValue =
    HeaderValue::from_static("text/plain; version=1.0.0; charset=utf-8");

/// The kind of a path, with its handler.
enum Endpoint {
    /// An action of `POST`, without a request body.
    Action(fn(&SimulatedBackend) -> Response<ResponseBody>),
    /// A page for `GET`, without a request body.
    Page(fn(&SimulatedBackend) -> Response<ResponseBody>),
    /// Generation of output, as a stream or as one body.
    Generate(GenerationApi),
    /// A JSON document that is computed from the prompts of the request without the engine.
    PromptDocument(fn(InferenceRequestBody, &SimulatedBackend) -> String),
    /// Embeddings of the prompts of the request.
    Embed,
}

/// The handler of a path. `None`: the path does not exist.
fn endpoint(path: &str, backend: &SimulatedBackend) -> Option<Endpoint> {
    Some(match path {
        // vLLM has this path only in its developer mode.
        "/reset_prefix_cache" if backend.kv_events.is_some() => Endpoint::Action(|backend| {
            json(format!(r#"{{"success":{}}}"#, backend.reset_prefix_cache()))
        }),
        "/v1/chat/completions" => Endpoint::Generate(GenerationApi::Chat),
        "/v1/completions" => Endpoint::Generate(GenerationApi::Completions),
        "/v1/responses" => Endpoint::Generate(GenerationApi::Responses),
        "/v1/messages" => Endpoint::Generate(GenerationApi::Messages),
        "/v1/embeddings" => Endpoint::Embed,
        "/v1/messages/count_tokens" => Endpoint::PromptDocument(|body, _| {
            documents::count_tokens(
                body.prompts()
                    .iter()
                    .map(SimulatedPrompt::token_count)
                    .sum(),
            )
        }),
        "/tokenize" => Endpoint::PromptDocument(|body, backend| {
            let prompt = body.prompts().pop().unwrap_or_default();
            documents::tokenize(&prompt, backend.settings.max_model_len())
        }),
        "/detokenize" => Endpoint::PromptDocument(|body, _| {
            documents::detokenize(&body.prompts().pop().unwrap_or_default())
        }),
        _ => return page_endpoint(path),
    })
}

/// The handler of a path with a page. `None`: the path has no page.
fn page_endpoint(path: &str) -> Option<Endpoint> {
    Some(match path {
        "/kv_event_sources" => Endpoint::Page(|backend| {
            json(
                backend
                    .kv_events
                    .as_ref()
                    .map_or("{}".to_owned(), KvEventPublisher::sources),
            )
        }),
        "/v1/models" => Endpoint::Page(|backend| {
            let settings = &backend.settings;
            let limits = settings.limits();
            json(documents::models(
                limits.models,
                backend.created,
                limits.max_model_len,
            ))
        }),
        "/health" | "/ping" => Endpoint::Page(|_| page(None, "")),
        "/version" => Endpoint::Page(|_| json(documents::VERSION)),
        "/metrics" => Endpoint::Page(|backend| page(Some(METRICS_CONTENT_TYPE), backend.metrics())),
        _ => return None,
    })
}

/// Responds to a request, with the `server` header of vLLM.
pub(super) async fn respond(
    request: Request<Incoming>,
    backend: &Arc<SimulatedBackend>,
) -> Response<ResponseBody> {
    let mut response = route(request, backend).await;
    response
        .headers_mut()
        .insert(SERVER, HeaderValue::from_static("uvicorn"));
    response
}

async fn route(
    request: Request<Incoming>,
    backend: &Arc<SimulatedBackend>,
) -> Response<ResponseBody> {
    let Some(endpoint) = endpoint(request.uri().path(), backend) else {
        return with_status(StatusCode::NOT_FOUND, json(documents::NOT_FOUND));
    };
    let (allowed, name) = match endpoint {
        Endpoint::Page(_) => (Method::GET, "GET"),
        _ => (Method::POST, "POST"),
    };
    if *request.method() != allowed {
        let mut response = json(documents::METHOD_NOT_ALLOWED);
        response
            .headers_mut()
            .insert(ALLOW, HeaderValue::from_static(name));
        return with_status(StatusCode::METHOD_NOT_ALLOWED, response);
    }
    let (api, result) = match endpoint {
        Endpoint::Page(respond) | Endpoint::Action(respond) => return respond(backend),
        Endpoint::Generate(api) => (Some(api), generate(request, api, backend).await),
        Endpoint::PromptDocument(render) => {
            let (_, body) = read_request(request).await;
            (None, body.map(|body| json(render(body, backend))))
        }
        Endpoint::Embed => (None, embed(request, backend).await),
    };
    result.unwrap_or_else(|error| {
        let status = StatusCode::from_u16(error.status).unwrap_or(StatusCode::BAD_REQUEST);
        with_status(status, json(error.body(api)))
    })
}

async fn generate(
    request: Request<Incoming>,
    api: GenerationApi,
    backend: &Arc<SimulatedBackend>,
) -> Result<Response<ResponseBody>, VllmError> {
    let (headers, body) = read_request(request).await;
    let body = body?;
    let stream = body.stream == Some(true);
    let temperature = body.temperature.unwrap_or(1.0);
    let top_p = body.top_p.unwrap_or(1.0);
    let settings = &backend.settings;
    let work = body.work(api, settings.limits())?;
    let id = response_id(api, &headers, backend);
    let span = request_span(&work, &headers, &id);
    let generation = submit(&work, &headers, backend, Some(span))?;
    let reply = SimulatedResponse {
        api,
        id,
        item_id: format!("msg_{}", backend.random_id()),
        created: unix_seconds(),
        model: settings.model().to_owned(),
        prompt_tokens: work.prompt_tokens(),
        outputs: work.outputs,
        include_usage: work.include_usage,
        continuous_usage: work.continuous_usage,
        temperature,
        top_p,
        max_output_tokens: work.max_output_tokens,
    };
    if stream {
        let mut response = page(Some(EVENT_STREAM_CONTENT_TYPE), "");
        *response.body_mut() = Either::Right(EventStream::new(EventWriter::new(reply), generation));
        return Ok(response);
    }
    let token_counts: Vec<u32> = reply.outputs.iter().map(|output| output.tokens).collect();
    let cached_tokens = generation.wait_until_finished(&token_counts).await;
    Ok(json(reply.render_body(cached_tokens)))
}

/// Computes embeddings. A pooling model generates nothing. In the simulator, each prompt has one output token,
/// so that the engine computes the prompt once.
async fn embed(
    request: Request<Incoming>,
    backend: &Arc<SimulatedBackend>,
) -> Result<Response<ResponseBody>, VllmError> {
    let (headers, body) = read_request(request).await;
    let body = body?;
    let settings = &backend.settings;
    body.check_model(settings.limits())?;
    let base64 = body.encoding_format.as_deref() == Some("base64");
    let prompts = body.prompts();
    let outputs = prompts.iter().map(|prompt| SimulatedOutput {
        seed: prompt.hash(),
        tokens: 1,
        finish: SimulatedFinishReason::Stop,
    });
    let work = GenerationWork {
        outputs: outputs.collect(),
        prompts,
        ..GenerationWork::default()
    };
    submit(&work, &headers, backend, None)?
        .wait_until_finished(&vec![1; work.prompts.len()])
        .await;
    let id = format!("embd-{}", backend.random_id());
    let created = unix_seconds();
    let model = settings.model();
    Ok(json(documents::embeddings(
        &id,
        created,
        model,
        &work.prompts,
        base64,
    )))
}

fn request_span(work: &GenerationWork, headers: &HeaderMap, id: &str) -> RequestSpan {
    let parent = headers
        .get(TRACE_PARENT_HEADER)
        .and_then(|value| value.to_str().ok());
    RequestSpan {
        parent: parent.and_then(TraceParent::parse),
        request_id: id.to_owned(),
        prompt_tokens: work.prompt_tokens(),
        output_tokens: work.outputs.iter().map(|output| output.tokens).sum(),
        max_tokens: work.max_output_tokens,
    }
}

/// Submits one sequence per output to the engine.
fn submit(
    work: &GenerationWork,
    headers: &HeaderMap,
    backend: &Arc<SimulatedBackend>,
    request_span: Option<RequestSpan>,
) -> Result<Generation, VllmError> {
    let block_size = backend.settings.block_size;
    let choices = work.outputs.len() / work.prompts.len().max(1);
    let header = headers
        .get(SESSION_ID_HEADER)
        .and_then(|value| value.to_str().ok());
    let session_id = work.session_id.as_deref().or(header);
    let requests = work.outputs.iter().enumerate().map(|(index, output)| {
        let prompt = &work.prompts[index / choices.max(1)];
        let origin = backend.kv_events.as_ref().map(|_| SequenceOrigin {
            session_id: session_id.map(str::to_owned),
            token_ids: prompt.followed_by(output).tokens().collect(),
        });
        let request = engine::SequenceRequest {
            prompt_tokens: prompt.token_count(),
            block_hashes: prompt.block_hashes(output, block_size),
            output_tokens: output.tokens,
            adapter: None,
        };
        let finish = output.finish;
        let origin = origin.unwrap_or_default();
        SubmittedSequence {
            request,
            finish,
            origin,
        }
    });
    Generation::submit(backend, requests, request_span)
        .map_err(|error| VllmError::bad_value(&error.to_string(), None))
}

/// Reads the headers and the complete body of a request.
async fn read_request(
    request: Request<Incoming>,
) -> (HeaderMap, Result<InferenceRequestBody, VllmError>) {
    let (parts, body) = request.into_parts();
    // If the body breaks off, the connection ends too, so the client never sees this response.
    let bytes = body
        .collect()
        .await
        .map(http_body_util::Collected::to_bytes)
        .unwrap_or_default();
    let content_type = parts
        .headers
        .get(CONTENT_TYPE)
        .and_then(|value| value.to_str().ok());
    let body = InferenceRequestBody::read(content_type, &bytes);
    (parts.headers, body)
}

/// The id of a response: the prefix of the API, and then the request id of the client. In the Responses API,
/// and without a request id, a random id follows the prefix.
fn response_id(api: GenerationApi, headers: &HeaderMap, backend: &SimulatedBackend) -> String {
    let client_id = headers
        .get(REQUEST_ID_HEADER)
        .and_then(|value| value.to_str().ok());
    match client_id {
        Some(id) if api != GenerationApi::Responses => format!("{}{id}", api.id_prefix()),
        _ => format!("{}{}", api.id_prefix(), backend.random_id()),
    }
}

fn json(body: impl Into<Bytes>) -> Response<ResponseBody> {
    page(Some(JSON_CONTENT_TYPE), body)
}

fn page(content_type: Option<HeaderValue>, body: impl Into<Bytes>) -> Response<ResponseBody> {
    let mut response = Response::new(Either::Left(Full::new(body.into())));
    response
        .headers_mut()
        .extend(content_type.map(|value| (CONTENT_TYPE, value)));
    response
}

fn with_status<B>(status: StatusCode, mut response: Response<B>) -> Response<B> {
    *response.status_mut() = status;
    response
}

fn unix_seconds() -> u64 {
    clock::wall_time()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs()
}
