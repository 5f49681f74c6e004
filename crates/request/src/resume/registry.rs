//! The table of all runs that a client can return to.

use super::digest::{Digest, RunKey};
use super::run::Run;
use crate::record::ResumeOutcome;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;
use tokenweir_protocol::limits::memory_charge::ExceededLimit;
use tokenweir_protocol::mutex::lock;

/// All runs that a client can return to. `H` is the head of a response.
#[derive(Debug)]
pub struct Registry<H> {
    table: Mutex<Table<H>>,
    /// Memory of all runs, in bytes.
    pub(super) used: Arc<AtomicUsize>,
}

#[derive(Debug)]
pub(super) struct Table<H> {
    pub(super) runs: HashMap<RunKey, Arc<Run<H>>>,
    pub(super) clients: HashMap<Digest, Client>,
}

/// The runs of one client.
#[derive(Debug, Default)]
pub(super) struct Client {
    /// Memory of the runs of this client, in bytes.
    pub(super) used: Arc<AtomicUsize>,
    /// The runs whose whole response a reader has got, the earliest first. They are evicted first,
    /// because their clients are the least likely to return.
    delivered: VecDeque<RunKey>,
}

impl<H> Default for Registry<H> {
    fn default() -> Self {
        let table = Table { runs: HashMap::new(), clients: HashMap::new() };
        Self { table: Mutex::new(table), used: Arc::default() }
    }
}

impl<H> Registry<H> {
    /// The memory of all runs, in bytes.
    pub fn used_bytes(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// Whether there is a run with this key.
    pub fn is_known(&self, key: &RunKey) -> bool {
        self.lock().runs.contains_key(key)
    }

    /// Forgets the runs whose window is over at `now`. A run that is still open is aborted.
    pub fn sweep(&self, now: Instant) {
        let mut table = self.lock();
        if table.clients.is_empty() {
            return;
        }
        table.runs.retain(|_, run| {
            let mut state = run.lock();
            let has_expired = state.has_expired(run.window, now);
            if has_expired && state.end.is_none() {
                run.note.set(ResumeOutcome::Abandoned);
            }
            if has_expired {
                state.stop_keeping();
            }
            !has_expired
        });
        let Table { runs, clients } = &mut *table;
        clients.retain(|_, client| {
            while client.delivered.pop_front_if(|key| !runs.contains_key(key)).is_some() {}
            client.used.load(Ordering::Relaxed) > 0
        });
    }

    /// Removes a run from the table: its key is free for another run.
    pub(super) fn forget(&self, run: &Arc<Run<H>>) {
        let mut table = self.lock();
        if table.runs.get(&run.key).is_some_and(|known| Arc::ptr_eq(known, run)) {
            table.runs.remove(&run.key);
        }
        run.lock().stop_keeping();
    }

    /// Removes one run of the client to make room for another run: of the runs whose whole response
    /// a reader has got, the one for which this happened first. `false`: there is no such run, or
    /// `limit` is the limit of one run.
    pub(super) fn evict_delivered(&self, key: &RunKey, limit: ExceededLimit) -> bool {
        self.lock().evict_delivered(key, limit)
    }

    /// Records that a reader has got the whole response of a run.
    pub(super) fn on_delivered(&self, run: &Run<H>) {
        if let Some(client) = self.lock().clients.get_mut(&run.key.client) {
            client.delivered.push_back(run.key);
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Table<H>> {
        lock(&self.table)
    }
}

impl<H> Table<H> {
    pub(super) fn evict_delivered(&mut self, key: &RunKey, limit: ExceededLimit) -> bool {
        let Self { runs, clients } = self;
        let Some(client) = clients.get_mut(&key.client) else { return false };
        while limit != ExceededLimit::One
            && let Some(delivered) = client.delivered.pop_front()
        {
            let Some(run) = runs.get(&delivered) else { continue };
            let mut state = run.lock();
            if state.is_delivered && state.readers.is_empty() {
                state.stop_keeping();
                drop(state);
                runs.remove(&delivered);
                return true;
            }
        }
        false
    }
}
