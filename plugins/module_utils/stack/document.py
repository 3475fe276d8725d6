# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The stack document, muster.stack/1: which version of each component a node gets, and from where. Dicts in, dicts out."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

from ansible_collections.muster.fleet.plugins.module_utils.basics import closest

SCHEMA = "muster.stack/1"
SYSTEMS = ("amzn2023", "debian12", "debian13", "rhel9", "rocky9", "ubuntu22.04", "ubuntu24.04")
ARCHITECTURES = ("x86_64", "arm64")
KERNEL_MODULES = ("open", "proprietary", "by_gpu")

# `python` and `wheels` (name -> version) are what jobs use. Muster installs neither; the rules compare them with the components.
HEAD: dict[str, Any] = {
    **{"schema": str, "name": str, "extends": str, "about": str, "systems": list, "architectures": list},
    **{"python": str, "wheels": dict},
}
# The kinds of sources, each with the keys that a source of this kind may have.
SOURCES = {
    "url": {"sha256", "signature", "names", "parts"},
    "repository": {"signature", "names", "packages"},
    "distro": set(),
    "bundled_in": set(),
    "refused": set(),
}
# `https` is the reason why nobody but the key's own host vouches for the key. It stands instead of the fingerprint.
SIGNATURE = ("url", "key", "fingerprint", "https")
PART = ("folder", "url", "sha256")
SUM = re.compile(r"[0-9a-f]{64}")


class StackError(ValueError):
    """A stack is invalid; the text is one sentence for the user."""


def resolve(name, read, known):
    """The whole stack: what `read(name)` gives, laid over what it extends. Raises StackError, also for what `validate` refuses."""
    chain: list[tuple[str, dict]] = []
    wanted = name
    while wanted:
        document = read(wanted)
        if not isinstance(document, dict):
            raise StackError("Stack %s is not a mapping; begin it with schema: %s." % (wanted, SCHEMA))
        if document.get("schema") != SCHEMA:
            raise StackError("Stack %s has the schema %s; this version of Muster reads %s." % (wanted, document.get("schema"), SCHEMA))
        if wanted in [each for each, _document in chain]:
            raise StackError("Stack %s extends itself by way of %s; take one extends away." % (name, chain[-1][0]))
        chain.append((wanted, document))
        wanted = document.get("extends")
        if wanted is not None and not isinstance(wanted, str):
            raise StackError("Stack %s: extends must be the name of one stack." % chain[-1][0])
    merged: dict[str, Any] = {}
    for _name, document in reversed(chain):
        merged = merge(merged, {key: value for key, value in document.items() if key != "extends"})
    validate(merged, known)
    return merged


def merge(base, over):
    """`over` laid over `base`: mappings key by key, anything else replaced; null removes."""
    merged = dict(base)
    for key, value in over.items():
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, dict) and isinstance(merged.get(key), dict):
            merged[key] = merge(merged[key], value)
        else:
            merged[key] = value
    return merged


def digest(stack):
    """The sha256 of all that a stack says, however its file is written. Its prose does not count."""
    return hashlib.sha256(json.dumps({key: stack[key] for key in stack if key != "about"}, sort_keys=True).encode()).hexdigest()


class _Judge:
    """Raises StackError with one sentence that names the stack."""

    def __init__(self, stack):
        self.name = stack.get("name") or "without a name"

    def fail(self, text, *values):
        raise StackError("Stack %s: %s." % (self.name, text % values))

    def typed(self, where, value, kind):
        if not isinstance(value, kind) or isinstance(value, bool):
            if kind is str and isinstance(value, (int, float)):
                self.fail("%s is the number %s and must be text; put it in quotes", where, value)
            self.fail("%s must be %s", where, {str: "text", list: "a list", dict: "a mapping"}[kind])
        if kind is list and not all(isinstance(each, str) for each in value):
            self.fail("%s must be a list of text", where)

    def known(self, where, key, keys):
        if key not in keys:
            nearest = closest(key, keys)
            self.fail("%s the unknown key %s%s", where, key, "; the nearest is %s" % nearest[0] if nearest else "")

    def one_of(self, where, values, choices):
        for value in values:
            if value not in choices:
                self.fail("%s names %s; there are %s", where, value, ", ".join(choices))


def components(stack):
    """The names of the components that a stack has."""
    return [name for name in stack if name not in HEAD and name != "sha256"]


def validate(stack, known):
    """Raise StackError for the first fault.

    known: component -> the keys that it may have beside version and sources -> their types, by name.
    """
    judge = _Judge(stack)
    for key in ("schema", "name", "systems", "architectures"):
        if key not in stack:
            judge.fail("the key %s is missing", key)
    for key, value in stack.items():
        judge.known("it has", key, [*HEAD, *known])
        judge.typed(key, value, HEAD.get(key, dict))
    judge.one_of("systems", stack["systems"], SYSTEMS)
    judge.one_of("architectures", stack["architectures"], ARCHITECTURES)

    for name, version in stack.get("wheels", {}).items():
        judge.typed("the version of wheel %s" % name, version, str)

    for name in components(stack):
        component, settings = stack[name], known[name]
        for key, value in component.items():
            judge.known("component %s has" % name, key, ["version", "sources", *settings])
            if key != "sources":
                judge.typed("%s of component %s" % (key, name), value, {"list": list}.get(settings.get(key), str))
        if not component.get("version"):
            judge.fail("component %s has no version", name)
        if name == "nvidia_driver":
            judge.one_of("kernel_modules of component nvidia_driver", [component.get("kernel_modules", "open")], KERNEL_MODULES)
        if not isinstance(component.get("sources"), list) or not component["sources"]:
            judge.fail("component %s needs a list of sources", name)
        for number, source in enumerate(component["sources"], 1):
            where = "source %d of component %s" % (number, name)
            judge.typed(where, source, dict)
            kinds = [kind for kind in SOURCES if kind in source]
            if len(kinds) != 1:
                judge.fail("%s needs exactly one of %s", where, ", ".join(SOURCES))
            kind = kinds[0]
            judge.typed("%s of %s" % (kind, where), source[kind], list if kind == "distro" else str)
            for key, value in source.items():
                judge.known("%s has" % where, key, ["systems", "architectures", kind, *sorted(SOURCES[kind])])
                if key in ("systems", "architectures", "packages"):
                    judge.typed("%s of %s" % (key, where), value, list)
            judge.one_of("systems of %s" % where, source.get("systems", []), stack["systems"])
            judge.one_of("architectures of %s" % where, source.get("architectures", []), stack["architectures"])
            if kind == "url" and component["version"] == "*":
                judge.fail("component %s has the version *, which only a repository can fill; name one", name)
            if kind == "bundled_in" and source["bundled_in"] not in stack:
                judge.fail("%s comes with %s, which the stack does not have", where, source["bundled_in"])
            if kind in ("url", "repository"):
                _check_proof(judge, where, source, stack["architectures"])


def _check_proof(judge, where, source, architectures):
    """Check that a source has a way to verify its download."""
    if "sha256" not in source and "signature" not in source:
        judge.fail("%s has neither sha256 nor signature, so nothing verifies it; name one of them", where)
    if "sha256" in source:
        sums = source["sha256"]
        if not isinstance(sums, (str, dict)):
            judge.fail("sha256 of %s must be text, or a mapping of architectures", where)
        if isinstance(sums, dict):
            for arch in source.get("architectures", architectures):
                if arch not in sums:
                    judge.fail("%s has no sha256 for %s", where, arch)
        for value in sums.values() if isinstance(sums, dict) else [sums]:
            _check_sum(judge, where, value)
    if "signature" in source:
        _check_signature(judge, "the signature of %s" % where, source["signature"])
    if "names" in source:
        judge.typed("names of %s" % where, source["names"], dict)
    if "parts" in source:
        _check_parts(judge, where, source["parts"])


def _check_sum(judge, where, value):
    if not isinstance(value, str) or not SUM.fullmatch(value):
        judge.fail("the sha256 %s of %s is not 64 hexadecimal digits", value, where)


def _check_signature(judge, where, signature):
    judge.typed(where, signature, dict)
    for key, value in signature.items():
        judge.known("%s has" % where, key, SIGNATURE)
        judge.typed("%s of %s" % (key, where), value, str)
    if "key" not in signature:
        judge.fail("%s has no key", where)
    if ("fingerprint" in signature) == ("https" in signature):
        judge.fail("%s needs either fingerprint, or https with the reason why the fingerprint is published nowhere", where)
    if "https" in signature and not signature["key"].startswith("https://"):
        judge.fail("%s relies on HTTPS, and its key %s is not fetched by it", where, signature["key"])
    if "fingerprint" in signature and not re.fullmatch(r"[0-9A-F]{40}", signature["fingerprint"]):
        judge.fail("the fingerprint of %s is not 40 hexadecimal digits in capitals", where.replace("the signature of ", ""))


def _check_parts(judge, where, parts):
    """Check the archives that are unpacked into folders of a source archive before it is built."""
    if not isinstance(parts, list):
        judge.fail("parts of %s must be a list", where)
    for part in parts:
        judge.typed("a part of %s" % where, part, dict)
        for key in (*PART, *part):
            judge.known("a part of %s has" % where, key, PART)
            judge.typed("%s of a part of %s" % (key, where), part.get(key), str)
        _check_sum(judge, "a part of %s" % where, part["sha256"])
        if not re.fullmatch(r"[A-Za-z0-9_-]+(/[A-Za-z0-9_.-]+)*", part["folder"]) or ".." in part["folder"].split("/"):
            judge.fail("the folder %s of a part of %s does not lie in its source archive", part["folder"], where)


def _filled(text, fill):
    """The text with its placeholders filled: {"{version}": "1.2", ...}."""
    for placeholder, value in fill.items():
        text = text.replace(placeholder, value)
    return text


def source_of(stack, name, system, arch):
    """Where a component comes from on one system: its first source for it, with its placeholders filled, or None.

    The result has kind (url, repository, distro, bundled_in or refused) and, for a file, sha256 as one text or "".
    """
    for source in stack.get(name, {}).get("sources", []):
        if system not in source.get("systems", stack["systems"]) or arch not in source.get("architectures", stack["architectures"]):
            continue
        names = source.get("names", {})
        fill = {"{version}": stack[name]["version"], "{arch}": names.get(arch, arch), "{system}": names.get(system, system)}

        kind = next(each for each in SOURCES if each in source)
        found = {**source, "kind": kind}
        if kind in ("url", "repository"):
            found[kind] = _filled(source[kind], fill)
            sums = source.get("sha256", "")
            found["sha256"] = sums.get(arch, "") if isinstance(sums, dict) else sums
            if "signature" in source:
                signature = {key: _filled(value, fill) for key, value in source["signature"].items()}
                if kind == "url":
                    signature.setdefault("url", found["url"] + ".sig")
                found["signature"] = signature
            if "packages" in source:
                found["packages"] = [_filled(each, fill) for each in source["packages"]]
            if "parts" in source:
                found["parts"] = [{**part, "kind": "url"} for part in source["parts"]]
        return found
    return None


def refusal(stack, name, system, arch, require_signed=False):
    """Why a component cannot be installed there, as one sentence; "" when it can. require_signed: HTTPS alone does not count."""
    if name not in stack:
        return "Stack %s has no %s." % (stack["name"], name)
    source = source_of(stack, name, system, arch)
    if source is None:
        return "Stack %s has no %s for %s on %s; give %s a source for it." % (stack["name"], name, system, arch, name)
    if source["kind"] == "refused":
        return "%s %s is refused on %s: %s." % (name, stack[name]["version"], system, source["refused"].rstrip("."))
    if source["kind"] == "bundled_in":
        return refusal(stack, source["bundled_in"], system, arch, require_signed)
    if require_signed and "https" in source.get("signature", {}):
        return (
            "muster_require_signed is true, and only HTTPS vouches for the key %s of %s (%s); name its fingerprint in a stack of yours."
            % (
                source["signature"]["key"],
                name,
                source["signature"]["https"].rstrip("."),
            )
        )
    return ""


def notice(stack, name, system, arch):
    """What a person should know of a component before it is installed, as one sentence; "" when there is nothing."""
    signature = (source_of(stack, name, system, arch) or {}).get("signature", {})
    if "https" not in signature:
        return ""
    return (
        "Only HTTPS vouches for the key %s of %s (%s). Muster pins its fingerprint at the first fetch and refuses another one later. "
        "With muster_require_signed: true it refuses %s." % (signature["key"], name, signature["https"].rstrip("."), name)
    )


def verified(stack, names, system, arch):
    """How the downloads of components are verified: one word, or several with commas between them."""
    words = set()
    for name in names:
        source = source_of(stack, name, system, arch) or {}
        if source.get("kind") == "bundled_in":
            source = source_of(stack, source["bundled_in"], system, arch) or {}
        if "signature" in source:
            words.add("https" if "https" in source["signature"] else "signature")
        elif source.get("sha256"):
            words.add("sha256")
        elif source.get("kind") == "distro":
            words.add("distribution")
    return ", ".join(sorted(words))


def mirrored(url, mirror):
    """The same download in a mirror or folder, laid out as HOST/PATH below it; `url` itself without one."""
    if not mirror:
        return url
    path = "%s/%s" % (mirror.rstrip("/"), re.sub(r"^[a-z]+://", "", url).split("?", 1)[0])
    return "file://" + path if path.startswith("/") else path


def downloads(stack, systems=(), architectures=()):
    """All files that a stack names, once each: [{component, url, kind, sha256?, signature?}], of these systems or all."""
    found: dict[str, Any] = {}
    for name in components(stack):
        for system in systems or stack["systems"]:
            for arch in architectures or stack["architectures"]:
                source = source_of(stack, name, system, arch)
                if source and source["kind"] in ("url", "repository"):
                    for each in (source, *source.get("parts", [])):
                        kept = {key: each[key] for key in ("kind", "sha256", "signature") if each.get(key)}
                        found.setdefault(each[each["kind"]], {"component": name, "url": each[each["kind"]], **kept})
    return list(found.values())


def redirected(source, mirror):
    """A source of `source_of` with every address redirected to the mirror."""
    if not mirror:
        return source
    found = {**source, **{key: mirrored(source[key], mirror) for key in ("url", "repository") if key in source}}
    if "parts" in source:
        found["parts"] = [redirected(part, mirror) for part in source["parts"]]
    if "signature" in source:
        signature = source["signature"]
        found["signature"] = {**signature, **{key: mirrored(signature[key], mirror) for key in ("url", "key") if key in signature}}
        if "https" in signature:
            # A pin belongs to the key's own address, from wherever the key is fetched.
            found["signature"]["published_at"] = signature["key"]
    return found
