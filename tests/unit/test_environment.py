# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""The virtual environment that tools/venv.sh makes."""

from __future__ import annotations

import datetime
import os
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("command", ["ansible-config", "ansible-playbook", "pytest"])
def test_programs_find_each_other_without_activation(command: str) -> None:
    """Molecule and testinfra call Ansible by its bare name."""
    program = f"import shutil; print(shutil.which('{command}'))"
    done = subprocess.run([sys.executable, "-c", program], env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(Path(sys.prefix, "bin", command))


@pytest.fixture
def own_certificate(tmp_path: Path) -> Iterator[str]:
    """The address of a server with a certificate that nobody trusts."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    made = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key()).serial_number(1)
    made = made.not_valid_before(now).not_valid_after(now + datetime.timedelta(days=1))
    pem = tmp_path / "server.pem"
    plain = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    pem.write_bytes(key.private_bytes(*plain) + made.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    server = HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield f"https://localhost:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


@pytest.fixture
def closed() -> Iterator[str]:
    """The address of a port that refuses: it is bound and nobody listens."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{one.getsockname()[1]}"


@pytest.mark.parametrize(
    ("cause", "said"),
    [
        (
            "certificate",
            "pip does not trust the certificate of the package index or of a proxy before it; name your authority's file by PIP_CERT=",
        ),
        ("proxy", "pip cannot go through its proxy; correct HTTPS_PROXY, or the proxy in pip's configuration."),
        ("index", "pip does not reach the package index; set HTTPS_PROXY, or PIP_INDEX_URL to an index that this machine reaches."),
        ("version", "pip could not install "),
    ],
)
def test_a_pip_that_fails_says_the_cause_last(own_certificate: str, closed: str, tmp_path: Path, *, cause: str, said: str) -> None:
    """pip itself ends with `No matching distribution` in each of these cases."""
    (tmp_path / "venv/bin").mkdir(parents=True)
    python = tmp_path / "venv/bin/python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')  # nothing is installed, so that no environment is needed
    python.chmod(0o755)
    (tmp_path / "empty").mkdir()
    (tmp_path / "requirements.txt").write_text(f"nothing-of-this-name==1.0 --hash=sha256:{'0' * 64}\n")
    env = {name: value for name, value in os.environ.items() if not name.upper().startswith("PIP_") and not name.upper().endswith("_PROXY")}
    env |= {"PIP_CONFIG_FILE": os.devnull, "PIP_RETRIES": "1", "PIP_INDEX_URL": f"{closed}/simple"}
    if cause == "certificate":
        env["PIP_INDEX_URL"] = f"{own_certificate}/simple"
    elif cause == "proxy":
        env |= {"PIP_PROXY": closed, "PIP_INDEX_URL": "https://index.invalid/simple"}
    elif cause == "version":
        env |= {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path / "empty")}
    argv = [ROOT / "tools/venv.sh", tmp_path / "venv", sys.executable, tmp_path / "requirements.txt"]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False, timeout=120)
    last = done.stderr.splitlines()[-1]
    assert done.returncode == 1 and last.startswith(f"setup: {said}"), done.stderr
    assert "No matching distribution" in done.stderr
    assert not (tmp_path / "venv/muster-stamp").exists()


def test_make_and_the_tests_start_ansible_in_a_locale_that_it_takes(tmp_path: Path) -> None:
    """Ansible itself ends with `could not initialize the preferred locale`, or with `requires the locale encoding to be UTF-8`."""
    env = {**os.environ, "LC_ALL": "POSIX"}
    argv = ["make", "--no-print-directory", "--eval", "locale-of-recipes:\n\t@printenv LC_ALL", "locale-of-recipes"]
    assert subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True, check=True).stdout == "C.UTF-8\n"
    (tmp_path / "test_one.py").write_text('import os\n\n\ndef test_one():\n    assert os.environ["LC_ALL"] == "C.UTF-8"\n')
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", ROOT / "pyproject.toml", "--confcutdir", ROOT]
    done = subprocess.run([*argv, "-p", "conftest", tmp_path], cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_a_private_umask_does_not_hide_the_fleet_s_files_from_its_users(tmp_path: Path) -> None:
    program = tmp_path / "ansible-playbook"
    program.write_text("#!/bin/sh\numask\n")
    program.chmod(0o755)
    argv = ["sh", "-c", f"umask 077; make --no-print-directory --silent -o setup BIN={tmp_path} site"]
    assert subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True).stdout == "0022\n"
