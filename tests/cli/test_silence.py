"""When silence is told of, on a clock that the tests turn."""

from __future__ import annotations

from pcopy.launch.watch.silence import OwnSilence, Silence, Silences


def test_a_rank_that_gets_on_says_nothing() -> None:
    own = OwnSilence(3, 30.0)
    assert [own.look_at(beats, 20.0 * beats) for beats in range(100)] == [[]] * 100
    assert not own.are_told


def test_silence_is_told_of_at_doubling_intervals_and_when_it_is_over() -> None:
    own = OwnSilence(3, 30.0)
    told = [silence for now in range(0, 500, 5) for silence in own.look_at(7, float(now))]
    assert told == [Silence(3, seconds, False) for seconds in (30.0, 60.0, 120.0, 240.0, 480.0)]
    assert own.are_told
    assert own.look_at(8, 501.0) == [Silence(3, 501.0, True)]
    assert not own.are_told
    assert own.look_at(8, 502.0) == []
    assert own.look_at(9, 503.0) == []


def test_a_rank_that_is_to_stop_tells_sooner() -> None:
    own = OwnSilence(0, 30.0)
    assert own.look_at(1, 0.0) == []
    assert own.look_at(1, 10.0) == []
    own.hasten(3.0)
    assert own.look_at(1, 11.0) == [Silence(0, 11.0, False)]
    assert own.look_at(1, 12.0) == []
    assert own.look_at(2, 13.0) == [Silence(0, 13.0, True)]
    assert own.look_at(2, 16.5) == [Silence(0, 3.5, False)]


def test_a_row_that_does_not_end_is_a_silence_though_the_main_thread_gets_on() -> None:
    own = OwnSilence(3, 30.0)
    told = [silence for now in range(0, 100, 5) for silence in own.look_at(now, float(now), oldest=7.5)]
    assert told == [Silence(3, 30.0, False), Silence(3, 60.0, False)]
    assert not own.is_main
    assert own.look_at(100, 100.0, oldest=99.5) == [Silence(3, 100.0, True)]
    assert own.look_at(101, 105.0, oldest=104.5) == []
    assert own.look_at(102, 110.0, oldest=None) == []
    assert own.look_at(103, 140.0, oldest=None) == []


def test_rows_that_end_are_no_sign_of_life_of_the_main_thread() -> None:
    own = OwnSilence(3, 30.0)
    told = [silence for now in range(0, 50, 5) for silence in own.look_at(7, float(now), oldest=now - 0.5)]
    assert told == [Silence(3, 30.0, False)]
    assert own.is_main


def test_others_are_told_of_when_they_are_silent_for_long() -> None:
    others = Silences(60.0, 16)
    assert others.look([4], 0.0) == []
    assert others.look([], 5.0) == []
    assert others.look([4, 5], 10.0) == []
    assert others.look([4], 69.0) == []
    assert others.look([4], 70.0) == [Silence(4, 60.0, False)]
    assert others.look([4], 100.0) == []
    assert others.look([4, 5], 130.0) == [Silence(4, 120.0, False)]
    assert others.look([5], 140.0) == [Silence(4, 130.0, True)]
    assert others.look([], 141.0) == []


def test_a_rank_that_speaks_for_itself_is_left_to_it() -> None:
    others = Silences(60.0, 16)
    others.look([4], 0.0)
    others.spoke(4)
    assert others.look([4], 100.0) == []
    assert others.look([], 101.0) == []
    others.spoke(4)  # it goes on
    assert others.look([4], 200.0) == []
    assert others.look([4], 260.0) == [Silence(4, 60.0, False)]


def test_a_list_that_may_be_cut_clears_nobody() -> None:
    others = Silences(60.0, 2)
    others.look([8], 0.0)
    assert others.look([8], 60.0) == [Silence(8, 60.0, False)]
    assert others.look([1, 2], 70.0) == []
    assert others.look([1], 80.0) == [Silence(8, 80.0, True)]


def test_others_are_told_of_sooner_when_the_job_is_to_stop() -> None:
    others = Silences(60.0, 16)
    others.look([4], 0.0)
    others.hasten(3.0)
    assert others.look([4], 4.0) == [Silence(4, 4.0, False)]
    assert others.look([4, 6], 5.0) == []
    assert others.look([4, 6], 8.0) == [Silence(4, 8.0, False), Silence(6, 3.0, False)]
