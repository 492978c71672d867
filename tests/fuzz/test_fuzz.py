"""Random cases of every target hold, and the runner reports each way in which a case can fail."""

import sys

import pytest

from fuzz.runner import CASES, Counts, command, run_target, table


@pytest.mark.slow
@pytest.mark.parametrize("target", CASES)
def test_random_cases_hold(target, capsys):
    counts = run_target(target, cases=CASES[target])
    print(table([counts]))
    assert counts.outcomes.total() == CASES[target]
    assert not counts.failures, capsys.readouterr().out


def test_every_way_to_fail_is_reported_with_its_command():
    messages = []
    counts = run_target("faulty", cases=5, log=messages.append, limit=1.0)
    assert counts.outcomes["held"] == 1 + (sys.platform != "linux") and 0 not in counts.failures
    assert "AssertionError: 1 is not 2" in counts.failures[1] and counts.failures[1].startswith("raises")
    assert "exit code -6" in counts.failures[2]
    assert counts.failures[3] == "takes more than 1 s"
    assert sys.platform != "linux" or "MemoryError" in counts.failures[4]
    for seed in counts.failures:
        assert any(f"seed {seed}\n" in m and command("faulty", seed) in m for m in messages)


def test_time_ends_a_run():
    counts = run_target("faulty", seconds=0.0, log=print)
    assert counts.outcomes == {"held": 1}


def test_table_counts_outcomes():
    counts = Counts("files", {}, {3: "broken"}, 12.3)
    counts.outcomes = type(Counts("x").outcomes)(result=5, error=2, failed=1)
    assert table([counts]).splitlines()[-1] == "| files | 8 | 1 | 2 error, 5 result | 12 |"
