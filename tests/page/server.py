"""A fake HTTP server."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class SilentHandler(BaseHTTPRequestHandler):
    """A request handler that logs nothing."""

    def respond(self, media_type: str, body: bytes, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("content-type", media_type)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def serve(handler: type[SilentHandler]) -> str:
    """Starts a server that runs until this process ends. Returns its URL."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}"
