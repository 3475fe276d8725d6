# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""`python -m trainer environment`: what PyTorch is and can do on this machine, as JSON. Role trainer's checks assert it.

A probe that failed says so in a sentence instead of its value.
"""

import ctypes
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from trainer.cli import Parser

PATIENCE = 60  # seconds for two ranks
RIGHT = "right"
KERNEL = "template <typename T> T muster_probe(T x, T y) { return x * y + T(1); }"
# Loads the NCCL that the system's loader finds, in a process without torch: there, the name would give torch's own.
SYSTEM_NCCL = """
import ctypes
nccl, number = ctypes.CDLL("libnccl.so.2"), ctypes.c_int()
nccl.ncclGetVersion(ctypes.byref(number))
print(number.value)
"""


def told(probe: Callable[[], Any]) -> Any:
    """What `probe` returns, or its error as a sentence."""
    try:
        return probe()
    except Exception as error:  # a probe must not end the others
        return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def dotted(number: int) -> str:
    """NCCL's number of a version, such as 23007, with points; "" for 0."""
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}" if number else ""


def loaded_nccl() -> dict[str, str]:
    """Version of the NCCL that this process has loaded with torch, and its file, or "the wheel" for one of this environment."""
    with open("/proc/self/maps", encoding="utf-8") as maps:
        paths = [line.split(maxsplit=5)[5].strip() for line in maps if "/libnccl.so" in line]
    if not paths:
        return {"version": "", "of": "no file"}
    number = ctypes.c_int()
    ctypes.CDLL(paths[0]).ncclGetVersion(ctypes.byref(number))
    own = os.path.realpath(paths[0]).startswith(os.path.realpath(sys.prefix) + os.sep)
    return {"version": dotted(number.value), "of": "the wheel" if own else paths[0]}


def system_nccl() -> str:
    """The version of the system's NCCL; "" where there is none."""
    done = subprocess.run([sys.executable, "-c", SYSTEM_NCCL], capture_output=True, text=True, timeout=PATIENCE, check=False)
    return dotted(int(done.stdout)) if done.returncode == 0 else ""


def one_rank(rank: int, backend: str, folder: str, say: Any) -> None:
    """Sum over two ranks, and say whether the result is right."""

    def run() -> str:
        if backend == "nccl" and torch.cuda.device_count() < 2:
            return "fewer than two GPUs"
        device = torch.device("cuda", rank) if backend == "nccl" else torch.device("cpu")
        store = f"file://{folder}/store"
        dist.init_process_group(backend, init_method=store, rank=rank, world_size=2, timeout=timedelta(seconds=PATIENCE))
        tensor = torch.arange(1024, dtype=torch.float32, device=device) + rank
        dist.all_reduce(tensor)
        good = torch.equal(tensor.cpu(), 2 * torch.arange(1024, dtype=torch.float32) + 1)
        dist.destroy_process_group()
        return RIGHT if good else "all_reduce gave a wrong result"

    say.put(told(run))


def two_ranks(backend: str) -> str:
    """RIGHT when two ranks on this machine sum correctly, else what went wrong. They are forks, because torch takes seconds to import."""
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        say = context.SimpleQueue()
        ranks = [context.Process(target=one_rank, args=(rank, backend, folder, say)) for rank in (0, 1)]
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join(PATIENCE + 10)
            if rank.exitcode is None:
                rank.kill()
                rank.join()
        answers = [say.get() for _ in ranks if not say.empty()]
    wrong = [answer for answer in answers if answer != RIGHT]
    if wrong or len(answers) < len(ranks):
        return str(wrong[0]) if wrong else f"no answer of a rank in {PATIENCE} s"
    return RIGHT


def kernel() -> str:
    """RIGHT when a kernel that is compiled now, for each GPU, computes correctly."""
    probe = torch.cuda.jiterator._create_jit_fn(KERNEL)
    for index in range(torch.cuda.device_count()):
        x = torch.arange(1024, dtype=torch.float32, device=f"cuda:{index}")
        if not torch.equal(probe(x, x), x * x + 1):
            return f"GPU {index} computed a wrong result"
    return RIGHT


def without_code(architectures: Sequence[str], capabilities: Sequence[tuple[int, int]]) -> list[str]:
    """The capabilities of GPUs for which the wheel's architectures have no code: none of their major version, no PTX of an older one."""
    has = [(kind, int(number[:-1]), int(number[-1])) for kind, number in (name.rstrip("af").split("_") for name in architectures)]
    return [
        f"{major}.{minor}"
        for major, minor in sorted(set(capabilities))
        if not any(
            (one_major == major and one_minor <= minor) if kind == "sm" else (one_major, one_minor) <= (major, minor)
            for kind, one_major, one_minor in has
        )
    ]


def on_gpus() -> dict[str, Any]:
    """What torch says of the GPUs; called last, because forks cannot use them after this."""
    count = torch.cuda.device_count()
    architectures = torch.cuda.get_arch_list() if count else []
    return {
        "cuda_available": torch.cuda.is_available(),
        "gpus": count,
        "gpu_names": sorted({torch.cuda.get_device_name(index) for index in range(count)}),
        "without_code": without_code(architectures, [torch.cuda.get_device_capability(index) for index in range(count)]),
        "cudnn": (torch.backends.cudnn.version() or 0) if count and torch.backends.cudnn.is_available() else 0,
        "kernel": told(kernel) if count else "no GPU",
    }


def values() -> dict[str, Any]:
    """All values; those that need forks come first."""
    cuda = torch.version.cuda or ""
    ranks = {"gloo": told(lambda: two_ranks("gloo")), "nccl": told(lambda: two_ranks("nccl")) if cuda else "the wheel has no CUDA"}
    return {
        "torch": torch.__version__.partition("+")[0],
        "cuda": cuda,
        "backends": [name for name in ("gloo", "nccl", "mpi", "ucc") if getattr(dist, f"is_{name}_available")()],
        "cpu": [name for name in ("mkl", "mkldnn", "openmp", "opt_einsum") if getattr(torch.backends, name).is_available()],
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "nccl": told(loaded_nccl),
        "nccl_system": told(system_nccl),
        "two_ranks": ranks,
        **on_gpus(),
    }


def main(argv: Sequence[str]) -> int:
    Parser(prog="python -m trainer environment", description="Print what PyTorch is and can do on this machine, as JSON.").parse(argv)
    print(json.dumps(values(), indent=1))
    return 0
