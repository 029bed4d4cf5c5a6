"""What is laid into a folder is whole, found by vLLM's plugin group, and needs nothing else."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from specschedule.engine import deliver, settings


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("delivered") / "plugins"
    done = subprocess.run(
        [sys.executable, "-m", "specschedule.engine.deliver", made],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert all(Path(line).is_file() for line in done.stdout.splitlines())
    return made


ALONE = """
import json, sys
from importlib.metadata import entry_points, version
import specschedule
from specschedule.core import inband
from specschedule.engine import planner, proof, selftest, settings
print(json.dumps({
    "package": specschedule.__file__,
    "version": version("specschedule"),
    "points": [(p.name, p.value) for p in entry_points(group="vllm.stat_logger_plugins")],
    "foreign": sorted(sys.modules.keys() & {"pydantic", "numpy", "scipy", "aiohttp", "kopf"}),
}))
"""


def test_it_works_from_pythonpath_alone_without_our_dependencies(folder: Path) -> None:
    # -S: no site-packages, so that nothing but the folder and the standard library is there.
    found = json.loads(
        subprocess.check_output(
            [sys.executable, "-S", "-c", ALONE],
            env={**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"},
            cwd=folder,
        )
    )
    assert found["package"] == str(folder / "specschedule/__init__.py")
    assert found["version"] == deliver.specschedule.__version__
    assert found["points"] == [["specschedule", "specschedule.engine.recorder:StepRecorder"]]
    assert found["foreign"] == []


BESIDE = """
import specschedule.cli.main, specschedule.core.values, specschedule.engine.settings as settings
print(settings.__file__)
"""


def test_what_is_installed_beside_it_stays_in_reach(folder: Path) -> None:
    # The simulated engine is such a program: it runs from the whole package.
    said = subprocess.check_output(
        [sys.executable, "-c", BESIDE], env={**os.environ, "PYTHONPATH": str(folder)}, text=True
    )
    assert said.strip() == str(folder / "specschedule/engine/settings.py")


def test_only_what_runs_inside_the_engine_is_in_it(folder: Path) -> None:
    files = {str(each.relative_to(folder)) for each in folder.rglob("*") if each.is_file()}
    ours = {
        each for each in files if not each.startswith(("specschedule/engine/", "specschedule-"))
    }
    assert ours == {f"specschedule/{each}" for each in ("__init__.py", "core/__init__.py")} | {
        "specschedule/core/inband.py",
        "specschedule/core/schedule.py",
    }
    assert all(each.endswith(".py") for each in files if "dist-info" not in each)


def test_every_python_that_vllm_runs_on_can_read_it(folder: Path) -> None:
    for each in folder.rglob("*.py"):
        ast.parse(each.read_text(), feature_version=(3, 11))


def test_another_user_can_read_it_and_a_second_delivery_replaces_the_first(tmp_path: Path) -> None:
    (tmp_path / "specschedule-0.0.1.dist-info").mkdir()
    (tmp_path / "theirs").mkdir(mode=0o700)
    before = deliver.deliver(tmp_path)
    (tmp_path / "specschedule/engine/stale.py").write_text("")
    assert deliver.deliver(tmp_path) == before
    found = {each.relative_to(tmp_path) for each in tmp_path.rglob("*") if each.is_file()}
    assert found == set(before)
    assert {each.stat().st_mode & 0o777 for each in tmp_path.rglob("*.py")} == {0o644}
    assert (tmp_path / "theirs").stat().st_mode & 0o777 == 0o700


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = subprocess.run(
        [sys.executable, "-m", "specschedule.engine.deliver", tmp_path / "file"],
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert str(tmp_path / "file") in done.stderr


def test_a_table_is_laid_beside_the_parts_under_a_name_of_its_own(tmp_path: Path) -> None:
    rows = [[1, 16, 1, 1024, 1], [1, 16, 1025, 8192, 4]]
    words = [sys.executable, "-m", "specschedule.engine.deliver", str(tmp_path)]
    said = subprocess.check_output([*words, "--table", json.dumps(rows)], text=True)
    file = tmp_path / deliver.table_file(rows)
    assert str(file) in said.splitlines()
    assert settings.rows({settings.TABLE: str(file)}) == rows
    assert file.stat().st_mode & 0o777 == 0o644
    assert deliver.table_file(rows[:1]) != file.name
