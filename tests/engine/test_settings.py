"""What turns each part on is read from the environment, and refused by name."""

import json

import pytest

from specschedule.engine import settings


def test_nothing_is_on_where_nothing_is_said() -> None:
    assert settings.limits({}).given == {}
    assert settings.port({}, settings.RECORDER_PORT) is None
    assert settings.steps_kept({}) == settings.STEPS_KEPT


def test_limits_are_seconds_inside() -> None:
    found = settings.limits({settings.TTFT: "500", settings.TPOT: "12.5"})
    assert found.given == {"ttft": 0.5, "tpot": 0.0125}


@pytest.mark.parametrize(
    ("why", "name", "text"),
    [
        ("a limit with a unit", settings.TTFT, "500ms"),
        ("a limit of nothing", settings.TPOT, "0"),
        ("a limit that cannot be missed", settings.E2E, "inf"),
        ("a limit that is no number", settings.E2E, "nan"),
        ("an empty limit", settings.E2E, ""),
    ],
)
def test_a_limit_that_cannot_be_judged_by_is_refused(why: str, name: str, text: str) -> None:
    with pytest.raises(settings.SettingError, match=f"{name} is {text!r}"):
        settings.limits({name: text})


def test_a_switch_is_on_off_or_refused() -> None:
    name = settings.FINGERPRINT_LOG
    assert [settings.told(each, name) for each in ({}, {name: "0"}, {name: "1"})] == [
        False,
        False,
        True,
    ]
    with pytest.raises(settings.SettingError, match=f"{name} is 'yes'"):
        settings.told({name: "yes"}, name)


@pytest.mark.parametrize("text", ["0", "-1", "65536", "8000x", "", "²"])
def test_what_is_no_port_is_refused(text: str) -> None:
    with pytest.raises(settings.SettingError, match=f"{settings.SCHEDULER_PORT} is"):
        settings.port({settings.SCHEDULER_PORT: text}, settings.SCHEDULER_PORT)


def test_a_probe_without_a_secret_is_refused() -> None:
    with pytest.raises(settings.SettingError, match=settings.SECRET):
        settings.secret({settings.SECRET: ""})


def test_the_table_is_read_from_its_file(tmp_path) -> None:
    (tmp_path / "rows.json").write_text(json.dumps([[1, 8, 1, 4096, 2]]))
    found = settings.rows({settings.TABLE: str(tmp_path / "rows.json")})
    assert found == [[1, 8, 1, 4096, 2]]


def test_the_table_comes_from_the_additional_config_where_no_file_is_named(tmp_path) -> None:
    (tmp_path / "rows.json").write_text(json.dumps([[1, 8, 1, 4096, 2]]))
    given = {"specschedule": {"rows": [[1, 8, 3]]}, "theirs": 1}
    assert settings.rows({}, given) == [[1, 8, 3]]
    assert settings.rows({settings.TABLE: str(tmp_path / "rows.json")}, given) != [[1, 8, 3]]
    for none in (None, {}, {"theirs": 1}, object()):
        assert settings.rows({}, none) is None


@pytest.mark.parametrize(("why", "text"), [("it is not there", ""), ("it is no JSON", "[[")])
def test_a_table_that_cannot_be_read_is_never_no_table(why: str, text, tmp_path) -> None:
    file = tmp_path / "rows.json"
    if text:
        file.write_text(text)
    with pytest.raises(settings.SettingError, match=settings.TABLE):
        settings.rows({settings.TABLE: str(file)})


@pytest.mark.parametrize("ours", [None, {}, {"rows": None}, {"table": []}, 0, []])
def test_what_stands_in_place_of_rows_is_never_no_table(ours: object, tmp_path) -> None:
    assert settings.rows({}, {"specschedule": ours}) is not None
    (tmp_path / "rows.json").write_text("null")
    assert settings.rows({settings.TABLE: str(tmp_path / "rows.json")}) is not None
