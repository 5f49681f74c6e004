"""Builds a wheel from finished binaries, with the standard library only. maturin would build the binary
itself.

The format is that of https://packaging.python.org/en/latest/specifications/binary-distribution-format/:
an archive with the binary in NAME.data/scripts, which pip installs on the path.
"""

import base64
import hashlib
import pathlib
import platform
import re
import subprocess
import sys
import tempfile
import tomllib
import zipfile

TOP = pathlib.Path(__file__).resolve().parent.parent
# The time of each file in the wheel, so that a binary always gives the same wheel: the earliest time of a zip
# archive.
MOMENT = (1980, 1, 1, 0, 0, 0)


def tags(binary):
    """The platform tags of a binary, from the glibc symbol versions that it requires."""
    machine = platform.machine()
    headers = subprocess.run(["readelf", "-lW", binary], capture_output=True, text=True, check=True)
    if "INTERP" not in headers.stdout:
        return [f"manylinux_2_17_{machine}", f"musllinux_1_1_{machine}"]
    symbols = subprocess.run(["readelf", "-W", "--dyn-syms", binary], capture_output=True, text=True, check=True)
    versions = [(int(a), int(b)) for a, b in re.findall(r"GLIBC_(\d+)\.(\d+)", symbols.stdout)]
    if not versions:
        sys.exit(f"error: {binary} is dynamic, but does not use glibc; link it statically")
    return ["manylinux_{}_{}_{}".format(*max(versions), machine)]


def stripped(binary):
    """The bytes of a binary without symbols."""
    with tempfile.TemporaryDirectory() as folder:
        small = pathlib.Path(folder, "stripped")
        subprocess.run(["strip", "-o", small, binary], check=True)
        return small.read_bytes()


def metadata(package):
    """The metadata of the package. The long description is wheel.md, because README.md links into the repository."""
    return "\n".join([
        "Metadata-Version: 2.4",
        "Name: tokenweir",
        f"Version: {package['version']}",
        f"Summary: {package['description']}",
        f"License-Expression: {package['license']}",
        "License-File: LICENSE",
        f"Keywords: {','.join(package['keywords'])}",
        "Requires-Python: >=3.8",
        "Description-Content-Type: text/markdown",
        "",
        (TOP / "packaging" / "wheel.md").read_text(),
    ])


def main(binary, out, lab=None):
    manifest = tomllib.loads((TOP / "Cargo.toml").read_text())
    # Fields such as `version` are in the workspace section of the manifest.
    package = manifest["package"] | manifest["workspace"]["package"]
    stem = f"tokenweir-{package['version']}"
    platforms = tags(binary)
    info = f"{stem}.dist-info"
    wheel = ["Wheel-Version: 1.0", "Generator: tokenweir", "Root-Is-Purelib: false"]
    wheel += [f"Tag: py3-none-{platform}" for platform in platforms]
    programs = {"tokenweir": binary} | ({"tokenweir-lab": lab} if lab else {})
    files = [
        *((f"{stem}.data/scripts/{name}", stripped(program), 0o755) for name, program in programs.items()),
        (f"{info}/METADATA", metadata(package).encode(), 0o644),
        (f"{info}/WHEEL", "\n".join([*wheel, ""]).encode(), 0o644),
        (f"{info}/licenses/LICENSE", (TOP / "LICENSE").read_bytes(), 0o644),
    ]
    record = "".join(f"{name},sha256={digest(data)},{len(data)}\n" for name, data, _ in files)
    files.append((f"{info}/RECORD", f"{record}{info}/RECORD,,\n".encode(), 0o644))
    path = pathlib.Path(out, f"{stem}-py3-none-{'.'.join(platforms)}.whl")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data, mode in files:
            entry = zipfile.ZipInfo(name, MOMENT)
            entry.external_attr = (0o100000 | mode) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, data)
    print(path)


def digest(data):
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


if __name__ == "__main__":
    main(*sys.argv[1:])
