"""TLS: the certificate of a server, read again when its file changes, and what a client trusts."""

from __future__ import annotations

import calendar
import ssl
import time
from pathlib import Path

from symphony.problem.errors import InputError

CA_VARIABLE = "SYMPHONY_CA_FILE"
CERTIFICATE_FILE = "certificate.pem"  # in the folder of a service, for the user who runs it
PEM_END = "-----END CERTIFICATE-----"
SEQUENCE, EXPLICIT_VERSION, UTC_TIME = 0x30, 0xA0, 0x17  # DER tags


class TlsFiles:
    """The certificate and key of a server."""

    def __init__(self, certificate: Path, key: Path) -> None:
        self._certificate, self._key = certificate, key
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.trouble = ""  # why new files cannot be used
        self._load()

    def _load(self) -> None:
        """Load the files, and check that they are a pair. A context that fails to load keeps its old certificate."""
        self._seen = self._changed()
        for path in (self._certificate, self._key):
            try:
                path.read_bytes()
            except OSError as error:
                raise InputError(f"it cannot be read: {error.strerror}", where=str(path), hint=_PAIR_HINT) from None
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self._certificate, self._key, password=_no_password)
            self.context.load_cert_chain(self._certificate, self._key)
            self.leaf = _leaf(self._certificate)
            self.expires = expiry(ssl.PEM_cert_to_DER_cert(self.leaf))
        except (ssl.SSLError, ValueError) as error:
            reason = getattr(error, "reason", None) or str(error)
            raise InputError(
                f"the certificate and {self._key} are not a valid pair: {reason}",
                where=str(self._certificate),
                hint=_PAIR_HINT,
            ) from None

    def refresh(self) -> bool:
        """Load the files again if they have changed; whether they were loaded. New connections use them."""
        if self._changed() == self._seen:
            return False
        try:
            self._load()
        except InputError as error:
            self.trouble = f"the new certificate is not used: {error.message}"
            return False
        self.trouble = ""
        return True

    def _changed(self) -> tuple[int, ...]:
        try:
            return tuple(path.stat().st_mtime_ns for path in (self._certificate, self._key))
        except OSError:
            return ()


_PAIR_HINT = "give PEM files without a password: --tls-cert chain.pem --tls-key key.pem"


def _no_password() -> str:
    """Instead of a prompt on the terminal, for a key with a password."""
    return ""


def _leaf(path: Path) -> str:
    """The first certificate of a file, which is the server's own."""
    text = path.read_text(errors="replace")
    begin = text.find("-----BEGIN CERTIFICATE-----")
    end = text.find(PEM_END, begin)
    if begin < 0 or end < 0:
        raise ValueError("no certificate in it")
    return text[begin : end + len(PEM_END)] + "\n"


def expiry(der: bytes) -> float:
    """When a certificate expires, in seconds since 1970. Raises `ValueError`."""
    try:
        body = _inside(_inside(der, SEQUENCE), SEQUENCE)
        if body[0] == EXPLICIT_VERSION:
            _, body = _element(body)
        for _ in range(3):  # serial number, algorithm, issuer
            _, body = _element(body)
        _, second = _element(_inside(body, SEQUENCE))
        (tag, text), _ = _element(second)
    except IndexError:
        raise ValueError("the certificate is cut") from None
    form = "%y%m%d%H%M%SZ" if tag == UTC_TIME else "%Y%m%d%H%M%SZ"
    return float(calendar.timegm(time.strptime(text.decode(), form)))


def _element(data: bytes) -> tuple[tuple[int, bytes], bytes]:
    """The first element of some DER (its tag and contents), and the rest."""
    length, start = data[1], 2
    if length & 0x80:
        start += length & 0x7F
        length = int.from_bytes(data[2:start])
    return (data[0], data[start : start + length]), data[start + length :]


def _inside(data: bytes, tag: int) -> bytes:
    (found, contents), _ = _element(data)
    if found != tag:
        raise ValueError("not a certificate")
    return contents


def client_context(ca: str = "", pinned: Path | None = None) -> ssl.SSLContext:
    """What a client accepts: certificates of the system's authorities, or of those in the file `ca`.

    `pinned`: exactly this certificate, for any name; of a service of the same user on the same machine.
    """
    context = ssl.create_default_context()
    if ca:
        try:
            context.load_verify_locations(ca)
        except (OSError, ssl.SSLError) as error:
            reason = getattr(error, "strerror", None) or error
            raise InputError(
                f"it holds no certificates: {reason}", where=ca, hint=f"name a PEM file in {CA_VARIABLE}"
            ) from None
    elif pinned is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        context.load_verify_locations(pinned)
    return context
