//! Other proxies as subjects: nginx and `HAProxy`, with their own access logs.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

/// A proxy of the system that is a subject.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Server {
    Nginx,
    Haproxy,
}

/// Folders of programs that `PATH` of a user may lack.
const FOLDERS: &str = "/usr/local/sbin:/usr/sbin:/sbin";

impl Server {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Nginx => "nginx",
            Self::Haproxy => "haproxy",
        }
    }

    /// Whether the program is installed.
    pub(crate) fn is_installed(self) -> bool {
        Command::new(self.name()).arg("-v").env("PATH", search_path()).output().is_ok()
    }

    /// The configuration of a server at `address`, which writes its files to `folder`.
    pub(crate) fn configuration(
        self,
        [address, backend]: [SocketAddr; 2],
        folder: &Path,
        cores: usize,
    ) -> String {
        let folder = folder.display();
        match self {
            Self::Nginx => format!(
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
            Self::Haproxy => format!(
                "global\n nbthread {cores}\n maxconn 8000\n log stdout format raw local0\n\
                 defaults\n mode http\n log global\n option httplog\n timeout connect 5s\n timeout client 3600s\n \
                 timeout server 3600s\n http-reuse always\n\
                 frontend clients\n bind {address}\n default_backend engines\n\
                 backend engines\n server one {backend}\n"
            ),
        }
    }

    /// The arguments with which the server runs in the foreground with this configuration.
    pub(crate) fn arguments(self, configuration: &Path) -> Vec<&std::ffi::OsStr> {
        let (before, after) = match self {
            Self::Nginx => (vec!["-c"], None),
            Self::Haproxy => (vec!["-f"], Some("-db")),
        };
        let before = before.into_iter().map(AsRef::as_ref);
        before.chain([configuration.as_os_str()]).chain(after.map(AsRef::as_ref)).collect()
    }
}

/// The folders in which the programs are.
pub(crate) fn search_path() -> String {
    format!("{}:{FOLDERS}", std::env::var("PATH").unwrap_or_default())
}
