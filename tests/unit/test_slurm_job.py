# SPDX-License-Identifier: Apache-2.0
"""slurm_job's run against a controller that answers from recorded text."""

import fcntl
import json
import os
from pathlib import Path

import pytest
from test_ranks import FAILED, STEP

from ansible_collections.muster.fleet.plugins.module_utils.jobs import run as jobs
from ansible_collections.muster.fleet.plugins.module_utils.jobs import slurm as slurm_job
from ansible_collections.muster.fleet.plugins.module_utils.slurm import text as slurm

FIXTURES = Path(__file__).parent.parent / "fixtures" / "slurm"
IDENTITY = "0123456789ab" + "0" * 52
AWAY = (1, "", "slurm_load_jobs error: Unable to contact slurm controller (connect failure)")


def said(name):
    return 0, (FIXTURES / f"{name}.txt").read_text(), ""


class Controller:
    """Answers each command from its list; the last answer is repeated."""

    def __init__(self, **answers):
        self.answers = {"sbatch": [(0, "6\n", "")], "squeue": [(0, "", "")], "sacct": [said("sacct")], "scancel": [(0, "", "")], **answers}
        self.asked = []

    def __call__(self, argv, as_user):
        self.asked.append((argv[0], as_user))
        answers = self.answers[argv[0]]
        return answers.pop(0) if len(answers) > 1 else answers[0]

    def count(self, command):
        return sum(1 for name, _user in self.asked if name == command)


class Clock:
    now = 0.0

    def __call__(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


def bring(folder, controller, timeout=100, **options):
    clock = Clock()
    store = jobs.Store(str(folder / "job"), os.getuid(), os.getgid())
    runner = slurm_job.Slurm(
        run=controller, name="ok", identity=IDENTITY, store=store, user="muster", timeout=timeout, poll=5, pending_timeout=20,
        sleep=clock.sleep, clock=clock,
    )  # fmt: skip
    return jobs.bring(runner, **{"state": "finished", "files": {"job.sbatch": "#!/bin/bash\n"}, **options})


def test_a_job_runs_once_and_its_result_is_stored(tmp_path):
    controller = Controller(scontrol=[said("scontrol_job_running"), said("scontrol_job_done")])
    changed, found, written = bring(tmp_path, controller)
    assert (changed, found["state"], found["elapsed_s"], found["stored"]) == (True, "COMPLETED", 9, False)
    assert written == {"job.sbatch": "#!/bin/bash\n"}
    assert json.loads((tmp_path / "job/result.json").read_text()) == found

    changed, again, written = bring(tmp_path, controller)
    assert (changed, again, written) == (False, {**found, "stored": True}, {})
    assert controller.count("sbatch") == 1
    assert ("sbatch", True) in controller.asked and ("scontrol", True) not in controller.asked


def test_the_result_says_how_many_gpus_were_asked_for(tmp_path):
    script = "#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --gpus-per-node=8\n"
    _changed, found, _written = bring(tmp_path, Controller(scontrol=[said("scontrol_job_done")]), files={"job.sbatch": script})
    assert found["gpus_per_node"] == 8
    assert slurm_job.asked_gpus("#SBATCH --gpus-per-node=h100:4\n") == 4
    assert slurm_job.asked_gpus("#!/bin/bash\n") == 0


def test_rerun_puts_the_old_result_aside(tmp_path):
    controller = Controller(scontrol=[said("scontrol_job_done")])
    bring(tmp_path, controller)
    (tmp_path / "job/output.txt").write_text("old")
    changed, _found, _written = bring(tmp_path, controller, rerun=True)
    assert changed
    assert controller.count("sbatch") == 2
    assert (tmp_path / "job/output-6.txt").read_text() == "old"
    assert not (tmp_path / "job/output.txt").exists()


def test_a_job_in_the_queue_is_waited_for(tmp_path):
    controller = Controller(squeue=[(0, f"6|RUNNING|muster:ok:{IDENTITY[:12]}\n", "")], scontrol=[said("scontrol_job_done")])
    changed, found, _written = bring(tmp_path, controller, rerun=True)
    assert (changed, found["state"], controller.count("sbatch")) == (False, "COMPLETED", 0)


def test_a_job_that_ended_unwatched_is_collected(tmp_path):
    controller = Controller(scontrol=[said("scontrol_job_done")])
    assert bring(tmp_path, controller, state="submitted")[1]["state"] == "PENDING"
    changed, found, _written = bring(tmp_path, controller)
    assert (changed, found["state"], found["stored"], controller.count("sbatch")) == (False, "COMPLETED", True, 1)


def test_a_failure_is_told_and_kept_until_retry(tmp_path):
    controller = Controller(scontrol=[said("scontrol_job_failed")], sacct=[(1, "", "Slurm accounting storage is disabled")])
    with pytest.raises(jobs.RunError, match=r"Job ok \(8\) ended FAILED .NonZeroExitCode. with exit status 3 on compute-1") as error:
        bring(tmp_path, controller)
    assert (error.value.changed, error.value.facts["exit_code"], error.value.facts["elapsed_s"]) == (True, 3, 1)
    assert controller.count("sacct") == 1
    with pytest.raises(jobs.RunError, match="retry was not given"):
        bring(tmp_path, controller)
    assert controller.count("sbatch") == 1
    with pytest.raises(jobs.RunError):
        bring(tmp_path, controller, retry=True)
    assert controller.count("sbatch") == 2


def test_a_failure_of_torchrun_has_the_status_of_the_rank_that_failed(tmp_path):
    rc, text, err = said("scontrol_job_failed")
    assert "ExitCode=3:0" in text
    ended = rc, text.replace("ExitCode=3:0", "ExitCode=143:0"), err
    controller = Controller(scontrol=[ended], sacct=[(1, "", "Slurm accounting storage is disabled")])
    bring(tmp_path, controller, state="submitted")
    (tmp_path / "job/output.txt").write_text("Batch 1 Loss: 2.5\n" * 100000 + FAILED + STEP)
    with pytest.raises(jobs.RunError, match="with exit status 7 of rank 1 on compute-1") as error:
        bring(tmp_path, controller)
    assert (error.value.facts["exit_code"], error.value.facts["failed_rank"]) == (7, 1)


def test_a_restart_of_the_controller_is_waited_out(tmp_path):
    controller = Controller(squeue=[AWAY, (0, "", "")], sbatch=[AWAY, (0, "6\n", "")], scontrol=[AWAY, AWAY, said("scontrol_job_done")])
    assert bring(tmp_path, controller)[1]["state"] == "COMPLETED"


def test_a_submission_whose_answer_was_lost_is_not_repeated(tmp_path):
    queued = (0, f"6|PENDING|muster:ok:{IDENTITY[:12]}\n", "")
    controller = Controller(squeue=[(0, "", ""), queued], sbatch=[(1, "", "Socket timed out")], scontrol=[said("scontrol_job_done")])
    assert bring(tmp_path, controller)[1]["job_id"] == 6
    assert controller.count("sbatch") == 1


def test_a_time_out_leaves_the_job_and_says_what_it_waited_for(tmp_path):
    controller = Controller(scontrol=[said("scontrol_job_pending")])
    with pytest.raises(jobs.RunError, match=r"not over after 20 s: Slurm says PENDING \(Resources\); it goes on"):
        bring(tmp_path, controller, timeout=20)
    assert controller.count("scancel") == 0


def test_a_job_that_cannot_start_is_cancelled_at_once_and_submitted_anew_later(tmp_path):
    gone = said("scontrol_job_cancelled")[1].replace("NodeList=compute-1", "NodeList=")
    controller = Controller(scontrol=[said("scontrol_job_dark"), (0, gone, "")], sacct=[(1, "", "accounting storage is disabled")])
    with pytest.raises(jobs.RunError, match="cannot start and was cancelled: Slurm says PartitionDown"):
        bring(tmp_path, controller)
    assert controller.count("scancel") == 1
    controller.answers["scontrol"] = [(0, gone, ""), said("scontrol_job_done")]
    assert bring(tmp_path, controller)[0]


def test_missing_nodes_are_waited_for_a_while_and_then_named(tmp_path):
    waiting = said("scontrol_job_dark")[1].replace("PartitionDown", "Nodes_required_for_job_are_DOWN,_DRAINED_or_reserved")
    controller = Controller(scontrol=[(0, waiting, "")] * 5 + [said("scontrol_job_cancelled")], sinfo=[said("sinfo_drained")])
    with pytest.raises(jobs.RunError, match=r"Nodes required for job are DOWN.*compute-2 drained: muster:nccl: busbw"):
        bring(tmp_path, controller)
    names = [name for name, _user in controller.asked]
    assert names[: names.index("scancel")].count("scontrol") == 5


def test_a_refused_submission_names_the_remedy(tmp_path):
    refusal = "sbatch: error: Batch job submission failed: Invalid account or account/partition combination specified"
    with pytest.raises(jobs.RunError, match="sacctmgr add user muster"):
        bring(tmp_path, Controller(sbatch=[(1, "", refusal)]))
    assert not (tmp_path / "job").exists()


def test_a_job_that_is_refused_before_its_submission_leaves_no_folder(tmp_path):
    def check():
        raise ValueError("too large")

    with pytest.raises(ValueError, match="too large"):
        bring(tmp_path, Controller(), check=check)
    assert not (tmp_path / "job").exists()


def test_a_refusal_keeps_the_folder_of_an_earlier_run(tmp_path):
    controller = Controller(scontrol=[said("scontrol_job_done")])
    bring(tmp_path, controller)
    controller.answers["sbatch"] = [(1, "", "sbatch: error: Batch job submission failed: Invalid account")]
    with pytest.raises(jobs.RunError, match="Slurm refuses"):
        bring(tmp_path, controller, rerun=True)
    assert (tmp_path / "job/job.sbatch").exists()


def test_a_submission_without_an_answer_keeps_the_folder_that_its_job_may_write_to(tmp_path):
    with pytest.raises(jobs.RunError, match="is not over after"):
        bring(tmp_path, Controller(sbatch=[AWAY]))
    assert (tmp_path / "job/job.sbatch").exists()


def test_a_job_that_slurm_forgot_is_known_from_accounting(tmp_path):
    controller = Controller(scontrol=[(1, "", "slurm_load_jobs error: Invalid job id specified")])
    assert bring(tmp_path, controller)[1]["elapsed_s"] == 9
    controller.answers["sacct"] = [(0, "", "")]
    with pytest.raises(jobs.RunError, match="has forgotten job ok"):
        bring(tmp_path, controller, rerun=True)


def test_cancelling(tmp_path):
    queued = (0, f"10|RUNNING|muster:ok:{IDENTITY[:12]}\n", "")
    controller = Controller(squeue=[queued], scontrol=[said("scontrol_job_running"), said("scontrol_job_cancelled")])
    changed, found, _written = bring(tmp_path, controller, state="cancelled")
    assert (changed, found["state"], controller.count("scancel")) == (True, "CANCELLED", 1)
    assert bring(tmp_path / "other", Controller(), state="cancelled")[0] is False


def test_check_mode_touches_nothing(tmp_path):
    controller = Controller()
    changed, found, written = bring(tmp_path, controller, check_mode=True)
    assert (changed, found, list(written)) == (True, None, ["job.sbatch"])
    assert not list(tmp_path.iterdir())
    assert controller.count("sbatch") == 0


def test_links_in_the_store_are_not_followed(tmp_path):
    (tmp_path / "secret").write_text('{"state": "COMPLETED", "job_id": 1}')
    (tmp_path / "job").mkdir()
    for name in ("result.json", "output.txt"):
        (tmp_path / "job" / name).symlink_to(tmp_path / "secret")
    store = jobs.Store(str(tmp_path / "job"), os.getuid(), os.getgid())
    assert (store.stored(), store.tail()) == (None, "")
    store.prepare({"result.json": "{}"})
    assert "COMPLETED" in (tmp_path / "secret").read_text()


def test_a_requeued_job_keeps_the_time_of_its_first_submission():
    record = slurm.job_record(said("scontrol_job_done")[1])
    row = slurm.accounting_record(said("sacct")[1], 27)
    merged = slurm_job.merged(record, row)
    assert (merged["submitted"], merged["restarts"], merged["elapsed_s"]) == (1795260615, 1, 1)


@pytest.mark.parametrize(
    ("signal", "code"),
    [(15, 143), (125, 125), (0, 0)],
)
def test_exit_codes_follow_the_shell(signal, code):
    record = dict.fromkeys(("submitted", "started", "ended")) | {"exit_code": 0, "signal": signal, "job_id": 1, "state": "X"}
    record |= {"reason": "None", "nodes": [], "restarts": 0}
    assert jobs.result("a", "b", "c", record)["exit_code"] == code


def test_a_job_that_was_not_submitted_is_not_waited_for(tmp_path):
    for state in ("awaited", "queried"):
        with pytest.raises(jobs.RunError, match=r"Job ok \(0123456789ab\) is not known: it was not submitted"):
            bring(tmp_path, Controller(), state=state)
    assert not list(tmp_path.iterdir())


def test_a_query_says_how_many_nodes_run_and_changes_nothing(tmp_path):
    controller = Controller(scontrol=[said("scontrol_job_done")])
    bring(tmp_path, controller, state="submitted")
    controller.answers["squeue"] = [(0, f"6|RUNNING|muster:ok:{IDENTITY[:12]}\n", "")]
    controller.answers["scontrol"] = [said("scontrol_job_running")]
    changed, found, _written = bring(tmp_path, controller, state="queried")
    assert (changed, found["state"], found["ready"], controller.count("sbatch")) == (False, "RUNNING", len(found["nodes"]), 1)
    assert found["ready"] > 0


def test_a_wait_returns_the_stored_result_of_a_job_that_is_over(tmp_path):
    controller = Controller(scontrol=[said("scontrol_job_done")])
    bring(tmp_path, controller)
    assert bring(tmp_path, controller, state="awaited")[1]["state"] == "COMPLETED"
    assert bring(tmp_path, controller, state="queried")[1]["stored"] is True
    assert controller.count("sbatch") == 1


def test_an_output_that_utf_8_cannot_express_is_kept(tmp_path):
    store = jobs.Store(str(tmp_path / "job"))
    store.prepare({"output.txt": "loss \udcff\n"})
    assert store.read("output.txt") == "loss ?\n"


def test_a_lock_that_another_process_holds_is_waited_for_until_the_deadline(tmp_path):
    (tmp_path / "job").mkdir()
    with open(tmp_path / "job/.lock", "w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(
            jobs.RunError, match=r"^Job ok cannot be looked at: another process has held the lock .*/job/.lock for 100 s; let"
        ):
            bring(tmp_path, Controller())


@pytest.mark.parametrize("replaced", [False, True])
def test_a_lock_that_was_removed_or_replaced_keeps_no_second_run_away(tmp_path, replaced):
    store, tries = jobs.Store(str(tmp_path / "job")), []
    path = tmp_path / "job/.lock"

    def wait():
        tries.append(1)
        other.close()

    path.parent.mkdir()
    other = open(path, "w")  # noqa: SIM115
    fcntl.flock(other, fcntl.LOCK_EX)
    real, opened = os.open, []

    def open_old(*words, **more):
        """The first run opens the lock before the other run removes it."""
        handle = real(*words, **more)
        if not opened:
            opened.append(handle)
            path.unlink()
            other.close()
            if replaced:
                path.touch()
        return handle

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "open", open_old)
        with store.locked(wait), open(path) as second, pytest.raises(BlockingIOError):
            fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert tries == [1]


def test_a_look_that_fails_leaves_no_folder_and_takes_none_of_another_run(tmp_path):
    refused = [(1, "", "slurm_load_jobs error: Access/permission denied")]
    with pytest.raises(jobs.RunError, match="squeue failed"):
        bring(tmp_path, Controller(squeue=refused))
    assert not (tmp_path / "job").exists()

    real = jobs.Store.locked

    def locked(store, wait):
        (tmp_path / "job").mkdir()
        (tmp_path / "job/job.sbatch").write_text("of the other run")
        return real(store, wait)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jobs.Store, "locked", locked)
        with pytest.raises(jobs.RunError, match="squeue failed"):
            bring(tmp_path, Controller(squeue=refused))
    assert (tmp_path / "job/job.sbatch").read_text() == "of the other run"
