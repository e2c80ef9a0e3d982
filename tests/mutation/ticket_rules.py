"""The rules of tasks that wait for tickets."""

from __future__ import annotations

from tests.mutation.rule import Rule

TICKETS = "engine/test_tickets.py::"
DRIVER_WAITS = "engine/test_driver_waits.py::"
BEGINS = TICKETS + "test_rank_with_waiting_task_starts_another_if_slot_is_free"
STOPPED = DRIVER_WAITS + "test_stop_lets_waiting_task_end_and_drops_runnable_one"


WAITS = (
    Rule(
        "a task is begun only when no other can run",
        "begun_tasks.py",
        "BegunTasks.begin_task",
        "self.has_room = False\n"
        "if self.has_untried_received_tasks and task.owner == ANY_RANK:\n"
        "    self._begun_since_received.append(task)",
        "if self.has_untried_received_tasks and task.owner == ANY_RANK:\n    self._begun_since_received.append(task)",
        (BEGINS,),
    ),
    Rule(
        "a task is begun only when a slot is free",
        "begun_tasks.py",
        "BegunTasks.suspend_task",
        "not self._runnable and len(self._waiting) < self.slots",
        "not self._runnable",
        (BEGINS,),
    ),
    Rule(
        "a note needs no slot",
        "node.py",
        "RankStateMachine.can_take_task",
        "self._victim.can_begin_task() or (self.begun_tasks.has_no_runnable_task and self.queue.is_next_task_note)",
        "self._victim.can_begin_task()",
        (TICKETS + "test_note_needs_no_slot",),
    ),
    Rule(
        "only a note needs no slot",
        "queue.py",
        "TaskQueue.is_next_task_note",
        "bool(self._addressed_tasks) and not self.is_work(self._addressed_tasks[0])",
        "bool(self._addressed_tasks)",
        (TICKETS + "test_note_needs_no_slot",),
    ),
    Rule(
        "a rank that cannot begin a task requests none",
        "node.py",
        "RankStateMachine.perform_due_actions",
        "self.state is RankState.WORKING and self.begun_tasks.has_room and not len(self.queue)",
        "self.state is RankState.WORKING and not len(self.queue)",
        (TICKETS + "test_rank_with_waiting_task_and_free_slot_requests_work",),
    ),
    Rule(
        "a rank with a task under way is not idle",
        "node.py",
        "RankStateMachine._check_phase_end_or_request_tasks",
        "not len(self.begun_tasks)",
        "True",
        (TICKETS + "test_phase_does_not_end_while_a_task_waits[tree]",),
    ),
    Rule(
        "a waiting task has not ended",
        "begun_tasks.py",
        "BegunTasks._remove_runnable",
        "self._runnable.remove",
        "(self._runnable if task in self._runnable else self._waiting).remove",
        (TICKETS + "test_waiting_task_can_be_neither_finished_nor_dropped",),
    ),
    Rule(
        "a task is resumed when its ticket is done, and not before",
        "driver.py",
        "RankDriver._resume_tasks",
        "[each for each in self._suspended if each.ticket.is_done]",
        "[each for each in self._suspended ]",
        (DRIVER_WAITS + "test_rank_with_only_waiting_tasks_sleeps_until_wake",),
    ),
    Rule(
        "a wake is cleared before tickets are checked",
        "driver.py",
        "RankDriver._receive_messages",
        "self._wake.clear()",
        "pass",
        (DRIVER_WAITS + "test_rank_with_only_waiting_tasks_sleeps_until_wake",),
    ),
    Rule(
        "a note never waits for a ticket",
        "driver.py",
        "RankDriver._suspend_task",
        "not node.queue.is_work(task)",
        "False",
        (DRIVER_WAITS + "test_note_that_waits_for_ticket_aborts_job",),
    ),
    Rule(
        "a stopping job drops a note that may wait for storage",
        "queue.py",
        "TaskQueue.is_droppable",
        "self.is_work(task) or self._is_slow_note(task)",
        "self.is_work(task)",
        (DRIVER_WAITS + "test_stop_drops_note_that_may_wait_for_storage",),
    ),
    Rule(
        "a task that has waited for a ticket ends within a time limit",
        "driver.py",
        "RankDriver._stop_tasks",
        "until <= now",
        "until <= 0",
        (DRIVER_WAITS + "test_stop_drops_task_that_runs_too_long_after_its_ticket",),
    ),
    Rule(
        "tickets are cancelled when the job is stopped",
        "driver.py",
        "RankDriver._stop_tasks",
        "self._is_ending = True\nself._cancel_awaited_operations()",
        "self._is_ending = True",
        (STOPPED,),
    ),
    Rule(
        "a ticket of a task that is suspended after the stop is cancelled",
        "driver.py",
        "RankDriver._suspend_task",
        "if self._is_ending:\n    ticket.cancel()",
        "pass",
        (STOPPED,),
    ),
    Rule(
        "a task is not closed while its ticket is under way",
        "driver.py",
        "RankDriver._close_suspended_tasks",
        "[each for each in self._suspended if each.ticket.is_done]",
        "[each for each in self._suspended ]",
        (DRIVER_WAITS + "test_abort_is_sent_immediately_but_waiting_task_closes_after_its_ticket",),
    ),
)
