"""Promotion: one write, watched; taken back when it does not finish; foreign edits left alone."""

from specschedule.core.observed import (
    Promotion,
    RestoreArguments,
    SetFinalizer,
    SetSpeculative,
)
from specschedule.core.rollout import next_step, on_deletion
from specschedule.core.target import RolloutFacts, ServerFacts, TargetFacts, Unreadable

OLD = {"method": "eagle3", "num_speculative_tokens": 5}
NEW = {**OLD, "num_speculative_tokens_per_batch_size": [[1, 2, 5], [3, 16, 1]]}
RECORD = Promotion(
    candidate="card",
    speculative=NEW,
    previous=OLD,
    previous_arguments=["m", "--speculative-config", "OLD"],
    template_hash="t",
    started_at=1000.0,
)
REVERTING = RECORD.model_copy(update={"reverting": "new pods crash"})
DEADLINE = 300.0


def target(speculative, *, complete=False, failing=None, template="t", replicas=2):
    return TargetFacts(
        resource_version="77",
        generation=3,
        template_hash=template,
        server=ServerFacts(container="vllm", speculative=speculative),
        replicas=replicas,
        rollout=RolloutFacts(complete=complete, message="1 of 2 replicas updated", failing=failing),
    )


def step(record, seen, now=1010.0):
    return next_step(record, seen, deadline=DEADLINE, now=now)


def test_the_write_comes_after_the_record_with_the_finalizer_first():
    taken = step(RECORD, target(OLD, complete=True))
    assert taken.actions == [
        SetFinalizer(present=True),
        SetSpeculative(speculative=NEW, resource_version="77"),
    ]
    assert taken.outcome is None


def test_a_repeated_look_at_a_rollout_in_progress_writes_nothing():
    taken = step(RECORD, target(NEW))
    assert (taken.actions, taken.outcome, taken.reason) == ([], None, "RollingOut")
    assert "1 of 2 replicas updated" in taken.message


def test_a_template_changed_before_the_write_aborts_and_after_it_is_taken_back():
    before = step(RECORD, target(OLD, template="other"))
    assert (before.outcome, before.reason) == ("Aborted", "TargetChanged")
    after = step(RECORD, target(NEW, complete=True, template="other"))
    assert after.outcome is None
    assert "pod template changed" in after.promotion.reverting


def test_zero_replicas_prove_nothing():
    idle = target(NEW, complete=True, replicas=0)
    assert step(RECORD, idle).outcome is None
    assert "0 replicas" in step(RECORD, idle, now=1301.0).promotion.reverting


def test_a_change_that_others_undo_is_written_three_times_and_then_left_to_them():
    record = RECORD
    for _ in range(3):
        taken = step(record, target(OLD, complete=True))
        assert SetFinalizer(present=True) in taken.actions
        record = taken.promotion
    last = step(record, target(OLD, complete=True))
    assert (last.outcome, last.reason) == ("Aborted", "ChangedBack")


def test_a_change_that_cannot_be_written_ends_at_the_deadline_with_the_last_words():
    taken = next_step(
        RECORD, target(OLD), deadline=DEADLINE, now=1301.0, last="admission webhook says no"
    )
    assert (taken.outcome, taken.reason) == ("Aborted", "NotWritten")
    assert "admission webhook says no" in taken.message


def test_an_argument_that_cannot_be_put_back_ends_with_a_word_to_a_human():
    taken = step(REVERTING, target(NEW), now=1000.0 + 3 * DEADLINE + 1)
    assert (taken.outcome, taken.reason) == ("Aborted", "NotRestored")


def test_complete_is_promoted_and_lets_the_finalizer_go():
    taken = step(RECORD, target(NEW, complete=True))
    assert taken.outcome == "Promoted"
    assert taken.actions == [SetFinalizer(present=False)]


def test_a_rollout_past_its_deadline_turns_round_with_the_pods_own_words():
    taken = step(RECORD, target(NEW, failing="pod chat-x: CrashLoopBackOff"), now=1301.0)
    assert taken.outcome is None
    assert "CrashLoopBackOff" in taken.promotion.reverting
    assert taken.actions == []


def test_the_way_back_restores_the_list_byte_for_byte():
    taken = step(REVERTING, target(NEW), now=1302.0)
    assert taken.actions == [
        RestoreArguments(
            field="args",
            arguments=["m", "--speculative-config", "OLD"],
            expected=NEW,
            resource_version="77",
        )
    ]


def test_rolled_back_is_said_once_the_previous_argument_serves_again():
    assert step(REVERTING, target(OLD), now=1310.0).outcome is None
    taken = step(REVERTING, target(OLD, complete=True), now=1320.0)
    assert (taken.outcome, taken.reason) == ("RolledBack", "RolloutFailed")
    assert "new pods crash" in taken.message


def test_a_way_back_that_never_completes_still_ends():
    taken = step(REVERTING, target(OLD), now=1000.0 + 3 * DEADLINE + 1)
    assert taken.outcome == "RolledBack"
    assert "1 of 2 replicas updated" in taken.message


def test_a_foreign_edit_is_left_as_it_is_in_both_directions():
    foreign = {**OLD, "num_speculative_tokens": 2}
    for record in (RECORD, REVERTING):
        taken = step(record, target(foreign, complete=True))
        assert (taken.outcome, taken.reason) == ("Aborted", "TargetChanged")
        assert taken.actions == [SetFinalizer(present=False)]


def test_a_target_that_vanished_ends_the_promotion():
    gone = Unreadable(reason="TargetNotFound", message="Deployment llm/chat does not exist")
    taken = step(RECORD, gone)
    assert taken.outcome == "Aborted"
    assert "does not exist" in taken.message


def test_deletion_takes_back_an_unproven_rollout_and_keeps_a_proven_one():
    restore, release = on_deletion(RECORD, target(NEW))
    assert isinstance(restore, RestoreArguments)
    assert release == SetFinalizer(present=False)
    assert on_deletion(RECORD, target(NEW, complete=True)) == [SetFinalizer(present=False)]
    assert on_deletion(RECORD, target(OLD)) == [SetFinalizer(present=False)]
