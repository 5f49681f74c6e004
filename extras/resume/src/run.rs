//! The task of a run: handles a request to which its client can return after a lost connection, and
//! stores the response for the client's connections.

use http::Request;
use http_body::Body;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tokenweir_gateway::proxy::{
    EarlyResponse, Handling, ProxyContext, ProxyResponseBody, ReceivedBody, RecordedRequest,
    Responding, handle_request,
};
use tokenweir_net::supervise::{self, BackgroundTask};
use tokenweir_request::observe::ResponseAbortHandle;
use tokenweir_request::runs::{End, Producer, RunHead};

/// Handles a request and writes its response to `producer`, from which the client's connections
/// read it.
pub(crate) async fn complete(
    context: Arc<ProxyContext>,
    recorded: Box<RecordedRequest>,
    request: Request<ReceivedBody>,
    producer: Producer,
) {
    let early = Arc::<EarlyResponse>::default();
    let shared = early.clone();
    let handling: Handling = Box::pin(async move {
        // A run has no client connection of its own, so no slow client aborts it.
        let abort = ResponseAbortHandle::default();
        handle_request(&context, recorded, abort, &shared, request).await
    });
    Run {
        responding: Responding::new(handling, early),
        body: None,
        producer,
    }
    .complete()
    .await;
}

/// A request that a task of its own handles, so that the client can return after a lost connection.
struct Run {
    responding: Responding,
    /// The body of the response. `None`: the response has not begun.
    body: Option<ProxyResponseBody>,
    producer: Producer,
}

impl Run {
    /// Handles the request until its response ends, or until no client can get the response any more.
    async fn complete(mut self) {
        let mut is_successful = false;
        let writing = poll_fn(|cx| self.poll(cx, &mut is_successful));
        match supervise::catch_panic_async(BackgroundTask::REQUEST, writing).await {
            Some(Some(end)) => {
                // The exchange ended with the response body, so the note about the run is final.
                let has_failed = self.producer.note().has_failed();
                let end = if has_failed && end == End::Whole {
                    End::Failed
                } else {
                    end
                };
                self.producer.end(end, is_successful && !has_failed);
            }
            Some(None) => {}
            None => {
                tracing::error!("a request that can be resumed made the gateway panic (a defect)");
            }
        }
    }

    /// Writes the response to `producer`, and returns how the response ended. `None`: nobody can
    /// get the response any more.
    fn poll(&mut self, cx: &mut Context<'_>, is_successful: &mut bool) -> Poll<Option<End>> {
        if self.producer.poll_abandoned(cx.waker()) {
            return Poll::Ready(None);
        }
        if self.body.is_none() {
            let (head, body) = ready!(Pin::new(&mut self.responding).poll(cx)).into_parts();
            *is_successful = head.status.is_success();
            let length = body.size_hint().exact();
            self.producer.set_head(RunHead {
                status: head.status,
                headers: head.headers,
                length,
            });
            self.body = Some(body);
        }
        let Some(body) = &mut self.body else {
            return Poll::Pending;
        };
        loop {
            ready!(self.producer.poll_writable());
            match Pin::new(&mut *body).poll_frame(cx) {
                Poll::Ready(Some(Ok(frame))) => {
                    if let Ok(data) = frame.into_data() {
                        self.producer.write(&data);
                    }
                }
                Poll::Ready(Some(Err(_))) => return Poll::Ready(Some(End::Broken)),
                Poll::Ready(None) => return Poll::Ready(Some(End::Whole)),
                Poll::Pending => {
                    body.on_flush(true);
                    return Poll::Pending;
                }
            }
        }
    }
}
