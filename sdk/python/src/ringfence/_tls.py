"""TLS to the nodes, from files that are loaded again once they have changed."""

from __future__ import annotations

import os
import ssl
import time

from ._threads import LOG
from .errors import Invalid

_LOOK_INTERVAL = 1.0
# A server tells in one of these ways that it refuses the client's certificate, or wants one.
_REFUSALS = ("CERTIFICATE", "UNKNOWN_CA", "ACCESS_DENIED", "DECRYPT_ERROR")


class Tls:
    """The authorities that sign the nodes' certificates (`None`: those that this system trusts), and the client's certificate."""

    def __init__(self, ca: str | None, cert: str | None, key: str | None) -> None:
        if (cert is None) is not (key is None):
            raise Invalid("key" if key is None else "cert", "a certificate and its key are given together")
        self._ca, self._cert, self._key = ca, cert, key
        self._seen = self._files()
        self._looked_at = time.monotonic()
        self._context = self._load()

    def context(self) -> ssl.SSLContext:
        """The context of new connections. If files that changed cannot be used, the old ones stay in use."""
        now = time.monotonic()
        if now - self._looked_at >= _LOOK_INTERVAL:
            self._looked_at = now
            files = self._files()
            if files != self._seen:
                self._seen = files
                try:
                    self._context = self._load()
                except Invalid as error:
                    LOG.warning("TLS files that changed cannot be used, the old ones stay in use: %s", error)
        return self._context

    def _load(self) -> ssl.SSLContext:
        try:
            context = ssl.create_default_context(cafile=self._ca)
        except (OSError, ValueError) as error:
            raise Invalid("ca", f"{self._ca}: no certificates in PEM: {error}") from error
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if self._cert is not None and self._key is not None:
            self._load_own(context, self._cert, self._key)
        return context

    @staticmethod
    def _load_own(context: ssl.SSLContext, cert: str, key: str) -> None:
        def encrypted() -> bytes:
            # Without this, the library asks on the terminal, and waits.
            raise Invalid("key", f"{key}: is encrypted, and a client has nobody to ask for the password")

        for field, path in (("cert", cert), ("key", key)):
            try:
                with open(path, "rb") as file:
                    is_pem = b"-----BEGIN " in file.read()
            except OSError as error:
                raise Invalid(field, f"{path}: {error.strerror}") from error
            if not is_pem:
                raise Invalid(field, f"{path}: is not in PEM")
        try:
            context.load_cert_chain(cert, key, password=encrypted)
        except Invalid:
            raise
        except (OSError, ValueError) as error:
            is_other = getattr(error, "reason", None) == "KEY_VALUES_MISMATCH"
            why = f"is not the key of {cert}" if is_other else f"cannot be used with {cert}: {error}"
            raise Invalid("key" if is_other else "cert", f"{key}: {why}") from error

    def _files(self) -> list[tuple[int, int, int] | None]:
        return [_look(path) for path in (self._ca, self._cert, self._key)]


def _look(path: str | None) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path) if path is not None else None
    except OSError:
        return None
    return found and (found.st_ino, found.st_mtime_ns, found.st_size)


def is_refusal(error: BaseException | None) -> bool:
    """Whether the server refused this client's certificate. It says so after the handshake, and has read no request."""
    reason = getattr(error, "reason", None) if isinstance(error, ssl.SSLError) else None
    return isinstance(reason, str) and "ALERT" in reason and any(name in reason for name in _REFUSALS)
