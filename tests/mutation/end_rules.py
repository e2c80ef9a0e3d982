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
        "answer.sequence != self.sequence or source not in self._missing_children",
        "source not in self._missing_children",
        (DIRECTED + "test_a_late_answer_answers_no_later_query",),
    ),
    Rule(
        "a silent rank is named",
        "progress.py",
        "CounterTree._silent_ranks",
        "silent.add(child)",
        "pass",
        (SILENT,),
    ),
    Rule(
        "what a child says of silent ranks is passed on",
        "progress.py",
        "CounterTree._silent_ranks",
        "silent.update(answer.silent_ranks)",
        "pass",
        (SILENT,),
    ),
    Rule(
        "no more ranks are named than a message should hold",
        "progress.py",
        "CounterTree._finish_answer",
        "tuple(sorted(self._silent_ranks()))[:MAX_SILENT_RANKS]",
        "tuple(sorted(self._silent_ranks()))",
        (PROGRESS + "test_not_more_are_named_than_a_message_should_hold",),
    ),
    Rule(
        "nobody waits for a silent rank",
        "progress.py",
        "CounterTree._begin_answer",
        "out = self._finish_answer() if self._is_answer_pending else []",
        "out: OutgoingMessages = []",
        (SILENT,),
    ),
    Rule(
        "a rank answers once all below it have",
        "progress.py",
        "CounterTree.receive_answer",
        "[] if self._missing_children else self._finish_answer()",
        "[]",
        (PROGRESS + "test_sums_are_complete",),
    ),
    Rule(
        "the sums of a phase's end are complete",
        "phase_end.py",
        "PhaseEnd.next_phase",
        "report is None or report.sequence < self._final_query or report.silent_ranks",
        "report is None or report.sequence < self._final_query",
        (COUNTERS,),
    ),
    Rule(
        "the sums of a phase's end are asked for after it",
        "phase_end.py",
        "PhaseEnd.next_phase",
        "report is None or report.sequence < self._final_query or report.silent_ranks",
        "report is None or report.silent_ranks",
        (JOB,),
    ),
    Rule(
        "the sums go ahead of each phase",
        "node.py",
        "RankNode._begin_phase",
        "self._send_all(self._phase_end.query_counters(now))",
        "self._phase_end.next_query_time = now",
        (JOB,),
    ),
    Rule(
        "a resumed job begins with the sums of its earlier runs",
        "progress.py",
        "CounterTree.start_query",
        "tuple(self._counters)",
        "self.totals",
        ("engine/test_epochs.py::test_all_ranks_of_a_resumed_job_know_its_sums_before_the_phase_begins",),
    ),
    Rule(
        "complete sums are awaited with growing patience",
        "phase_end.py",
        "PhaseEnd.query_counters",
        "interval *= 2 ** (self._counter_tree.sequence - self._final_query)",
        "pass",
        (COUNTERS,),
    ),
)

ENDS = (
    Rule(
        "a task that stops the job says so before it has ended",
        "driver.py",
        "Driver._run_tasks",
        "is_wished = self._halt_if_wished(now)",
        "is_wished = self._stop_reason() is not None",
        ("engine/test_driver.py::test_last_task_that_stops_the_job_decides_its_status[1-0]",),
    ),
    Rule(
        "an abort is passed on",
        "node.py",
        "RankNode._receive_abort",
        "if neighbour not in (source, -1):\n    self._send(neighbour, message)",
        "pass",
        (ABORT,),
    ),
    Rule(
        "an abort is passed on upward",
        "node.py",
        "RankNode._receive_abort",
        "(self.parent, *self._children)",
        "self._children",
        (ABORT,),
    ),
    Rule(
        "an abort is passed on downward",
        "node.py",
        "RankNode._receive_abort",
        "(self.parent, *self._children)",
        "(self.parent,)",
        (ABORT,),
    ),
    Rule(
        "an abort is told once",
        "node.py",
        "RankNode._receive_abort",
        "if self.state in FINAL_STATES:\n    return\nself._set_state(State.ABORTED)",
        "self._set_state(State.ABORTED)",
        (ABORT,),
    ),
    Rule(
        "a rank that has aborted takes no part any more",
        "node.py",
        "RankNode.receive",
        "self.state not in FINAL_STATES",
        "self.state is not State.CLOSED",
        (ABORT,),
    ),
    Rule(
        "a wish to halt goes to the root",
        "node.py",
        "RankNode._receive_halt",
        "self._has_requested_halt = True\nself._send(self.parent, message)",
        "self._has_requested_halt = True",
        (NODE + "test_a_wish_to_halt_reaches_the_parent",),
    ),
    Rule(
        "a wish to halt is passed on once",
        "node.py",
        "RankNode._receive_halt",
        "not self._has_requested_halt",
        "True",
        (NODE + "test_a_wish_to_halt_reaches_the_parent",),
    ),
    Rule(
        "the root orders the halt",
        "node.py",
        "RankNode._receive_halt",
        "self.rank and source != self.parent",
        "False",
        (HALT,),
    ),
    Rule(
        "the order to halt is passed on",
        "node.py",
        "RankNode._receive_halt",
        "self.dropped_count += self.queue.drop_all_work()\n"
        "for child in self._children:\n"
        "    self._send(child, message)",
        "self.dropped_count += self.queue.drop_all_work()",
        (HALT,),
    ),
    Rule(
        "a halted rank drops its queue",
        "node.py",
        "RankNode._receive_halt",
        "self.dropped_count += self.queue.drop_all_work()\n"
        "for child in self._children:\n"
        "    self._send(child, message)",
        "for child in self._children:\n    self._send(child, message)",
        (DROPS,),
    ),
    Rule(
        "a halted rank takes no further tasks",
        "node.py",
        "RankNode._queue_tasks",
        "self.halt_reason is not None and (self.queue.is_droppable(task) or task.phase != self.phase)",
        "False",
        (DIRECTED + "test_a_halt_before_the_start_of_a_rank_alone",),
    ),
    Rule(
        "a halted rank keeps addressed tasks that come",
        "node.py",
        "RankNode._queue_tasks",
        "self.halt_reason is not None and (self.queue.is_droppable(task) or task.phase != self.phase)",
        "self.halt_reason is not None",
        (HALTED,),
    ),
    Rule(
        "a halted rank keeps addressed tasks that wait",
        "queue.py",
        "TaskQueue.drop_all_work",
        "self._bytes_in_memory = sum(task.memory_bytes for task in self._addressed_tasks)",
        "self._addressed_tasks.clear()\nself._bytes_in_memory = 0",
        (QUEUE + "test_dropped_are_all_but_the_notes_of_this_phase",),
    ),
    Rule(
        "no phase follows a halt",
        "phase_end.py",
        "PhaseEnd.next_phase",
        "None if halted is not None else self._director.next_phase(phase, report.totals)",
        "self._director.next_phase(phase, report.totals)",
        (DIRECTED + "test_a_halt_before_the_start_of_a_rank_alone",),
    ),
    Rule(
        "a halted rank steals no more",
        "node.py",
        "RankNode._find_end_or_request",
        "self.halt_reason is None and (request := self._thief.next_request(self.phase, now))",
        "(request := self._thief.next_request(self.phase, now))",
        (DIRECTED + "test_a_halted_rank_asks_for_nothing",),
    ),
    Rule(
        "the root stops everyone",
        "node.py",
        "RankNode._begin_stop",
        "for child in self._children:\n    self._send(child, Stop(status))",
        "pass",
        (READY,),
    ),
    Rule(
        "a rank with work can't be stopped",
        "node.py",
        "RankNode._begin_stop",
        "len(self.begun_tasks) or len(self.queue) or self._early_tasks",
        "False",
        (NODE + "test_a_stop_while_there_is_work",),
    ),
    Rule(
        "a rank is ready once all below are",
        "node.py",
        "RankNode.tick",
        "self.state is State.STOPPING and not self.barrier.awaited_children and not self._thief.is_request_pending",
        "self.state is State.STOPPING and not self._thief.is_request_pending",
        (READY,),
    ),
    Rule(
        "a rank is ready once its own request is answered",
        "node.py",
        "RankNode.tick",
        "self.state is State.STOPPING and not self.barrier.awaited_children and not self._thief.is_request_pending",
        "self.state is State.STOPPING and not self.barrier.awaited_children",
        (STOPPING,),
    ),
    Rule(
        "what those below have said at last is passed on",
        "barrier.py",
        "UpwardBarrier.ready_message",
        "self.combine_reports(self._child_reports)",
        "self.combine_reports([])",
        (READY,),
    ),
    Rule(
        "a rank that stops still answers",
        "node.py",
        "RankNode._answer_requests",
        "self._send(source, TaskReply(phase, sequence, tasks, self._detector.count_sent() if tasks else Stamp()))",
        "if self.state is State.WORKING:\n"
        "    self._send(source, TaskReply(phase, sequence, tasks, self._detector.count_sent() if tasks "
        "else Stamp()))",
        (STOPPING,),
    ),
    Rule(
        "a rank that stops closes only when all are ready",
        "node.py",
        "RankNode",
        "node._begin_stop(stop.status)",
        "(node._begin_stop(stop.status), node._close())",
        (STOPPING,),
    ),
    Rule(
        "the order to close is passed on",
        "node.py",
        "RankNode._close",
        "for child in self._children:\n    self._send(child, Close())",
        "pass",
        (READY,),
    ),
    Rule(
        "every rank agrees on the status",
        "node.py",
        "RankNode._begin_stop",
        "self.status = status\nfor child in self._children:\n    self._send(child, Stop(status))",
        "for child in self._children:\n    self._send(child, Stop(status))",
        (STOPPING,),
    ),
    Rule(
        "an exception on one rank ends all",
        "driver.py",
        "Driver._run",
        'node.abort(f"{self._program}: rank {node.rank} on {self._host} failed:\\n{current_traceback()}")',
        "raise",
        ("engine/test_driver.py::test_an_exception_ends_all_ranks[fail-0-1]",),
    ),
)
