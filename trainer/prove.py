# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""`prove-resume`: trains once undisturbed and once with a kill and a restart, and compares the losses of all steps.

All ranks run on this host. The restart may have another number of ranks. The batch over all ranks stays, so both numbers must divide it.
The runs take only kernels that give the same bits each time. Where torch has none, the losses may differ by rounding.
"""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from trainer.cli import POSITIVE, Parser, TrainerError, UsageError, number
from trainer.config import read_train
from trainer.data.tokens import prepare
from trainer.launch import free_port

PATIENCE = 600  # seconds without a new step
INEXACT = re.compile(r"(\S+) does not have a deterministic implementation")  # what torch says


class Start:
    """The ranks of one start of a training run, as torchrun would start them."""

    def __init__(self, ranks: int, folder: Path, argv: Sequence[str], restart: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.log = folder, folder / f"output-{restart}.txt"
        common = {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_port()),
            "WORLD_SIZE": str(ranks),
            "TORCHELASTIC_RESTART_COUNT": str(restart),
        }
        common |= {} if "OMP_NUM_THREADS" in os.environ else {"OMP_NUM_THREADS": "1"}
        # The package may not be installed in the environment, so add the folder that this process imports it from.
        common["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])])
        with self.log.open("w") as output:
            self.processes = [
                subprocess.Popen(
                    [sys.executable, "-m", "trainer", "train", *argv, "--checkpoint_dir", str(folder)],
                    env=os.environ | common | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
                    stdout=output,
                    stderr=subprocess.STDOUT,
                )
                for rank in range(ranks)
            ]

    def losses(self) -> dict[int, float]:
        path = self.folder / "train.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        records = [json.loads(line) for line in lines if line.endswith("}")]
        return {record["step"]: record["loss"] for record in records if "loss" in record}

    def until(self, step: int | None) -> None:
        """Wait for a step, or for the end. Raises TrainerError if the run fails or makes no step for PATIENCE seconds."""
        seen, since = -1, time.monotonic()
        while any(process.poll() is None for process in self.processes):
            found = len(self.losses())
            if step is not None and step in self.losses():
                return
            if found != seen:
                seen, since = found, time.monotonic()
            if time.monotonic() - since > PATIENCE or any(process.poll() not in (None, 0) for process in self.processes):
                break
            time.sleep(0.01)
        codes = [process.poll() for process in self.processes]
        if step is not None and not any(codes):
            raise TrainerError(f"the run was over before it could be killed after step {step}: raise --steps")
        if any(codes) or None in codes:
            self.kill()
            last = (self.log.read_text().strip().splitlines() or ["nothing"])[-1]
            raise TrainerError(f"a start of prove-resume failed (exit codes {codes}), its last line was: {last.removeprefix('trainer: ')}")

    def kill(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
            process.wait()


def main(argv: Sequence[str]) -> int:
    parser = Parser(
        prog="python -m trainer prove-resume",
        description="Kill a run, resume it, and compare its losses with an undisturbed run's. Arguments after `--` are flags of train.",
    )
    parser.add_argument("--ranks", type=POSITIVE, default=2, help="ranks on this host")
    parser.add_argument("--resume_ranks", type=POSITIVE, default=None, help="ranks after the restart (--ranks if not given)")
    parser.add_argument("--steps", type=number(int, 3), default=20, help="steps in all")
    parser.add_argument(
        "--kill_at", type=number(int, 2), default=None, help="the step after which all ranks are killed (0.6 of --steps if not given)"
    )
    parser.add_argument("--batch", type=POSITIVE, default=8, help="samples of a step over all ranks")
    parser.add_argument("--keep", type=Path, default=None, help="folder to keep the two runs in")
    ours, theirs = (list(argv[: argv.index("--")]), list(argv[argv.index("--") + 1 :])) if "--" in argv else (list(argv), [])
    asked = parser.parse(ours)
    after = asked.resume_ranks or asked.ranks
    kill_at = asked.kill_at or max(2, asked.steps * 3 // 5)
    for ranks in (asked.ranks, after):
        if asked.batch % ranks:
            raise UsageError(f"--batch {asked.batch} cannot be divided among {ranks} ranks: choose a multiple")
    if kill_at >= asked.steps:
        raise UsageError(f"--kill_at {kill_at} is not before the last of {asked.steps} steps: lower it")
    with tempfile.TemporaryDirectory(prefix="muster-prove-") as name:
        folder = asked.keep or Path(name)
        if not theirs:
            prepare(folder / "data", 100_000, 1, 256)
            theirs = ["--model", "tiny", "--dataset_path", str(folder / "data"), "--lr", "3e-3"]
        theirs = [*theirs, "--max_steps", str(asked.steps), "--checkpoint_freq", str(max(1, kill_at // 2)), "--logging_freq", "1"]
        read_train(theirs)  # so that a wrong flag is reported here
        reason = ""
        try:
            start, difference, whole = compare(asked, after, kill_at, folder, [*theirs, "--deterministic", "1"])
        except TrainerError as error:
            if not (kernel := INEXACT.search(str(error))):
                raise
            reason = f", because {kernel[1]} has no kernel here that gives the same bits in every run"
            start, difference, whole = compare(asked, after, kill_at, folder / "inexact", theirs)
    bound = 0.0 if after == asked.ranks and not reason else 1e-5
    good = whole and difference <= bound
    facts = {"killed_after": kill_at, "resumed_from": start, "steps": asked.steps, "deterministic": not reason}
    print(json.dumps(facts | {"largest_difference": difference, "equal": good}))
    print(
        f"{asked.ranks} ranks, killed after step {kill_at}, resumed from step {start} on {after}: the losses of {asked.steps} steps differ "
        f"from an undisturbed run's by at most {difference:.1e} of their value, {bound:g} is allowed{reason}"
    )
    return 0 if good else TrainerError.exit_code


def compare(asked: Namespace, after: int, kill_at: int, folder: Path, flags: list[str]) -> tuple[int, float, bool]:
    """Run both trainings. Returns the step that the second one resumed from, the largest relative difference of a loss, and whether both
    have the same steps. Raises TrainerError."""

    def started(ranks: int, name: str, restart: int = 0) -> Start:
        return Start(ranks, folder / name, [*flags, "--train_batch_size", str(asked.batch // ranks)], restart)

    whole = started(asked.ranks, "undisturbed")
    whole.until(None)
    broken = started(asked.ranks, "killed")
    broken.until(kill_at)
    broken.kill()
    resumed = started(after, "killed", 1)
    resumed.until(None)
    expected, found = whole.losses(), resumed.losses()
    records = [json.loads(line) for line in (folder / "killed" / "train.jsonl").read_text().splitlines()]
    start = next((record["step"] for record in records if record.get("event") == "resume"), None)
    if start is None:
        raise TrainerError(f"the run was killed after step {kill_at} before a checkpoint was complete: raise --kill_at and --steps")
    return start, max(abs(found[step] - loss) / abs(loss) for step, loss in expected.items()), found.keys() == expected.keys()
