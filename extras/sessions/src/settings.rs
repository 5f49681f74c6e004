//! The settings of admission by live sessions.

use tokenweir_protocol::settings;

settings! {
    /// Admission by live sessions: while the contexts of the sessions in progress do not fit into the KV caches of the
    /// backends, new sessions wait in the admission queue.
    #[derive(Copy, Default, Eq)]
    pub struct SessionSettings {
        /// Whether new sessions wait. Needs `admission.enabled`, and backends that report the capacity of their KV
        /// caches.
        pub enabled: bool,
        /// Number of gateways that share the backends. While no `peer_exchange` connects them, each fills its share of
        /// the KV caches. `None`: those that the exchange knew last, or else one.
        pub gateways: Option<u32>,
    }
}
