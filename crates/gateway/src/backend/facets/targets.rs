//! The parts of a backend that are targets of routing, such as data-parallel ranks. Each part has its own load.
//! Connections, health and circuit breaker belong to the whole backend.

use arc_swap::ArcSwapOption;
use http::{HeaderMap, HeaderName, HeaderValue};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokenweir_protocol::atomic::AtomicFlag;
use tokenweir_protocol::clock;
use tokenweir_protocol::mutex::lock;
use tokenweir_routing::{Candidate, LoadEstimator, PromptFingerprint, Reservation};

/// The parts of one backend that are targets of routing.
#[derive(Debug, Default)]
pub struct BackendTargets {
    /// Whether `parts` has a value. Routing reads this cheap copy for each candidate.
    are_parts: AtomicFlag,
    /// The parts among which routing chooses. `None`: the whole backend is the target.
    parts: ArcSwapOption<Vec<PartialTarget>>,
}

/// One part of a backend that is a target of routing.
#[derive(Debug)]
pub struct PartialTarget {
    /// The name of the header that selects the part inside the backend.
    pub header: HeaderName,
    /// The value that selects this part.
    pub header_value: HeaderValue,
    /// The text in a response by which the backend refuses the part.
    pub refusal: &'static [u8],
    /// Load and speed of this part alone.
    pub estimator: LoadEstimator,
    /// The number of the part, and its index among the parts.
    pub part: TargetPart,
    /// Hash of the name of the backend and the number of the part.
    pub key: u64,
}

/// A target of routing: a backend, or a part of a backend.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Target<'a> {
    pub(crate) estimator: &'a LoadEstimator,
    pub(crate) key: u64,
    /// The part of the backend. `None`: the whole backend.
    pub(crate) part: Option<TargetPart>,
}

/// A part of a backend that is a target of routing, if the backend has several.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TargetPart {
    /// The number of the part on the metrics page.
    pub number: u32,
    /// Position of the part, ordered by `number`.
    pub index: usize,
    /// Number of parts of the backend.
    pub count: usize,
}

/// The load of one attempt on one part of a backend. Dropping this value releases the load.
#[derive(Debug)]
pub(crate) struct LeasedTarget {
    parts: Arc<Vec<PartialTarget>>,
    index: usize,
    reservation: Mutex<Reservation>,
}

impl BackendTargets {
    /// The parts among which routing chooses. `None`: the whole backend is the target.
    pub fn parts(&self) -> Option<Arc<Vec<PartialTarget>>> {
        if !self.are_parts.get() {
            return None;
        }
        self.parts.load_full()
    }

    /// Makes routing choose among these parts instead of the whole backend.
    pub fn set(&self, parts: Vec<PartialTarget>) {
        self.parts.store(Some(Arc::new(parts)));
        self.are_parts.set(true);
    }

    /// Makes routing choose the whole backend again.
    pub fn clear(&self) {
        self.are_parts.set(false);
        self.parts.store(None);
    }

    /// Sets the age of a load report at which it has half of its weight in predictions.
    pub(crate) fn set_horizon(&self, horizon: Duration) {
        let Some(parts) = self.parts() else { return };
        for part in parts.iter() {
            part.estimator.set_horizon(horizon);
        }
    }

    /// Calls `visit` for each target: each part, or `whole` if the backend has no parts.
    pub(crate) fn visit(&self, whole: &Target<'_>, mut visit: impl FnMut(&Target<'_>)) {
        let Some(parts) = self.parts() else {
            return visit(whole);
        };
        for part in parts.iter() {
            visit(&Target {
                estimator: &part.estimator,
                key: part.key,
                part: Some(part.part),
            });
        }
    }
}

impl LeasedTarget {
    /// Adds a request to the load of the part of `candidate`, which the policy picked. `None`: the candidate is
    /// the whole backend, or the parts have changed since `candidate` was computed.
    pub(crate) fn new(
        targets: &BackendTargets,
        candidate: &Candidate,
        prompt: &PromptFingerprint,
        is_stream: bool,
        now: Instant,
    ) -> Option<Self> {
        let number = candidate.part?;
        let parts = targets.parts()?;
        let index = parts
            .iter()
            .position(|target| target.part.number == number)?;
        let reservation = parts[index]
            .estimator
            .reserve(candidate, prompt, is_stream, now);
        Some(Self {
            parts,
            index,
            reservation: Mutex::new(reservation),
        })
    }

    fn target(&self) -> &PartialTarget {
        &self.parts[self.index]
    }

    /// Sets the header that sends the request to the part.
    pub(crate) fn set_header(&self, headers: &mut HeaderMap) {
        let target = self.target();
        headers.insert(target.header.clone(), target.header_value.clone());
    }

    /// Whether a response refuses the part. `says` returns whether the response contains a text.
    pub(crate) fn is_refused(&self, says: impl Fn(&[u8]) -> bool) -> bool {
        says(self.target().refusal)
    }

    /// Applies an observation of the response to the load of the part.
    pub(crate) fn observe(&self, observe: impl FnOnce(&LoadEstimator, &mut Reservation)) {
        let mut reservation = lock(&self.reservation);
        observe(&self.target().estimator, &mut reservation);
    }
}

impl Drop for LeasedTarget {
    fn drop(&mut self) {
        self.observe(|estimator, reservation| estimator.release(*reservation, clock::now()));
    }
}
