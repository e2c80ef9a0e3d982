"""The rules of counters, of a job's end and of its ends before time."""

from __future__ import annotations

from tests.mutation.rule import Rule

DIRECTED = "mutation/test_directed.py::"
NODE = "engine/test_node_rules.py::"
PROGRESS = "engine/test_node_progress.py::"
QUEUE = "engine/test_queue.py::"
JOB = "engine/test_node.py::test_a_large_job[7-tree]"
STOPPING = NODE + "test_a_stopping_rank_answers_and_awaits_its_own_answer"
READY = NODE + "test_ready_goes_up_when_the_subtree_is"
ABORT = NODE + "test_an_abort_goes_to_all_neighbours_but_its_bearer"
HALT = NODE + "test_a_halt_goes_up_and_the_order_comes_down"
HALTED = "engine/test_node.py::test_interrupted_at_every_moment[6-halt]"
DROPS = "engine/test_node.py::test_interrupted_at_every_moment[0-halt]"
COUNTERS = DIRECTED + "test_slow_answers_are_complete_and_soon_enough"
SILENT = PROGRESS + "test_a_silent_rank_is_named_and_hides_nobody_else"
LATE = PROGRESS + "test_late_answers_never_count_twice"


REPORTS = (
    Rule(
        "a late answer is not counted beside a newer one",
        "progress.py",
        "CounterTree.receive_answer",
        "self._answers[source] = answer",
        "known = self._answers.get(source)\n"
        "more = tuple(map(sum, zip(known.totals, answer.totals))) if known else answer.totals\n"
        "self._answers[source] = answer._replace(totals=more)",
        (LATE,),
    ),
    Rule(
        "a late answer doesn't stand for the one that is asked for",
        "progress.py",
        "CounterTree.receive_answer",
        "answer.sequence != self.sequence or source not in self._missing",
        "source not in self._missing",
        (DIRECTED + "test_a_late_answer_answers_no_later_query",),
    ),
    Rule(
        "a silent rank is named",
        "progress.py",
        "CounterTree._find_silent",
        "silent.add(child)",
        "pass",
        (SILENT,),
    ),
    Rule(
        "what a child says of silent ranks is passed on",
        "progress.py",
        "CounterTree._find_silent",
        "silent.update(answer.silent)",
        "pass",
        (SILENT,),
    ),
    Rule(
        "no more ranks are named than a message should hold",
        "progress.py",
        "CounterTree._finish",
        "tuple(sorted(self._find_silent()))[:SILENT_SHOWN]",
        "tuple(sorted(self._find_silent()))",
        (PROGRESS + "test_not_more_are_named_than_a_message_should_hold",),
    ),
    Rule(
        "nobody waits for a silent rank",
        "progress.py",
        "CounterTree._begin",
        "out = self._finish() if self._open else []",
        "out: Outgoing = []",
        (SILENT,),
    ),
    Rule(
        "a rank answers once all below it have",
        "progress.py",
        "CounterTree.receive_answer",
        "[] if self._missing else self._finish()",
        "[]",
        (PROGRESS + "test_sums_are_complete",),
    ),
    Rule(
        "the sums of a phase's end are complete",
        "phase_end.py",
        "PhaseEnd.decide",
        "report is None or report.sequence < self._complete or report.silent",
        "report is None or report.sequence < self._complete",
        (COUNTERS,),
    ),
    Rule(
        "the sums of a phase's end are asked for after it",
        "phase_end.py",
        "PhaseEnd.decide",
        "report is None or report.sequence < self._complete or report.silent",
        "report is None or report.silent",
        (JOB,),
    ),
    Rule(
        "the sums go ahead of each phase",
        "node.py",
        "Node._begin_phase",
        "self._send_all(self._phase_end.ask(now))",
        "self._phase_end.next_query = now",
        (JOB,),
    ),
    Rule(
        "a resumed job begins with the sums of its earlier runs",
        "progress.py",
        "CounterTree.ask",
        "tuple(self._counters)",
        "self.totals",
        ("engine/test_epochs.py::test_all_ranks_of_a_resumed_job_know_its_sums_before_the_phase_begins",),
    ),
    Rule(
        "complete sums are awaited with growing patience",
        "phase_end.py",
        "PhaseEnd.ask",
        "interval *= 2 ** (self._progress.sequence - self._complete)",
        "pass",
        (COUNTERS,),
    ),
)

ENDS = (
    Rule(
        "a task that stops the job says so before it has ended",
        "driver.py",
        "Driver._work",
        "is_wished = self._halt_if_wished(now)",
        "is_wished = self._stop_reason() is not None",
        ("engine/test_driver.py::test_last_task_that_stops_the_job_decides_its_status[1-0]",),
    ),
    Rule(
        "an abort is passed on",
        "node.py",
        "Node._receive_abort",
        "if neighbour not in (source, -1):\n    self._send(neighbour, message)",
        "pass",
        (ABORT,),
    ),
    Rule(
        "an abort is passed on upward",
        "node.py",
        "Node._receive_abort",
        "(self.parent, *self._children)",
        "self._children",
        (ABORT,),
    ),
    Rule(
        "an abort is passed on downward",
        "node.py",
        "Node._receive_abort",
        "(self.parent, *self._children)",
        "(self.parent,)",
        (ABORT,),
    ),
    Rule(
        "an abort is told once",
        "node.py",
        "Node._receive_abort",
        "if self.state in FINAL:\n    return\nself._enter(State.ABORTED)",
        "self._enter(State.ABORTED)",
        (ABORT,),
    ),
    Rule(
        "a rank that has aborted takes no part any more",
        "node.py",
        "Node.receive",
        "self.state not in FINAL",
        "self.state is not State.CLOSED",
        (ABORT,),
    ),
    Rule(
        "a wish to halt goes to the root",
        "node.py",
        "Node._receive_halt",
        "self._halt_wished = True\nself._send(self.parent, message)",
        "self._halt_wished = True",
        (NODE + "test_a_wish_to_halt_reaches_the_parent",),
    ),
    Rule(
        "a wish to halt is passed on once",
        "node.py",
        "Node._receive_halt",
        "not self._halt_wished",
        "True",
        (NODE + "test_a_wish_to_halt_reaches_the_parent",),
    ),
    Rule(
        "the root orders the halt",
        "node.py",
        "Node._receive_halt",
        "self.rank and source != self.parent",
        "False",
        (HALT,),
    ),
    Rule(
        "the order to halt is passed on",
        "node.py",
        "Node._receive_halt",
        "self.dropped += self.queue.drop_work()\nfor child in self._children:\n    self._send(child, message)",
        "self.dropped += self.queue.drop_work()",
        (HALT,),
    ),
    Rule(
        "a halted rank drops its queue",
        "node.py",
        "Node._receive_halt",
        "self.dropped += self.queue.drop_work()\nfor child in self._children:\n    self._send(child, message)",
        "for child in self._children:\n    self._send(child, message)",
        (DROPS,),
    ),
    Rule(
        "a halted rank takes no further tasks",
        "node.py",
        "Node._accept",
        "self.halted is not None and (self.queue.may_drop(task) or task.phase != self.phase)",
        "False",
        (DIRECTED + "test_a_halt_before_the_start_of_a_rank_alone",),
    ),
    Rule(
        "a halted rank keeps addressed tasks that come",
        "node.py",
        "Node._accept",
        "self.halted is not None and (self.queue.may_drop(task) or task.phase != self.phase)",
        "self.halted is not None",
        (HALTED,),
    ),
    Rule(
        "a halted rank keeps addressed tasks that wait",
        "queue.py",
        "TaskQueue.drop_work",
        "self._in_core = sum(task.footprint for task in self._notes)",
        "self._notes.clear()\nself._in_core = 0",
        (QUEUE + "test_dropped_are_all_but_the_notes_of_this_phase",),
    ),
    Rule(
        "no phase follows a halt",
        "phase_end.py",
        "PhaseEnd.decide",
        "None if halted is not None else self._director.next_phase(phase, report.totals)",
        "self._director.next_phase(phase, report.totals)",
        (DIRECTED + "test_a_halt_before_the_start_of_a_rank_alone",),
    ),
    Rule(
        "a halted rank steals no more",
        "node.py",
        "Node._seek",
        "self.halted is None and (request := self._thief.ask(self.phase, now))",
        "(request := self._thief.ask(self.phase, now))",
        (DIRECTED + "test_a_halted_rank_asks_for_nothing",),
    ),
    Rule(
        "the root stops everyone",
        "node.py",
        "Node._stop",
        "for child in self._children:\n    self._send(child, Stop(status))",
        "pass",
        (READY,),
    ),
    Rule(
        "a rank with work can't be stopped",
        "node.py",
        "Node._stop",
        "len(self.under_way) or len(self.queue) or self._early",
        "False",
        (NODE + "test_a_stop_while_there_is_work",),
    ),
    Rule(
        "a rank is ready once all below are",
        "node.py",
        "Node.tick",
        "self.state is State.STOPPING and not self.barrier.awaited and not self._thief.waiting",
        "self.state is State.STOPPING and not self._thief.waiting",
        (READY,),
    ),
    Rule(
        "a rank is ready once its own request is answered",
        "node.py",
        "Node.tick",
        "self.state is State.STOPPING and not self.barrier.awaited and not self._thief.waiting",
        "self.state is State.STOPPING and not self.barrier.awaited",
        (STOPPING,),
    ),
    Rule(
        "what those below have said at last is passed on",
        "barrier.py",
        "Barrier.ready",
        "self.last_words(self._below)",
        "self.last_words([])",
        (READY,),
    ),
    Rule(
        "a rank that stops still answers",
        "node.py",
        "Node._answer_requests",
        "self._send(source, Reply(phase, sequence, tasks, self._detector.sent() if tasks else Stamp()))",
        "if self.state is State.WORKING:\n"
        "    self._send(source, Reply(phase, sequence, tasks, self._detector.sent() if tasks else "
        "Stamp()))",
        (STOPPING,),
    ),
    Rule(
        "a rank that stops closes only when all are ready",
        "node.py",
        "Node",
        "node._stop(stop.status)",
        "(node._stop(stop.status), node._close())",
        (STOPPING,),
    ),
    Rule(
        "the order to close is passed on",
        "node.py",
        "Node._close",
        "for child in self._children:\n    self._send(child, Close())",
        "pass",
        (READY,),
    ),
    Rule(
        "every rank agrees on the status",
        "node.py",
        "Node._stop",
        "self.status = status\nfor child in self._children:\n    self._send(child, Stop(status))",
        "for child in self._children:\n    self._send(child, Stop(status))",
        (STOPPING,),
    ),
    Rule(
        "an exception on one rank ends all",
        "driver.py",
        "Driver._run",
        'node.abort(f"{self._program}: rank {node.rank} on {self._host} failed:\\n{story()}")',
        "raise",
        ("engine/test_driver.py::test_an_exception_ends_all_ranks[fail-0-1]",),
    ),
)
