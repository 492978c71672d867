"""The workflow files are valid and run commands that the Makefile has."""

import re
from pathlib import Path

import pytest

yaml = pytest.importorskip("yaml")
ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflow_has_triggers_and_jobs(path):
    workflow = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert {"name", True, "permissions", "jobs"} <= workflow.keys()  # YAML reads the key `on` as True
    for job in workflow["jobs"].values():
        assert job["runs-on"] == "ubuntu-latest"
        assert all("uses" in step or "run" in step for step in job["steps"])


def test_workflows_call_targets_of_the_makefile():
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    called = {name for path in WORKFLOWS for name in re.findall(r"make ([\w-]+)", path.read_text(encoding="utf-8"))}
    assert called and called <= targets


def test_only_publishing_may_obtain_an_identity_token_for_the_package_index():
    publish = yaml.safe_load((ROOT / ".github" / "workflows" / "publish.yml").read_text(encoding="utf-8"))
    assert publish["permissions"] == {"contents": "read"}
    assert publish["jobs"]["publish"]["permissions"] == {"id-token": "write"}
    assert publish["jobs"]["publish"]["environment"] == "pypi"
    assert "secrets." not in str(publish)
