"""The rules of tasks that wait for tickets."""

from __future__ import annotations

from tests.mutation.rule import Rule

TICKETS = "engine/test_tickets.py::"
DRIVER_WAITS = "engine/test_driver_waits.py::"
BEGINS = TICKETS + "test_a_rank_whose_task_waits_begins_another_one_while_it_has_a_slot"
STOPPED = DRIVER_WAITS + "test_told_to_stop_what_waits_ends_by_itself_and_what_does_not_is_dropped"


WAITS = (
    Rule(
        "a task is begun only when no other can run",
        "begun_tasks.py",
        "BegunTasks.begin",
        "self.has_room = False\n"
        "if self.has_untried and task.owner == ANY_RANK:\n"
        "    self._begun_since_received.append(task)",
        "if self.has_untried and task.owner == ANY_RANK:\n    self._begun_since_received.append(task)",
        (BEGINS,),
    ),
    Rule(
        "a task is begun only when a slot is free",
        "begun_tasks.py",
        "BegunTasks.suspend",
        "not self._runnable and len(self._waiting) < self.slots",
        "not self._runnable",
        (BEGINS,),
    ),
    Rule(
        "a note needs no slot",
        "node.py",
        "RankNode.can_take_task",
        "self._victim.can_begin_task() or (self.begun_tasks.is_nothing_runnable and self.queue.is_note_next)",
        "self._victim.can_begin_task()",
        (TICKETS + "test_a_note_needs_no_slot",),
    ),
    Rule(
        "only a note needs no slot",
        "queue.py",
        "TaskQueue.is_note_next",
        "bool(self._addressed_tasks) and not self.is_work(self._addressed_tasks[0])",
        "bool(self._addressed_tasks)",
        (TICKETS + "test_a_note_needs_no_slot",),
    ),
    Rule(
        "a rank that can't begin a task asks for none",
        "node.py",
        "RankNode.tick",
        "self.state is State.WORKING and self.begun_tasks.has_room and not len(self.queue)",
        "self.state is State.WORKING and not len(self.queue)",
        (TICKETS + "test_who_waits_and_has_a_slot_asks_for_work",),
    ),
    Rule(
        "a rank with a task under way is not idle",
        "node.py",
        "RankNode._find_end_or_request",
        "not len(self.begun_tasks)",
        "True",
        (TICKETS + "test_a_phase_is_not_over_while_a_task_waits[tree]",),
    ),
    Rule(
        "a task that waits is not over",
        "begun_tasks.py",
        "BegunTasks._remove_runnable",
        "self._runnable.remove",
        "(self._runnable if task in self._runnable else self._waiting).remove",
        (TICKETS + "test_a_task_that_waits_is_not_over",),
    ),
    Rule(
        "a task goes on when its ticket is done, and not before",
        "driver.py",
        "Driver._resume_tasks",
        "[each for each in self._suspended if each.ticket.is_done]",
        "[each for each in self._suspended ]",
        (DRIVER_WAITS + "test_a_rank_that_only_waits_sleeps_until_it_is_woken",),
    ),
    Rule(
        "a wake is cleared before tickets are looked at",
        "driver.py",
        "Driver._receive",
        "self._wake.clear()",
        "pass",
        (DRIVER_WAITS + "test_a_rank_that_only_waits_sleeps_until_it_is_woken",),
    ),
    Rule(
        "a note never waits",
        "driver.py",
        "Driver._suspend_task",
        "not node.queue.is_work(task)",
        "False",
        (DRIVER_WAITS + "test_a_note_never_waits",),
    ),
    Rule(
        "a note that may wait for storage is dropped",
        "queue.py",
        "TaskQueue.is_droppable",
        "self.is_work(task) or self._is_slow_note(task)",
        "self.is_work(task)",
        (DRIVER_WAITS + "test_a_note_that_may_wait_for_storage_is_dropped_as_work_is",),
    ),
    Rule(
        "what has waited ends in time",
        "driver.py",
        "Driver._stop_tasks",
        "until <= now",
        "until <= 0",
        (DRIVER_WAITS + "test_told_to_stop_what_has_waited_and_does_not_end_is_dropped",),
    ),
    Rule(
        "tickets are cancelled when the job is told to stop",
        "driver.py",
        "Driver._stop_tasks",
        "self._is_ending = True\nself._cancel_tickets()",
        "self._is_ending = True",
        (STOPPED,),
    ),
    Rule(
        "a ticket that comes later is cancelled, too",
        "driver.py",
        "Driver._suspend_task",
        "if self._is_ending:\n    ticket.cancel()",
        "pass",
        (STOPPED,),
    ),
    Rule(
        "nothing is closed while its ticket is under way",
        "driver.py",
        "Driver._close_suspended",
        "[each for each in self._suspended if each.ticket.is_done]",
        "[each for each in self._suspended ]",
        (DRIVER_WAITS + "test_an_end_in_disorder_is_told_at_once_and_closes_nothing_whose_ticket_is_under_way",),
    ),
)
