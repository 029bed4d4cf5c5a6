"""Plays the scenes that the selected tests look at, and brings a test together with its own."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hack.demo.stage import Stage

from .place import LABEL, Place
from .scenes import LIGHT_AT_ONCE, LOADED_AT_ONCE, Company, Scene


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "scenes(*scenes): what must be played for this test")


@pytest.fixture(scope="session")
def began() -> str:
    """A moment before anything of these tests, as RFC 3339: that of the operator's start, too."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


@pytest.fixture(scope="session")
def company(
    began: str,
    stage: Stage,
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Company]:
    """Play every scene that the selected tests look at, a few at a time."""
    stage.kubectl("delete", "namespace", "-l", LABEL, "--ignore-not-found", "--wait")
    marks = [m for item in request.session.items for m in item.iter_markers("scenes")]
    scenes: set[Scene] = {each for mark in marks for each in mark.args}
    folder: Path = tmp_path_factory.mktemp("watched")
    closing = threading.Event()
    places: dict[Scene, Place] = {}

    def play(scene: Scene) -> Any:
        places[scene] = Place(stage, scene.namespace, folder, closing)
        return scene.play(places[scene])

    with (
        ThreadPoolExecutor(LOADED_AT_ONCE) as loaded,
        ThreadPoolExecutor(LIGHT_AT_ONCE) as light,
    ):
        longest_first = sorted(scenes, key=lambda scene: (-scene.launches, scene.name))
        facts = {s: (loaded if s.launches else light).submit(play, s) for s in longest_first}
        yield Company(stage, began, facts, places)
        closing.set()
        for future in facts.values():
            future.cancel()
    stage.kubectl("delete", "namespace", "-l", LABEL, "--ignore-not-found", "--wait=false")


@pytest.fixture
def scene(request: pytest.FixtureRequest) -> Scene:
    """The scene that a test looks at."""
    mark = request.node.get_closest_marker("scenes")
    first: Scene = mark.args[0]
    return first


@pytest.fixture
def played(company: Company, scene: Scene) -> Any:
    """Its facts; a scene that broke off fails each test that looks at it."""
    return company.facts[scene].result()


@pytest.fixture
def place(company: Company, scene: Scene, played: Any) -> Place:
    """Its place, after it was played."""
    return company.places[scene]
