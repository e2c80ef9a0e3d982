"""The rules of counters, and of the end of a job: regular, by a halt, or by an abort."""

from __future__ import annotations

from tests.mutation.rule import Rule

DIRECTED = "mutation/test_directed.py::"
NODE = "engine/test_node_rules.py::"
PROGRESS = "engine/test_node_progress.py::"
QUEUE = "engine/test_queue.py::"
JOB = "engine/test_node.py::test_large_job_completes[7-tree]"
STOPPING = NODE + "test_stopping_rank_replies_and_awaits_reply_to_its_own_request"
READY = NODE + "test_ready_is_sent_to_parent_once_subtree_is_ready"
ABORT = NODE + "test_abort_is_forwarded_to_all_neighbours_except_its_sender"
HALT = NODE + "test_halt_request_goes_to_root_and_halt_order_to_children"
HALTED = "engine/test_node.py::test_job_interrupted_at_every_event_ends_correctly[6-halt]"
DROPS = "engine/test_node.py::test_job_interrupted_at_every_event_ends_correctly[0-halt]"
COUNTERS = DIRECTED + "test_sums_are_complete_in_time_although_answers_are_slow"
SILENT = PROGRESS + "test_silent_rank_is_reported_and_other_sums_are_complete"
LATE = PROGRESS + "test_late_answers_are_never_counted_twice"


REPORTS = (
    Rule(
        "a late answer is not added to a newer one",
        "progress.py",
        "CounterTree.receive_answer",
        "self._answers[source] = answer",
        "known = self._answers.get(source)\n"
        "more = tuple(map(sum, zip(known.totals, answer.totals))) if known else answer.totals\n"
        "self._answers[source] = answer._replace(totals=more)",
        (LATE,),
    ),
    Rule(
        "a late answer does not replace the requested one",
        "progress.py",
        "CounterTree.receive_answer",
        "answer.sequence != self.sequence or source not in self._missing_children",
        "source not in self._missing_children",
        (DIRECTED + "test_late_answer_does_not_count_for_later_query",),
    ),
    Rule(
        "a silent rank is reported",
        "progress.py",
        "CounterTree._silent_ranks",
        "silent.add(child)",
        "pass",
        (SILENT,),
    ),
    Rule(
        "silent ranks that a child reports are passed on",
        "progress.py",
        "CounterTree._silent_ranks",
        "silent.update(answer.silent_ranks)",
        "pass",
        (SILENT,),
    ),
    Rule(
        "the number of silent ranks in a message is limited",
        "progress.py",
        "CounterTree._finish_answering_query",
        "tuple(sorted(self._silent_ranks()))[:MAX_SILENT_RANKS]",
        "tuple(sorted(self._silent_ranks()))",
        (PROGRESS + "test_number_of_reported_silent_ranks_is_limited",),
    ),
    Rule(
        "no rank waits for a silent rank",
        "progress.py",
        "CounterTree._begin_answering_query",
        "out = self._finish_answering_query() if self._is_answer_pending else []",
        "out: OutgoingMessages = []",
        (SILENT,),
    ),
    Rule(
        "a rank answers once all ranks below it have answered",
        "progress.py",
        "CounterTree.receive_answer",
        "[] if self._missing_children else self._finish_answering_query()",
        "[]",
        (PROGRESS + "test_counter_sums_cover_all_ranks",),
    ),
    Rule(
        "the sums at the end of a phase are complete",
        "phase_end.py",
        "PhaseEndState.next_phase",
        "report is None or report.sequence < self._final_query or report.silent_ranks",
        "report is None or report.sequence < self._final_query",
        (COUNTERS,),
    ),
    Rule(
        "the final sums are queried after the end of the phase",
        "phase_end.py",
        "PhaseEndState.next_phase",
        "report is None or report.sequence < self._final_query or report.silent_ranks",
        "report is None or report.silent_ranks",
        (JOB,),
    ),
    Rule(
        "the sums are sent before each phase begins",
        "node.py",
        "RankStateMachine._begin_phase",
        "self._send_all(self._phase_end.start_counter_query(now))",
        "self._phase_end.next_query_time = now",
        (JOB,),
    ),
    Rule(
        "a resumed job begins with the sums of its earlier runs",
        "progress.py",
        "CounterTree.start_query",
        "tuple(self._counters)",
        "self.totals",
        ("engine/test_epochs.py::test_sums_of_resumed_job_reach_all_ranks_before_phase_starts",),
    ),
    Rule(
        "the interval between queries for complete sums grows",
        "phase_end.py",
        "PhaseEndState.start_counter_query",
        "interval *= 2 ** (self._counter_tree.sequence - self._final_query)",
        "pass",
        (COUNTERS,),
    ),
)

ENDS = (
    Rule(
        "a task that stops the job requests the halt before it ends",
        "driver.py",
        "RankDriver._run_tasks",
        "is_wished = self._halt_if_requested(now)",
        "is_wished = self._stop_reason() is not None",
        ("engine/test_driver.py::test_stop_requested_by_last_task_decides_status_of_job[1-0]",),
    ),
    Rule(
        "an abort is passed on",
        "node.py",
        "RankStateMachine._receive_abort",
        "if neighbour not in (source, -1):\n    self._send(neighbour, message)",
        "pass",
        (ABORT,),
    ),
    Rule(
        "an abort is passed on upward",
        "node.py",
        "RankStateMachine._receive_abort",
        "(self.parent, *self._children)",
        "self._children",
        (ABORT,),
    ),
    Rule(
        "an abort is passed on downward",
        "node.py",
        "RankStateMachine._receive_abort",
        "(self.parent, *self._children)",
        "(self.parent,)",
        (ABORT,),
    ),
    Rule(
        "an abort is sent once",
        "node.py",
        "RankStateMachine._receive_abort",
        "if self.state in FINAL_RANK_STATES:\n    return\nself._set_state(RankState.ABORTED)",
        "self._set_state(RankState.ABORTED)",
        (ABORT,),
    ),
    Rule(
        "an aborted rank ignores messages",
        "node.py",
        "RankStateMachine.receive_message",
        "self.state not in FINAL_RANK_STATES",
        "self.state is not RankState.CLOSED",
        (ABORT,),
    ),
    Rule(
        "a request to halt is sent to rank 0",
        "node.py",
        "RankStateMachine._receive_halt",
        "self._has_requested_halt = True\nself._send(self.parent, message)",
        "self._has_requested_halt = True",
        (NODE + "test_halt_request_is_sent_to_parent_once",),
    ),
    Rule(
        "a request to halt is forwarded once",
        "node.py",
        "RankStateMachine._receive_halt",
        "not self._has_requested_halt",
        "True",
        (NODE + "test_halt_request_is_sent_to_parent_once",),
    ),
    Rule(
        "rank 0 sends the order to halt",
        "node.py",
        "RankStateMachine._receive_halt",
        "self.rank and source != self.parent",
        "False",
        (HALT,),
    ),
    Rule(
        "the order to halt is passed on",
        "node.py",
        "RankStateMachine._receive_halt",
        "self.dropped_count += self.queue.drop_all_work()\n"
        "for child in self._children:\n"
        "    self._send(child, message)",
        "self.dropped_count += self.queue.drop_all_work()",
        (HALT,),
    ),
    Rule(
        "a halted rank drops its queue",
        "node.py",
        "RankStateMachine._receive_halt",
        "self.dropped_count += self.queue.drop_all_work()\n"
        "for child in self._children:\n"
        "    self._send(child, message)",
        "for child in self._children:\n    self._send(child, message)",
        (DROPS,),
    ),
    Rule(
        "a halted rank takes no further tasks",
        "node.py",
        "RankStateMachine._queue_tasks",
        "self.halt_reason is not None and (self.queue.is_droppable(task) or task.phase != self.phase)",
        "False",
        (DIRECTED + "test_halt_before_start_of_single_rank_closes_it",),
    ),
    Rule(
        "a halted rank runs addressed tasks that arrive",
        "node.py",
        "RankStateMachine._queue_tasks",
        "self.halt_reason is not None and (self.queue.is_droppable(task) or task.phase != self.phase)",
        "self.halt_reason is not None",
        (HALTED,),
    ),
    Rule(
        "a halted rank runs addressed tasks that are queued",
        "queue.py",
        "TaskQueue.drop_all_work",
        "self._bytes_in_memory = sum(task.memory_use_in_bytes for task in self._addressed_tasks)",
        "self._addressed_tasks.clear()\nself._bytes_in_memory = 0",
        (QUEUE + "test_drop_removes_all_tasks_but_notes_of_current_phase",),
    ),
    Rule(
        "no phase follows a halt",
        "phase_end.py",
        "PhaseEndState.next_phase",
        "None if halted is not None else self._director.next_phase(phase, report.totals)",
        "self._director.next_phase(phase, report.totals)",
        (DIRECTED + "test_halt_before_start_of_single_rank_closes_it",),
    ),
    Rule(
        "a halted rank requests no tasks",
        "node.py",
        "RankStateMachine._check_phase_end_or_request_tasks",
        "self.halt_reason is None and (request := self._thief.next_task_request(self.phase, now))",
        "(request := self._thief.next_task_request(self.phase, now))",
        (DIRECTED + "test_halted_rank_requests_no_tasks",),
    ),
    Rule(
        "rank 0 stops all ranks",
        "node.py",
        "RankStateMachine._begin_job_shutdown",
        "for child in self._children:\n    self._send(child, EndJobMessage(status))",
        "pass",
        (READY,),
    ),
    Rule(
        "a rank with work cannot be stopped",
        "node.py",
        "RankStateMachine._begin_job_shutdown",
        "len(self.begun_tasks) or len(self.queue) or self._early_tasks",
        "False",
        (NODE + "test_stop_while_rank_has_work_is_refused",),
    ),
    Rule(
        "a rank is ready once all ranks below it are ready",
        "node.py",
        "RankStateMachine.perform_due_actions",
        "self.state is RankState.STOPPING and not self.barrier.awaited_children and not self._thief.is_request_pending",
        "self.state is RankState.STOPPING and not self._thief.is_request_pending",
        (READY,),
    ),
    Rule(
        "a rank is ready once its own request is answered",
        "node.py",
        "RankStateMachine.perform_due_actions",
        "self.state is RankState.STOPPING and not self.barrier.awaited_children and not self._thief.is_request_pending",
        "self.state is RankState.STOPPING and not self.barrier.awaited_children",
        (STOPPING,),
    ),
    Rule(
        "the final reports of the ranks below are passed on",
        "barrier.py",
        "SubtreeReadyBarrier.subtree_ready_message",
        "self.combine_reports(self._child_reports)",
        "self.combine_reports([])",
        (READY,),
    ),
    Rule(
        "a stopping rank still answers requests",
        "node.py",
        "RankStateMachine._answer_requests",
        "self._send(source, TaskReply(phase, sequence, tasks, self._detector.count_sent_work_message() "
        "if tasks else TerminationCreditStamp()))",
        "if self.state is RankState.WORKING:\n"
        "    self._send(source, TaskReply(phase, sequence, tasks, "
        "self._detector.count_sent_work_message() if tasks else TerminationCreditStamp()))",
        (STOPPING,),
    ),
    Rule(
        "ranks close only when all are ready",
        "node.py",
        "RankStateMachine",
        "node._begin_job_shutdown(stop.status)",
        "(node._begin_job_shutdown(stop.status), node._close_rank_and_children())",
        (STOPPING,),
    ),
    Rule(
        "the order to close is passed on",
        "node.py",
        "RankStateMachine._close_rank_and_children",
        "for child in self._children:\n    self._send(child, CloseTransportMessage())",
        "pass",
        (READY,),
    ),
    Rule(
        "all ranks end with the same status",
        "node.py",
        "RankStateMachine._begin_job_shutdown",
        "self.status = status\nfor child in self._children:\n    self._send(child, EndJobMessage(status))",
        "for child in self._children:\n    self._send(child, EndJobMessage(status))",
        (STOPPING,),
    ),
    Rule(
        "an exception on one rank ends all",
        "driver.py",
        "RankDriver._run_job",
        'node.abort_job(f"{self._program}: rank {node.rank} on {self._host} failed:\\n{current_traceback()}")',
        "raise",
        ("engine/test_driver.py::test_exception_on_one_rank_ends_all_ranks[fail-0-1]",),
    ),
)
