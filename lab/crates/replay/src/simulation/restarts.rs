//! Restarts of backends. A process ends without notice, for example because the GPU failed, and its
//! connections break. As in the real gateway, a request without output fails over at once, and a stream with
//! output breaks off. The backend counts as down until a scrape succeeds. This scrape shows the restart: the
//! gateway forgets the prompts that it sent to the backend, and slow start begins.
//!
//! The gateways notice the end of a process when the connection for its KV events breaks. When the backend
//! can serve again, this connection exists again too, because vLLM opens the port of the events before its
//! HTTP port. Limits of retries are not simulated.

use super::Simulation;
use super::event::SimulationEvent;
use super::gateway::QueuedArrival;

impl Simulation<'_> {
    /// Ends the process of a backend, and schedules the start of the next process.
    pub(super) fn restart(&mut self, backend: usize) {
        if self.is_over() {
            return;
        }
        let Some(settings) = self.setup.restarts else {
            return;
        };
        self.engines[backend].restart();
        let started = SimulationEvent::Started(backend, self.engines[backend].process);
        self.schedule(self.now + settings.downtime, started);
        let next = SimulationEvent::Restart((backend + 1) % self.engines.len());
        self.schedule(self.now + settings.interval, next);
        // In reality, a refused connection or the next health check marks the backend as down.
        self.gateways
            .iter_mut()
            .for_each(|gateway| gateway.health[backend].is_down = true);
        let is_here = |number: &usize| {
            let request = &self.in_flight[*number];
            request.backend == backend && request.reservation.is_some()
        };
        let numbers: Vec<usize> = (0..self.in_flight.len()).filter(is_here).collect();
        let failed_over: Vec<usize> = numbers
            .into_iter()
            .filter(|number| !self.cut_stream(*number))
            .collect();
        for number in &failed_over {
            self.discard_attempt(*number);
        }
        for number in failed_over {
            let request = &self.in_flight[number];
            let gateway = request.gateway;
            let arrived_at = request.arrived_at;
            self.admit(gateway, QueuedArrival { number, arrived_at });
        }
    }

    /// Records that the new process of a backend can serve, unless that process has ended, too.
    pub(super) fn on_started(&mut self, backend: usize, process: u32) {
        let state = &mut self.engines[backend];
        state.is_down &= state.process != process;
    }

    /// If the client already has a part of the stream, ends the request as failed. Returns whether this is
    /// the case.
    fn cut_stream(&mut self, number: usize) -> bool {
        let request = &self.in_flight[number];
        let has_output = !request.is_pending;
        if has_output {
            self.end(number, None);
        }
        has_output
    }

    /// Removes a request from the estimated load of its backend, before the request is sent again.
    fn discard_attempt(&mut self, number: usize) {
        let request = &mut self.in_flight[number];
        let Some(reservation) = request.reservation.take() else {
            return;
        };
        let gateway = request.gateway;
        let backend = request.backend;
        let now = self.setup.epoch + self.now;
        self.gateways[gateway].load_estimators[backend].release(reservation, now);
        self.gateways[gateway].update_load_hint(backend, now);
        self.gateways[gateway].router.on_end(number, None);
        self.end_pending(number);
    }
}

#[cfg(test)]
mod tests {
    use super::super::{RestartSettings, Simulation, SimulationSetup};
    use crate::cache_view::CacheView;
    use crate::engine_groups::EngineGroup;
    use crate::results::{RunResults, ServedRequest};
    use crate::routers::RouterKind;
    use crate::tests::prompt;
    use crate::trace::TraceRequest;
    use std::sync::Arc;
    use std::time::Duration;
    use tokenweir_protocol::clock;
    use tokenweir_routing::PolicyKind;

    fn request(at_millis: u64, prompt_tokens: u32, output_tokens: u32) -> TraceRequest {
        TraceRequest {
            at: Duration::from_millis(at_millis),
            prompt_tokens,
            output_tokens,
            prompt: prompt(
                prompt_tokens.into(),
                (1..=u64::from(prompt_tokens / 512)).collect(),
            ),
            ..TraceRequest::default()
        }
    }

    /// Runs a simulation in which one backend after the other restarts, one every `interval` seconds. Each is
    /// down for `downtime` seconds.
    fn run(
        (backends, interval, downtime): (&str, u64, u64),
        requests: &[TraceRequest],
        (kind, cache_view): (PolicyKind, CacheView),
    ) -> RunResults {
        let group: EngineGroup = backends.parse().unwrap();
        let restarts = Some(RestartSettings {
            interval: Duration::from_secs(interval),
            downtime: Duration::from_secs(downtime),
        });
        let specs = vec![group.spec; group.count];
        let setup = SimulationSetup {
            cache_view,
            restarts,
            ..SimulationSetup::new(specs, clock::now())
        };
        Simulation::new(&setup, requests, RouterKind::Shipped(kind), 1).run(|| ())
    }

    fn served(results: &RunResults, number: usize) -> Option<&ServedRequest> {
        results
            .served
            .iter()
            .find(|served| served.request == number)
    }

    #[test]
    fn a_restart_fails_only_streams_with_output() {
        // In each pair, one request is sent to the backend that restarts at second 5. The prompts of the
        // second pair take a second to compute. No prompts share a prefix.
        let pair = |at, prompt, output| [request(at, prompt, output), request(at, prompt, output)];
        let mut requests = [pair(0, 100, 700), pair(4_900, 30_000, 10)].concat();
        requests.push(request(18_000, 100, 10));
        for request in &mut requests {
            Arc::make_mut(&mut request.prompt).blocks = Box::default();
        }
        let round_robin = (PolicyKind::RoundRobin, CacheView::Approximate);
        let results = run(("2", 5, 2), &requests, round_robin);
        let is_served: Vec<bool> = (0..5)
            .map(|number| served(&results, number).is_some())
            .collect();
        assert_eq!(
            is_served.iter().filter(|is_served| **is_served).count(),
            4,
            "{is_served:?}"
        );
        assert!(is_served[0] != is_served[1] && is_served[2] && is_served[3] && is_served[4]);
        assert_eq!(results.placements.len(), 6, "one request is sent twice");
        let sent_again = results
            .placements
            .iter()
            .filter(|(at, _)| *at > 4.95 && *at < 5.05);
        assert_eq!(sent_again.count(), 1);
        let ttft = [2, 3].map(|number| served(&results, number).unwrap().ttft);
        assert!(
            ttft[0].max(ttft[1]) > 1.9,
            "{ttft:?}: the time counts from the arrival"
        );
    }

    #[test]
    fn a_restarted_backend_gets_a_small_share() {
        let requests: Vec<TraceRequest> = (0..2_000)
            .map(|number| request(number * 50, 100, 2))
            .collect();
        let round_robin = (PolicyKind::RoundRobin, CacheView::Approximate);
        // The first backend is down from second 60 to second 70.
        let results = run(("2", 60, 10), &requests, round_robin);
        let share = |from: f64, to: f64| {
            let in_time = results
                .placements
                .iter()
                .filter(|(at, _)| (from..to).contains(at));
            let first = in_time
                .clone()
                .filter(|(_, position)| *position == 0)
                .count();
            first as f64 / in_time.count() as f64
        };
        assert!(
            (0.4..0.6).contains(&share(30.0, 60.0)),
            "{}",
            share(30.0, 60.0)
        );
        assert!(share(60.01, 70.0) < 0.001, "{}", share(60.01, 70.0));
        let after = [share(70.2, 75.0), share(90.0, 100.0)];
        assert!(
            after[0] > 0.0 && after[0] < 0.25 && after[1] > 1.5 * after[0],
            "{after:?}"
        );
    }

    #[test]
    fn no_view_expects_tokens_of_ended_processes() {
        for view in CacheView::ALL {
            let seconds = [0, 5, 10, 20, 35, 40].map(|at: u64| request(at * 1_000, 20_480, 4));
            let results = run(("1", 30, 1), &seconds, (PolicyKind::KvAware, view));
            let [before, after, again] = [3, 4, 5].map(|number| *served(&results, number).unwrap());
            assert!(before.cached > 20_000 && after.cached == 0 && again.cached > 20_000);
            let predictions = [before, after, again].map(|served| served.predicted_ttft);
            let warm = predictions[0].max(predictions[2]);
            assert!(predictions[1] > 3.0 * warm, "{view:?}: {predictions:?}");
        }
    }

    #[test]
    fn a_request_fails_while_all_are_down() {
        let requests = [0, 12, 30].map(|at: u64| request(at * 1_000, 100, 2));
        let results = run(
            ("1", 10, 5),
            &requests,
            (PolicyKind::KvAware, CacheView::Events),
        );
        assert_eq!((results.served.len(), results.arrivals.len()), (2, 3));
        assert!(served(&results, 1).is_none());
    }
}
