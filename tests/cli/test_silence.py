"""When silence is reported, with a clock controlled by the tests."""

from __future__ import annotations

from pcopy.launch.watch.silence import OwnRankSilenceMonitor, RankSilenceMonitor, SilenceReport


def test_progressing_rank_reports_nothing() -> None:
    own = OwnRankSilenceMonitor(3, 30.0)
    assert [own.own_silence_reports_to_print(beats, 20.0 * beats) for beats in range(100)] == [[]] * 100
    assert not own.has_reported_silence


def test_silence_is_reported_at_doubling_intervals_and_at_its_end() -> None:
    own = OwnRankSilenceMonitor(3, 30.0)
    reported = [silence for now in range(0, 500, 5) for silence in own.own_silence_reports_to_print(7, float(now))]
    assert reported == [SilenceReport(3, seconds, False) for seconds in (30.0, 60.0, 120.0, 240.0, 480.0)]
    assert own.has_reported_silence
    assert own.own_silence_reports_to_print(8, 501.0) == [SilenceReport(3, 501.0, True)]
    assert not own.has_reported_silence
    assert own.own_silence_reports_to_print(8, 502.0) == []
    assert own.own_silence_reports_to_print(9, 503.0) == []


def test_stopping_rank_reports_silence_sooner() -> None:
    own = OwnRankSilenceMonitor(0, 30.0)
    assert own.own_silence_reports_to_print(1, 0.0) == []
    assert own.own_silence_reports_to_print(1, 10.0) == []
    own.shorten_time_to_report_silence(3.0)
    assert own.own_silence_reports_to_print(1, 11.0) == [SilenceReport(0, 11.0, False)]
    assert own.own_silence_reports_to_print(1, 12.0) == []
    assert own.own_silence_reports_to_print(2, 13.0) == [SilenceReport(0, 13.0, True)]
    assert own.own_silence_reports_to_print(2, 16.5) == [SilenceReport(0, 3.5, False)]


def test_hanging_row_is_reported_although_the_main_thread_progresses() -> None:
    own = OwnRankSilenceMonitor(3, 30.0)
    reported = [
        silence for now in range(0, 100, 5) for silence in own.own_silence_reports_to_print(now, float(now), oldest=7.5)
    ]
    assert reported == [SilenceReport(3, 30.0, False), SilenceReport(3, 60.0, False)]
    assert not own.is_main_thread_silent
    assert own.own_silence_reports_to_print(100, 100.0, oldest=99.5) == [SilenceReport(3, 100.0, True)]
    assert own.own_silence_reports_to_print(101, 105.0, oldest=104.5) == []
    assert own.own_silence_reports_to_print(102, 110.0, oldest=None) == []
    assert own.own_silence_reports_to_print(103, 140.0, oldest=None) == []


def test_completed_rows_do_not_hide_a_hanging_main_thread() -> None:
    own = OwnRankSilenceMonitor(3, 30.0)
    reported = [
        silence
        for now in range(0, 50, 5)
        for silence in own.own_silence_reports_to_print(7, float(now), oldest=now - 0.5)
    ]
    assert reported == [SilenceReport(3, 30.0, False)]
    assert own.is_main_thread_silent


def test_long_silence_of_other_ranks_is_reported() -> None:
    others = RankSilenceMonitor(60.0, 16)
    assert others.silence_reports_to_print([4], 0.0) == []
    assert others.silence_reports_to_print([], 5.0) == []
    assert others.silence_reports_to_print([4, 5], 10.0) == []
    assert others.silence_reports_to_print([4], 69.0) == []
    assert others.silence_reports_to_print([4], 70.0) == [SilenceReport(4, 60.0, False)]
    assert others.silence_reports_to_print([4], 100.0) == []
    assert others.silence_reports_to_print([4, 5], 130.0) == [SilenceReport(4, 120.0, False)]
    assert others.silence_reports_to_print([5], 140.0) == [SilenceReport(4, 130.0, True)]
    assert others.silence_reports_to_print([], 141.0) == []


def test_rank_that_reports_itself_is_not_reported_by_others() -> None:
    others = RankSilenceMonitor(60.0, 16)
    others.silence_reports_to_print([4], 0.0)
    others.register_report_sent_by_rank(4)
    assert others.silence_reports_to_print([4], 100.0) == []
    assert others.silence_reports_to_print([], 101.0) == []
    others.register_report_sent_by_rank(4)  # it continues
    assert others.silence_reports_to_print([4], 200.0) == []
    assert others.silence_reports_to_print([4], 260.0) == [SilenceReport(4, 60.0, False)]


def test_truncated_list_of_silent_ranks_ends_no_silence() -> None:
    others = RankSilenceMonitor(60.0, 2)
    others.silence_reports_to_print([8], 0.0)
    assert others.silence_reports_to_print([8], 60.0) == [SilenceReport(8, 60.0, False)]
    assert others.silence_reports_to_print([1, 2], 70.0) == []
    assert others.silence_reports_to_print([1], 80.0) == [SilenceReport(8, 80.0, True)]


def test_silence_of_others_is_reported_sooner_when_stopping() -> None:
    others = RankSilenceMonitor(60.0, 16)
    others.silence_reports_to_print([4], 0.0)
    others.shorten_time_to_report_silence(3.0)
    assert others.silence_reports_to_print([4], 4.0) == [SilenceReport(4, 4.0, False)]
    assert others.silence_reports_to_print([4, 6], 5.0) == []
    assert others.silence_reports_to_print([4, 6], 8.0) == [SilenceReport(4, 8.0, False), SilenceReport(6, 3.0, False)]
