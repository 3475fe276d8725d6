# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The endpoint of Muster's exporters: /metrics over HTTP on the loopback, over TLS with a password everywhere else.

Roles copy this file to /usr/lib/muster on nodes, so it imports only the standard library.
"""

from __future__ import annotations

import base64
import hmac
import ipaddress
import math
import os
import ssl
import sys
import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

USER = "muster"
TIMEOUT = 30  # seconds that a client may take for its request
FILES = ("cert.pem", "key.pem", "password")
TEXT = "text/plain; version=0.0.4; charset=utf-8"


class EndpointError(ValueError):
    """The endpoint cannot be offered; the text is one sentence for the user."""


def escaped(text):
    """A label's value in Prometheus' text format."""
    return str(text).replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def number(value):
    """A sample's value in Prometheus' text format; None is no number."""
    if value is None or math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(value + 0)


def render(families):
    """Metrics in Prometheus' text format. families: (name, type, help, [(labels, value)]); one without samples is left out."""
    lines = []
    for name, kind, text, samples in families:
        if samples:
            lines += ["# HELP %s %s" % (name, text), "# TYPE %s %s" % (name, kind)]
        for labels, value in samples:
            inner = ",".join('%s="%s"' % (key, escaped(each)) for key, each in labels.items())
            lines.append("%s%s %s" % (name, "{%s}" % inner if inner else "", number(value)))
    return ("\n".join(lines) + "\n").encode()


def split_listen(listen):
    """HOST:PORT as a pair."""
    host, colon, port = listen.rpartition(":")
    if not colon or not port.isdigit() or not 0 <= int(port) < 65536:
        raise EndpointError("Address %s is not HOST:PORT; give one such as 127.0.0.1:9109." % listen)
    return host.strip("[]"), int(port)


def is_local(host):
    """Tell whether only this machine reaches the address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def read_secrets(folder):
    """({name: path}, password) of a folder with a certificate, its key and a password."""
    paths = {name: os.path.join(folder, name) for name in FILES}
    for path in paths.values():
        if not os.access(path, os.R_OK):
            raise EndpointError("%s cannot be read; run the configure phase of the exporter's role again." % path)
    with open(paths["password"], encoding="utf-8") as file:
        password = file.read().strip()
    if not password:
        raise EndpointError("%s is empty; run the configure phase of the exporter's role again." % paths["password"])
    return paths, password


def authorised(header, password):
    """Tell whether an Authorization header has the user and the password."""
    kind, _space, word = (header or "").partition(" ")
    try:
        found = base64.b64decode(word.strip(), validate=True) if kind.lower() == "basic" else b""
    except ValueError:
        found = b""
    return hmac.compare_digest(found, ("%s:%s" % (USER, password)).encode())


def make_server(collect, listen, secrets=""):
    """A server whose /metrics are the families that `collect()` gives. Without `secrets` (a folder) it must listen on the loopback."""
    host, port = split_listen(listen)
    if not secrets and not is_local(host):
        raise EndpointError(
            "%s can be reached from other machines and needs TLS; name the folder of its secrets, or use 127.0.0.1." % listen
        )
    paths, password = read_secrets(secrets) if secrets else ({}, "")

    class Handler(BaseHTTPRequestHandler):
        """Answer one client."""

        timeout = TIMEOUT
        server_version = "muster"
        sys_version = ""

        def do_GET(self):
            """Give the metrics to who has the password."""
            if password and not authorised(self.headers.get("Authorization"), password):
                self.answer(401, b"Wrong user or password.\n", more={"WWW-Authenticate": 'Basic realm="muster"'})
            elif self.path.partition("?")[0] == "/metrics":
                try:
                    body = render(collect())
                except Exception as error:  # a client must hear of it, and the next scrape may succeed
                    self.answer(500, ("%s\n" % error).encode())
                else:
                    self.answer(200, body, TEXT)
            else:
                self.answer(404, b"Ask for /metrics.\n")

        def answer(self, code, body, kind="text/plain; charset=utf-8", more=None):
            """Send a whole answer."""
            self.send_response(code)
            for name, value in {"Content-Type": kind, "Content-Length": str(len(body)), **(more or {})}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args):
            """Keep quiet: the journal would have a line for each scrape."""

    class Server(ThreadingHTTPServer):
        """Many clients, of whom none may keep the others waiting."""

        daemon_threads = True
        block_on_close = False
        slots = threading.BoundedSemaphore(8)

        def process_request_thread(self, request, client_address):
            """Do the handshake in the client's thread, with its time limit."""
            with self.slots:
                if context:
                    request.settimeout(TIMEOUT)
                    try:
                        request = context.wrap_socket(request, server_side=True)
                    except (OSError, ValueError):
                        self.shutdown_request(request)
                        return
                super().process_request_thread(request, client_address)

        def handle_error(self, request, client_address):
            """Keep quiet about clients that hang up."""

    context = None
    if paths:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(paths["cert.pem"], paths["key.pem"])
        except (OSError, ValueError) as error:
            raise EndpointError(
                "%s and its key are no pair (%s); remove both from the fleet's secrets and run again." % (secrets, error)
            ) from None
    try:
        return Server((host, port), Handler)
    except OSError as error:
        raise EndpointError(
            "Nothing can listen on %s (%s); give the exporter another address." % (listen, error.strerror or error)
        ) from None


def fetch(url, secrets=""):
    """The text behind an endpoint of this fleet. The certificate must be the fleet's own, whatever name the address has."""
    request = urllib.request.Request(url)
    handlers = []
    if secrets:
        paths, password = read_secrets(secrets)
        word = base64.b64encode(("%s:%s" % (USER, password)).encode()).decode()
        request.add_header("Authorization", "Basic " + word)
        context = ssl.create_default_context(cafile=paths["cert.pem"])
        context.check_hostname = False
        handlers = [urllib.request.HTTPSHandler(context=context)]
    with urllib.request.build_opener(*handlers).open(request, timeout=TIMEOUT) as answer:
        return answer.read().decode(errors="replace")


def serve(program, collect, listen, secrets):
    """Serve until the process ends; return its exit code."""
    try:
        server = make_server(collect, listen, secrets)
    except EndpointError as error:
        sys.stderr.write("%s: %s\n" % (program, error))
        return 1
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        server.server_close()
    return 0


def main(argv):
    """Print what an endpoint serves: URL [FOLDER of secrets]."""
    try:
        sys.stdout.write(fetch(*argv[1:3]))
    except (OSError, EndpointError) as error:
        sys.stderr.write("%s does not answer: %s\n" % (argv[1], error))
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv))
