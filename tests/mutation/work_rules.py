"""The rules of tasks: who gets them, when they run, how they travel."""

from __future__ import annotations

from tests.mutation.rule import Rule

DIRECTED = "mutation/test_directed.py::"
STEALING = "engine/test_node_stealing.py::"
QUEUE = "engine/test_queue.py::"
JOB = "engine/test_node.py::test_a_large_job[7-tree]"
SINGLE_JOB = "engine/test_node.py::test_a_large_job[1-tree]"
ONE_REQUEST = STEALING + "test_one_request_at_a_time_with_growing_pauses"


STEALS = (
    Rule(
        "a victim keeps its last task",
        "queue.py",
        "left > (0 if running else 1)",
        "left > 0",
        (STEALING + "test_the_last_task_stays",),
    ),
    Rule(
        "a victim that runs a task gives the last one that waits",
        "queue.py",
        "left > (0 if running else 1)",
        "left > 1",
        (QUEUE + "test_the_last_task_stays_unless_another_one_runs",),
    ),
    Rule(
        "the oldest tasks are given",
        "queue.py",
        "given.append(stack.oldest())",
        "given.append(stack.newest())",
        (QUEUE + "test_gives_the_oldest_half_by_cost",),
    ),
    Rule(
        "no more than half of the cost is given",
        "queue.py",
        "(stack.cost > half or not half)",
        "True",
        (QUEUE + "test_gives_the_oldest_half_by_cost",),
    ),
    Rule(
        "the newest task runs first",
        "queue.py",
        "task = self.tasks.pop()",
        "task = self.tasks.popleft()",
        (QUEUE + "test_newest_first",),
    ),
    Rule(
        "addressed tasks are never stolen",
        "queue.py",
        "if task.owner != ANYBODY:",
        "if False:",
        (QUEUE + "test_notes_are_never_given",),
    ),
    Rule(
        "a received task runs a slice before it is given away",
        "node.py",
        " and not self.under_way.is_untouched:",
        ":",
        (STEALING + "test_what_was_stolen_runs_a_slice_before_it_is_given_on",),
    ),
    Rule(
        "a slice of an addressed task is none of a received one",
        "under_way.py",
        "if self.is_untouched and task.owner == ANYBODY:",
        "if self.is_untouched:",
        (DIRECTED + "test_a_later_note_is_none_of_what_was_stolen",),
    ),
    Rule(
        "a slice of what ran before is none of a received task",
        "under_way.py",
        "        self._fresh.clear()",
        "        self._fresh = list(self._running)",
        (DIRECTED + "test_what_ran_before_is_none_of_what_was_stolen",),
    ),
    Rule(
        "a request of another phase is refused",
        "node.py",
        "if request.phase == self.phase and self.state",
        "if self.state",
        (STEALING + "test_a_request_of_another_phase_is_refused",),
    ),
    Rule(
        "a stale reply is dropped",
        "stealing.py",
        "if not self.waiting or reply.sequence != self._sequence:",
        "if not self.waiting:",
        (STEALING + "test_a_stale_reply_is_dropped",),
    ),
    Rule(
        "a reply is taken once",
        "stealing.py",
        "if not self.waiting or reply.sequence != self._sequence:",
        "if reply.sequence != self._sequence:",
        (DIRECTED + "test_a_reply_is_taken_once",),
    ),
    Rule(
        "one request is outstanding",
        "stealing.py",
        "if self.waiting or self._size == 1",
        "if self._size == 1",
        (ONE_REQUEST,),
    ),
    Rule(
        "a refused thief waits",
        "stealing.py",
        "self.ask_at = now + self._delay * (0.5 + self._random.random() / 2)",
        "self.ask_at = now",
        (ONE_REQUEST,),
    ),
    Rule(
        "a thief waits longer after each refusal",
        "stealing.py",
        "self._delay = min(2 * self._delay, max(self._limits.steal_backoff_cap, share))",
        "pass",
        (ONE_REQUEST,),
    ),
    Rule(
        "a thief's waiting is capped",
        "stealing.py",
        "min(2 * self._delay, max(self._limits.steal_backoff_cap, share))",
        "2 * self._delay",
        (ONE_REQUEST,),
    ),
    Rule(
        "a reply stays within the message limit",
        "queue.py",
        "if given and task.footprint > room:",
        "if False:",
        (QUEUE + "test_a_task_beyond_the_message_limit_travels_alone",),
    ),
    Rule(
        "addressed work stays within the message limit",
        "task.py",
        "if batch and size + task.footprint > limit:",
        "if False:",
        (DIRECTED + "test_addressed_tasks_travel_within_the_message_limit",),
    ),
    Rule(
        "a full queue puts tasks aside",
        "queue.py",
        "        elif self._in_core > self._limits.in_core and task.owner == ANYBODY:",
        "        elif False:",
        (QUEUE + "test_gives_of_what_is_outside_memory",),
    ),
    Rule(
        "a task of a later phase doesn't run",
        "queue.py",
        "        if task.phase != self._phase:\n            if task.phase not in self._backlogs:",
        "        if False:\n            if task.phase not in self._backlogs:",
        (JOB,),
    ),
    Rule(
        "ids are never reused",
        "node.py",
        "            self._numbered += 1\n",
        "            self._numbered = 1\n",
        (SINGLE_JOB,),
    ),
    Rule(
        "ids are never reused in a later phase",
        "node.py",
        "        self.queue.begin_phase(phase)\n        self._thief",
        "        self.queue.begin_phase(phase)\n        self._numbered = 0\n        self._thief",
        (SINGLE_JOB,),
    ),
    Rule(
        "the wire carries primitives only",
        "messages.py",
        'raise pickle.UnpicklingError(f"refused to load {module_name}.{global_name}")',
        "return super().find_class(module_name, global_name)",
        ("engine/test_messages.py::test_no_global_is_loaded",),
    ),
)
