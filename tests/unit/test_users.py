# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Invalid users, secrets by reference, users that accounting lacks, and the probe that tests a directory before it is used."""

from __future__ import annotations

import importlib.util
import os
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
from ansible.errors import AnsibleLookupError
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar

from ansible_collections.muster.fleet.plugins.filter.user_faults import user_faults
from ansible_collections.muster.fleet.plugins.lookup.secret import LookupModule
from ansible_collections.muster.fleet.plugins.module_utils.node import users as logic

ROOT = Path(__file__).parents[2]
PROBE = ROOT / "roles/users/files/ldap-probe.py"
CHECK_USERS = ROOT / "roles/slurm/files/check-users.py"


def user(name: str = "ada", uid: int = 2000) -> dict:
    return {"name": name, "uid": uid, "account": "muster"}


@pytest.mark.parametrize(
    ("users", "sentence"),
    [
        ([user(), user("grace")], "Users ada and grace of slurm_users both have the UID 2000; give each its own UID."),
        ([user(), user(uid=2001)], "User ada is in slurm_users twice; remove one of the two."),
        ([user(uid=999)], "User ada of slurm_users has the UID 999, which belongs to the system; give it one from 1000 up."),
        ([user("Ada L")], "User 'Ada L' of slurm_users is not a valid name on a node; use at most 31 lower-case letters, digits, - and _."),
    ],
)
def test_list_that_cannot_be(users: list[dict], sentence: str) -> None:
    assert logic.list_faults(users) == [sentence]


def test_list_that_can_be() -> None:
    assert logic.list_faults([user(), user("grace", 2001), user("_svc-1", 1000)]) == []


@pytest.fixture
def directory(tmp_path: Path) -> dict:
    """A directory with nothing wrong."""
    (tmp_path / "ca.pem").write_text("PEM")
    (tmp_path / "users-bind-password").write_text("word\n")
    return {
        "servers": ["ldaps://a.example:636", "ldap://[fd00::1]"],
        "base": "dc=example",
        "ca": str(tmp_path / "ca.pem"),
        "bind_dn": "cn=reader",
        "groups": [{"name": "physics", "account": "muster"}],
    }


def test_directory_that_can_be(directory: dict, tmp_path: Path) -> None:
    assert logic.directory_faults(directory, str(tmp_path), {}) == []
    assert logic.directory_faults({**directory, "ca": "system", "bind_dn": ""}, "/nowhere", {}) == []
    assert logic.directory_faults({}, "/nowhere", {}) == []


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"servers": ["http://a"]}, "Directory server 'http://a' of users_servers is not an address of one; write ldaps://HOST"),
        ({"servers": ["ldaps://a b"]}, "Directory server 'ldaps://a b'"),
        ({"servers": []}, "Variable users_base describes a directory and users_servers has no server"),
        ({"base": ""}, "The directory in users_servers has no users_base"),
        ({"ca": ""}, "The directory in users_servers has no users_ca, without which no server is trusted"),
        ({"ca": "/nowhere/ca.pem"}, "The CA file /nowhere/ca.pem (users_ca) is not on this machine"),
        ({"groups": []}, "No group of the directory may log in"),
        ({"groups": [{"name": "a; reboot", "account": "x"}]}, "Group 'a; reboot' of users_groups has a name that a node cannot use"),
        ({"groups": [{"name": "a", "account": "x"}, {"name": "a", "account": "y"}]}, "Group a is in users_groups twice"),
        (
            {"bind_secret": "file:other"},
            "The directory needs the secret of cn=reader (users_bind_dn). The secret file:other cannot be read",
        ),
        ({"bind_secret": "env:LDAP"}, "The directory needs the secret of cn=reader (users_bind_dn). The secret env:LDAP is not set"),
    ],
)
def test_directory_that_cannot_be(directory: dict, tmp_path: Path, change: dict, sentence: str) -> None:
    [said] = logic.directory_faults({**directory, **change}, str(tmp_path), {})
    assert said.startswith(sentence)


def test_variables_of_a_host_are_judged(directory: dict, tmp_path: Path) -> None:
    variables = {f"users_{name}": value for name, value in directory.items()}
    assert user_faults({**variables, "slurm_users": [user()]}, str(tmp_path)) == []
    assert len(user_faults({**variables, "slurm_users": [user(uid=1)]}, str(tmp_path / "elsewhere"))) == 2
    assert user_faults({}, str(tmp_path)) == []


def test_secret_is_found_by_its_reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "word").write_text("s3cret\n")
    monkeypatch.setenv("WORD", "from outside")
    assert logic.secret("file:word", str(tmp_path), os.environ) == "s3cret"
    assert logic.secret(f"file:{tmp_path}/word", "/nowhere", os.environ) == "s3cret"
    assert logic.secret("env:WORD", "/nowhere", os.environ) == "from outside"

    # A playbook names no folder, which means the fleet's.
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets/word").write_text("of the fleet\n")
    variables = {"muster_state_dir": str(tmp_path)}
    lookup = LookupModule(None, Templar(DataLoader(), variables=variables))
    assert lookup.run(["file:word"], variables) == ["of the fleet"]
    with pytest.raises(AnsibleLookupError, match="The secret file:nothing cannot be read"):
        lookup.run(["file:nothing"], variables)


@pytest.mark.parametrize("reference", ["hunter2", "hunter2:", ":hunter2", "pass:hunter2", "file:", ""])
def test_secret_itself_is_refused_and_not_repeated(reference: str) -> None:
    with pytest.raises(logic.UsersError, match="is not a reference; write file:PATH or env:NAME") as refused:
        logic.secret(reference, "/nowhere", {})
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize("text", ["", "\n", "two\nlines\n"])
def test_secret_is_one_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "word").write_text(text)
    with pytest.raises(logic.UsersError, match="The secret file:word is not one line of text"):
        logic.secret("file:word", str(tmp_path), {})


GROUPS = [{"name": "physics", "account": "phys"}, {"name": "staff", "account": "all"}, {"name": "theory", "account": "phys"}]


def test_accounts_in_the_order_of_the_groups() -> None:
    members = {"physics": ["ada"], "staff": ["grace", "ada"], "theory": ["ada"]}
    assert logic.accounts_of(GROUPS, members) == {"ada": ["phys", "all"], "grace": ["all"]}


def test_what_accounting_does_not_know_yet() -> None:
    rows = ["root|", "root|root", "phys|", "all|", "all|grace"]
    assert logic.missing_associations({"ada": ["phys", "all"], "grace": ["all", "phys"]}, rows) == {
        "phys": ["ada", "grace"],
        "all": ["ada"],
    }
    assert logic.missing_associations({"grace": ["all"]}, rows) == {}
    with pytest.raises(
        logic.UsersError, match=r"The account chem \(users_groups\) is not in the accounting database; add it to slurm_accounts"
    ):
        logic.missing_associations({"ada": ["chem"]}, rows)


def check_users(tmp_path: Path, text: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "sysusers").write_text(text)
    argv = [sys.executable, "-c", CHECK_USERS.read_text(), str(tmp_path / "sysusers")]
    return subprocess.run(argv, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("g new 64111\nu new 64111:64111 x /home/new /bin/sh\n", ""),
        ("# a comment\ng root 0\nu root 0:0 x /root /bin/sh\n", ""),
        (
            "g new 0\nu new 0:0 x /h /bin/sh\n",
            "UID 0 of new (slurm_users) is taken on this node by root; give new another, or remove root.\n",
        ),
        (
            "g new 0\nu new 64111:0 x /h /bin/sh\n",
            "GID 0 of new (slurm_users) is taken on this node by root; give new another, or remove root.\n",
        ),
        (
            "g root 64111\nu root 64111:64111 x /h /bin/sh\n",
            "root has the UID 0 on this node and 64111 in slurm_users; give it 0 there, or change the node.\n",
        ),
    ],
)
def test_users_that_meet_others_on_the_node(tmp_path: Path, lines: str, said: str) -> None:
    done = check_users(tmp_path, lines)
    assert (done.stderr, done.returncode) == (said, 1 if said else 0)


@pytest.fixture(scope="module")
def probe() -> ModuleType:
    spec = importlib.util.spec_from_file_location("ldap_probe", PROBE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_requests_are_those_of_the_rfc(probe: ModuleType) -> None:
    """The bytes that ldapsearch of OpenLDAP sends."""
    assert probe.bind_request(1, "", "").hex() == "300c020101600702010304008000"
    assert probe.start_tls_request(1).hex() == "301d02010177188016" + b"1.3.6.1.4.1.1466.20037".hex()
    assert probe.element(0x04, b"x" * 200)[:4].hex() == "048200c8"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CA, and a server's certificate by it for localhost."""
    folder = tmp_path_factory.mktemp("tls")
    script = """
    openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=CA -keyout ca.key -out ca.pem
    openssl req -newkey rsa:2048 -nodes -subj /CN=localhost -keyout server.key -out server.csr
    printf subjectAltName=DNS:localhost >san
    openssl x509 -req -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile san -out server.pem
    openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=other -keyout other.key -out other.pem
    """
    subprocess.run(["sh", "-ec", script], cwd=folder, check=True, capture_output=True)
    return folder


@pytest.fixture
def server(certificates: Path) -> Iterator[Callable[..., str]]:
    """Start an LDAP server that answers each request with the next of these; its URI."""
    listeners = []

    def start(*answers: bytes, scheme: str = "ldaps") -> str:
        listener = socket.create_server(("localhost", 0))
        listeners.append(listener)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificates / "server.pem", certificates / "server.key")

        def serve() -> None:
            connection, _address = listener.accept()
            with connection:
                left = list(answers)
                if scheme == "ldap":
                    connection.recv(4096)
                    connection.sendall(left.pop(0))
                try:
                    with context.wrap_socket(connection, server_side=True) as channel:
                        for answer in left:
                            channel.recv(4096)
                            channel.sendall(answer)
                except OSError:
                    return

        threading.Thread(target=serve, daemon=True).start()
        return f"{scheme}://localhost:{listener.getsockname()[1]}"

    yield start
    for listener in listeners:
        listener.close()


def answered(tag: int, code: int) -> bytes:
    """A whole answer: the result code, no DN, no text."""
    return bytes([0x30, 12, 2, 1, 1, tag, 7, 0x0A, 1, code, 4, 0, 4, 0])


BOUND, STARTED, FOUND, DONE = answered(0x61, 0), answered(0x78, 0), bytes.fromhex("3009020103640404003000"), answered(0x65, 0)


def probed(probe: ModuleType, certificates: Path, *uris: str, ca: str = "ca.pem", options: tuple[str, ...] = ()) -> str:
    """What the probe says of servers: the reason when it refuses them, else nothing."""
    conf = certificates / "sssd.conf"
    conf.write_text(
        f"[sssd]\ndomains = muster\n[domain/muster]\nldap_uri={', '.join(uris)}\nldap_search_base=dc=example\nldap_default_bind_dn=cn=r\n"
    )
    try:
        probe.main([*options, str(conf), (certificates / ca).read_text()])
    except SystemExit as ended:
        return str(ended)
    return ""


def test_server_that_answers(probe: ModuleType, certificates: Path, server, capsys) -> None:
    uris = [server(BOUND, FOUND + DONE), server(STARTED, BOUND, DONE, scheme="ldap")]
    assert probed(probe, certificates, *uris) == ""
    assert capsys.readouterr().out == f"{uris[0]} answers\n{uris[1]} answers\n"


@pytest.mark.parametrize(
    ("answers", "reason"),
    [
        ([answered(0x61, 49)], "refuses to be read as cn=r (wrong name or password)"),
        ([answered(0x61, 48)], "refuses to be read as cn=r (LDAP result 48)"),
        ([BOUND, answered(0x65, 32)], "has no dc=example that this bind may read"),
        ([BOUND, answered(0x65, 50)], "does not search dc=example (LDAP result 50)"),
        ([BOUND, b""], "ended the connection"),
    ],
)
def test_server_that_refuses(probe: ModuleType, certificates: Path, server, answers: list[bytes], reason: str) -> None:
    uri = server(*answers)
    assert probed(probe, certificates, uri) == f"directory server {uri} {reason}"


def test_server_that_cannot_be_trusted(probe: ModuleType, certificates: Path, server) -> None:
    said = probed(probe, certificates, server(BOUND, DONE), ca="other.pem")
    assert "has a certificate that is not trusted (" in said
    uri = server(BOUND, DONE).replace("localhost", "127.0.0.1")
    assert "not valid for '127.0.0.1'" in probed(probe, certificates, uri)
    uri = server(answered(0x78, 2), scheme="ldap")
    assert probed(probe, certificates, uri) == f"directory server {uri} offers no STARTTLS"


def test_one_of_two_servers_is_down(probe: ModuleType, certificates: Path, server) -> None:
    with socket.create_server(("localhost", 0)) as closed:
        down = f"ldaps://localhost:{closed.getsockname()[1]}"
    reason = f"directory server {down} cannot be reached (Connection refused)"
    assert probed(probe, certificates, down, server(BOUND, DONE)) == reason
    assert probed(probe, certificates, down, server(BOUND, DONE), options=("--any",)) == ""
    assert probed(probe, certificates, down, options=("--any",)) == reason
