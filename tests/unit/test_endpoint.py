# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""The endpoint of the exporters: TLS with the fleet's certificate, its password, and its text format."""

from __future__ import annotations

import datetime
import math
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from ansible_collections.muster.fleet.plugins.lookup import certificate
from ansible_collections.muster.fleet.plugins.module_utils.observe import muster_endpoint

NOW = datetime.datetime(2026, 11, 25, tzinfo=datetime.UTC)


@pytest.fixture
def secrets(tmp_path: Path) -> Path:
    found = certificate.pair("f.muster.internal", str(tmp_path / "state"), datetime.datetime.now(datetime.UTC))
    (tmp_path / "cert.pem").write_text(found["cert"])
    (tmp_path / "key.pem").write_text(found["key"])
    (tmp_path / "password").write_text("word\n")
    return tmp_path


@pytest.fixture
def url(secrets: Path) -> Iterator[str]:
    calls = iter([None, 1, 2, 3])

    def collect():
        if next(calls) is None:
            raise RuntimeError("slurmctld does not answer")
        return [("up", "gauge", "Is up.", [({"a": 'x"\\\n'}, 1)])]

    server = muster_endpoint.make_server(collect, "127.0.0.1:0", str(secrets))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"https://127.0.0.1:{server.server_address[1]}/metrics"
    server.shutdown()
    server.server_close()
    thread.join()


def test_it_answers_who_has_the_password(url: str, secrets: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert muster_endpoint.main(["probe", url, str(secrets)]) == 1, "a collector that fails is an error of that scrape"
    assert "HTTP Error 500" in capsys.readouterr().err
    assert muster_endpoint.fetch(url, str(secrets)) == '# HELP up Is up.\n# TYPE up gauge\nup{a="x\\"\\\\\\n"} 1\n'
    (secrets / "password").write_text("other\n")
    assert muster_endpoint.main(["probe", url, str(secrets)]) == 1
    assert capsys.readouterr().err == f"{url} does not answer: HTTP Error 401: Unauthorized\n"


@pytest.mark.parametrize("header", [None, "Basic", "Basic !!!", "Basic bXVzdGVyOg==", "Bearer bXVzdGVyOndvcmQ="])
def test_nobody_else_is_answered(url: str, secrets: Path, header: str | None) -> None:
    context = ssl.create_default_context(cafile=str(secrets / "cert.pem"))
    context.check_hostname = False
    request = urllib.request.Request(url, headers={"Authorization": header} if header else {})
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(request, context=context, timeout=10)


def test_a_stranger_s_certificate_is_refused(url: str, secrets: Path) -> None:
    other = certificate.pair("f.muster.internal", str(secrets / "other"), datetime.datetime.now(datetime.UTC))
    (secrets / "cert.pem").write_text(other["cert"])
    with pytest.raises(urllib.error.URLError, match="CERTIFICATE_VERIFY_FAILED"):
        muster_endpoint.fetch(url, str(secrets))


def test_a_pair_that_does_not_belong_together_is_refused(secrets: Path) -> None:
    (secrets / "key.pem").write_text(certificate.pair("f", str(secrets / "other"), NOW)["key"])
    with pytest.raises(muster_endpoint.EndpointError, match="are no pair"):
        muster_endpoint.make_server(list, "127.0.0.1:0", str(secrets))
    (secrets / "password").write_text("\n")
    with pytest.raises(muster_endpoint.EndpointError, match="password is empty"):
        muster_endpoint.make_server(list, "127.0.0.1:0", str(secrets))


def test_a_port_that_is_taken(url: str) -> None:
    port = url.split(":")[2].partition("/")[0]
    with pytest.raises(muster_endpoint.EndpointError, match=rf"Nothing can listen on 127.0.0.1:{port} \(Address already in use\)"):
        muster_endpoint.make_server(list, f"127.0.0.1:{port}")


def test_numbers() -> None:
    given = [3, 2**64 - 1, 0.5, True, math.nan, None, math.inf, -math.inf]
    assert [muster_endpoint.number(each) for each in given] == ["3", "18446744073709551615", "0.5", "1", "NaN", "NaN", "+Inf", "-Inf"]
    assert muster_endpoint.render([("a", "gauge", "text", [])]) == b"\n"


def test_the_certificate_is_kept_and_renewed_in_its_last_month(tmp_path: Path) -> None:
    first = certificate.pair("a.muster.internal", str(tmp_path / "s"), NOW)
    assert certificate.pair("a.muster.internal", str(tmp_path / "s"), NOW + datetime.timedelta(days=3600)) == first
    assert sorted(path.name for path in (tmp_path / "s").iterdir()) == [".metrics.lock", "metrics-cert.pem", "metrics-key.pem"]
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "s").glob("*.pem")} == {0o600}
    later = certificate.pair("a.muster.internal", str(tmp_path / "s"), NOW + datetime.timedelta(days=3640))
    assert later["cert"] != first["cert"]
    (tmp_path / "s/metrics-key.pem").write_text("broken")
    assert certificate.pair("a.muster.internal", str(tmp_path / "s"), NOW)["key"] != later["key"]
