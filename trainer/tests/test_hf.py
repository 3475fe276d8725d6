# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Hugging Face checkpoints, read and written: the logits of transformers, training from a checkpoint, and errors."""

import http.server
import json
import re
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from trainer.data.tokens import Tokens, prepare
from trainer.tests.ranks import NO_TORCH, start
from trainer.tests.test_train import losses

pytest.importorskip("torch", reason=NO_TORCH)
transformers = pytest.importorskip("transformers", reason="transformers is not installed: it is what the logits are compared with")

import torch

from trainer import hf
from trainer.cli import UsageError
from trainer.initial import initial_value
from trainer.llama import Llama
from trainer.models import Shape, shape_of

KINDS = ["llama-2-7b-tiny", "llama-3.1-8b-tiny", "llama-3.2-1b-tiny", "mixtral-8x7b-tiny", "mathstral-7b-tiny"]
TOKENS = torch.randint(0, 256, (2, 64), generator=torch.Generator().manual_seed(7))


def drawn(name: str, size: torch.Size, std: float) -> torch.Tensor:
    return initial_value(name, size, [range(length) for length in size], seed=1, std=std, device=torch.device("cpu"))


def ours(shape: Shape, source: Any) -> Llama:
    """A whole model on this process with the weights of `source`."""
    model = Llama(shape)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(source(name, parameter.shape))
    return model


def weights(model: Llama) -> list[tuple[str, Callable[[], torch.Tensor]]]:
    return [(name, parameter.clone) for name, parameter in model.named_parameters()]


def theirs(shape: Shape, seed: int = 3) -> Any:
    """transformers' model of the same configuration with weights of its own."""
    kind = {"mixtral": transformers.MixtralConfig, "llama": transformers.LlamaConfig}["mixtral" if shape.num_experts else "llama"]
    values = {key: value for key, value in hf.config_of(shape, torch.float32).items() if key not in ("architectures", "model_type")}
    config = kind(**values | {"initializer_range": 0.2})
    torch.manual_seed(seed)
    return transformers.AutoModelForCausalLM.from_config(config).eval()


@pytest.mark.parametrize("name", KINDS)
def test_out_transformers_reads_it_and_gives_our_logits(name: str, tmp_path: Path) -> None:
    shape = shape_of(name, None, {})
    model = ours(shape, lambda name, size: drawn(name, size, 0.2))
    # A limit that makes several files.
    hf.save(tmp_path, shape, weights(model), torch.float32, limit=200_000)
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    read, report = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    with torch.no_grad():
        torch.testing.assert_close(model(TOKENS), read.eval()(TOKENS).logits, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", KINDS)
def test_in_we_read_what_transformers_wrote_and_give_its_logits(name: str, tmp_path: Path) -> None:
    shape = shape_of(name, None, {})
    model = theirs(shape)
    model.save_pretrained(tmp_path)
    found = hf.shape_from(tmp_path, {"max_context_width": 64})
    assert found == shape
    with torch.no_grad():
        torch.testing.assert_close(ours(found, hf.source(tmp_path, found))(TOKENS), model(TOKENS).logits, rtol=1e-4, atol=1e-4)


def test_training_starts_from_a_checkpoint(tmp_path: Path) -> None:
    """On 2 ranks: the first loss is transformers' loss of those samples, and then it falls."""
    model = theirs(shape_of("llama-3.2-1b-tiny", None, {}))
    model.save_pretrained(tmp_path / "model")
    prepare(tmp_path / "data", 20_000, 1, 256)
    argv = [
        "train",
        "--init_from",
        str(tmp_path / "model"),
        "--dataset_path",
        str(tmp_path / "data"),
        "--max_context_width",
        "64",
        "--seed",
        "5",
    ]
    argv += ["--train_batch_size", "4", "--max_steps", "8", "--lr", "1e-3", "--checkpoint_dir", str(tmp_path / "run"), "--backend", "gloo"]
    job = start(2, tmp_path / "output", "trainer.__main__:main", argv)
    assert job.end() == [0, 0], job.output()
    samples = Tokens(tmp_path / "data", 64, 5).samples(range(8))
    with torch.no_grad():
        logits = model(samples[:, :-1]).logits
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), samples[:, 1:].flatten()).item()
    found = losses(tmp_path / "run")
    assert found[1] == pytest.approx(expected, rel=1e-5)
    assert found[8] < found[1] - 0.3


def checkpoint(folder: Path, **changes: Any) -> Path:
    """A checkpoint of a tiny twin whose config.json has `changes`."""
    shape = shape_of("llama-3.1-8b-tiny", None, {})
    model = ours(shape, lambda name, size: drawn(name, size, 0.02))
    hf.save(folder, shape, weights(model), torch.bfloat16)
    config = json.loads((folder / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize(
    ("changes", "given", "sentence"),
    [
        ({"model_type": "gpt2"}, {}, "holds a model of type gpt2; known are llama, mistral, mixtral"),
        ({"rope_parameters": {"rope_type": "yarn"}}, {}, "config.json has rope_parameters.rope_type yarn, which this trainer does"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_parameters": None}, {}, "has rope_parameters.rope_type linear, which"),
        (
            {"attention_bias": True},
            {},
            "config.json has attention_bias True, which",
        ),
        ({"hidden_act": "gelu"}, {}, "config.json has hidden_act gelu, which this trainer does not support: choose another --init_from"),
        ({"head_dim": 16}, {}, "has head_dim 16, which"),
        (
            {"logit_scale": 0.5},
            {},
            "has logit_scale 0.5, which",
        ),
        ({"quantization_config": {"bits": 4}}, {}, "has quantization_config {'bits': 4}, which"),
        ({"num_hidden_layers": 5}, {}, "has no model.layers.4.input_layernorm.weight: it is the checkpoint of another kind of model"),
        ({"intermediate_size": 256}, {}, "has the size [128, 64] and not [256, 64]"),
        ({}, {"num_layers": 3}, "--num_layers 3 differs from the 4 of"),
        ({}, {"max_context_width": 256}, "--max_context_width 256 is above the 128 tokens"),
    ],
)
def test_a_foreign_checkpoint_is_refused(changes: dict[str, Any], given: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    folder = checkpoint(tmp_path, **changes)
    with pytest.raises(UsageError, match=re.escape(sentence)):
        shape = hf.shape_from(folder, given)
        ours(shape, hf.source(folder, shape))


WRONG: tuple[Any, ...] = (None, "x", -1, 0.5, [], {})


@pytest.mark.parametrize("name", KINDS)
def test_every_field_of_a_config_is_used_or_known(name: str, tmp_path: Path) -> None:
    """transformers' own files are read with all their fields. A missing field or a wrong type is one sentence at most."""
    shape = shape_of(name, None, {})
    whole = json.loads(theirs(shape).config.to_json_string(use_diff=False))
    (tmp_path / "config.json").write_text(json.dumps(whole))
    assert hf.shape_from(tmp_path, {"max_context_width": 64}) == shape
    broken: list[dict[str, Any]] = [{key: value for key, value in whole.items() if key != name} for name in whole]
    broken += [whole | {name: value} for name in whole for value in WRONG]
    text = json.dumps(whole)
    for content in [json.dumps(config) for config in broken] + [text[: len(text) // 2], "[]", "1", '"x"']:
        (tmp_path / "config.json").write_text(content)
        try:
            assert isinstance(hf.shape_from(tmp_path, {}), Shape)
        except UsageError as error:
            assert "\n" not in str(error)


def test_a_damaged_checkpoint_is_refused(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path)
    whole = (folder / hf.SINGLE).read_bytes()
    for content in (whole[:-1], b"not a checkpoint", whole[:100]):
        (folder / hf.SINGLE).write_bytes(content)
        with pytest.raises(UsageError, match="are damaged: fetch them again"):
            hf.Tensors(folder)
    (folder / hf.SINGLE).unlink()
    with pytest.raises(UsageError, match=r"model\.safetensors is missing"):
        hf.Tensors(folder)
    (folder / "config.json").write_text("{")
    with pytest.raises(UsageError, match="cannot be read as a model's configuration"):
        hf.shape_from(folder, {})


def test_a_folder_that_is_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"has no config\.json: --init_from needs a Hugging Face checkpoint"):
        hf.folder_of(str(tmp_path))
    with pytest.raises(UsageError, match="is neither a folder nor a model's name"):
        hf.folder_of(str(tmp_path / "nothing" / "here"))


class Hub(http.server.BaseHTTPRequestHandler):
    """The part of the hub that a snapshot needs: `open/tiny` for all, `gated/tiny` with the token hf_right."""

    folder: Path

    def answer(self, code: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(code)
        for name, value in ({"Content-Length": str(len(body))} | {key.replace("_", "-"): value for key, value in headers.items()}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_GET(self) -> None:
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        if "gated/" in self.path and token != "hf_right":
            return self.answer(
                403 if token else 401, b'{"error": "no access"}', X_Error_Code="GatedRepo" if token else "", X_Error_Message="no"
            )
        if "broken/" in self.path:
            return self.answer(500, b"{}")
        if "/tree/" in self.path:
            sizes = [{"type": "file", "path": path.name, "size": path.stat().st_size, "oid": "0" * 40} for path in self.folder.iterdir()]
            return self.answer(200, json.dumps(sizes).encode(), Content_Type="application/json")
        if "/api/models/" in self.path:
            name = "/".join(self.path.split("/api/models/")[1].split("/")[:2])
            files = [{"rfilename": path.name} for path in self.folder.iterdir()]
            body = json.dumps(
                {"id": name, "modelId": name, "sha": "0" * 40, "siblings": files, "tags": [], "private": False, "downloads": 0}
            )
            return self.answer(200, body.encode(), Content_Type="application/json")
        content = (self.folder / self.path.rsplit("/", 1)[1]).read_bytes()
        return self.answer(200, content, ETag=f'"{len(content)}"', X_Repo_Commit="0" * 40)

    do_HEAD = do_GET

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[str]:
    """The address of a hub on this machine."""
    pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed")
    Hub.folder = checkpoint(tmp_path / "model")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


def look(argv: Sequence[str]) -> int:
    """Print the shape of --init_from's model."""
    print(hf.shape_from(hf.folder_of(argv[0]), {}).parameters())
    return 0


@pytest.mark.parametrize(
    ("asked", "code", "said"),
    [
        (("open/tiny", ""), 0, "172608"),
        (("gated/tiny", "hf_right"), 0, "172608"),
        (
            ("gated/tiny", ""),
            2,
            "trainer: model gated/tiny is gated, private or not there for this user, and HF_TOKEN is not set: ",
        ),
        (
            ("gated/tiny", "hf_wrong"),
            2,
            "trainer: model gated/tiny is gated, private or not there for this user, and HF_TOKEN has no access to it: ",
        ),
        (("broken/tiny", ""), 1, f"trainer: rank 0 on {socket.gethostname()}: model broken/tiny cannot be read from http://127.0.0.1:"),
    ],
)
def test_a_model_of_the_hub(hub: str, tmp_path: Path, asked: tuple[str, str], code: int, said: str) -> None:
    name, token = asked
    env = {"HF_ENDPOINT": hub, "HF_TOKEN": token, "HF_HOME": str(tmp_path / "home"), "HF_HUB_DISABLE_XET": "1"}
    job = start(1, tmp_path / "output", f"{__name__}:look", [name], **env, HF_HUB_DISABLE_PROGRESS_BARS="1", HF_HUB_DISABLE_TELEMETRY="1")
    assert job.end() == [code], job.output()
    last = job.output().splitlines()[-1]
    assert last.startswith(said)
    assert "Traceback" not in job.output()
    assert "hf_" not in job.output()
