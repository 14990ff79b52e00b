"""The key of a worker: one file, on both machines, that opens and encrypts every connection.

The file holds a private key and a certificate of its own making. Both sides show the certificate
and accept no other, so whoever has the file is let in, and nobody else can read along, answer in a
worker's place or send again what was sent before (TLS 1.3, RFC 8446, without early data).
"""

from __future__ import annotations

import hmac
import os
import socket
import ssl
from functools import cached_property
from pathlib import Path
from typing import Self

from edgespec.errors import BackendError, OptionError
from edgespec.system.ownership import is_own
from edgespec.system.user_data import write_private

_NAME = "edgespec-worker"
_MOST_BYTES = 1 << 16


class Key:
    """A key file that was read; raises OptionError for one that cannot be used."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path).expanduser()
        try:
            with self.path.open("rb") as file:
                status = os.fstat(file.fileno())
                text = file.read(_MOST_BYTES)
        except OSError as error:
            raise OptionError(
                f"the key file {self.path} cannot be read ({error.strerror}); make one with "
                f"edgespec worker --new-key {self.path}, and copy it to the other machine"
            ) from None
        if not is_own(status) or (hasattr(os, "getuid") and status.st_mode & 0o077):
            raise OptionError(
                f"other users may read or change the key file {self.path}; it must be yours alone: "
                f"chmod 600 {self.path}"
            )
        self._certificate = self._parse(text)

    def _parse(self, text: bytes) -> bytes:
        """The certificate's bytes; the contexts are made once to know that they can be."""
        begin, end = b"-----BEGIN CERTIFICATE-----", b"-----END CERTIFICATE-----"
        try:
            part = text[text.index(begin) : text.index(end) + len(end)]
            self._pem = part.decode("ascii")
            found = ssl.PEM_cert_to_DER_cert(self._pem)
            assert self._client and self._server
        except (ValueError, OSError):
            raise OptionError(
                f"{self.path} is not a key file; make one with edgespec worker --new-key FILE"
            ) from None
        return found

    @cached_property
    def _client(self) -> ssl.SSLContext:
        return self._context(ssl.PROTOCOL_TLS_CLIENT)

    @cached_property
    def _server(self) -> ssl.SSLContext:
        made = self._context(ssl.PROTOCOL_TLS_SERVER)
        made.num_tickets = 0  # every connection shows its certificate anew
        return made

    def _context(self, side: int) -> ssl.SSLContext:
        made = ssl.SSLContext(side)
        made.minimum_version = ssl.TLSVersion.TLSv1_3
        made.check_hostname = False  # it is known by its certificate, whatever its address is
        made.verify_mode = ssl.CERT_REQUIRED
        # An empty password: a key that wants one is refused, where OpenSSL would ask a terminal.
        made.load_cert_chain(self.path, password=lambda: b"")
        made.load_verify_locations(cadata=self._pem)
        return made

    def accept(self, connection: socket.socket) -> ssl.SSLSocket:
        """The worker's side of a connection, to be greeted."""
        return self._server.wrap_socket(connection, True, do_handshake_on_connect=False)

    def connect(self, connection: socket.socket) -> ssl.SSLSocket:
        """The client's side, to be greeted."""
        return self._client.wrap_socket(connection, do_handshake_on_connect=False)

    def greet(self, connection: ssl.SSLSocket) -> None:
        """Show the certificate and look at the other side's; raises OSError where it has none, or
        another, or takes longer than the socket's limit.
        """
        connection.do_handshake()
        shown = connection.getpeercert(binary_form=True) or b""
        if not hmac.compare_digest(shown, self._certificate):
            raise ConnectionError("the other side has another key")

    @classmethod
    def new(cls, path: str | os.PathLike[str]) -> Self:
        """Write a new key file that only this user can read; raises OptionError where a file is
        already, BackendError where keys cannot be made.
        """
        place = Path(path).expanduser()
        if place.exists():
            raise OptionError(f"{place} is already there; name a new file, or delete it first")
        try:
            write_private(place, [_new_pem()])
        except OSError as error:
            raise OptionError(f"{place} cannot be written: {error.strerror}") from None
        return cls(place)


def _new_pem() -> bytes:
    """A private key on the curve P-256, and a certificate that it signed itself."""
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError:
        raise BackendError(
            "a key is made with the package cryptography, which is not installed: "
            "pip install 'edgespec[workers]', or make it elsewhere and copy it here: "
            "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes "
            f"-days 36500 -subj /CN={_NAME} -keyout worker.key -out worker.crt, and append "
            "worker.crt to worker.key"
        ) from None
    from datetime import datetime

    private = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, _NAME)])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(private.public_key())
        .serial_number(x509.random_serial_number())
        # It lasts as long as its file: clocks of small machines are often wrong.
        .not_valid_before(datetime(2000, 1, 1))
        .not_valid_after(datetime(9999, 12, 31, 23, 59, 59))
        .sign(private, hashes.SHA256())
    )
    secret: bytes = private.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return secret + bytes(made.public_bytes(serialization.Encoding.PEM))
