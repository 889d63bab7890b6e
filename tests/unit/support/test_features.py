"""What a missing kernel feature means."""

import os

import pytest

from tests.support import features
from tests.support.features import Feature


@pytest.fixture
def feature(monkeypatch: pytest.MonkeyPatch) -> str:
    """A feature this kernel lacks although it came long ago, with a build option that can leave it out."""
    monkeypatch.setitem(features.FEATURES, "lost", Feature(lambda: False, (2, 6), "CONFIG_LOST"))
    return "lost"


def config(monkeypatch: pytest.MonkeyPatch, directory: object, text: str) -> None:
    """Let the running kernel's configuration be this text."""
    path = f"{directory}/config"
    with open(path, "w") as file:
        file.write(text)
    monkeypatch.setenv(features.CONFIG_VARIABLE, path)


def test_a_kernel_too_old_is_excused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason names the feature and both versions."""
    monkeypatch.setitem(features.FEATURES, "coming", Feature(lambda: False, (99, 0)))
    verdict = features.verdict("coming")
    assert (verdict.present, verdict.excused) == (False, True)
    assert "coming" in verdict.reason
    assert "99.0" in verdict.reason
    assert os.uname().release in verdict.reason


def test_a_kernel_built_without_it_is_excused(monkeypatch: pytest.MonkeyPatch, tmp_path: object, feature: str) -> None:
    """The reason names the build option."""
    config(monkeypatch, tmp_path, "# CONFIG_LOST is not set\n")
    verdict = features.verdict(feature)
    assert (verdict.present, verdict.excused) == (False, True)
    assert "CONFIG_LOST is off" in verdict.reason


def test_a_kernel_that_should_have_it_is_not_excused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: object, feature: str
) -> None:
    """New enough and built in, yet missing: the test that needs it fails."""
    config(monkeypatch, tmp_path, "CONFIG_LOST=y\n")
    verdict = features.verdict(feature)
    assert (verdict.present, verdict.excused) == (False, False)


def test_an_unknown_feature_is_an_error() -> None:
    """A misspelt mark must not skip for ever."""
    with pytest.raises(KeyError):
        features.verdict("memory.speak")


@pytest.mark.parametrize(("release", "expected"), [("6.1.176", (6, 1)), ("6.18.44-fc-v669", (6, 18))])
def test_releases_of_all_makes_are_read(release: str, expected: tuple[int, int]) -> None:
    """Only the first two numbers count."""
    assert features.version(release) == expected
