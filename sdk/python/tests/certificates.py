"""Certificates for one test, made by openssl."""

from __future__ import annotations

import subprocess
from pathlib import Path


def authority(folder: Path, name: str) -> Path:
    """A new authority. Its key stands beside it."""
    certificate = folder / f"{name}.pem"
    # Python 3.13 requires this.
    usage = ("-addext", "keyUsage=critical,keyCertSign,cRLSign")
    _request("-subj", f"/CN={name}", *usage, "-keyout", folder / f"{name}.key", "-out", certificate)
    return certificate


def signed(by: Path, name: str, alternative: str) -> tuple[Path, Path]:
    """A certificate and its key."""
    certificate, key = by.with_name(f"{name}.pem"), by.with_name(f"{name}.key")
    names = ("-addext", f"subjectAltName={alternative}", "-addext", "basicConstraints=critical,CA:FALSE")
    signer = ("-CA", by, "-CAkey", by.with_suffix(".key"))
    _request("-subj", f"/CN={name}", *names, *signer, "-keyout", key, "-out", certificate)
    return certificate, key


def _request(*more: str | Path) -> None:
    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1")
    command = ["openssl", "req", "-x509", "-nodes", "-days", "2", *curve, *more]
    subprocess.run(command, check=True, capture_output=True)
