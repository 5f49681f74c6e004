"""Self-signed certificates with a chosen period of validity."""

import os
import subprocess
from pathlib import Path

VALID = ("20250101000000Z", "20400101000000Z")
EXPIRED = ("20250101000000Z", "20250201000000Z")
CA = """[ca]
default_ca = self
[self]
dir = .
new_certs_dir = .
database = index.txt
serial = serial
default_md = sha256
policy = any
x509_extensions = extensions
[any]
commonName = supplied
[extensions]
subjectAltName = DNS:localhost
"""


def write(folder: Path, begin: str, end: str) -> None:
    """Writes a self-signed certificate that is valid from `begin` to `end` to cert.pem."""
    openssl = lambda *words: subprocess.run(["openssl", *words], check=True, capture_output=True, cwd=folder)
    if not (folder / "key.pem").exists():
        openssl("req", "-new", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost",
                "-keyout", "key.pem", "-out", "request.pem")
        (folder / "ca.cnf").write_text(CA)
    for name, text in (("index.txt", ""), ("serial", "01\n")):
        (folder / name).write_text(text)
    openssl("ca", "-batch", "-config", "ca.cnf", "-selfsign", "-keyfile", "key.pem", "-in", "request.pem",
            "-out", "new.pem", "-notext", "-startdate", begin, "-enddate", end)
    os.replace(folder / "new.pem", folder / "cert.pem")
