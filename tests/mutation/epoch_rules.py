"""The rules of epochs: what is cut when, what a journal is told, and what waits for storage."""

from __future__ import annotations

from tests.mutation.rule import Rule

EPOCHS = "engine/test_epochs.py::"
DURABLE = "engine/test_durable_phases.py::"
PROGRESS = "engine/test_node_progress.py::"
MARKER = EPOCHS + "test_a_marker_goes_before_the_first_message_to_each"
BEHIND = EPOCHS + "test_what_lies_behind_a_marker_happens_in_the_new_epoch"
HELD = EPOCHS + "test_a_journal_does_not_hear_of_what_is_held"
TIME = EPOCHS + "test_the_root_alone_looks_at_the_time"
EARLY = EPOCHS + "test_the_first_cut_comes_early_and_later_ones_at_growing_intervals"
WAITS = DURABLE + "test_a_phase_waits_until_all_ranks_are_durable"
LAST = DURABLE + "test_a_job_that_is_told_to_stop_takes_a_last_cut_and_waits_for_it_for_some_time"
LEAST = PROGRESS + "test_what_is_durable_is_the_least"
ALL_GIVE_UP = DURABLE + "test_once_a_rank_can_record_nothing_all_give_up"
GONE = DURABLE + "test_a_phase_waits_until_a_job_that_is_not_kept_any_more_is_gone"


CUTS = (
    Rule(
        "a rank cuts before the message behind the marker",
        "node.py",
        "RankNode",
        "node._epochs.enter_epoch(epoch.number, node.phase)",
        "None",
        (BEHIND,),
    ),
    Rule(
        "an epoch is cut once",
        "journal.py",
        "RankEpoch.enter_epoch",
        "self.number += 1",
        "self.number += 1\nself.journal.end_epoch(self.number, phase)",
        (BEHIND,),
    ),
    Rule(
        "an empty epoch is cut, too",
        "journal.py",
        "RankEpoch.enter_epoch",
        "while self.journal and self.number < number:\n"
        "    self.journal.end_epoch(self.number, phase)\n"
        "    self.number += 1",
        "if self.journal and self.number < number:\n"
        "    self.journal.end_epoch(self.number, phase)\n"
        "    self.number = number",
        (EPOCHS + "test_each_epoch_is_cut_even_an_empty_one",),
    ),
    Rule(
        "an old marker cuts nothing",
        "journal.py",
        "RankEpoch.enter_epoch",
        "while self.journal and self.number < number:\n"
        "    self.journal.end_epoch(self.number, phase)\n"
        "    self.number += 1",
        "for _ in range(number != self.number):\n    self.journal.end_epoch(self.number, phase)\n    self.number += 1",
        (EPOCHS + "test_each_epoch_is_cut_even_an_empty_one",),
    ),
    Rule(
        "each destination gets its marker",
        "journal.py",
        "Outbox.send",
        "self._announced_epochs[destination] = epoch",
        "self._announced_epochs.update(dict.fromkeys(range(100), epoch))",
        (MARKER,),
    ),
    Rule(
        "a marker is sent once",
        "journal.py",
        "Outbox.send",
        "self._announced_epochs[destination] = epoch\nself.append((destination, EpochMarker(epoch)))",
        "self.append((destination, EpochMarker(epoch)))",
        (MARKER,),
    ),
    Rule(
        "a marker goes before the message",
        "journal.py",
        "Outbox.send",
        "self.append((destination, EpochMarker(epoch)))",
        "self.append((destination, message))\nmessage = EpochMarker(epoch)",
        (MARKER,),
    ),
    Rule(
        "the first epoch has no marker",
        "journal.py",
        "Outbox.send",
        "self._announced_epochs.get(destination, FIRST_EPOCH)",
        "self._announced_epochs.get(destination)",
        (EPOCHS + "test_who_is_in_the_first_epoch_tells_nobody",),
    ),
    Rule(
        "any rank cuts when it knows much",
        "commit.py",
        "CutSchedule.is_cut_due",
        "journal.needs_cut",
        "journal.needs_cut and not rank",
        (EPOCHS + "test_any_rank_cuts_when_it_knows_much",),
    ),
    Rule(
        "the root alone looks at the time",
        "commit.py",
        "CutSchedule.is_cut_due",
        "rank or now < self._next_cut",
        "now < self._next_cut",
        (TIME,),
    ),
    Rule(
        "the first cut comes after an interval",
        "commit.py",
        "CutSchedule.start",
        "now + self._interval",
        "now",
        (TIME,),
    ),
    Rule(
        "the first cut comes early",
        "commit.py",
        "CutSchedule.__init__",
        "min(limits.seconds_to_first_cut, self._longest_interval)",
        "self._longest_interval",
        (EARLY,),
    ),
    Rule(
        "the time between two cuts grows, up to the interval",
        "commit.py",
        "CutSchedule.is_cut_due",
        "min(2 * self._interval, self._longest_interval)",
        "self._longest_interval",
        (EARLY,),
    ),
    Rule(
        "epochs do not run ahead of storage",
        "commit.py",
        "CutSchedule.is_cut_due",
        "self._epochs.number - (report.durable_epoch if report else 0) <= MAX_PENDING_EPOCHS",
        "True",
        (EPOCHS + "test_epochs_do_not_run_ahead_of_storage",),
    ),
    Rule(
        "no task begins while too much is outside storage",
        "node.py",
        "RankNode.can_take_task",
        "self.state is State.WORKING and not self.cut_schedule.waits_for_storage",
        "self.state is State.WORKING",
        (EPOCHS + "test_no_task_begins_while_too_much_is_outside_storage",),
    ),
)

TOLD = (
    Rule(
        "a new job's first tasks are its base",
        "node.py",
        "RankNode._begin_phase",
        "phase == 0",
        "False",
        (EPOCHS + "test_a_new_job_begins_with_its_base",),
    ),
    Rule(
        "first tasks of later phases are facts",
        "node.py",
        "RankNode._begin_phase",
        "phase == 0",
        "True",
        (EPOCHS + "test_first_tasks_of_later_phases_are_told",),
    ),
    Rule(
        "a resumed phase has no first tasks again",
        "node.py",
        "RankNode._begin_phase",
        "self.rank == 0 and phase != self.resumed_phase",
        "self.rank == 0",
        (EPOCHS + "test_a_resumed_job_begins_with_what_remains",),
    ),
    Rule(
        "what was held is run in the phase that had begun",
        "node.py",
        "RankNode.restore_tasks",
        "task._replace(phase=max(phase, task.phase))",
        "task",
        (EPOCHS + "test_what_was_held_is_run_in_the_phase_that_had_begun",),
    ),
    Rule(
        "a journal doesn't hear of what is held",
        "node.py",
        "RankNode.finish_task",
        "not held",
        "True",
        (HELD,),
    ),
    Rule(
        "a journal doesn't hear of what a held task spawned",
        "node.py",
        "RankNode._add_new_tasks",
        "None if held else self._epochs.journal",
        "self._epochs.journal",
        (HELD,),
    ),
    Rule(
        "what a held task spawned is known by its id",
        "node.py",
        "RankNode._add_new_tasks",
        "UNRECORDED if held else self._last_task_number",
        "self._last_task_number",
        (HELD,),
    ),
    Rule(
        "spawned tasks are facts before their spawner is done",
        "node.py",
        "RankNode.finish_task",
        "self._add_new_tasks(spawned, held=held)\n"
        "if not held:\n"
        "    self._epochs.record_done(task, counts, settled, shares)",
        "if not held:\n"
        "    self._epochs.record_done(task, counts, settled, shares)\n"
        "self._add_new_tasks(spawned, held=held)",
        (BEHIND,),
    ),
)

COMMITS = (
    Rule(
        "a phase waits until all ranks are durable",
        "commit.py",
        "CutSchedule.is_phase_durable",
        "report.durable_epoch, self._target_epoch",
        "0, 0",
        (WAITS,),
    ),
    Rule(
        "the end of a phase is cut",
        "commit.py",
        "CutSchedule.is_phase_durable",
        "self._target_epoch = self._epochs.number\nself._epochs.enter_epoch(self._target_epoch + 1, phase)",
        "self._target_epoch = self._epochs.number",
        (WAITS,),
    ),
    Rule(
        "nobody waits once the job is not kept any more",
        "commit.py",
        "CutSchedule.is_phase_durable",
        "durable, target = self._epochs.durable_epoch, LAST_EPOCH",
        "pass",
        (GONE,),
    ),
    Rule(
        "a job that is not kept any more is gone before the next phase",
        "commit.py",
        "CutSchedule.is_phase_durable",
        "durable, target = self._epochs.durable_epoch, LAST_EPOCH",
        "return True",
        (GONE,),
    ),
    Rule(
        "who can record nothing gives up",
        "commit.py",
        "CutSchedule.is_cut_due",
        "journal.needs_cut or self._epochs.has_failed",
        "journal.needs_cut",
        (ALL_GIVE_UP,),
    ),
    Rule(
        "one gives up once",
        "journal.py",
        "RankEpoch.enter_epoch",
        "if self.is_abandoned:\n"
        "    return\n"
        "if self.journal and number == LAST_EPOCH:\n"
        "    self.number = LAST_EPOCH\n"
        "    self.journal.abandon()",
        "if self.journal and number == LAST_EPOCH:\n    self.number = LAST_EPOCH\n    self.journal.abandon()",
        (ALL_GIVE_UP,),
    ),
    Rule(
        "who hears of it gives up, too",
        "journal.py",
        "RankEpoch.enter_epoch",
        "self.number = LAST_EPOCH\nself.journal.abandon()",
        "return",
        (ALL_GIVE_UP,),
    ),
    Rule(
        "a job that is told to stop leaves what is on record",
        "journal.py",
        "RankEpoch.has_failed",
        "self.journal is not None and self.journal.has_failed and not self.is_ending",
        "self.journal is not None and self.journal.has_failed",
        (DURABLE + "test_a_job_that_is_told_to_stop_leaves_what_is_on_record",),
    ),
    Rule(
        "without a cut nothing waits",
        "commit.py",
        "CutSchedule.is_phase_durable",
        "self._epochs.journal is None or not (self._epochs.has_cut or needed)",
        "self._epochs.journal is None",
        (DURABLE + "test_without_a_cut_nothing_waits",),
    ),
    Rule(
        "each phase of a resumed job waits",
        "phase_end.py",
        "PhaseEnd.next_phase",
        "status != 0 or resumed or following in self._limits.phases_after_cut",
        "status != 0 or following in self._limits.phases_after_cut",
        (DURABLE + "test_each_phase_of_a_resumed_job_waits",),
    ),
    Rule(
        "a job that ends early takes a last cut",
        "phase_end.py",
        "PhaseEnd.next_phase",
        "status != 0 or resumed or following in self._limits.phases_after_cut",
        "resumed or following in self._limits.phases_after_cut",
        (LAST,),
    ),
    Rule(
        "a job that was told to stop waits for some time only",
        "commit.py",
        "CutSchedule.is_phase_durable",
        "durable < target and now <= self._deadline",
        "durable < target",
        (LAST,),
    ),
    Rule(
        "a job that was told to stop does not wait for what is lost",
        "commit.py",
        "CutSchedule.is_phase_durable",
        "if halted and report.durable_epoch == NEVER_DURABLE:\n"
        "    self.is_complete = False\n"
        "    return True\n"
        "if not self._target_epoch:\n"
        "    self._target_epoch = self._epochs.number\n"
        "    self._epochs.enter_epoch(self._target_epoch + 1, phase)",
        "if not self._target_epoch:\n"
        "    self._target_epoch = self._epochs.number\n"
        "    self._epochs.enter_epoch(self._target_epoch + 1, phase)",
        (DURABLE + "test_a_job_that_is_told_to_stop_does_not_wait_for_data_that_are_lost",),
    ),
    Rule(
        "only a job that was told to stop ends with what is lost",
        "commit.py",
        "CutSchedule.is_phase_durable",
        "halted and report.durable_epoch == NEVER_DURABLE",
        "report.durable_epoch == NEVER_DURABLE",
        (DURABLE + "test_a_job_that_has_lost_data_ends_once_it_is_told_to_stop",),
    ),
    Rule(
        "a job does not end well with what is lost at its end",
        "phase_end.py",
        "PhaseEnd.next_phase",
        "following is None and not status and halted is not None and report.durable_epoch == NEVER_DURABLE",
        "False",
        (DURABLE + "test_a_reason_to_stop_that_comes_when_all_is_done_counts_if_that_is_lost",),
    ),
    Rule(
        "a rank tells that data are lost",
        "journal.py",
        "RankEpoch.durable_epoch",
        "self.journal.has_lost_data or is_over",
        "is_over",
        (DURABLE + "test_a_job_that_has_lost_data_ends_once_it_is_told_to_stop",),
    ),
    Rule(
        "a job that goes on waits for ever",
        "commit.py",
        "CutSchedule.is_phase_durable",
        "if halted:\n    self._deadline = min(self._deadline, now + self._patience)",
        "if True:\n    self._deadline = min(self._deadline, now + self._patience)",
        (DURABLE + "test_a_job_that_goes_on_waits_for_ever",),
    ),
    Rule(
        "the time that a phase has waited before the signal counts for nothing",
        "commit.py",
        "CutSchedule.is_phase_durable",
        "self._epochs.enter_epoch(self._target_epoch + 1, phase)",
        "self._epochs.enter_epoch(self._target_epoch + 1, phase)\nself._deadline = now + self._patience",
        (DURABLE + "test_a_job_that_has_waited_for_long_is_given_its_time_when_it_is_told_to_stop",),
    ),
    Rule(
        "the time of a job that was told to stop does not begin again",
        "commit.py",
        "CutSchedule.is_phase_durable",
        "min(self._deadline, now + self._patience)",
        "now + self._patience",
        (LAST,),
    ),
    Rule(
        "the root asks again whether all are durable",
        "phase_end.py",
        "PhaseEnd.next_phase",
        "report.sequence + 1",
        "report.sequence",
        (DURABLE + "test_a_rank_alone_sees_when_it_is_durable",),
    ),
    Rule(
        "what is durable is the least",
        "progress.py",
        "CounterTree._finish_answer",
        "min",
        "max",
        (LEAST,),
    ),
    Rule(
        "what is durable is the least, the rank's own included",
        "progress.py",
        "CounterTree._finish_answer",
        "[self._durable_epoch(), *heard]",
        "heard",
        (LEAST,),
    ),
    Rule(
        "who has said nothing is not durable",
        "progress.py",
        "CounterTree._finish_answer",
        "[self._answers[child].durable_epoch if child in self._answers else 0 for child in self._children]",
        "[self._answers[child].durable_epoch for child in self._children if child in self._answers]",
        (PROGRESS + "test_who_has_said_nothing_is_not_durable",),
    ),
)
