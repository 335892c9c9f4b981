"""TLS, client certificates and credentials, against real nodes."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from certificates import authority, signed
from cluster import SOON, Cluster, program, until
from played import renewal
from relay import Relay

import ringfence

RULES = """
[principals.billing]
credentials = ["{digest}"]
certificates = ["uri:spiffe://example.org/billing"]
allow = [{{ keys = "accounts/", may = ["acquire", "read"] }}]
"""


class Secure:
    def __init__(self, folder: Path) -> None:
        self.ca, self.strange = authority(folder, "ca"), authority(folder, "strange")
        self.cluster = Cluster(1, scheme="https")
        self.node = signed(self.ca, "node", f"IP:{self.cluster.host}")
        self.billing = signed(self.ca, "billing", "URI:spiffe://example.org/billing")
        self.stranger = signed(self.strange, "stranger", "URI:spiffe://example.org/billing")
        secret = folder / "billing.credential"
        made = subprocess.run(
            [program(), "access", "credential", "--file", secret], check=True, capture_output=True, text=True
        )
        self.credential = secret.read_text().strip()
        self.rules = folder / "access.toml"
        self.rules.write_text(RULES.format(digest=made.stdout.strip()))
        subprocess.run([program(), "access", "check", self.rules], check=True, capture_output=True)
        certificate, key = self.node
        tls = [f"--tls-certificate={certificate}", f"--tls-key={key}", f"--tls-client-authority={self.ca}"]
        self.cluster.arguments = [*tls, f"--access={self.rules}"]


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secure]:
    found = Secure(tmp_path_factory.mktemp("tls"))
    with found.cluster:
        yield found


@pytest.fixture(scope="module")
def url(secure: Secure) -> str:
    url = secure.cluster.url(1)
    with ringfence.Client(url, ca=secure.ca, credential=secure.credential) as probe:
        until(lambda: _grants(probe), "the node is ready")
    return url


def _grants(client: ringfence.Client) -> bool:
    try:
        client.lock("accounts/ready").try_acquire().release()
    except (ringfence.Unavailable, ringfence.Unknown):
        return False
    return True


def test_a_credential_or_a_certificate_shows_who_the_client_is(secure: Secure, url: str) -> None:
    with ringfence.Client(url, ca=secure.ca, credential=secure.credential) as client:
        with client.lock("accounts/42", ttl=3) as lease:
            until(renewal(lease), "it is renewed")
        with pytest.raises(ringfence.Unauthorized):
            client.lock("wages/42").try_acquire()
    certificate, key = secure.billing
    with ringfence.Client(url, ca=secure.ca, cert=certificate, key=key) as client:
        client.lock("accounts/42").acquire().release()
    with ringfence.Client(url, ca=secure.ca) as client, pytest.raises(ringfence.Unauthorized):
        client.lock("accounts/42").try_acquire()
    with (
        ringfence.Client(url, ca=secure.ca, credential="rf_wrong") as client,
        pytest.raises(ringfence.Unauthorized),
    ):
        client.lock("accounts/42").try_acquire()


def test_a_node_of_another_authority_gets_nothing_and_the_error_says_why(
    secure: Secure, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # No repeat mends it.
    monkeypatch.setattr("ringfence._acquire.RETRY_FOR", 10 * SOON)
    for ca in (secure.strange, None):
        with ringfence.Client(url, ca=ca, credential=secure.credential) as client:
            with pytest.raises(ringfence.Unavailable, match=r"the certificate of https://.* is not trusted"):
                client.lock("accounts/42").acquire(timeout=SOON)


@pytest.mark.usefixtures("url")
def test_a_certificate_for_another_host_is_refused(secure: Secure) -> None:
    """Once, this test called an address at which nobody listened."""
    relay = Relay(secure.cluster.host, 7401)
    elsewhere = relay.url.replace("http://", "https://")
    with ringfence.Client(elsewhere, ca=secure.ca, credential=secure.credential) as client:
        with pytest.raises(ringfence.Unavailable, match=r"not trusted: .*IP address mismatch"):
            client.lock("accounts/42").try_acquire()
    relay.close()


def test_a_certificate_that_the_node_refuses_is_unavailable_and_not_unknown(secure: Secure, url: str) -> None:
    certificate, key = secure.stranger
    with ringfence.Client(url, ca=secure.ca, cert=certificate, key=key) as client:
        with pytest.raises(ringfence.Unavailable, match="refuses this client's certificate"):
            client.lock("accounts/42").try_acquire()


def test_a_file_that_cannot_be_used_is_named(secure: Secure, tmp_path: Path) -> None:
    """Once, an encrypted key had the constructor ask on the terminal, and wait."""
    (certificate, key), other = secure.billing, secure.node[1]
    (empty := tmp_path / "empty.pem").write_bytes(b"")
    encrypted = tmp_path / "encrypted.key"
    subprocess.run(
        ["openssl", "pkcs8", "-topk8", "-in", key, "-out", encrypted, "-passout", "pass:secret"], check=True
    )
    missing = tmp_path / "missing.pem"
    for field, path, files in (
        ("ca", empty, {"ca": empty}),
        ("ca", key, {"ca": key}),
        ("ca", missing, {"ca": missing}),
        ("cert", missing, {"cert": missing, "key": key}),
        ("cert", empty, {"cert": empty, "key": key}),
        ("key", missing, {"cert": certificate, "key": missing}),
        ("key", empty, {"cert": certificate, "key": empty}),
        ("key", other, {"cert": certificate, "key": other}),
        ("key", encrypted, {"cert": certificate, "key": encrypted}),
    ):
        with pytest.raises(ringfence.Invalid) as error:
            ringfence.Client("https://127.0.0.1:1", **files)  # type: ignore[arg-type]
        assert error.value.field == field, (files, error.value)
        assert str(path) in str(error.value), error.value


def test_a_certificate_that_is_replaced_is_used_without_a_new_client(
    secure: Secure, url: str, tmp_path: Path
) -> None:
    certificate, key, ca = tmp_path / "c.pem", tmp_path / "c.key", tmp_path / "ca.pem"
    for path, source in ((certificate, secure.billing[0]), (key, secure.billing[1]), (ca, secure.strange)):
        path.write_bytes(source.read_bytes())
    with ringfence.Client(url, ca=ca, cert=certificate, key=key) as client:
        with pytest.raises(ringfence.Unavailable):
            client.lock("accounts/42").try_acquire()
        ca.write_bytes(secure.ca.read_bytes())
        until(lambda: _grants(client), "the new authority is used")
