# SPDX-License-Identifier: Apache-2.0
"""Test the LDAP servers of an sssd.conf for what SSSD needs: TLS with a certificate of its CA, the bind, and the base.

    ldap-probe.py [--any] CONF [CA]     CA: the certificates themselves, in PEM, instead of the file that CONF names

Prints a line for each server that answers. If one does not, or with --any if none does, it prints a sentence on stderr and exits with 1.
It needs only Python, so that it can test a file before SSSD is installed or reads it.
Source: RFC 4511 (messages 4.1.1, bind 4.2, search 4.5, StartTLS 4.14).
"""

import configparser
import socket
import ssl
import sys
import urllib.parse

PATIENCE_S = 5
START_TLS = b"1.3.6.1.4.1.1466.20037"
BIND, SEARCH, EXTENDED = 0x60, 0x63, 0x77
SEARCH_DONE = 0x65
REFUSED_BIND, NO_SUCH_OBJECT = 49, 32


class ProbeError(Exception):
    """Why a server cannot be used; the text follows its URI."""


def element(tag, content):
    """A BER element."""
    size = len(content)
    head = bytes([size]) if size < 128 else bytes([0x82, size >> 8, size & 255])
    return bytes([tag]) + head + content


def message(number, operation, content):
    """A whole LDAP request."""
    return element(0x30, element(0x02, bytes([number])) + element(operation, content))


def bind_request(number, name, password):
    """A simple bind; anonymous without name and password."""
    return message(number, BIND, element(0x02, b"\x03") + element(0x04, name.encode()) + element(0x80, password.encode()))


def search_request(number, base):
    """The entry `base` itself, without its attributes."""
    scope, aliases, size, seconds = (element(0x0A, b"\0"), element(0x0A, b"\0"), element(0x02, b"\1"), element(0x02, bytes([PATIENCE_S])))
    present = element(0x87, b"objectClass")
    return message(
        number,
        SEARCH,
        element(0x04, base.encode())
        + scope
        + aliases
        + size
        + seconds
        + element(0x01, b"\xff")
        + present
        + element(0x30, element(0x04, b"1.1")),
    )


def start_tls_request(number):
    return message(number, EXTENDED, element(0x80, START_TLS))


def split(data):
    """(tag, content, what follows) of the first BER element."""
    size, start = data[1], 2
    if size & 0x80:
        start = 2 + (size & 0x7F)
        size = int.from_bytes(data[2:start], "big")
    return data[0], data[start : start + size], data[start + size :]


def receive(connection, count):
    data = b""
    while len(data) < count:
        part = connection.recv(count - len(data))
        if not part:
            raise ProbeError("ended the connection")
        data += part
    return data


def answer(connection):
    """(tag, result code) of the next message; the code of an entry is 0."""
    head = receive(connection, 2)
    size = head[1]
    if size & 0x80:
        size = int.from_bytes(receive(connection, size & 0x7F), "big")
    body = split(receive(connection, size))[2]
    tag, content, _rest = split(body)
    kind, code, _rest = split(content)
    return tag, code[0] if kind == 0x0A else 0


def ask(uri, conf, context):
    """Raise ProbeError when the server cannot be used with the settings of `conf`."""
    address = urllib.parse.urlsplit(uri)
    secure = address.scheme == "ldaps"
    try:
        connection = socket.create_connection((address.hostname, address.port or (636 if secure else 389)), PATIENCE_S)
    except OSError as error:
        raise ProbeError(f"cannot be reached ({error.strerror or error})") from error
    with connection:
        try:
            if not secure:
                connection.sendall(start_tls_request(1))
                if answer(connection)[1] != 0:
                    raise ProbeError("offers no STARTTLS")
            with context.wrap_socket(connection, server_hostname=address.hostname) as channel:
                name, base = conf.get("ldap_default_bind_dn", ""), conf["ldap_search_base"].split("?")[0]
                channel.sendall(bind_request(2, name, conf.get("ldap_default_authtok", "")))
                code = answer(channel)[1]
                if code:
                    why = "wrong name or password" if code == REFUSED_BIND else f"LDAP result {code}"
                    raise ProbeError(f"refuses to be read as {name or 'nobody'} ({why})")
                channel.sendall(search_request(3, base))
                tag, code = answer(channel)
                while tag != SEARCH_DONE:
                    tag, code = answer(channel)
                if code:
                    raise ProbeError(
                        f"has no {base} that this bind may read"
                        if code == NO_SUCH_OBJECT
                        else f"does not search {base} (LDAP result {code})"
                    )
        except ssl.SSLCertVerificationError as error:
            raise ProbeError(f"has a certificate that is not trusted ({error.verify_message})") from error
        except OSError as error:
            raise ProbeError(f"does not answer as an LDAP server with TLS ({error})") from error


def domain_of(path):
    """The settings of the one domain."""
    parser = configparser.RawConfigParser()
    with open(path, encoding="utf-8") as handle:
        parser.read_file(handle)
    return next(parser[name] for name in parser.sections() if name.startswith("domain/"))


def main(argv):
    wants_all = argv[:1] != ["--any"]
    path, *authority = argv if wants_all else argv[1:]
    conf = domain_of(path)
    context = ssl.create_default_context(cadata=authority[0]) if authority else ssl.create_default_context(cafile=conf["ldap_tls_cacert"])
    # Since 3.13 Python refuses certificates that SSSD accepts, for example a CA without keyUsage.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    uris = [uri.strip() for uri in conf["ldap_uri"].split(",")]
    wrong = []
    for uri in uris:
        try:
            ask(uri, conf, context)
            print(f"{uri} answers")
        except ProbeError as error:
            wrong.append(f"directory server {uri} {error}")
    if wrong and (wants_all or len(wrong) == len(uris)):
        sys.exit("; ".join(wrong))


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except (OSError, ssl.SSLError, KeyError, configparser.Error) as error:
        sys.exit(f"the directory's settings cannot be used: {error}")
