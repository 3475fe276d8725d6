# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""The bench's table: no row is lost, and a row that the run did not measure says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench import __main__ as bench
from tests.bench import adding, converge, exporters, peers, stack, table

OLD = table.Row(
    "Second converge", "8.3 s", "`ansible -m setup`, 1.73 s", "4.80", "≤ 5", "2026-11-23, 2 cores", "`python -m tests.bench converge`"
)
STEP = table.Row("Trainer's step", "0.588 s", "bare loop, 0.584 s", "1.00", "≤ 1.03", "2026-11-22, 2 cores", "`python -m tests.bench loop`")
PAGE = f"# Performance\n\n{table.BEGIN}\n{table.END}\n\nNotes.\n"


def test_a_written_table_reads_back_as_the_same_rows():
    empty = table.Row("Verify", "9.6 s", "", "", "", "2026-11-23, 2 cores", "`x`")
    page = table.write(PAGE, [OLD, empty, STEP], ["converge"], {})
    assert table.read(page) == [OLD, empty, STEP]
    assert page.startswith("# Performance") and page.endswith("Notes.\n")


def test_merge_replaces_measured_rows_and_keeps_the_others_with_their_date():
    new = OLD._replace(ours="7.0 s", date="2027-01-01, 2 cores")
    merged = table.merge([OLD, STEP], [new])
    assert merged == [new, STEP._replace(date="2026-11-22, 2 cores, kept")]


def test_a_row_that_is_kept_twice_is_marked_once():
    once = table.merge([STEP], [])
    assert table.merge(once, []) == once


def test_a_measured_row_loses_its_mark():
    kept = table.merge([STEP], [])
    assert table.merge(kept, [STEP]) == [STEP]


def test_a_new_row_goes_to_the_end():
    assert table.merge([OLD], [STEP])[-1] == STEP


@pytest.mark.parametrize(
    ("ratio", "bound", "marked"),
    [(1.42, "≤ 1.5", False), (1.51, "≤ 1.5", True), (0.7, "≥ 0.8", True), (0.8, "≥ 0.8", False), (99, "", False)],
)
def test_a_ratio_over_its_bound_is_marked(ratio, bound, marked):
    assert table.row("x", "", "", ratio, bound).ratio.endswith(table.OVER) is marked


def test_a_page_without_the_table_is_refused():
    with pytest.raises(ValueError, match="restore it from git"):
        table.read(PAGE)


def test_the_committed_table_is_readable_and_its_marks_are_right():
    for each in table.read((bench.ROOT / "docs/performance.md").read_text()):
        assert each.date and each.command, each
        if each.ratio:
            assert table.within(float(each.ratio.removesuffix(table.OVER)), each.bound) is not each.ratio.endswith(table.OVER), each


@pytest.fixture
def page(tmp_path, monkeypatch):
    path = tmp_path / "performance.md"
    path.write_text(table.write(PAGE, [OLD, STEP], [], {}))
    monkeypatch.setattr(bench, "PAGE", path)
    return path


def fails(folder: Path):
    raise SystemExit("no torch")


def test_a_part_that_fails_keeps_its_rows_is_named_and_ends_the_bench_with_an_error(page, monkeypatch, capsys):
    monkeypatch.setattr(
        bench, "PARTS", {"converge": lambda folder: [table.row("Second converge", "7 s", "setup, 1 s", 7, "≤ 5")], "loop": fails}
    )
    assert bench.main([]) == 1
    found = {each.what: each for each in table.read(page.read_text())}
    assert found["Second converge"].ratio == "7.00 **over**"
    assert found["Second converge"].command == "`python -m tests.bench converge`"
    assert found["Trainer's step"] == STEP._replace(date="2026-11-22, 2 cores, kept")
    assert "loop (it failed: no torch)" in page.read_text()
    assert "no torch" in capsys.readouterr().out


def test_a_part_that_was_not_asked_for_keeps_its_rows(page, monkeypatch):
    monkeypatch.setattr(bench, "PARTS", {"converge": lambda folder: [OLD], "loop": fails})
    assert bench.main(["converge"]) == 0
    assert [each.what for each in table.read(page.read_text())] == [OLD.what, STEP.what]


def test_a_part_that_does_not_exist_is_refused_by_name(page):
    with pytest.raises(SystemExit, match="no part called convergence; choose from converge"):
        bench.main(["convergence"])


def test_an_interrupted_run_has_written_what_it_measured(page, monkeypatch):
    def interrupted(folder: Path):
        raise KeyboardInterrupt

    monkeypatch.setattr(bench, "PARTS", {"converge": lambda folder: [OLD._replace(ours="7.0 s")], "loop": interrupted})
    with pytest.raises(KeyboardInterrupt):
        bench.main(["converge", "loop"])
    assert [each.ours for each in table.read(page.read_text())] == ["7.0 s", STEP.ours]
    assert "loop (the run was interrupted)" in page.read_text()


def test_peers_without_a_folder_are_not_measured_and_no_error(page, monkeypatch):
    monkeypatch.setattr(bench, "PARTS", {"converge": lambda folder: [OLD], "peers": fails})
    monkeypatch.delenv("PEERS", raising=False)
    assert bench.main([]) == 0
    assert "peers (PEERS names no folder)" in page.read_text()


def test_peers_needs_a_folder_with_the_role(tmp_path, monkeypatch):
    monkeypatch.setenv("PEERS", str(tmp_path))
    with pytest.raises(SystemExit, match="PEERS must name a folder with a checkout of galaxyproject/ansible-slurm"):
        peers.role()
    (tmp_path / "ansible-slurm/tasks").mkdir(parents=True)
    (tmp_path / "ansible-slurm/tasks/main.yml").touch()
    assert peers.role() == tmp_path / "ansible-slurm"


class Figures(dict):
    """Every figure of a measurement is 2."""

    def __missing__(self, key: str) -> float:
        return 2.0


def test_the_rows_of_each_part_that_starts_fleets(tmp_path, monkeypatch):
    for module in (converge, adding, stack):
        monkeypatch.setattr(module, "measure", lambda *_arguments: Figures())
    for part in ("converge", "adding", "stack"):
        rows = bench.PARTS[part](tmp_path)
        names = [each.what for each in rows]
        known = {each.what: each.bound for each in table.read((bench.ROOT / "docs/performance.md").read_text())}
        assert {each.what: each.bound for each in rows} == {name: known[name] for name in names}


def test_the_cost_of_an_exporter_is_scaled_to_a_scrape_in_15_s():
    """3 ms a scrape and 0.1 ms a second without one are 0.03 % of a core."""
    cost = exporters.Cost(scrape=0.003, idle=0.0001, memory=25)
    assert round(cost.share, 6) == 0.0003
    cpu, memory = exporters.both("X", cost, "scaled")
    assert (cpu.ours, cpu.ratio, memory.ours, memory.ratio) == ("0.030 % of a core (scaled)", "0.06", "25.0 MB", "0.42")
    assert exporters.both("X", cost._replace(memory=61), "")[1].ratio.endswith("**over**")
