"""The version has one source, ``metricconv.__version__``; files that repeat it agree."""

import csv
import re
import tomllib
from pathlib import Path

import metricconv as mc

ROOT = Path(__file__).parents[1]


def test_version_of_the_distribution_is_that_of_the_package():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert "version" in settings["project"]["dynamic"] and "version" not in settings["project"]
    source = (ROOT / settings["tool"]["hatch"]["version"]["path"]).read_text(encoding="utf-8")
    assert re.findall(r'^__version__ = "(.*)"$', source, re.MULTILINE) == [mc.__version__]


def test_citation_and_changelog_name_the_version():
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.findall(r"^version: (\S+)$", citation, re.MULTILINE) == [mc.__version__]
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.search(r"^## (\S+)", changelog, re.MULTILINE)[1].strip("[]") == mc.__version__


def test_documented_versions_passed_their_tests():
    with (ROOT / "tests/versions.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert rows and all(row["failed"] == "0" and int(row["passed"]) > 0 for row in rows)
    index = (ROOT / "docs/index.md").read_text(encoding="utf-8")
    assert all(f"| {row['python']} | {row['torch'].split('+')[0]} |" in index for row in rows)
    log = (ROOT / "tests/oldest.log").read_text(encoding="utf-8")
    assert "| 3.12.3 | 2.11.0 |" in index and "on Python 3.12.3" in log and "\ntorch 2.11.0\n" in log
