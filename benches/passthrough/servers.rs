//! Other proxies and routers, which the bench measures beside the gateway. Each writes its own access log and
//! has its default settings.

use super::subject::Kind;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;

/// Folders in which programs are installed, but which the `PATH` of a normal user may lack.
const FOLDERS: &str = "/usr/local/sbin:/usr/sbin:/sbin";

pub(crate) fn is_installed(program: &str) -> bool {
    search_path()
        .split(':')
        .any(|folder| Path::new(folder).join(program).is_file())
}

/// The text of the configuration file and the arguments with which another proxy or router runs in the
/// foreground. It listens at `address`, reads the configuration from `file` and writes its files to `folder`. The
/// text is empty if it takes arguments instead of a file. `None`: the subject is the gateway or the reference
/// proxy.
pub(crate) fn setup(
    kind: Kind,
    [address, backend]: [SocketAddr; 2],
    (folder, file): (&Path, &Path),
    cores: usize,
) -> Option<(String, String)> {
    let (folder, file) = (folder.display(), file.display());
    let (ip, port) = (address.ip(), address.port());
    let router = || {
        format!(
            "--host {ip} --port {port} --worker-urls http://{backend} --prometheus-port {}",
            free_address().port()
        )
    };
    Some(match kind {
        Kind::Nginx => (
            format!(
                r#"daemon off; pid {folder}/nginx.pid; error_log {folder}/nginx-error.log; worker_processes {cores};
events {{ worker_connections 16384; }}
http {{
    log_format json escape=json '{{"time":"$time_iso8601","client":"$remote_addr","request":"$request","status":$status,'
        '"bytes":$body_bytes_sent,"seconds":$request_time,"backend":"$upstream_addr","backend_seconds":"$upstream_response_time"}}';
    access_log {folder}/nginx-access.log json;
    client_body_temp_path {folder}/nginx-body; proxy_temp_path {folder}/nginx-proxy;
    fastcgi_temp_path {folder}/nginx-fastcgi; uwsgi_temp_path {folder}/nginx-uwsgi; scgi_temp_path {folder}/nginx-scgi;
    keepalive_requests 100000000; client_max_body_size 64m; client_body_buffer_size 4m;
    upstream backend {{ server {backend}; keepalive 256; keepalive_requests 100000000; }}
    server {{
        listen {address} backlog=8192;
        location / {{
            proxy_pass http://backend; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off;
            proxy_read_timeout 3600s;
        }}
    }}
}}
"#
            ),
            format!("-c {file}"),
        ),
        Kind::Haproxy => (
            format!(
                "global\n nbthread {cores}\n maxconn 8000\n log stdout format raw local0\n\
                 defaults\n mode http\n log global\n option httplog\n timeout connect 5s\n timeout client 3600s\n \
                timeout server 3600s\n http-reuse always\n option http-no-delay\n option abortonclose\n\
                 frontend clients\n bind {address}\n default_backend engines\n\
                 backend engines\n server one {backend}\n"
            ),
            format!("-f {file} -db"),
        ),
        Kind::Envoy => (
            format!(
                r#"static_resources:
  listeners:
  - address: {{ socket_address: {{ address: {ip}, port_value: {port} }} }}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: clients
          stream_idle_timeout: 0s
          access_log:
          - name: envoy.access_loggers.file
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog
              path: {folder}/envoy-access.log
          http_filters:
          - name: envoy.filters.http.router
            typed_config: {{ "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router }}
          route_config:
            virtual_hosts:
            - {{ name: all, domains: ["*"], routes: [{{ match: {{ prefix: / }}, route: {{ cluster: engines, timeout: 0s }} }}] }}
  clusters:
  - name: engines
    circuit_breakers: {{ thresholds: [{{ max_connections: 20000, max_requests: 20000, max_pending_requests: 20000 }}] }}
    load_assignment:
      cluster_name: engines
      endpoints: [{{ lb_endpoints: [{{ endpoint: {{ address: {{ socket_address: {{ address: {backend_ip}, port_value: {backend_port} }} }} }} }}] }}]
"#,
                backend_ip = backend.ip(),
                backend_port = backend.port(),
            ),
            format!("-c {file} --concurrency {cores} --disable-hot-restart -l error"),
        ),
        Kind::LiteLlm => (
            format!(
                "model_list:\n- model_name: tiny\n  litellm_params: {{ model: hosted_vllm/tiny, api_base: \
                 \"http://{backend}/v1\", api_key: none }}\n"
            ),
            format!("--config {file} --host {ip} --port {port} --num_workers {cores}"),
        ),
        Kind::VllmRouter => (String::new(), router()),
        Kind::Smg => (String::new(), format!("launch {}", router())),
        _ => return None,
    })
}

/// An address whose port is free now.
pub(crate) fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
}

/// The folders in which the programs of the servers are searched, separated by colons.
pub(crate) fn search_path() -> String {
    format!("{}:{FOLDERS}", std::env::var("PATH").unwrap_or_default())
}
