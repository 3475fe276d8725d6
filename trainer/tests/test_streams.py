# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Streamed text through the real `datasets`: every document once, the same order on any number of ranks, and exact restarts."""

import json
import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from trainer.cli import LocalError, TrainerError, UsageError
from trainer.config import TrainConfig
from trainer.tests.conftest import HUB
from trainer.tests.hub import TOKEN, Hub, text_of, write_c4
from trainer.tests.ranks import NO_TORCH, start

pytest.importorskip("torch", reason=NO_TORCH)
pytest.importorskip("tokenizers", reason="datasets and tokenizers are not installed: `pip install ./trainer[hf]` brings them")

import numpy as np
import torch

from trainer.data import streams
from trainer.data.documents import reader_of
from trainer.data.loader import Loader, open_source
from trainer.data.tokenizer import TOKENIZERS, Bytes, open_tokenizer
from trainer.data.tokens import prepare
from trainer.loss import IGNORED

FILES, DOCUMENTS, CONTEXT = 8, 90, 64


@pytest.fixture(scope="module")
def hub(request: pytest.FixtureRequest) -> Hub:
    """The hub with allenai/c4, sets behind a gate, and tokenizers."""
    server = request.config.stash[HUB]
    folder = server.folder
    write_c4(folder / "datasets/allenai/c4", FILES, DOCUMENTS)
    write_c4(folder / "datasets/gated/c4", 2, 5)
    numbers = folder / "datasets/some/numbers"
    numbers.mkdir(parents=True)
    (numbers / "data.jsonl").write_text('{"a": 1, "b": 2}\n' * 3)
    write_tokenizer(folder / "models/some/words", 300)
    write_tokenizer(folder / "models/gated/words", 300)
    return server


def write_tokenizer(folder: Path, size: int) -> None:
    """A byte-level tokenizer.json of `size` tokens, as the library writes it."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=["<|end|>"], initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([text_of(0, index) for index in range(100)], trainer)
    folder.mkdir(parents=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "<|end|>", "__type": "AddedToken"}}))


def config(**more: Any) -> TrainConfig:
    return TrainConfig(**{"tokenizer": "bytes", "data_streams": 4, **more})


def read(ranks: int, steps: int, batch: int = 16, settings: TrainConfig | None = None) -> torch.Tensor:
    """The tokens of `steps` batches of `batch` samples, in global order, as `ranks` ranks read them."""
    loaders = [Loader(open_source(settings or config(), 256, CONTEXT), rank, ranks, batch // ranks) for rank in range(ranks)]
    return torch.cat([torch.stack([loader.next()[0] for loader in loaders], 1).flatten(0, 1) for _ in range(steps)])


def test_every_document_comes_once_and_in_order(hub: Hub) -> None:
    source = open_source(config(), 256, CONTEXT)
    texts: list[list[str]] = []
    for number in range(source.count):
        stream = source.stream(number)
        taken: list[int] = []
        # All samples of one pass: the windows overlap by the one token that is the last target.
        while stream.documents.passes == 0:
            taken += stream.take()[0][:-1].tolist()
        texts.append(bytes(taken).decode().split("\0")[:-1])
    expected = {text_of(file, index) for file in range(FILES) for index in range(DOCUMENTS)}
    for own in texts:
        assert own == list(dict.fromkeys(own)), "a document came twice"
    seen = [text for own in texts for text in own]
    assert len(seen) == len(set(seen)), "two streams read one document"
    # The reader is at most one group of documents ahead of what was taken.
    assert set(seen) <= expected
    assert len(expected - set(seen)) <= source.count * 32
    files = [sorted({int(text.split("file ")[1].split(":")[0]) for text in own}) for own in texts]
    assert sorted(file for own in files for file in own) == list(range(FILES))


@pytest.mark.parametrize("ranks", [2, 4, 8, 16])
def test_the_order_does_not_depend_on_the_number_of_ranks(hub: Hub, ranks: int) -> None:
    assert torch.equal(read(1, 4), read(ranks, 4))


@pytest.mark.parametrize(("before", "after"), [(2, 2), (2, 4), (4, 1), (1, 8)])
def test_a_restart_skips_and_repeats_nothing(hub: Hub, before: int, after: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # Few at a time, so that a stream stops inside its file, and has read further than the samples that were taken.
    monkeypatch.setattr(streams, "DOCUMENTS", 3)
    whole = read(1, 12)
    loaders = [Loader(open_source(config(), 256, CONTEXT), rank, before, 16 // before) for rank in range(before)]
    for loader in loaders:
        for _ in range(7):
            loader.next()
    states: dict[str, str] = {}
    for loader in loaders:
        states |= loader.state()
    assert sorted(states) == loaders[0].source.taken(7 * 16)
    assert all(0 < json.loads(state)["samples"] < 7 * 16 for state in states.values())
    found = []
    for rank in range(after):
        source = open_source(config(), 256, CONTEXT)
        mine = {key: states[key] for key in source.keys(rank, after) if key in states}
        found.append(Loader(source, rank, after, 16 // after, first=7 * 16, states=mine))
    rest = torch.cat([torch.stack([loader.next()[0] for loader in found], 1).flatten(0, 1) for _ in range(5)])
    assert torch.equal(rest, whole[7 * 16 :])


def make_source(kind: str, folder: Path) -> TrainConfig:
    """The settings of data of each kind that the trainer reads."""
    import datasets

    if kind in ("hub", "synthetic"):
        return config(dataset="synthetic") if kind == "synthetic" else config()
    texts = {"text": [text_of(9, index) for index in range(60)]}
    for part in range(3):
        own = datasets.Dataset.from_dict({"text": texts["text"][part::3]})
        if kind in ("json", "csv", "parquet"):
            getattr(own, f"to_{kind}")(folder / f"part-{part}.{kind}")
        elif kind == "text":
            folder.mkdir(exist_ok=True)
            (folder / f"part-{part}.txt").write_text("\n".join(own["text"]))
    if kind == "saved":
        datasets.Dataset.from_dict(texts).save_to_disk(str(folder))
    elif kind == "prompts":
        instructions(folder)
    elif kind == "tokens":
        prepare(folder, 20_000, 1, 256)
    return config(dataset_path=str(folder))


# The argument files of the AWS reference trainer (models/*.txt, 2026-07-23) without their comments: the tokens that all have, then each
# file's own. The last two have more of them in common.
COMMON = "--dataset=allenai/c4 --dataset_config_name=en --sharding_strategy=full --offload_activations=1"
LLAMA = f"{COMMON} --tokenizer=hf-internal-testing/llama-tokenizer --train_batch_size=1 --val_batch_size=1 --checkpoint_dir=./checkpoints"
LLAMA += " --resume_from_checkpoint=./checkpoints"
MISTRAL = f"{COMMON} --seed=42 --grad_clip=1.0 --weight_decay=0.2 --beta1=0.9 --beta2=0.95 --activation_checkpointing=1 --logging_freq=1"
MISTRAL += " --intermediate_size=14336 --num_key_value_heads=8 --max_context_width=32768 --hidden_width=4096 --num_layers=32 --num_heads=32"
MISTRAL += " --resid_pdrop=0.1 --embd_pdrop=0.1 --attn_pdrop=0.1 --summary_first_pdrop=0.1 --initializer_range=0.02 --rotary_pct=0.25"
MISTRAL += " --rotary_emb_base=10000 --lr=0.0001 --lr_decay_style=cosine --min_lr=1e-5 --warmup=0.0032 --plateau=0.0 --epochs=3"
MISTRAL += " --limit_all_gathers=1 --max_steps=200"
SIZES = (
    "max_context_width num_key_value_heads intermediate_size hidden_width num_layers num_heads checkpoint_freq validation_freq max_steps"
)
FILES_OF_AWS = {
    name: f"{LLAMA} --model_type={kind} " + " ".join(f"--{flag}={value}" for flag, value in zip(SIZES.split(), sizes, strict=True))
    for name, kind, sizes in (
        ("llama2_7b", "llama_v2", (4096, 32, 11008, 4096, 32, 32, 50, 100, 100)),
        ("llama2_13b", "llama_v2", (4096, 40, 13824, 5120, 40, 40, 50, 25, 50)),
        ("llama2_70b", "llama_v2", (4096, 8, 28672, 8192, 80, 64, 1000, 10, 30)),
        ("llama3_1_8b", "llama_v3", (8192, 8, 14336, 4096, 32, 32, 50, 25, 50)),
        ("llama3_1_70b", "llama_v3", (8192, 8, 28672, 8192, 80, 64, 1000, 10, 30)),
        ("llama3_2_1b", "llama_v3", (8192, 2, 8192, 2048, 16, 32, 50, 100, 100)),
        ("llama3_2_3b", "llama_v3", (8192, 2, 8192, 3072, 28, 24, 50, 100, 100)),
    )
}
FILES_OF_AWS["mathstral_7b"] = (
    f"{MISTRAL} --train_batch_size=1 --val_batch_size=1 --vocab_size=32768 --model_type=mistral --tokenizer=mistralai/mathstral-7B-v0.1 "
    "--checkpoint_dir=./checkpoints/mathstral-7B --resume_from_checkpoint=./checkpoints/mathstral-7B "
    "--checkpoint_freq=50 --validation_freq=100"
)
FILES_OF_AWS["mistral_8x7b"] = (
    f"{MISTRAL} --train_batch_size=4 --val_batch_size=4 --bf16=1 --vocab_size=32000 --model_type=mixtral "
    "--tokenizer=mistralai/Mixtral-8x7B-v0.1"
)
TWIN = "--max_steps 1 --hidden_width 64 --num_layers 2 --num_heads 8 --num_key_value_heads 2 --intermediate_size 64 --max_context_width 32"


def start_all(argv: Sequence[str]) -> int:
    """Start each file of the reference trainer in a folder of its own, with the sizes of a tiny twin after its tokens."""
    import torch.distributed as dist

    from trainer import __main__

    for name, arguments in FILES_OF_AWS.items():
        Path(argv[0], name).mkdir()
        os.chdir(Path(argv[0], name))
        print(f"{name}: {__main__.main(['train', *arguments.split(), *TWIN.split(), '--backend=gloo', '--validation_batches=1'])}")
        dist.destroy_process_group()
    return 0


def test_the_argument_files_of_the_reference_trainer_run(hub: Hub, tmp_path: Path) -> None:
    for name in ("hf-internal-testing/llama-tokenizer", "mistralai/mathstral-7B-v0.1", "mistralai/Mixtral-8x7B-v0.1"):
        write_tokenizer(hub.folder / "models" / name, 300)
    env = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home"), "HF_DATASETS_CACHE": str(tmp_path / "cache")}
    job = start(1, tmp_path / "output", f"{__name__}:start_all", [str(tmp_path)], **env)
    assert job.end() == [0], job.output()
    assert [line for line in job.output().splitlines() if line.endswith(": 0")] == [f"{name}: 0" for name in FILES_OF_AWS], job.output()
    assert job.output().count("--offload_activations of the AWS reference trainer does nothing here: nothing is moved") == 9
    assert job.output().count("Validation loss") == 8
    assert (tmp_path / "mathstral_7b/checkpoints/mathstral-7B/step-1").is_dir()


@pytest.mark.parametrize("kind", ["hub", "json", "csv", "parquet", "text", "saved", "prompts", "tokens", "synthetic"])
def test_a_chain_of_restarts_reads_what_one_run_reads(hub: Hub, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Five restarts, each after a random number of steps on another number of ranks. Some come before any stream has read again."""
    monkeypatch.setattr(streams, "DOCUMENTS", 5)
    draw, settings, batch = random.Random(kind), make_source(kind, tmp_path), 12
    whole = Loader(open_source(settings, 256, CONTEXT), 0, 1, batch)
    states: dict[str, str] = {}
    first = 0
    for _ in range(6):
        ranks, steps = draw.choice([1, 2, 3, 4, 6]), draw.choice([1, 1, 2, 3, 5])
        loaders = []
        for rank in range(ranks):
            source = open_source(settings, 256, CONTEXT)
            mine = {key: states[key] for key in source.keys(rank, ranks) if key in states} if states else {}
            loaders.append(Loader(source, rank, ranks, batch // ranks, first=first, states=mine))
        for _ in range(steps):
            for part, expected in zip(zip(*[loader.next() for loader in loaders], strict=True), whole.next(), strict=True):
                assert expected is None or torch.equal(torch.stack(part, 1).flatten(0, 1), expected), f"{kind}: sample {first}"
            first += batch
        states = {key: state for loader in loaders for key, state in loader.state().items()}


def test_where_the_number_of_ranks_divides_the_streams_each_file_is_read_by_one_rank(hub: Hub) -> None:
    hub.requests.clear()
    loader = Loader(open_source(config(), 256, CONTEXT), 1, 4, 4)
    for _ in range(3):
        loader.next()
    asked = {path.split("-train.")[1][:5] for path in hub.requests if "-train." in path and "resolve" in path}
    assert asked < {f"{number:05}" for number in range(FILES)}
    assert len(asked) <= 2


def test_validation_is_its_own_split(hub: Hub) -> None:
    tokens, labels = Loader(open_source(config(), 256, CONTEXT, validation=True), 0, 1, 2).next()
    assert labels is None
    assert bytes(tokens[0].tolist()).startswith(b"held out. held out.")


def instructions(folder: Path) -> Path:
    import datasets

    records = [{"prompt": f"What is {number} + 1?", "response": f"It is {number + 1}."} for number in range(50)]
    datasets.Dataset.from_list(records).save_to_disk(str(folder))
    return folder


def test_instruction_sets_have_the_prompt_masked(hub: Hub, tmp_path: Path) -> None:
    source = open_source(config(dataset_path=str(instructions(tmp_path / "set"))), 256, CONTEXT)
    inputs, labels = Loader(source, 0, 1, 4).next()
    assert inputs.shape == labels.shape == (4, CONTEXT)
    for row, wanted in zip(inputs.tolist(), labels.tolist(), strict=True):
        text = bytes(row[1:]).decode()
        counted = "".join("_" if label == IGNORED else chr(label) for label in wanted[:-1])
        assert all(mark in ("_", letter) for mark, letter in zip(counted, text, strict=True))
        for part in counted.replace("\0", "_").strip("_").split("_"):
            assert part == "" or part in "".join(f"It is {number + 1}. " for number in range(50))
        assert "What" not in counted


def test_a_saved_set_is_read_whole_in_each_pass_whatever_the_ranks(hub: Hub, tmp_path: Path) -> None:
    import datasets

    texts = [f"text number {number}" for number in range(101)]
    datasets.Dataset.from_dict({"text": texts}).save_to_disk(str(tmp_path / "set"))
    settings = config(dataset_path=str(tmp_path / "set"), seed=5)
    source = open_source(settings, 256, CONTEXT)
    # 101 documents over 4 streams: the first pass is 25 of each, and one more of the first.
    first = [parts[0][0] for stream in range(4) for parts in source.make(stream).read(26 if stream == 0 else 25)]
    assert sorted(first) == sorted(texts)
    assert torch.equal(read(1, 3, settings=settings), read(8, 3, settings=settings))
    other = config(dataset_path=str(tmp_path / "set"), seed=6)
    assert not torch.equal(read(1, 1, settings=settings), read(1, 1, settings=other))


def test_local_files_are_a_set_too(hub: Hub, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": f"line {number}"}) + "\n" for number in range(40)))
    tokens, _ = Loader(open_source(config(dataset_path=str(tmp_path)), 256, CONTEXT), 0, 1, 1).next()
    assert bytes(tokens[0].tolist()).startswith(b"line 0\0line 1\0")


def write_lines(path: Path, *records: Any) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def test_a_relative_folder_with_a_formats_name_is_a_folder(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_lines(tmp_path / "csv" / "a.jsonl", {"text": "in the folder"})
    monkeypatch.chdir(tmp_path)
    tokens, _ = Loader(open_source(config(dataset_path="csv"), 256, CONTEXT), 0, 1, 1).next()
    assert bytes(tokens[0].tolist()).startswith(b"in the folder\0")


def test_a_file_that_would_be_left_out_is_named(hub: Hub, tmp_path: Path) -> None:
    import datasets

    write_lines(tmp_path / "set" / "a.jsonl", {"text": "one"})
    datasets.Dataset.from_dict({"text": ["two"]}).to_parquet(tmp_path / "set" / "b.parquet")
    settings = config(dataset_path=str(tmp_path / "set"))
    with pytest.raises(UsageError, match=r"(a\.jsonl|b\.parquet) would not be read beside (b\.parquet|a\.jsonl): put it into a folder of"):
        open_source(settings, 256, CONTEXT)
    (tmp_path / "set" / "b.parquet").rename(tmp_path / "set" / "b.other")
    open_source(settings, 256, CONTEXT)


def test_a_text_file_is_one_document(hub: Hub, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\n\nthree\n" * 5)
    tokens, _ = Loader(open_source(config(dataset_path=str(tmp_path)), 256, 90), 0, 1, 1).next()
    assert bytes(tokens[0].tolist()).startswith(b"one\ntwo\n\nthree\n" * 5 + b"\0one")


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("a.jsonl", '{"text": "good"}\n' * 40 + "{broken\n", "JSON parse error"),
        ("a.jsonl", '{"text": "\\ud800"}\n', "surrogate"),
        ("a.jsonl", '{"text": 5}\n', "TypeError: text holds a int and no text"),
        ("a.jsonl", '{"messages": [{"role": "user", "content": [{"type": "text"}]}]}\n', "TypeError: content holds a list and no text"),
        ("a.jsonl", "", "nothing is in it"),
        ("a.csv", "", "No columns to parse from file"),
        ("a.txt", "", "has a part without a single document"),
        ("a.parquet", "PAR1 and no more", "Parquet magic bytes not found"),
    ],
)
def test_data_that_cannot_be_read_is_one_sentence(hub: Hub, tmp_path: Path, name: str, content: str, reason: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(TrainerError) as caught:
        loader = Loader(open_source(config(dataset_path=str(tmp_path)), 256, CONTEXT), 0, 1, 1)
        for _ in range(40):
            loader.next()
    assert reason in str(caught.value)
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "huggingface" not in str(caught.value)


def test_random_files_are_read_or_are_one_sentence(hub: Hub, tmp_path: Path) -> None:
    """Files of each kind with bytes changed, cut out, put in or repeated at random places; and files of random bytes."""
    import datasets

    draw, good = random.Random(11), {}
    for kind in ("json", "csv", "parquet"):
        path = tmp_path / f"good.{kind}"
        getattr(datasets.Dataset.from_dict({"text": [text_of(1, index) for index in range(12)]}), f"to_{kind}")(path)
        good[kind] = path.read_bytes()
    good["txt"] = b"some text\n" * 20
    good["jsonl"] = json.dumps({"messages": [{"role": "user", "content": "é"}]}).encode() * 3
    outcomes = set()
    for turn in range(60):
        kind = draw.choice(sorted(good))
        content = bytearray(good[kind] if turn % 6 else draw.randbytes(200))
        for _ in range(draw.randrange(1, 5)):
            at, length = draw.randrange(len(content) or 1), draw.randrange(1, 20)
            content[at : at + length] = draw.choice([b"", draw.randbytes(length), b"\xff", b'"\\ud800"', b"{[", bytes(content[:length])])
        folder = tmp_path / str(turn)
        folder.mkdir()
        (folder / f"a.{kind}").write_bytes(content)
        try:
            loader = Loader(open_source(config(dataset_path=str(folder)), 256, 16), 0, 1, 2)
            for _ in range(20):
                loader.next()
            outcomes.add("read")
        except TrainerError as error:
            assert "\n" not in str(error), f"turn {turn}"
            outcomes.add("refused")
    assert outcomes == {"read", "refused"}


def test_the_tokenizer_of_the_hub_ends_each_document_once(hub: Hub) -> None:
    tokenizer = open_tokenizer("some/words", 300)
    source = open_source(config(tokenizer="some/words"), 300, CONTEXT)
    tokens = np.concatenate([source.rows([number])[0][0][:-1] for number in (0, 4, 8)])
    text = tokenizer.tokenizer.decode(tokens.tolist(), skip_special_tokens=False)  # type: ignore[attr-defined]
    assert text.startswith(f"{text_of(0, 0)}<|end|>{text_of(0, 1)}<|end|>")


@pytest.mark.parametrize(
    ("settings", "vocab", "error", "sentence"),
    [
        ({"dataset": "some/nothing"}, 256, UsageError, "data set some/nothing is not on"),
        ({"dataset": "some/numbers"}, 256, UsageError, "data set some/numbers has no text: its columns are a, b; use one with text"),
        ({"dataset": "gated/c4", "dataset_config_name": "en"}, 256, UsageError, "data set gated/c4 is gated"),
        (
            {"tokenizer": "gated/words"},
            300,
            UsageError,
            "tokenizer gated/words is gated, private or not there for this user, and HF_TOKEN is not",
        ),
        ({"tokenizer": "some/words"}, 256, UsageError, "tokenizer some/words has 300 tokens, the model 256: raise --vocab_size"),
        ({"tokenizer": None}, 77, UsageError, "no tokenizer is known for a vocabulary of 77: name one with --tokenizer"),
        ({"tokenizer": "/nowhere/tokenizer.json"}, 300, LocalError, "/nowhere/tokenizer.json does not exist"),
        ({"dataset_config_name": "fr"}, 256, UsageError, "data set allenai/c4: BuilderConfig 'fr' not found"),
    ],
)
def test_what_cannot_be_read_is_one_sentence(hub: Hub, settings: dict[str, Any], vocab: int, error: type, sentence: str) -> None:
    with pytest.raises(error) as caught:
        open_source(config(**settings), vocab, CONTEXT)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_folder_without_data_is_named(hub: Hub, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds no data set: give a folder with tokens"):
        open_source(config(dataset_path=str(tmp_path)), 256, CONTEXT)


def test_a_gated_set_is_read_with_the_token_of_the_environment(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    tokens, _ = Loader(open_source(config(dataset="gated/c4", dataset_config_name="en"), 256, CONTEXT), 0, 1, 1).next()
    assert bytes(tokens[0].tolist()).startswith(b"document 0 of file 0")


def test_conversations_count_the_assistants_turns() -> None:
    turns = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}]
    assert reader_of(["messages"], "x")({"messages": turns}) == [
        ("user:\n", False),
        ("hello\n", False),
        ("assistant:\n", False),
        ("hi\n", True),
    ]
    alpaca = reader_of(["instruction", "input", "output"], "x")({"instruction": "Add", "input": "1 2", "output": "3"})
    assert alpaca == [("Add\n\n1 2\n\n", False), ("3", True)]


def test_each_published_vocabulary_has_a_tokenizer() -> None:
    from trainer.models import PRESETS, shape_of

    assert {shape_of(name, "llama_v3", {}).vocab_size for name in PRESETS} <= set(TOKENIZERS)
    assert Bytes().encode(["é"])[0].tolist() == [0xC3, 0xA9]
