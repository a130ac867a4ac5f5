"""What a figure cost: every second of every call counts once, whoever spent it."""

import time
from pathlib import Path

import pytest

from coset.core.errors import CosetError
from coset_papers import Settings, ledger as papers_ledger, settings as papers_settings

TRAINING, PREPARING, READING, PART = 100.0, 3.0, 1.0, 10.0  # seconds, of which epochs have all but preparing


class Clock:
    """In place of time: it goes on when it is told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now

    def wait(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(time, "perf_counter", clock.perf_counter)
    return clock


def train(settings: Settings, clock: Clock, already: float = 0.0, until: float = TRAINING) -> None:
    """A training of `TRAINING` seconds goes on after `already` and is stopped at `until`; or what is done is read."""
    folder = settings.folder("net")
    spent = settings.working(folder)
    clock.wait(READING if already == TRAINING else until - already)
    folder.mkdir(parents=True, exist_ok=True)
    if until == TRAINING:
        spent(TRAINING - PREPARING)


def measure(settings: Settings, clock: Clock, already: float = 0.0) -> None:
    """A part that needs the training."""

    def compute() -> int:
        train(settings, clock, already)
        clock.wait(PART)
        return 1

    settings.keep("part", compute)


def test_one_call_knows_of_no_earlier_ones(tmp_path: Path, clock: Clock) -> None:
    settings = Settings(out=tmp_path)
    for already in (0.0, TRAINING):
        train(settings, clock, already)
        measure(settings, clock, TRAINING)
    assert settings.ledger.seconds == 0 and settings.ledger.whole


def test_a_training_within_a_part_counts_once(tmp_path: Path, clock: Clock) -> None:
    measure(Settings(out=tmp_path), clock)
    for uses in (
        [measure],
        [measure, measure],
        [measure, lambda settings, clock: train(settings, clock, TRAINING)],
        [lambda settings, clock: train(settings, clock, TRAINING), measure],
    ):
        again = Settings(out=tmp_path)
        for use in uses:
            use(again, clock)
        assert again.ledger.seconds == TRAINING + PART and again.ledger.whole


def test_a_part_counts_the_training_of_another_call(tmp_path: Path, clock: Clock) -> None:
    train(Settings(out=tmp_path), clock)
    measure(Settings(out=tmp_path), clock, TRAINING)
    last = Settings(out=tmp_path)
    measure(last, clock)
    assert last.ledger.seconds == TRAINING + PART


def test_a_training_that_was_stopped_counts_whole(tmp_path: Path, clock: Clock) -> None:
    train(Settings(out=tmp_path), clock, until=30.0)
    second, begin = Settings(out=tmp_path), clock.now
    second.folder("net")
    assert not second.ledger.whole  # as nobody has said yet how long it took
    train(second, clock, 30.0)
    assert second.ledger.whole
    assert clock.now - begin + second.ledger.seconds == TRAINING - PREPARING


def test_work_that_does_not_tell_is_known_only_to_its_own_call(tmp_path: Path, clock: Clock) -> None:
    def compute() -> int:
        settings.folder("net").mkdir(parents=True, exist_ok=True)
        return 1

    settings = Settings(out=tmp_path)
    settings.keep("part", compute)
    assert settings.ledger.whole
    asks, reads = Settings(out=tmp_path), Settings(out=tmp_path)
    asks.folder("net")
    reads.keep("part", compute)
    assert not asks.ledger.whole and not reads.ledger.whole


def test_memory_is_the_most_of_all_calls(tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    peaks = iter([9.0, 7.0, 9.0, 3.0, 2.0])  # before the training, of it; before it goes on, of that, of the part
    monkeypatch.setattr(papers_settings, "fresh_peak_gib", lambda device: next(peaks))
    train(Settings(out=tmp_path), clock)
    measure(Settings(out=tmp_path), clock, TRAINING)
    last = Settings(out=tmp_path)
    measure(last, clock)
    assert sorted(last.ledger.peaks) == [2.0, 7.0]


def test_a_damaged_cost_is_named(tmp_path: Path, clock: Clock) -> None:
    train(Settings(out=tmp_path), clock)
    (file,) = tmp_path.rglob("*.cost.json")
    file.write_text("{")
    with pytest.raises(CosetError, match=r"net-smoke-\w+\.cost\.json is not JSON .*: remove it"):
        Settings(out=tmp_path).folder("net")
    file.unlink()
    again = Settings(out=tmp_path)
    again.folder("net")
    assert not again.ledger.whole


def test_seconds_of_a_run_are_those_of_one_of_its_replicas(tmp_path: Path) -> None:
    for replica in ("a", "b"):
        (tmp_path / replica).mkdir()
        (tmp_path / replica / "metrics.jsonl").write_text('{"seconds": 1.5}\n{"seconds": 2}\n')
    assert papers_ledger.seconds_of(tmp_path) == 3.5
