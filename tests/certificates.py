"""Certificates in PEM for tests of TLS, made by openssl."""

from __future__ import annotations

import subprocess
from pathlib import Path


def openssl(folder: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)


def new_key(name: str) -> list[str]:
    return ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", f"{name}.key"]


def authority(folder: Path, name: str) -> None:
    """As strict clients want one: by default those of Python 3.13 are."""
    openssl(
        folder, "req", "-x509", *new_key(name), "-out", f"{name}.pem", "-days", "2", "-subj", f"/CN={name}",
        "-addext", "keyUsage=critical,keyCertSign,cRLSign",
    )  # fmt: skip


def signed(folder: Path, name: str, *, by: str) -> Path:
    """A file with a key and its certificate, valid for localhost (not for 127.0.0.1)."""
    (folder / f"{name}.ext").write_text(
        "subjectAltName=DNS:localhost\nauthorityKeyIdentifier=keyid\n", encoding="ascii"
    )
    openssl(folder, "req", "-new", *new_key(name), "-out", f"{name}.csr", "-subj", f"/CN={name}")
    openssl(
        folder, "x509", "-req", "-in", f"{name}.csr", "-CA", f"{by}.pem", "-CAkey", f"{by}.key", "-CAcreateserial",
        "-out", f"{name}.crt", "-days", "2", "-extfile", f"{name}.ext",
    )  # fmt: skip
    both = folder / f"{name}.pem"
    both.write_bytes((folder / f"{name}.key").read_bytes() + (folder / f"{name}.crt").read_bytes())
    both.chmod(0o600)
    return both
