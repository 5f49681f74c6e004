//! Runs one health checker for each backend of the pool, and the background tasks of options. A
//! new backend is checked before it joins the pool, so that the policy can pick the backend as soon as it is
//! in the pool.

use crate::backend::drivers::BackendDrivers;
use crate::backend::health_checker::{CheckContext, HealthChecker, ScrapeObserver, ScrapeSettings};
use crate::backend::pool::BackendPool;
use crate::backend::{Backend, PoolSettings, PoolUpdate};
use std::sync::Arc;
use std::time::Duration;
use tokenweir_net::client::HttpClient;
use tokenweir_net::supervise::{self, BackgroundTask, SupervisedTask};
use tokenweir_protocol::clock;
use tokio::task::JoinSet;

/// Owns the background tasks of the backends of a pool. The tasks end when the supervisor is dropped.
pub struct HealthCheckSupervisor {
    context: Arc<CheckContext>,
    drivers: BackendDrivers,
    checked_backends: Vec<CheckedBackend>,
    /// One task for each backend that left the pool with open requests. The task checks the backend until the
    /// requests end.
    retiring: JoinSet<()>,
    _option_tasks: Vec<SupervisedTask>,
}

/// A backend with its tasks. The tasks end when this value is dropped.
struct CheckedBackend {
    backend: Arc<Backend>,
    _tasks: Vec<SupervisedTask>,
}

/// Interval at which the task of a backend that left the pool looks for open requests.
const RETIREMENT_INTERVAL: Duration = Duration::from_secs(1);

impl CheckedBackend {
    /// Checks the backend until its last request has ended.
    async fn retire(self) {
        while self.backend.load.in_flight() > 0 {
            tokio::time::sleep(RETIREMENT_INTERVAL).await;
        }
    }
}

impl HealthCheckSupervisor {
    /// Starts a health checker for each backend of the pool. Must be called inside a Tokio runtime.
    pub fn new(
        pool: Arc<BackendPool>,
        client: HttpClient,
        settings: ScrapeSettings,
        scrape_observer: Arc<dyn ScrapeObserver>,
        drivers: BackendDrivers,
    ) -> Self {
        let alignment_origin = clock::now();
        let option_tasks = drivers
            .iter()
            .filter_map(|driver| driver.start(&pool))
            .collect();
        let context = CheckContext {
            pool,
            client,
            settings,
            scrape_observer,
            alignment_origin,
        };
        let mut supervisor = Self {
            _option_tasks: option_tasks,
            context: Arc::new(context),
            drivers,
            checked_backends: Vec::new(),
            retiring: JoinSet::new(),
        };
        supervisor.start_all_checkers();
        supervisor
    }

    /// Waits until the first health check of every backend has completed, but not longer than
    /// `timeout`. A backend whose check takes longer gets requests when the check has passed.
    pub async fn wait_first_checks(&self, timeout: Duration) {
        let first_checks = async {
            for checked in &self.checked_backends {
                checked.backend.health.wait_first_check().await;
            }
        };
        let _ = tokio::time::timeout(timeout, first_checks).await;
    }

    /// Plans to replace the backends of the pool. Starts the health checkers of the added backends, and waits at
    /// most `timeout` for their first checks. Requests see no change before [`Self::apply_update`].
    pub async fn prepare_update(
        &mut self,
        backends: Vec<Backend>,
        timeout: Duration,
    ) -> PoolUpdate {
        let update = self.context.pool.plan_update(backends);
        for backend in update.added_backends() {
            self.start_checker(backend.clone());
        }
        self.wait_first_checks(timeout).await;
        update
    }

    /// Replaces the backends of the pool. Stops the health checker of each removed backend when its last
    /// request has ended, because until then the requests must learn if the backend dies. Does not wait.
    pub fn apply_update(&mut self, update: PoolUpdate, settings: &PoolSettings) {
        self.context.pool.apply_update(update, settings);
        let backends = self.context.pool.backends();
        let is_member =
            |backend: &Arc<Backend>| backends.iter().any(|other| Arc::ptr_eq(other, backend));
        while self.retiring.try_join_next().is_some() {}
        for removed in self
            .checked_backends
            .extract_if(.., |checked| !is_member(&checked.backend))
        {
            self.retiring.spawn(removed.retire());
        }
    }

    /// Restarts all health checkers with another HTTP client and other settings.
    pub fn reconfigure(&mut self, client: HttpClient, settings: ScrapeSettings) {
        let previous = CheckContext::clone(&self.context);
        self.context = Arc::new(CheckContext {
            client,
            settings,
            ..previous
        });
        self.checked_backends.clear();
        self.start_all_checkers();
    }

    fn start_all_checkers(&mut self) {
        for backend in self.context.pool.backends().iter() {
            self.start_checker(backend.clone());
        }
    }

    fn start_checker(&mut self, backend: Arc<Backend>) {
        let context = self.context.clone();
        let checked_backend = backend.clone();
        let drivers = self.drivers.clone();
        let run_checker = move || {
            let steps = drivers.iter().filter_map(|driver| driver.check_step());
            HealthChecker::new(context.clone(), checked_backend.clone(), steps).run()
        };
        let mut tasks = vec![supervise::spawn(BackgroundTask::HEALTH_CHECK, run_checker)];
        for driver in &self.drivers {
            tasks.extend(driver.start_for(&backend, &self.context));
        }
        self.checked_backends.push(CheckedBackend {
            backend,
            _tasks: tasks,
        });
    }
}
