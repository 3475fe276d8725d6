# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Command lines: errors of one sentence, a strict parser, and flags that are the fields of dataclasses."""

import argparse
import difflib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import field, fields
from typing import Any


class TrainerError(Exception):
    """The run failed for a reason that one sentence can name. Every rank raises it, so only rank 0 prints it."""

    exit_code = 1


class LocalError(TrainerError):
    """A failure of this rank alone: this rank prints it."""


class UsageError(TrainerError):
    """The request cannot work; the sentence names the remedy."""

    exit_code = 2


def nearest(name: str, known: Iterable[str]) -> str:
    """`did you mean X?` with the entry of `known` that is closest to `name`, or nothing if none is close."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"did you mean {close[0]}?" if close else ""


def choose(what: str, name: str, known: Sequence[str]) -> str:
    """`name` if it is one of `known`; raises UsageError with the nearest one and the list."""
    if name in known:
        return name
    raise UsageError(" ".join(filter(None, [f"unknown {what} '{name}':", nearest(name, known), f"known are {', '.join(known)}"])))


class Parser(argparse.ArgumentParser):
    """argparse that reports an error in one sentence, accepts no abbreviation and names the flag nearest to an unknown one."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, formatter_class=argparse.ArgumentDefaultsHelpFormatter, **options)
        self.refusals: list[str] = []  # of all arguments, so that they are told together

    def error(self, message: str) -> Any:
        raise UsageError(f"{message} (--help lists all flags)")

    def _get_values(self, action: argparse.Action, words: Any) -> Any:
        try:
            return super()._get_values(action, words)  # type: ignore[misc]
        except argparse.ArgumentError as error:
            self.refusals.append(str(error))
            return action.default

    def parse(self, argv: Sequence[str], check: Callable[[argparse.Namespace], Iterable[str]] = lambda known: ()) -> argparse.Namespace:
        """The arguments; raises UsageError with all that is wrong, `check`'s sentences included."""
        self.refusals = []
        known, unknown = self.parse_known_args(argv)
        flags = [option for action in self._actions for option in action.option_strings]
        for name in [word.split("=")[0] for word in unknown if word.startswith("-")] or unknown[:1]:
            self.refusals.append(": ".join(filter(None, [f"unknown argument '{name}'", nearest(name, flags)])))
        if refusals := [*self.refusals, *check(known)]:
            self.error("; ".join(refusals))
        return known

    def add_flags(self, group: type) -> None:
        """Add a flag for each field of the dataclass `group`; its docstring is the title in --help."""
        section = self.add_argument_group(str(group.__doc__))
        for entry in fields(group):
            more = dict(entry.metadata)
            section.add_argument(f"--{entry.name}", *more.pop("aliases"), default=entry.default, **more)

    def flags_table(self) -> str:
        """The flags by group as the Markdown table of README.md."""
        rows = ["| Flag | Default | Meaning |", "|---|---|---|"]
        for group in self._action_groups:
            actions = [action for action in group._group_actions if action.dest != "help"]
            if actions:
                rows.append(f"| **{group.title}** | | |")
            for action in actions:
                choices = f" ({', '.join(map(str, action.choices))})" if action.choices else ""
                default = "" if action.default is None else f" `{action.default}`"
                rows.append(f"| `{', '.join(action.option_strings)}` |{default} | {action.help}{choices} |")
        return "\n".join(rows) + "\n"


def flag(default: Any, kind: Callable[[str], Any], text: str, choices: Sequence[Any] | None = None, aliases: Sequence[str] = ()) -> Any:
    """A dataclass field that is also a command line flag."""
    return field(default=default, metadata={"type": kind, "help": text, "choices": choices, "aliases": aliases})


def number(kind: type, low: float, high: float = float("inf"), below: bool = False) -> Callable[[str], Any]:
    """A reader of finite numbers of `kind` from `low` to `high`, both included or below `high`; argparse makes its error a sentence."""

    def read(text: str) -> Any:
        try:
            value = kind(text)
            if low <= value < high or (value == high < float("inf") and not below):
                return value
        except ValueError:
            pass
        name = "a whole number" if kind is int else "a number"
        span = f"of {low:g} or more" if high == float("inf") else f"from {low:g} to {'below ' * below}{high:g}"
        raise argparse.ArgumentTypeError(f"'{text}' is not {name} {span}")

    return read


POSITIVE = number(int, 1)
NATURAL = number(int, 0)
AMOUNT = number(float, 0)
FRACTION = number(float, 0, 1)
DECAY = number(float, 0, 1, below=True)
SWITCH = number(int, 0, 1)


def window(text: str) -> str:
    """Check that `text` is FIRST-LAST; argparse turns the error into a sentence."""
    first, dash, last = text.partition("-")
    if not (dash and first.isdigit() and last.isdigit() and 1 <= int(first) <= int(last)):
        raise argparse.ArgumentTypeError(f"'{text}' is not FIRST-LAST, two steps such as 10-12")
    return text
