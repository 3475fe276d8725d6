# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""`python -m trainer preflight`: checks in seconds, on all ranks, everything that `train` needs, and reports all faults.

It takes the flags of `train` and is started like it, on the same ranks.
"""

import os
import shutil
import socket
import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import torch.distributed as dist

from trainer.checkpoint.folder import Folder
from trainer.checkpoint.store import Store, open_store
from trainer.cli import LocalError, Parser, TrainerError, UsageError
from trainer.collectives import PERIOD, Bench
from trainer.comm import told_by_all
from trainer.config import TrainConfig, read_train
from trainer.data.loader import Loader, open_source
from trainer.devices import GIB, usable
from trainer.estimate.memory import advice, memory, memory_here, plan_of
from trainer.launch import Ranks, join, read_ranks
from trainer.layout import Layout, layout_of
from trainer.models import Shape
from trainer.parallel.precision import precision_of
from trainer.perf_table import COLLECTIVES
from trainer.train import read_shape

PATIENCE = 120  # seconds for the ranks to meet, at most
PROBE = 2**22  # float32 values of the timed all-reduce: 16 MiB
BYTES_SAVED = 12  # of a parameter: the weight and AdamW's two moments


class Report:
    """The results of this rank: (subject, is it a fault, sentence)."""

    def __init__(self) -> None:
        self.found: list[tuple[str, bool, str]] = []

    def add(self, subject: str, check: Callable[[], str]) -> None:
        """Note the sentence that `check` returns, or its error as a fault."""
        try:
            self.found.append((subject, False, check()))
        except TrainerError as error:
            self.found.append((subject, True, str(error)))
        except Exception as error:  # an unexpected error is a fault too
            self.found.append((subject, True, f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no reason given'}"))


def read_hosts(text: str) -> set[str]:
    """The names in a list with commas, or in a file with one a line; raises UsageError."""
    path = Path(text)
    names = path.read_text().split() if path.is_file() else text.split(",")
    hosts = {name.strip() for name in names if name.strip()}
    if not hosts:
        raise UsageError(f"--expected_hosts '{text}' names no host: give names with commas, or a file with one a line")
    return hosts


def compare_hosts(expected: set[str], there: Sequence[str]) -> str:
    """The number of hosts and ranks if they are the expected ones; raises TrainerError."""
    counts = {host: list(there).count(host) for host in sorted(set(there))}
    wrong = []
    if missing := sorted(expected - set(counts)):
        wrong.append(f"no rank runs on {', '.join(missing)}")
    if strange := sorted(set(counts) - expected) if expected else []:
        wrong.append(f"ranks run on {', '.join(strange)}, which --expected_hosts does not name")
    if wrong:
        raise TrainerError(f"{' and '.join(wrong)}: check the launcher's list of hosts")
    if len(set(counts.values())) > 1:
        told = ", ".join(f"{host} {count}" for host, count in counts.items())
        raise TrainerError(f"hosts have different numbers of ranks ({told}): start as many on each")
    return f"{len(counts)} x {next(iter(counts.values()))} ranks"


def check_memory(config: TrainConfig, shape: Shape, layout: Layout, device: torch.device, *, precision: str, per_host: int) -> str:
    """Compare the estimate with the device's memory; raises LocalError."""
    plan, have = plan_of(config, layout), memory_here(device, per_host)
    need = memory(shape, plan, precision).total
    if need > usable(have):
        raise LocalError(f"the model does not fit: {advice(shape, plan, precision, have)}")
    return f"{need / GIB:.1f} of {usable(have) / GIB:.1f} GiB estimated"


def check_data(config: TrainConfig, shape: Shape, layout: Layout, rank: int) -> str:
    """Read this rank's first batch; raises LocalError."""
    source = open_source(config, shape.vocab_size, shape.max_context_width)
    samples = config.train_batch_size * config.gradient_accumulation_steps
    tokens, _ = Loader(source, layout.data_rank(rank), layout.data_ranks, samples).next()
    highest = int(tokens.max())
    if highest >= shape.vocab_size:
        raise LocalError(f"the data has the token {highest}, --vocab_size is {shape.vocab_size}: raise it, or use the model's tokenizer")
    return f"{samples} samples of {shape.max_context_width} tokens read"


def check_space(config: TrainConfig, shape: Shape) -> str:
    """Check the space for the kept checkpoints and one that is being written; raises LocalError."""
    folder = Path(config.checkpoint_dir or "").absolute()
    there = next(parent for parent in (folder, *folder.parents) if parent.exists())
    free = shutil.disk_usage(there).free
    one = BYTES_SAVED * shape.parameters()
    need = one * ((config.keep_checkpoints or 1) + 1)
    if free < need:
        raise LocalError(
            f"--checkpoint_dir {folder} has {free / GIB:.1f} GiB free, {need / GIB:.1f} are needed for {need // one} checkpoints: "
            "make room or lower --keep_checkpoints"
        )
    return f"{free / GIB:.0f} GiB free, {need / GIB:.1f} needed"


def remove(store: Store, name: str) -> None:
    if isinstance(store, Folder):
        (store.root / name).unlink(missing_ok=True)
    else:
        store.client.delete_object(Bucket=store.bucket, Key=store.key(name))


def check_checkpoints(report: Report, config: TrainConfig, shape: Shape, rank: int) -> None:
    """Check that each rank can write to the folder and that all see the same one. Every rank runs all of it, whatever fails."""
    path = config.checkpoint_dir
    if path is None:
        report.add("checkpoints", lambda: "none: without --checkpoint_dir nothing is saved")
        return
    mine, token = f"preflight-{rank}", [f"{socket.gethostname()} {os.getpid()} {time.time()}"]
    dist.broadcast_object_list(token)
    stores: list[Store] = []

    def write() -> str:
        try:
            store = open_store(path)
            store.write(mine, token[0])
            stores.append(store)
        except OSError as error:
            raise LocalError(f"--checkpoint_dir {path} cannot be written: {error.strerror}: change its owner or choose another") from None
        return f"{path} is writable"

    def see() -> str:
        if stores and stores[0].read("preflight-0") != token[0]:
            raise LocalError(
                f"--checkpoint_dir {path} is not the one of rank 0, whose file is not in it: use a folder that all hosts share"
            )
        return f"{path} is the same for all ranks"

    report.add("checkpoints", write)
    dist.barrier()
    report.add("checkpoints", see)
    dist.barrier()
    for store in stores:
        remove(store, mine)
    if not path.startswith("s3://"):
        report.add("space", lambda: check_space(config, shape))


def check_collectives(device: torch.device) -> str:
    """Check the collectives of training, and time one; raises LocalError."""
    bench = Bench(Namespace(op="sum", iters=3, check=0), device, torch.float32)
    wrong = [name for name in ("all_reduce", "all_gather", "reduce_scatter") if bench.wrong(name, PERIOD, in_place=False)]
    cell = bench.measure("all_reduce", COLLECTIVES["all_reduce"], PROBE, in_place=True)
    # Raise only after the last collective: ranks without a fault would wait for this one.
    if wrong:
        raise LocalError(f"{', '.join(wrong)} gave a wrong result: run `python -m trainer.collectives`, and remove this host")
    return f"all_reduce, all_gather and reduce_scatter are right; 16 MiB in {1e3 * cell.seconds:.1f} ms, busbw {cell.busbw:.2f} GB/s"


def tell(everybody: list[list[tuple[str, bool, str]]], hosts: Sequence[str]) -> list[str]:
    """The lines of the report: a subject without faults once, and each fault once with the ranks that have it."""
    subjects = list(dict.fromkeys(subject for found in everybody for subject, _, _ in found))
    lines = []
    for subject in subjects:
        faults: dict[str, list[int]] = {}
        for rank, found in enumerate(everybody):
            for name, fault, sentence in found:
                if name == subject and fault:
                    faults.setdefault(sentence, []).append(rank)
        for sentence, ranks in faults.items():
            there = ", ".join(sorted({hosts[rank] for rank in ranks}))
            where = "" if len(ranks) == len(everybody) else f"rank {', '.join(map(str, ranks))} on {there}: "
            lines.append(f"FAULT {subject}: {where}{sentence}")
        if not faults:
            first = [sentence for name, _, sentence in everybody[0] if name == subject]
            lines.append(f"ok    {subject}: {', '.join(first)}")
    return lines


def run(config: TrainConfig, expected: set[str], ranks: Ranks) -> int:
    """Check everything as one rank of the job; 0, or 1 if there is a fault. Raises TrainerError if the ranks do not meet."""
    shape = read_shape(config)
    layout = layout_of(config, shape, ranks.world_size)
    device, backend = join(ranks, config.backend, min(config.timeout_s, PATIENCE))
    hosts, versions = told_by_all(socket.gethostname()), told_by_all(torch.__version__)
    report, precision = Report(), ["fp32"]

    def check_precision() -> str:
        precision[0], why = precision_of(config, device)
        return why or f"{precision[0]} on {torch.cuda.get_device_name(device) if device.type == 'cuda' else 'CPU'}"

    def check_versions() -> str:
        if len(set(versions)) > 1:
            raise TrainerError(f"ranks have different versions of torch ({', '.join(sorted(set(versions)))}): install one on all hosts")
        return str(versions[0])

    report.add("layout", lambda: f"{ranks.world_size} ranks by {ranks.launcher}, {backend}, {layout}")
    report.add("hosts", lambda: compare_hosts(expected, hosts))
    report.add("torch", check_versions)
    report.add("precision", check_precision)
    report.add(
        "memory", lambda: check_memory(config, shape, layout, device, precision=precision[0], per_host=hosts.count(socket.gethostname()))
    )
    report.add("data", lambda: check_data(config, shape, layout, ranks.rank))
    check_checkpoints(report, config, shape, ranks.rank)
    report.add("collectives", lambda: check_collectives(device))
    lines = tell(told_by_all(report.found), hosts)
    faults = sum(line.startswith("FAULT") for line in lines)
    if ranks.rank == 0:
        print("\n".join(lines))
        print(f"preflight: {f'{faults} faults' if faults > 1 else '1 fault' if faults else 'ready to train'}", flush=True)
    dist.barrier()
    return 1 if faults else 0


def main(argv: Sequence[str]) -> int:
    parser = Parser(
        prog="python -m trainer preflight", description="Check everything that `train` with these flags needs. Takes the flags of `train`."
    )
    parser.add_argument("--expected_hosts", default="", help="names with commas, or a file with one a line: ranks must run on all of these")
    asked, rest = parser.parse_known_args(argv)
    config = read_train(rest)
    return run(config, read_hosts(asked.expected_hosts) if asked.expected_hosts else set(), read_ranks(os.environ))
