# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Command lines: the sentences for wrong flags, and the table of flags in the README."""

import json
from pathlib import Path

import pytest

from trainer import __main__
from trainer.cli import Parser, UsageError
from trainer.config import read_train, train_parser
from trainer.estimate import command
from trainer.launch import answer
from trainer.models import ROPE_THETA, Shape, shape_of

README = Path(__file__).parents[1] / "README.md"

# Official configurations and their parameter counts.
LLAMA_2_7B = Shape(4096, 32, 32, 32, 11008, 32000, 4096, ROPE_THETA["llama_v2"])
LLAMA_3_1_8B = Shape(4096, 32, 32, 8, 14336, 128256, 8192, ROPE_THETA["llama_v3"])


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["--max_step", "3"], "unknown argument '--max_step': did you mean --max_steps?"),
        (["--train_batch_sizes=3"], "unknown argument '--train_batch_sizes': did you mean --train_batch_size?"),
        (["--max_steps", "0"], "argument --max_steps/--max_training_steps: '0' is not a whole number of 1 or more"),
        (["--beta1", "1.5"], "argument --beta1: '1.5' is not a number from 0 to below 1"),
        (["--beta2", "1"], "argument --beta2: '1' is not a number from 0 to below 1"),
        (["--lr", "inf"], "argument --lr: 'inf' is not a number of 0 or more"),
        (["--lr", "fast"], "argument --lr: 'fast' is not a number of 0 or more"),
        (["--lr", "nan"], "argument --lr: 'nan' is not a number of 0 or more"),
        (["--lr_decay_style", "sine"], "argument --lr_decay_style: invalid choice: 'sine'"),
        (["--profile", "12-10"], "argument --profile: '12-10' is not FIRST-LAST, two steps such as 10-12"),
        (["--dataset_path", "x", "--lr", "1e-5", "--min_lr", "1e-4"], "--min_lr 0.0001 is above --lr 1e-05"),
    ],
)
def test_a_wrong_flag_is_answered_by_one_sentence(argv: list[str], sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_train(argv)
    assert str(caught.value).startswith(sentence)
    assert "\n" not in str(caught.value)


def test_an_unknown_command_names_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"unknown command 'trian': did you mean train\? known are train, estimate, preflight, "):
        __main__.main(["trian"])


def test_expected_failures_end_with_their_code_and_no_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert answer(__main__.main, ["prepare-data"]) == 2
    assert capsys.readouterr().err == "trainer: the following arguments are required: --out (--help lists all flags)\n"


def test_the_reference_trainers_names_and_defaults() -> None:
    config = read_train(["--dataset_path", "x"])
    assert (config.train_batch_size, config.max_steps, config.lr, config.min_lr) == (2, 5000, 1e-4, 1e-5)
    assert (config.weight_decay, config.beta1, config.beta2, config.grad_clip) == (0.2, 0.9, 0.95, 1.0)
    assert (config.warmup, config.lr_decay_style, config.checkpoint_freq, config.logging_freq) == (0.0032, "cosine", 1000, 1)


def test_parameter_counts() -> None:
    assert shape_of("tiny", "llama_v3", {}).parameters() == 1_672_896
    assert LLAMA_2_7B.parameters() == 6_738_415_616
    assert LLAMA_3_1_8B.parameters() == 8_030_261_248


def test_a_given_shape_flag_beats_the_preset() -> None:
    shape = shape_of("tiny", "llama_v2", {"num_layers": 2, "vocab_size": None})
    assert (shape.num_layers, shape.vocab_size, shape.rope_theta) == (2, 256, 10_000.0)


@pytest.mark.parametrize(("part", "sentence"), [({"num_heads": 5}, "hidden_width 192"), ({"num_key_value_heads": 4}, "num_heads 6")])
def test_parts_of_a_shape_that_do_not_fit(part: dict[str, int | None], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        shape_of("tiny", "llama_v3", part)


def test_the_readme_has_the_parsers_flags() -> None:
    assert train_parser().flags_table() in README.read_text(), "README.md: insert the output of trainer.config.train_parser().flags_table()"


RECORDED = json.loads(Path(__file__).with_name("flags.json").read_text())


@pytest.mark.parametrize(("command", "parser"), [("train", train_parser()), ("estimate", command.parser())])
def test_no_flag_is_lost_or_changed(command: str, parser: Parser) -> None:
    """flags.json holds the names, default and choices of each flag; people's job scripts rely on them."""
    found = {
        action.dest: {
            "names": action.option_strings,
            "default": action.default,
            "choices": list(action.choices) if action.choices else None,
        }
        for action in parser._actions
        if action.dest != "help"
    }
    assert found == RECORDED[command]


def test_the_flags_of_train_are_in_six_groups() -> None:
    groups = [group.title for group in train_parser()._action_groups if group.title not in ("positional arguments", "options")]
    assert groups == ["Model", "Data", "Layout", "Optimiser", "Checkpoint", "Output"]
