"""A certificate authority for one control plane: who asks the API server is who a certificate of it says."""

import datetime
import ipaddress
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

LIFE = datetime.timedelta(days=2)
SIGNS_CERTIFICATES = x509.KeyUsage(
    key_cert_sign=True,
    crl_sign=True,
    digital_signature=False,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    encipher_only=False,
    decipher_only=False,
)


class Authority:
    """Keys and certificates in ``folder``: ``<file>.crt`` and ``<file>.key``, its own as ``ca``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name("tests of Everstep", ())
        signer = self._unsigned(self._name, self._key).add_extension(x509.BasicConstraints(True, None), critical=True)
        signer = signer.add_extension(SIGNS_CERTIFICATES, critical=True)
        self._certificate = signer.sign(self._key, hashes.SHA256())
        self._write("ca", self._certificate, self._key)

    @property
    def certificate(self) -> Path:
        return self.folder / "ca.crt"

    def issue(self, file: str, *, name: str, groups: Iterable[str] = (), address: str | None = None) -> None:
        """For a user (name and groups are what RBAC sees) or, with an address, for a server."""
        key = ec.generate_private_key(ec.SECP256R1())
        signer = self._unsigned(_name(name, groups), key)
        if address is not None:
            names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address))])
            signer = signer.add_extension(names, critical=False)
        self._write(file, signer.sign(self._key, hashes.SHA256()), key)

    def kubeconfig(self, file: str, *, server: str) -> Path:
        """What leads a client to ``server`` as the user of that certificate."""
        user = {"client-certificate": str(self.folder / f"{file}.crt"), "client-key": str(self.folder / f"{file}.key")}
        document: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": {"server": server, "certificate-authority": str(self.certificate)}}],
            "users": [{"name": "u", "user": user}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        }
        path = self.folder / f"{file}.kubeconfig"
        path.write_text(json.dumps(document, indent=1))  # JSON is YAML
        return path

    def _unsigned(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder(issuer_name=self._name, subject_name=subject, public_key=key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - LIFE)
            .not_valid_after(now + LIFE)
            # Python 3.13 asks for these
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )

    def _write(self, file: str, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
        kind = serialization.PrivateFormat.TraditionalOpenSSL  # the one that Kubernetes takes for tokens' keys too
        secret = key.private_bytes(serialization.Encoding.PEM, kind, serialization.NoEncryption())
        (self.folder / f"{file}.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        (self.folder / f"{file}.key").write_bytes(secret)


def _name(name: str, groups: Iterable[str]) -> x509.Name:
    organizations = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
    return x509.Name([*organizations, x509.NameAttribute(NameOID.COMMON_NAME, name)])
