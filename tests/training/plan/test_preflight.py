"""Declared against built: the incidents of the first seed, and what cannot be compared."""

from __future__ import annotations

from typing import Any

import msgspec

from fleetcraft.training.plan.built import SCHEMA, BuiltModule, BuiltReport
from fleetcraft.training.plan.built import Built as WasBuilt
from fleetcraft.training.plan.preflight import Answer, Finding, compare, worst
from fleetcraft.training.plan.records import Built, RunPlan

GIB = 1 << 30
POLICY = BuiltModule(
    wrapper="FSDP HYBRID_SHARD",
    shard_group_size=1,
    parameters=3 * GIB,
    parameter_bytes=12 * GIB,
    held_parameters=3 * GIB,
    held_bytes=12 * GIB,
    trainable_bytes=12 * GIB,
    optimizer_bytes=24 * GIB,
    activation_checkpointing=True,
    how="30 checkpoint wrappers",
)
SHARDED = msgspec.structs.replace(
    POLICY, wrapper="fully_shard", shard_group_size=6, held_bytes=2 * GIB, trainable_bytes=2 * GIB
)
CRITIC = msgspec.structs.replace(SHARDED, activation_checkpointing=False, how="no sign of it")


def ranks(size: int = 6, local: int | None = 1, **modules: BuiltModule) -> WasBuilt:
    return WasBuilt(
        reports=tuple(
            BuiltReport(
                schema=SCHEMA,
                rank=rank,
                world_size=size,
                node=f"n{rank}",
                local_world_size=local,
                modules=modules,
            )
            for rank in range(size)
        )
    )


def plan(shards: int | None = None, world: int | None = None, **more: Any) -> RunPlan:
    checkpointing = more.pop("checkpointing", {})
    return RunPlan(
        run="a",
        command=("x",),
        world_size=world,
        built=Built(shard_group_size=shards, activation_checkpointing=checkpointing),
        **more,
    )


def about(findings: tuple[Finding, ...], subject: str, module: str = "") -> Finding:
    (found,) = [f for f in findings if (f.subject, f.module) == (subject, module)]
    return found


def test_what_is_built_as_declared_is_ok() -> None:
    findings = compare(
        ranks(policy=SHARDED), plan(shards=6, world=6, checkpointing={"policy": True})
    )

    assert worst(findings) is Answer.OK
    assert about(findings, "sharding", "policy").found == "over 6 (fully_shard)"


def test_a_hybrid_sharding_that_became_replication_on_one_gpu_nodes_is_a_no() -> None:
    finding = about(compare(ranks(policy=POLICY), plan(shards=6)), "sharding", "policy")

    assert finding.answer is Answer.NO
    assert (finding.declared, finding.found) == ("over 6", "replicated (FSDP HYBRID_SHARD)")
    assert "each rank holds 12.0 GiB of 12.0 GiB instead of about 2.0 GiB" in finding.detail
    assert "each node has one rank, so a shard group within a node has one member" in finding.detail


def test_that_replication_is_a_caution_where_nothing_was_declared() -> None:
    assert about(compare(ranks(policy=POLICY), plan()), "sharding", "policy").answer is (
        Answer.CAUTION
    )
    ddp = msgspec.structs.replace(POLICY, wrapper="DDP")
    assert about(compare(ranks(policy=ddp), plan()), "sharding", "policy").answer is Answer.OK


def test_one_rank_a_node_is_also_seen_from_host_names() -> None:
    found = about(compare(ranks(local=None, policy=POLICY), plan(shards=6)), "sharding", "policy")
    assert "each node has one rank" in found.detail
    many = about(compare(ranks(local=8, policy=POLICY), plan(shards=6)), "sharding", "policy")
    assert "each node has one rank" not in many.detail


def test_ranks_that_disagree_on_their_shards_are_a_no() -> None:
    built = ranks(2, policy=SHARDED)
    other = msgspec.structs.replace(built.reports[1], modules={"policy": POLICY})

    finding = about(
        compare(WasBuilt(reports=(built.reports[0], other)), plan()), "sharding", "policy"
    )

    assert (finding.answer, finding.detail) == (Answer.NO, "ranks do not agree")


def test_a_small_head_may_be_left_whole() -> None:
    head = BuiltModule(shard_group_size=1, parameter_bytes=GIB // 100, held_bytes=GIB // 100)

    finding = about(compare(ranks(policy=SHARDED, head=head), plan(shards=6)), "sharding", "head")

    assert (finding.answer, finding.detail) == (Answer.OK, "too small to matter")


def test_a_part_that_was_left_whole_is_a_no_unless_it_is_small() -> None:
    def answer(off: int) -> Finding:
        part = msgspec.structs.replace(SHARDED, shard_bytes={6: 12 * GIB - off, 1: off})
        return about(compare(ranks(policy=part), plan(shards=6)), "sharding", "policy")

    assert answer(GIB // 100).answer is Answer.OK
    assert answer(4 * GIB).answer is Answer.NO
    assert answer(4 * GIB).detail == "4.0 GiB of 12.0 GiB are sharded over another number"


def test_a_critic_that_did_not_inherit_checkpointing_is_a_no_or_a_caution() -> None:
    built = ranks(policy=SHARDED, critic=CRITIC)
    subject = "activation checkpointing"

    declared = about(
        compare(built, plan(checkpointing={"policy": True, "critic": True})), subject, "critic"
    )
    silent = about(compare(built, plan()), subject, "critic")
    wanted_off = about(compare(built, plan(checkpointing={"critic": False})), subject, "critic")

    assert (declared.answer, declared.declared, declared.found) == (Answer.NO, "on", "off")
    assert silent.answer is Answer.CAUTION
    assert silent.detail == "policy has it: a module that was built apart does not inherit it"
    assert wanted_off.answer is Answer.OK


def test_a_frozen_module_needs_no_checkpointing() -> None:
    frozen = msgspec.structs.replace(CRITIC, trainable_bytes=0)
    findings = compare(ranks(policy=SHARDED, teacher=frozen), plan())

    assert about(findings, "activation checkpointing", "teacher").answer is Answer.OK


def test_checkpointing_that_cannot_be_seen_is_neither_yes_nor_no() -> None:
    unseen = msgspec.structs.replace(SHARDED, activation_checkpointing=None, how="forward can")
    subject = "activation checkpointing"

    findings = compare(ranks(policy=unseen), plan(checkpointing={"policy": True, "critic": True}))

    assert about(findings, subject, "policy").answer is Answer.NOT_KNOWN
    assert about(findings, subject, "critic").answer is Answer.NOT_KNOWN
    assert about(findings, subject, "critic").detail == "no rank has told of this module"


def test_another_world_size_than_the_validated_one_is_a_no() -> None:
    finding = about(compare(ranks(4, policy=SHARDED), plan(world=6)), "world size")

    assert (finding.answer, finding.declared, finding.found) == (Answer.NO, "6", "4")


def test_ranks_that_count_differently_are_a_no_whatever_was_declared() -> None:
    one, two = ranks(1).reports[0], ranks(2).reports[1]

    assert about(compare(WasBuilt(reports=(one, two)), plan()), "world size").answer is Answer.NO


def test_ranks_that_did_not_tell_are_named_and_leave_the_verdict_open() -> None:
    built = ranks(6, policy=SHARDED)
    short = WasBuilt(reports=built.reports[:4], problems=("rank-00004.json cannot be read: x",))

    finding = about(compare(short, plan(shards=6)), "ranks")

    assert finding.answer is Answer.NOT_KNOWN
    assert finding.detail == "nothing of rank 4, 5; rank-00004.json cannot be read: x"


def test_without_any_report_nothing_is_known() -> None:
    (finding,) = compare(WasBuilt(), plan(world=6))

    assert finding.answer is Answer.NOT_KNOWN
    assert finding.detail == "no rank has told what it has built"


def test_memory_is_an_estimate_of_the_fullest_rank_and_says_what_it_lacks() -> None:
    report = BuiltReport(
        schema=SCHEMA,
        rank=0,
        world_size=1,
        modules={"policy": POLICY, "critic": msgspec.structs.replace(CRITIC, optimizer_bytes=None)},
        device_memory_bytes=40 * GIB,
    )

    finding = about(compare(WasBuilt(reports=(report,)), plan()), "memory")

    assert finding.answer is Answer.CAUTION
    assert finding.found == "about 52.0 GiB on rank 0 before activations, of 40.0 GiB"
    assert finding.detail == (
        "14.0 GiB parameters, 14.0 GiB gradients, 24.0 GiB optimizer state; "
        "optimizer state of critic not known"
    )


def test_gpus_of_a_node_are_compared_where_both_sides_are_known() -> None:
    built = ranks(2, policy=SHARDED)
    assert not [f for f in compare(built, plan(gpus_per_node=8)) if f.subject == "GPUs"]
    seen = WasBuilt(
        reports=tuple(msgspec.structs.replace(report, local_gpus=1) for report in built.reports)
    )

    finding = about(compare(seen, plan(gpus_per_node=8)), "GPUs")

    assert (finding.answer, finding.declared) == (Answer.NO, "8 a node")
    own = WasBuilt(
        reports=tuple(msgspec.structs.replace(one, local_world_size=8) for one in seen.reports)
    )
    assert about(compare(own, plan(gpus_per_node=8)), "GPUs").answer is Answer.OK


def test_a_no_outweighs_what_is_not_known_and_that_a_caution() -> None:
    def of(*answers: Answer) -> Answer:
        return worst(Finding(subject="x", answer=answer) for answer in answers)

    assert of(Answer.CAUTION, Answer.NOT_KNOWN, Answer.NO) is Answer.NO
    assert of(Answer.CAUTION, Answer.NOT_KNOWN) is Answer.NOT_KNOWN
    assert of(Answer.OK, Answer.CAUTION) is Answer.CAUTION
    assert of() is Answer.OK
