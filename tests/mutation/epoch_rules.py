"""The rules of epochs: when facts are cut, which facts a journal records, and what waits for storage."""

from __future__ import annotations

from tests.mutation.rule import Rule

EPOCHS = "engine/test_epochs.py::"
DURABLE = "engine/test_durable_phases.py::"
PROGRESS = "engine/test_node_progress.py::"
MARKER = EPOCHS + "test_marker_precedes_first_message_to_each_destination"
BEHIND = EPOCHS + "test_epoch_is_cut_when_marker_arrives"
DEFERRED = EPOCHS + "test_deferred_note_is_not_recorded_until_it_is_completed"
TIME = EPOCHS + "test_only_root_cuts_by_time"
EARLY = EPOCHS + "test_cut_interval_grows_from_first_cut_to_maximum"
WAITS = DURABLE + "test_phase_starts_only_when_all_ranks_are_durable"
LAST = DURABLE + "test_stopping_job_makes_last_cut_and_waits_limited_time_for_it"
LEAST = PROGRESS + "test_durable_epoch_is_minimum_of_subtree"
ALL_GIVE_UP = DURABLE + "test_all_ranks_abandon_their_journals_once_one_fails"
GONE = DURABLE + "test_phase_waits_until_records_of_abandoned_job_are_removed"


CUTS = (
    Rule(
        "a rank cuts before the message behind the marker",
        "node.py",
        "RankStateMachine",
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
        (EPOCHS + "test_every_epoch_is_cut_even_an_empty_one",),
    ),
    Rule(
        "an old marker cuts nothing",
        "journal.py",
        "RankEpoch.enter_epoch",
        "while self.journal and self.number < number:\n"
        "    self.journal.end_epoch(self.number, phase)\n"
        "    self.number += 1",
        "for _ in range(number != self.number):\n    self.journal.end_epoch(self.number, phase)\n    self.number += 1",
        (EPOCHS + "test_every_epoch_is_cut_even_an_empty_one",),
    ),
    Rule(
        "each destination gets its marker",
        "journal.py",
        "MessageOutbox.send",
        "self._announced_epochs[destination] = epoch",
        "self._announced_epochs.update(dict.fromkeys(range(100), epoch))",
        (MARKER,),
    ),
    Rule(
        "a marker is sent once",
        "journal.py",
        "MessageOutbox.send",
        "self._announced_epochs[destination] = epoch\nself.append((destination, EpochMarker(epoch)))",
        "self.append((destination, EpochMarker(epoch)))",
        (MARKER,),
    ),
    Rule(
        "a marker goes before the message",
        "journal.py",
        "MessageOutbox.send",
        "self.append((destination, EpochMarker(epoch)))",
        "self.append((destination, message))\nmessage = EpochMarker(epoch)",
        (MARKER,),
    ),
    Rule(
        "the first epoch has no marker",
        "journal.py",
        "MessageOutbox.send",
        "self._announced_epochs.get(destination, FIRST_EPOCH)",
        "self._announced_epochs.get(destination)",
        (EPOCHS + "test_no_marker_is_sent_in_first_epoch",),
    ),
    Rule(
        "any rank cuts when its journal has gathered many facts",
        "commit.py",
        "CheckpointSchedule.advance_to_due_checkpoint",
        "journal.needs_checkpoint",
        "journal.needs_checkpoint and not rank",
        (EPOCHS + "test_any_rank_cuts_when_its_journal_needs_a_cut",),
    ),
    Rule(
        "only rank 0 cuts at regular times",
        "commit.py",
        "CheckpointSchedule.advance_to_due_checkpoint",
        "rank or now < self._next_cut",
        "now < self._next_cut",
        (TIME,),
    ),
    Rule(
        "the first cut comes after an interval",
        "commit.py",
        "CheckpointSchedule.start",
        "now + self._interval",
        "now",
        (TIME,),
    ),
    Rule(
        "the first interval is short",
        "commit.py",
        "CheckpointSchedule.__init__",
        "min(limits.seconds_to_first_checkpoint_cut, self._longest_interval)",
        "self._longest_interval",
        (EARLY,),
    ),
    Rule(
        "the time between two cuts grows, up to the interval",
        "commit.py",
        "CheckpointSchedule.advance_to_due_checkpoint",
        "min(2 * self._interval, self._longest_interval)",
        "self._longest_interval",
        (EARLY,),
    ),
    Rule(
        "no epoch begins at a regular time while two are not on storage",
        "commit.py",
        "CheckpointSchedule.advance_to_due_checkpoint",
        "self._epochs.number - (report.durable_epoch if report else 0) <= MAX_EPOCHS_NOT_DURABLE",
        "True",
        (EPOCHS + "test_no_cut_is_made_while_two_epochs_are_not_durable",),
    ),
    Rule(
        "no task begins while too many facts are not on storage",
        "node.py",
        "RankStateMachine.can_take_task",
        "self.state is RankState.WORKING and not self.cut_schedule.waits_for_storage",
        "self.state is RankState.WORKING",
        (EPOCHS + "test_no_task_starts_while_journal_must_wait_for_storage",),
    ),
)

RECORDS = (
    Rule(
        "the first tasks of a new job are recorded as its base",
        "node.py",
        "RankStateMachine._begin_phase",
        "phase == 0",
        "False",
        (EPOCHS + "test_new_job_records_its_first_tasks_as_base",),
    ),
    Rule(
        "the first tasks of later phases are recorded as spawned",
        "node.py",
        "RankStateMachine._begin_phase",
        "phase == 0",
        "True",
        (EPOCHS + "test_first_tasks_of_later_phases_are_recorded_as_spawned",),
    ),
    Rule(
        "a resumed phase gets no first tasks again",
        "node.py",
        "RankStateMachine._begin_phase",
        "self.rank == 0 and phase != self.resumed_phase",
        "self.rank == 0",
        (EPOCHS + "test_resumed_job_starts_with_remaining_tasks_and_counts",),
    ),
    Rule(
        "a deferred note runs in the phase that is resumed",
        "node.py",
        "RankStateMachine.restore_tasks",
        "task._replace(phase=max(phase, task.phase))",
        "task",
        (EPOCHS + "test_deferred_note_runs_in_resumed_phase",),
    ),
    Rule(
        "a task with deferred completion is not recorded as done",
        "node.py",
        "RankStateMachine.finish_task",
        "not is_deferred",
        "True",
        (DEFERRED,),
    ),
    Rule(
        "tasks spawned by a task with deferred completion are not recorded",
        "node.py",
        "RankStateMachine._add_new_tasks",
        "None if is_deferred else self._epochs.journal",
        "self._epochs.journal",
        (DEFERRED,),
    ),
    Rule(
        "tasks spawned by a task with deferred completion have ids of unrecorded tasks",
        "node.py",
        "RankStateMachine._add_new_tasks",
        "UNRECORDED if is_deferred else self._last_task_number",
        "self._last_task_number",
        (DEFERRED,),
    ),
    Rule(
        "spawned tasks are recorded before the task that spawned them",
        "node.py",
        "RankStateMachine.finish_task",
        "self._add_new_tasks(spawned, is_deferred=is_deferred)\n"
        "if not is_deferred:\n"
        "    self._epochs.record_done_task(task, counts, completed, shares)",
        "if not is_deferred:\n"
        "    self._epochs.record_done_task(task, counts, completed, shares)\n"
        "self._add_new_tasks(spawned, is_deferred=is_deferred)",
        (BEHIND,),
    ),
)

COMMITS = (
    Rule(
        "a phase waits until all ranks are durable",
        "commit.py",
        "CheckpointSchedule.make_phase_durable",
        "report.durable_epoch, self._target_epoch",
        "0, 0",
        (WAITS,),
    ),
    Rule(
        "the end of a phase is cut",
        "commit.py",
        "CheckpointSchedule.make_phase_durable",
        "self._target_epoch = self._epochs.number\nself._epochs.enter_epoch(self._target_epoch + 1, phase)",
        "self._target_epoch = self._epochs.number",
        (WAITS,),
    ),
    Rule(
        "no phase waits for records that are abandoned",
        "commit.py",
        "CheckpointSchedule.make_phase_durable",
        "durable, target = self._epochs.durable_epoch, ABANDONED_EPOCH",
        "pass",
        (GONE,),
    ),
    Rule(
        "abandoned records are removed before the next phase",
        "commit.py",
        "CheckpointSchedule.make_phase_durable",
        "durable, target = self._epochs.durable_epoch, ABANDONED_EPOCH",
        "return True",
        (GONE,),
    ),
    Rule(
        "a rank that cannot record abandons the records",
        "commit.py",
        "CheckpointSchedule.advance_to_due_checkpoint",
        "journal.needs_checkpoint or self._epochs.must_abandon_records",
        "journal.needs_checkpoint",
        (ALL_GIVE_UP,),
    ),
    Rule(
        "records are abandoned once",
        "journal.py",
        "RankEpoch.enter_epoch",
        "if self.is_recording_abandoned:\n"
        "    return\n"
        "if self.journal and number == ABANDONED_EPOCH:\n"
        "    self.number = ABANDONED_EPOCH\n"
        "    self.journal.abandon_records()",
        "if self.journal and number == ABANDONED_EPOCH:\n"
        "    self.number = ABANDONED_EPOCH\n"
        "    self.journal.abandon_records()",
        (ALL_GIVE_UP,),
    ),
    Rule(
        "a rank that receives the last epoch abandons its records, too",
        "journal.py",
        "RankEpoch.enter_epoch",
        "self.number = ABANDONED_EPOCH\nself.journal.abandon_records()",
        "return",
        (ALL_GIVE_UP,),
    ),
    Rule(
        "a stopping job keeps its records",
        "journal.py",
        "RankEpoch.must_abandon_records",
        "self.journal is not None and self.journal.has_failed and not self.is_ending",
        "self.journal is not None and self.journal.has_failed",
        (DURABLE + "test_stopping_job_keeps_its_records_although_journal_failed",),
    ),
    Rule(
        "no phase waits if there was no cut",
        "commit.py",
        "CheckpointSchedule.make_phase_durable",
        "self._epochs.journal is None or not (self._epochs.has_made_checkpoint or needed)",
        "self._epochs.journal is None",
        (DURABLE + "test_phase_does_not_wait_without_a_cut",),
    ),
    Rule(
        "each phase of a resumed job ends with a cut",
        "phase_end.py",
        "PhaseEndState.next_phase",
        "status != 0 or resumed or following in self._limits.phases_after_checkpoint_cut",
        "status != 0 or following in self._limits.phases_after_checkpoint_cut",
        (DURABLE + "test_each_phase_of_resumed_job_ends_with_a_cut",),
    ),
    Rule(
        "a job that ends early makes a last cut",
        "phase_end.py",
        "PhaseEndState.next_phase",
        "status != 0 or resumed or following in self._limits.phases_after_checkpoint_cut",
        "resumed or following in self._limits.phases_after_checkpoint_cut",
        (LAST,),
    ),
    Rule(
        "a stopping job waits for its last cut for a limited time",
        "commit.py",
        "CheckpointSchedule.make_phase_durable",
        "durable < target and now <= self._deadline",
        "durable < target",
        (LAST,),
    ),
    Rule(
        "a stopping job does not wait for lost data",
        "commit.py",
        "CheckpointSchedule.make_phase_durable",
        "if halted and report.durable_epoch == NEVER_DURABLE:\n"
        "    self.are_all_records_durable = False\n"
        "    return True\n"
        "if not self._target_epoch:\n"
        "    self._target_epoch = self._epochs.number\n"
        "    self._epochs.enter_epoch(self._target_epoch + 1, phase)",
        "if not self._target_epoch:\n"
        "    self._target_epoch = self._epochs.number\n"
        "    self._epochs.enter_epoch(self._target_epoch + 1, phase)",
        (DURABLE + "test_stopping_job_does_not_wait_for_lost_data",),
    ),
    Rule(
        "only a stopping job ends with lost data",
        "commit.py",
        "CheckpointSchedule.make_phase_durable",
        "halted and report.durable_epoch == NEVER_DURABLE",
        "report.durable_epoch == NEVER_DURABLE",
        (DURABLE + "test_job_with_lost_data_waits_until_stop_and_is_incomplete",),
    ),
    Rule(
        "a job with lost data does not end with status 0",
        "phase_end.py",
        "PhaseEndState.next_phase",
        "following is None and not status and halted is not None and report.durable_epoch == NEVER_DURABLE",
        "False",
        (DURABLE + "test_stop_after_last_task_counts_only_if_data_are_lost",),
    ),
    Rule(
        "a rank reports lost data",
        "journal.py",
        "RankEpoch.durable_epoch",
        "self.journal.has_lost_data or is_over",
        "is_over",
        (DURABLE + "test_job_with_lost_data_waits_until_stop_and_is_incomplete",),
    ),
    Rule(
        "a running job waits for storage without limit",
        "commit.py",
        "CheckpointSchedule.make_phase_durable",
        "if halted:\n    self._deadline = min(self._deadline, now + self._patience)",
        "if True:\n    self._deadline = min(self._deadline, now + self._patience)",
        (DURABLE + "test_running_job_waits_for_durability_without_limit",),
    ),
    Rule(
        "the wait of a stopping job is measured from the stop",
        "commit.py",
        "CheckpointSchedule.make_phase_durable",
        "self._epochs.enter_epoch(self._target_epoch + 1, phase)",
        "self._epochs.enter_epoch(self._target_epoch + 1, phase)\nself._deadline = now + self._patience",
        (DURABLE + "test_patience_of_stopping_job_starts_with_the_stop",),
    ),
    Rule(
        "the wait of a stopping job is not restarted",
        "commit.py",
        "CheckpointSchedule.make_phase_durable",
        "min(self._deadline, now + self._patience)",
        "now + self._patience",
        (LAST,),
    ),
    Rule(
        "rank 0 queries the durable epochs again",
        "phase_end.py",
        "PhaseEndState.next_phase",
        "report.sequence + 1",
        "report.sequence",
        (DURABLE + "test_single_rank_waits_until_its_records_are_durable",),
    ),
    Rule(
        "the durable epoch is the minimum",
        "progress.py",
        "CounterTree._finish_answering_query",
        "min",
        "max",
        (LEAST,),
    ),
    Rule(
        "the durable epoch includes that of the rank itself",
        "progress.py",
        "CounterTree._finish_answering_query",
        "[self._durable_epoch(), *heard]",
        "heard",
        (LEAST,),
    ),
    Rule(
        "a rank without an answer is not durable",
        "progress.py",
        "CounterTree._finish_answering_query",
        "[self._answers[child].durable_epoch if child in self._answers else 0 for child in self._children]",
        "[self._answers[child].durable_epoch for child in self._children if child in self._answers]",
        (PROGRESS + "test_child_without_answer_makes_durable_epoch_zero",),
    ),
)
