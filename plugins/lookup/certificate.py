# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
name: certificate
short_description: A fleet's own certificate and its key, made on first use
version_added: 0.4.0
author: The Muster developers (@muster-fleet)
description:
  - Returns the texts of a self-signed certificate and its private key, which it makes when the folder lacks them.
  - Nodes of one fleet share the pair and trust only this certificate. It is valid for ten years and is made anew in its last month.
options:
  _terms:
    description: Name in the certificate, such as V(local.muster.internal). The files are C(metrics-cert.pem) and C(metrics-key.pem).
    required: true
  folder:
    description: The folder of the files, such as C(secrets) in the fleet's state folder.
    type: path
    required: true
"""

EXAMPLES = r"""
pair: "{{ lookup('muster.fleet.certificate', 'local.muster.internal', folder=secrets_dir) }}"
"""

RETURN = r"""
_raw:
  description: One dictionary with C(cert) and C(key) for each name.
  type: list
  elements: dict
"""

import datetime
import fcntl
import os

from ansible.errors import AnsibleLookupError
from ansible.plugins.lookup import LookupBase

try:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
except ImportError:
    # ansible-core needs it, too; without it the plugin still has documentation.
    HAS_CRYPTOGRAPHY = False
else:
    HAS_CRYPTOGRAPHY = True

YEARS = 10
LAST = datetime.timedelta(days=30)


def make(name, now):
    """(certificate, key) as PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))  # a node's clock may be behind
        .not_valid_after(now + datetime.timedelta(days=365 * YEARS))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return certificate.public_bytes(serialization.Encoding.PEM), key.private_bytes(*form)


def is_good(cert, key, name, now):
    """Tell whether the pair belongs together, has the name, and is not in its last month."""
    try:
        certificate = x509.load_pem_x509_certificate(cert)
        private = serialization.load_pem_private_key(key, None)
    except ValueError:
        return False
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value.get_values_for_type(x509.DNSName)
    return names == [name] and certificate.public_key() == private.public_key() and now < certificate.not_valid_after_utc - LAST


def pair(name, folder, now):
    """{cert, key} of a folder; the pair is made when it is missing or no longer good."""
    os.makedirs(folder, mode=0o700, exist_ok=True)
    paths = {kind: os.path.join(folder, "metrics-%s.pem" % kind) for kind in ("cert", "key")}
    with open(os.path.join(folder, ".metrics.lock"), "a", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        found = {}
        for kind, path in paths.items():
            if os.path.exists(path):
                with open(path, "rb") as file:
                    found[kind] = file.read()
        if len(found) < 2 or not is_good(found["cert"], found["key"], name, now):
            cert, key = make(name, now)
            found = {"cert": cert, "key": key}
            for kind, path in paths.items():
                handle = os.open(path + ".new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
                with os.fdopen(handle, "wb") as file:
                    file.write(found[kind])
                os.replace(path + ".new", path)
    return {kind: text.decode() for kind, text in found.items()}


class LookupModule(LookupBase):
    """Lookup `certificate`."""

    def run(self, terms, variables=None, **kwargs):
        self.set_options(var_options=variables, direct=kwargs)
        if not HAS_CRYPTOGRAPHY:
            raise AnsibleLookupError("The certificate of the fleet's metrics needs the Python package cryptography; install it here.")
        try:
            return [pair(term, self.get_option("folder"), datetime.datetime.now(datetime.UTC)) for term in terms]
        except OSError as error:
            raise AnsibleLookupError(
                "The certificate of the fleet's metrics cannot be kept in %s (%s); make the folder writable."
                % (error.filename, error.strerror)
            ) from error
