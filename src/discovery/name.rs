//! A name that may stand for other replicas later: it is asked for again and again.

use super::Source;
use super::dns::{Dns, Question};
use std::time::Duration;
use tokenweir_core::address::Address;
use tokenweir_core::clock;

/// The name.
pub struct WatchedName {
    dns: Dns,
    question: Question,
    every: Duration,
    /// What was told last.
    told: Vec<Address>,
    has_asked: bool,
    is_failing: bool,
}

// === impl WatchedName ===

impl WatchedName {
    /// A name that is asked for at once, and again after each such time.
    pub fn new(dns: Dns, question: Question, every: Duration) -> Self {
        Self { dns, question, every, told: Vec::new(), has_asked: false, is_failing: false }
    }
}

impl Source for WatchedName {
    /// Waits until it stands for other replicas than before, and gives all of them. Failures and
    /// empty answers are waited out.
    async fn changed(&mut self) -> Vec<Address> {
        loop {
            if std::mem::replace(&mut self.has_asked, true) {
                tokio::time::sleep_until((clock::now() + self.every).into()).await;
            }
            let answer = self.dns.ask(&self.question).await;
            let has_failed = std::mem::replace(&mut self.is_failing, answer.is_err());
            let (name, known) = (&self.question, self.told.len());
            match answer {
                Err(error) if has_failed => tracing::debug!(%name, %error, "name not found"),
                Err(error) => {
                    tracing::warn!(%name, %error, known, "name not found; the known ones stay");
                }
                Ok(found) => {
                    if has_failed {
                        tracing::info!(%name, "name found again");
                    }
                    if found != self.told {
                        self.told.clone_from(&found);
                        return found;
                    }
                }
            }
        }
    }
}
