"""Tables of results: rows that are never computed twice, and Markdown that reads as such."""

import multiprocessing
import os
import time

import pytest
import torch

import metricconv as mc
from metricconv_experiments import results
from metricconv_experiments.errors import errors_in_one_line
from metricconv_experiments.results import Results

SETTINGS = [{"k": k, "sigma": sigma} for k in (5, 11) for sigma in (0.1, 0.3)]


def test_repeated_command_adds_only_missing_rows(tmp_path, capsys):
    path = tmp_path / "here/table.csv"
    table = Results(path, ["k", "sigma"], ["mse"])
    for setting in list(table.pending(SETTINGS))[:3]:
        table.add(setting, {"mse": 1 / 3}, seconds=1.5)
    again = Results(path, ["k", "sigma"], ["mse"])
    assert [dict(s) for s in again.pending(SETTINGS)] == [SETTINGS[3]]
    again.add(SETTINGS[3], {"mse": 0.5}, seconds=1)
    assert SETTINGS[3] in again and len(Results(path, ["k", "sigma"], ["mse"]).rows) == 4
    assert "[1/1, 0.0 min] k=11 sigma=0.3" in capsys.readouterr().err


def test_row_contains_its_provenance(tmp_path):
    table = Results(tmp_path / "table.csv", ["k"], ["mse"])
    table.add({"k": 5}, {"mse": 1 / 3}, seconds=1.234)
    (row,) = Results(tmp_path / "table.csv", ["k"], ["mse"]).rows
    assert float(row["mse"]) == pytest.approx(1 / 3, rel=1e-8) and row["seconds"] == "1.23"
    assert all(row[name] for name in ("hardware", "metricconv", "torch", "python", "date"))


def test_row_names_the_backends_that_computed_it(tmp_path):
    table = Results(tmp_path / "table.csv", ["k"], [])
    x, layer = torch.zeros(1, 1, 5, 5), mc.nn.MetricConv2d(1, 1, 3, backend="reference")
    for setting in table.pending([{"k": 3}, {"k": 5}]):
        if setting["k"] == 3:
            layer(x)
        table.add(setting, {}, seconds=1)
    assert [row["backend"] for row in table.rows] == ["reference", ""]


def test_time_limit_stops_between_rows_and_prints_remaining(tmp_path, capsys):
    table = Results(tmp_path / "table.csv", ["k", "sigma"], [])
    assert list(table.pending(SETTINGS, max_minutes=0)) == []
    assert "4 rows left" in capsys.readouterr().err


def test_repeated_setting_is_run_once(tmp_path):
    table = Results(tmp_path / "table.csv", ["k"], [])
    assert list(table.pending([{"k": 5}, {"k": 11}, {"k": 5}])) == [{"k": 5}, {"k": 11}]


def _add(path, barrier, ks):
    table = Results(path, ["k"], ["mse"])
    barrier.wait()
    for k in ks:
        table.add({"k": k}, {"mse": 0.1}, 0)


def test_concurrent_processes_lose_no_row(tmp_path):
    path, context = tmp_path / "table.csv", multiprocessing.get_context("spawn")
    barrier = context.Barrier(2)
    parts = [range(n, 60, 2) for n in range(2)]
    processes = [context.Process(target=_add, args=(path, barrier, part)) for part in parts]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    assert sorted(int(row["k"]) for row in Results(path, ["k"], ["mse"]).rows) == list(range(60))


def test_row_added_by_another_process_is_replaced(tmp_path):
    tables = [Results(tmp_path / "table.csv", ["k"], ["mse"]) for _ in range(2)]
    for mse, table in enumerate(tables):
        table.add({"k": 5}, {"mse": mse}, 0)
    (row,) = Results(tmp_path / "table.csv", ["k"], ["mse"]).rows
    assert row["mse"] == "1"


def _make(path, barrier, made):
    table = Results(path, ["k"], ["mse"])
    barrier.wait()
    for setting in table.pending([{"k": k} for k in range(6)]):
        time.sleep(0.05)
        made.put(setting["k"])
        table.add(setting, {"mse": 0.1}, 0)


def test_concurrent_processes_compute_each_row_once(tmp_path):
    path, context = tmp_path / "table.csv", multiprocessing.get_context("spawn")
    barrier, made = context.Barrier(2), context.Queue()
    processes = [context.Process(target=_make, args=(path, barrier, made)) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    assert sorted(made.get(timeout=10) for _ in range(6)) == list(range(6)) and made.empty()
    assert len(Results(path, ["k"], ["mse"]).rows) == 6


def _hold(path, begun, add):
    table = Results(path, ["k"], ["mse"])
    with table.claimed({"k": 5}):
        begun.set()
        time.sleep(0.5)
        if add:
            table.add({"k": 5}, {"mse": 0.1}, 0)


@pytest.mark.parametrize("add", [True, False])
def test_claimed_row_is_skipped_or_waited_for(tmp_path, add):
    context = multiprocessing.get_context("spawn")
    begun, table = context.Event(), Results(tmp_path / "table.csv", ["k"], ["mse"])
    process = context.Process(target=_hold, args=(table.path, begun, add))
    process.start()
    assert begun.wait(120)
    with table.claimed({"k": 5}) as claimed:
        assert not claimed
    with table.claimed({"k": 11}) as claimed:
        assert claimed
    with table.claimed({"k": 5}, wait=True) as claimed:
        assert claimed != add  # missing if the other process added no row
    process.join(120)


@pytest.mark.parametrize("source", ["WORLD_SIZE", "SLURM_NTASKS", "argument"])
def test_processes_of_a_distributed_run_compute_the_same_rows(tmp_path, monkeypatch, source):
    distributed = source == "argument"
    if not distributed:
        monkeypatch.setenv(source, "2")
    table, other = (Results(tmp_path / "table.csv", ["k"], []) for _ in range(2))
    other.add({"k": 5}, {}, 0)
    with (
        table.claimed({"k": 5}, distributed=distributed) as first,
        other.claimed({"k": 11}, distributed=distributed) as second,
    ):
        assert first and second


def test_row_added_by_another_process_is_not_computed_again(tmp_path):
    table, other = (Results(tmp_path / "table.csv", ["k"], []) for _ in range(2))
    pending = table.pending([{"k": 5}, {"k": 11}, {"k": 17}])
    assert next(pending) == {"k": 5}
    other.add({"k": 11}, {}, 0)
    assert list(pending) == [{"k": 17}]


def test_unwritable_folder_raises_before_the_first_row(tmp_path):
    (tmp_path / "file").write_text("")
    table = Results(tmp_path / "file/table.csv", ["k"], [])
    with pytest.raises(ValueError, match=r"file/table\.csv cannot be written: "):
        next(table.pending([{"k": 5}]))


def _die_in(path):
    with results.locked(path):
        os._exit(9)


def test_lock_is_released_when_its_process_ends(tmp_path):
    process = multiprocessing.get_context("spawn").Process(target=_die_in, args=(tmp_path / "table.csv",))
    process.start()
    process.join(120)
    assert process.exitcode == 9
    Results(tmp_path / "table.csv", ["k"], ["mse"]).add({"k": 5}, {"mse": 0.1}, 0)


def test_tables_with_other_columns_raise(tmp_path):
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match=r"other\.csv is of another experiment or version.*has no columns: 'k'$"):
        Results(tmp_path / "other.csv", ["k"], [])
    with pytest.raises(ValueError, match=r"other\.csv is of another experiment or version.*has unknown columns: 'b'$"):
        Results(tmp_path / "other.csv", ["a"], [])
    with pytest.raises(ValueError, match=r"\['psnr'\] are not columns"):
        Results(tmp_path / "table.csv", ["k"], ["mse"]).add({"k": 5}, {"psnr": 1.0}, 0)


def test_markdown_parts_are_separated_by_blank_lines(tmp_path):
    results.write_markdown(tmp_path / "t.md", "# Title\n", results.markdown_table(["a", "b"], [["1", "2"]]))
    assert (tmp_path / "t.md").read_text() == "# Title\n\n| a | b |\n|:--|--:|\n| 1 | 2 |\n"


def test_user_errors_end_in_one_line_and_other_errors_do_not():
    @errors_in_one_line()
    def command(error):
        raise error

    with pytest.raises(SystemExit, match=r"^error: `sigma` \(=-1\) must be positive$"):
        command(ValueError("`sigma` (=-1) must\nbe positive"))
    with pytest.raises(RuntimeError):
        command(RuntimeError("a bug"))
