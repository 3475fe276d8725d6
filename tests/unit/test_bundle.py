# SPDX-License-Identifier: Apache-2.0
"""A bundle holds what was asked for, says what did not answer, and holds no secret."""

import errno
import json
import tarfile
import time
from pathlib import Path

import pytest

from ansible_collections.muster.fleet.plugins.module_utils.report import bundle as logic


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("StorageUser=slurm\nStoragePass=geheim\nStoragePort=1", "StorageUser=slurm\nStoragePass=[secret]\nStoragePort=1"),
        ("AuthAltParameters=jwt_key=/var/lib/slurm/jwt.key", "AuthAltParameters=jwt_key=/var/lib/slurm/jwt.key"),
        ("mysql://slurm:geheim@db:3306/x", "mysql://slurm:[secret]@db:3306/x"),
        ('--password "geheim"', "--password [secret]"),
        ('{"db_password": "ge heim", "a": 1}', '{"db_password": [secret], "a": 1}'),
        ("token: abcdef, x", "token: [secret], x"),
        ("SLURM_JWT eyJhbGciOiJIUzI1NiJ9.eyJleHAiOjE3.c2lnbmF0dXJl end", "SLURM_JWT [secret] end"),
        ("a\n-----BEGIN RSA PRIVATE KEY-----\nMIIB\n-----END RSA PRIVATE KEY-----\nb", "a\n[secret]\nb"),
        ("cut\n-----BEGIN OPENSSH PRIVATE KEY-----\nMIIB", "cut\n[secret]"),
        ("3 passed in 2 s, bypass", "3 passed in 2 s, bypass"),
        ("AWS_SECRET_ACCESS_KEY=abc/def+1", "AWS_SECRET_ACCESS_KEY=[secret]"),
        ("aws_secret_access_key = abc/def+1", "aws_secret_access_key = [secret]"),
        ("export WANDB_API_KEY='0123abc'", "export WANDB_API_KEY=[secret]"),
        ("Authorization: Bearer abc.def-123456", "Authorization: Bearer [secret]"),
        ("curl -H 'authorization: basic dXNlcjpwYXNz' x", "curl -H 'authorization: basic [secret]' x"),
        ("ldap_default_authtok = geheim", "ldap_default_authtok = [secret]"),
        ("--extra pw=geheim -x", "--extra pw=[secret] -x"),
        ("--api-key geheim --token 'ge heim' y", "--api-key [secret] --token [secret] y"),
        ('["--password", "geheim"]', '["--password", [secret]]'),
        ("login hf_abcdefghijklmnopqrst end", "login [secret] end"),
        ("tokens_per_s=1234.5 tokens: 77 max_tokens=8", "tokens_per_s=1234.5 tokens: 77 max_tokens=8"),
        ("jwt_key=/etc/slurm/jwt_hs256.key PrivateData=jobs", "jwt_key=/etc/slurm/jwt_hs256.key PrivateData=jobs"),
        (
            '{"name": "WANDB_API_KEY", "value": "a"}, {"name": "A", "value": "b"}',
            '{"name": "WANDB_API_KEY", "value": [secret]}, {"name": "A", "value": "b"}',
        ),
        ('"name": "HF_TOKEN",\n  "value": "a\\"b"\n}', '"name": "HF_TOKEN",\n  "value": [secret]\n}'),
        ('"{\\"name\\": \\"HF_TOKEN\\", \\"value\\": \\"a b\\"}"', '"{\\"name\\": \\"HF_TOKEN\\", \\"value\\": [secret]}"'),
        (
            "- name: WANDB_API_KEY\n  value: ge, heim\n- name: RANKS\n  value: 8",
            "- name: WANDB_API_KEY\n  value: [secret]\n- name: RANKS\n  value: 8",
        ),
        ("env: [{name: A_TOKEN, value: geheim}, {name: B, value: c}]", "env: [{name: A_TOKEN, value: [secret]}, {name: B, value: c}]"),
        ("- value: ge heim\n  name: DB_PASSWORD\n- value: 1\n  name: B", "- value: [secret]\n  name: DB_PASSWORD\n- value: 1\n  name: B"),
        ('{"value": "a", "name": "A_TOKEN"}', '{"value": [secret], "name": "A_TOKEN"}'),
        ('{"ParameterKey": "DbPassword", "ParameterValue": "a"}', '{"ParameterKey": "DbPassword", "ParameterValue": [secret]}'),
        ('"{\\"db_password\\": \\"ge heim\\", \\"a\\": 1}"', '"{\\"db_password\\": [secret], \\"a\\": 1}"'),
        ('{"password": "ge\\"heim", "a": 1}', '{"password": [secret], "a": 1}'),
        ("curl -sSu ada:geheim -U 'p:q r' https://x", "curl -sSu [secret] -U [secret] https://x"),
        ('["curl", "--user", "ada:geheim", "x"]\ndocker run -u 1:2', '["curl", "--user", [secret], "x"]\ndocker run -u 1:2'),
        ("curl -XPUT -k https://x:8080/y", "curl -XPUT -k https://x:8080/y"),
        ("machine a login ada password geheim\nmachine b", "machine a login ada password [secret]\nmachine b"),
        ("machine a\n  login ada\n  password geheim\n", "machine a\n  login ada\n  password [secret]\n"),
        ("The default password of a machine is none", "The default password of a machine is none"),
        ("url: https://hooks.slack.com/services/T0/B0/xyz end", "url: https://hooks.slack.com/services/[secret] end"),
        ("login nvapi-abcdefghijklmnopqrst end", "login [secret] end"),
        ("routing_key: 0123456789abcdef", "routing_key: [secret]"),
    ],
)
def test_what_looks_like_a_secret_is_blanked(text: str, left: str) -> None:
    assert logic.scrub(text.encode()).decode() == left


def test_a_long_line_is_scrubbed_in_time() -> None:
    began = time.process_time()
    logic.scrub(b"a" * (1 << 16))
    assert time.process_time() - began < 5


def test_known_secrets_are_taken_out_by_value(tmp_path: Path) -> None:
    (tmp_path / "munge.key").write_bytes(b"K" * 30 + b"\n")
    (tmp_path / "jwt.key").write_bytes(bytes(range(128, 160)))
    (tmp_path / "short").write_bytes(b"abc\n")
    secrets = logic.known_secrets([str(path) for path in tmp_path.iterdir()] + [str(tmp_path / "none")])
    found = logic.scrub(b"x " + b"K" * 30 + b" y " + bytes(range(128, 160)) + b" abc", secrets)
    assert found == b"x [secret] y [secret] abc"


def test_commands_that_fail_say_so() -> None:
    assert logic.ask(["sh", "-c", "echo out; echo err >&2; exit 3"], 5) == b"out\nerr\n\n[ended with 3]\n"
    assert logic.ask(["no-such-command"], 5) == b"[no-such-command: No such file or directory]\n"
    assert logic.ask(["sh", "-c", "echo begun; exec sleep 60"], 0.3).startswith(b"begun\n\n[no answer within")


def test_a_long_log_is_read_from_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logic, "LOG_BYTES", 10)
    (tmp_path / "a.log").write_text("x" * 100 + "the end")
    assert logic.tail(str(tmp_path / "a.log")) == b"xxxthe end"
    assert logic.tail(str(tmp_path / "none")) == b"cannot be read: No such file or directory\n"


def test_a_full_disk_keeps_no_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_args: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tarfile.TarFile, "addfile", full)
    with pytest.raises(OSError, match="No space"):
        logic.write(str(tmp_path / "a.tar.gz"), {"a": b"b"})
    assert list(tmp_path.iterdir()) == []


def test_nodes_that_gave_nothing_are_named(tmp_path: Path) -> None:
    parts, secrets, run = tmp_path / "parts", tmp_path / "secrets", tmp_path / "20261121T105130Z"
    for folder in (parts, secrets, run / "jobs"):
        folder.mkdir(parents=True)
    (secrets / "munge.key").write_text("0123456789abcdef\n")
    (run / "events.jsonl").write_text('{"message": "0123456789abcdef"}')
    (run / "jobs" / "output.txt").write_text("out")
    logic.write(str(parts / "a1.tar.gz"), {"commands/date.txt": b"now 0123456789abcdef"})
    (parts / "a3.tar.gz").write_bytes(b"no archive")
    contents = logic.join(
        str(parts),
        ["a1", "a2", "a3"],
        {"a1": "", "a2": "No route to host"},
        run=str(run),
        secrets_dir=str(secrets),
        facts={"fleet": "blue"},
    )
    assert sorted(contents) == ["a1/commands/date.txt", "bundle.json", "run/events.jsonl", "run/jobs/output.txt"]
    assert contents["a1/commands/date.txt"] == b"now [secret]"
    assert contents["run/events.jsonl"] == b'{"message": "[secret]"}'
    document = json.loads(contents["bundle.json"])
    assert document["nodes"]["a1"] == "collected"
    assert document["nodes"]["a2"] == "No route to host"
    assert document["nodes"]["a3"].startswith("nothing collected (")
    assert (document["schema"], document["fleet"], document["run"]) == ("muster.bundle/1", "blue", "20261121T105130Z")

    path = tmp_path / "bundle.tar.gz"
    logic.write(str(path), contents, top="bundle")
    assert path.stat().st_mode & 0o777 == 0o600
    with tarfile.open(path) as tar:
        assert "bundle/bundle.json" in tar.getnames()
