//! The table of all runs to which clients can return.

use super::digest::RunKey;
use super::note::RunOutcome;
use super::run::Run;
use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;
use tokenweir_protocol::atomic::AtomicCount;
use tokenweir_protocol::limits::memory_charge::ExceededLimit;
use tokenweir_protocol::limits::{Party, client_network};
use tokenweir_protocol::mutex::lock;

/// All runs to which clients can return.
#[derive(Debug, Default)]
pub struct Registry {
    table: Mutex<Table>,
    /// Memory of all runs, in bytes.
    pub(super) used: Arc<AtomicCount>,
    /// Number of open runs without a reader.
    pub(super) absent: Arc<AtomicCount>,
}

#[derive(Debug, Default)]
pub(super) struct Table {
    pub(super) runs: HashMap<RunKey, Arc<Run>>,
    pub(super) parties: HashMap<Party, RunsOfParty>,
    /// Number of open runs without a reader, by the network of their client.
    pub(super) networks: HashMap<IpAddr, Arc<AtomicCount>>,
}

#[derive(Debug, Default)]
pub(super) struct RunsOfParty {
    /// Memory of the runs, in bytes.
    pub(super) used: Arc<AtomicCount>,
    /// Number of open runs without a reader.
    pub(super) absent: Arc<AtomicCount>,
    /// The runs whose whole response a reader has got, the earliest first. They are evicted in this order,
    /// because their clients are the least likely to return.
    delivered: VecDeque<RunKey>,
}

impl Registry {
    /// The memory of all runs, in bytes.
    pub fn used_bytes(&self) -> usize {
        self.used.get()
    }

    /// Number of open runs without a reader whose clients have this address (IPv6: an address of its network).
    pub fn absent_of(&self, client: IpAddr) -> usize {
        if self.absent.get() == 0 {
            return 0;
        }
        let absent = self.lock().networks.get(&client_network(client)).cloned();
        absent.map_or(0, |absent| absent.get())
    }

    /// Whether a run with this client and `Idempotency-Key` exists.
    pub fn is_known(&self, key: &RunKey) -> bool {
        self.lock().runs.contains_key(key)
    }

    /// Removes the runs whose window is over at `now`. Open runs among them are aborted.
    pub fn sweep(&self, now: Instant) {
        let mut table = self.lock();
        if table.parties.is_empty() && table.networks.is_empty() {
            return;
        }
        table.runs.retain(|_, run| {
            let mut state = run.lock();
            let has_expired = state.has_expired(run.window, now);
            if has_expired && state.end.is_none() {
                run.note.set(RunOutcome::Abandoned);
            }
            if has_expired {
                state.stop_keeping();
            }
            !has_expired
        });
        let Table {
            runs,
            parties,
            networks,
        } = &mut *table;
        parties.retain(|_, party| {
            while party
                .delivered
                .pop_front_if(|key| !runs.contains_key(key))
                .is_some()
            {}
            party.used.get() > 0
        });
        networks.retain(|_, absent| Arc::strong_count(absent) > 1);
    }

    /// Removes a run from the table, so that another run can use its key.
    pub(super) fn forget(&self, run: &Arc<Run>) {
        let mut table = self.lock();
        if table
            .runs
            .get(&run.key)
            .is_some_and(|known| Arc::ptr_eq(known, run))
        {
            table.runs.remove(&run.key);
        }
        run.lock().stop_keeping();
    }

    /// Removes one run of the party to make room for another: the earliest of the runs whose whole response a
    /// reader has got. `false`: no such run exists, or `limit` is the limit of one run.
    pub(super) fn evict_delivered(&self, party: Party, limit: ExceededLimit) -> bool {
        self.lock().evict_delivered(party, limit)
    }

    /// Records that a reader has got the whole response of a run.
    pub(super) fn on_delivered(&self, run: &Run) {
        if let Some(party) = self.lock().parties.get_mut(&run.party) {
            party.delivered.push_back(run.key);
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Table> {
        lock(&self.table)
    }
}

impl Table {
    pub(super) fn evict_delivered(&mut self, party: Party, limit: ExceededLimit) -> bool {
        let Self { runs, parties, .. } = self;
        let Some(party) = parties.get_mut(&party) else {
            return false;
        };
        while limit != ExceededLimit::One
            && let Some(delivered) = party.delivered.pop_front()
        {
            let Some(run) = runs.get(&delivered) else {
                continue;
            };
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
