//! Learns which engine blocks contain the prompts of requests that have ended.

use super::knowledge::{CacheKnowledge, EndedRequest};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokenweir_kv_events::correlation::AnsweredRequest;
use tokenweir_net::supervise::{self, SupervisedTask};
use tokenweir_protocol::clock;
use tokio::time::sleep_until;

/// Time that the learner waits after the end of a request, so that the last events of the request
/// arrive. A batch of KV events arrives a few milliseconds after the step of the engine.
const GRACE: Duration = Duration::from_millis(250);

/// Starts the learner task. The task ends when the returned value is dropped.
pub(crate) fn start(knowledge: &Arc<CacheKnowledge>) -> SupervisedTask {
    let knowledge = knowledge.clone();
    supervise::spawn(crate::settings::TASK, move || run(knowledge.clone()))
}

/// Learns which engine blocks contain the prompts of ended requests, until the future is dropped.
async fn run(knowledge: Arc<CacheKnowledge>) {
    let mut inbox = knowledge.inbox.lock().await;
    let mut pending: VecDeque<(Instant, EndedRequest)> = VecDeque::new();
    loop {
        let due = pending.front().map(|(due, _)| *due);
        let next_due = async {
            match due {
                Some(due) => sleep_until(due.into()).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            ended = inbox.recv() => match ended {
                Some(ended) => pending.push_back((clock::now() + GRACE, ended)),
                None => return,
            },
            () = next_due => {
                if let Some((_, ended)) = pending.pop_front() {
                    knowledge.count_learned(learn(&knowledge, &ended));
                }
            }
        }
    }
}

/// Learns which engine blocks contain the prompt of one ended request. Returns whether the blocks
/// of the request could be assigned to its text.
fn learn(knowledge: &CacheKnowledge, ended: &EndedRequest) -> bool {
    let Some(chain) = knowledge.chains().end(ended.key) else {
        return false;
    };
    let Some(prompt_tokens) = ended.usage.input else {
        return false;
    };
    let request = AnsweredRequest {
        text_blocks: &ended.prompt.blocks,
        whole: ended.prompt.whole,
        block_bytes: ended.prompt.block_bytes,
        bytes: ended.prompt.bytes,
        prompt_tokens,
        cached_tokens: ended.usage.cached,
    };
    // While the index is locked for a write, routing treats it as unknown. So the long step,
    // `align`, takes only a read lock, and the short step, `learn`, takes the write lock.
    let alignment = ended.space.read().align(&request, &chain, ended.block_size);
    let Some(alignment) = alignment else {
        return false;
    };
    ended.space.write().learn(&alignment);
    true
}
