"""Published rankings of layouts come out in the published order.

D. Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM", SC
2021, on Selene (DGX A100, 8 HDR InfiniBand cards each); figures as drawn there, with the settings of
examples/sc21 in NVIDIA/Megatron-LM. A. Grattafiori et al., "The Llama 3 Herd of Models", 2024, table 4.
docs/volumes.md has the numbers beside each other, and what does not come out and why.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from ccbench.documents import shipped_folder
from ccbench.plan.document import TrainingPlan, load_plan, read_plan
from ccbench.plan.planner import PlanOptions, plan_out


def shipped(name: str) -> TrainingPlan:
    """A plan of suites/plans."""
    return load_plan(shipped_folder("suites") / "plans" / f"{name}.yaml")


def tflops(plan: TrainingPlan, nodes: int | None = None, **settings: int) -> dict[str, float]:
    """Of each layout, by name."""
    choices = tuple(
        replace(choice, settings={**choice.settings, **settings}) for choice in plan.choices
    )
    planned = plan_out(replace(plan, choices=choices), PlanOptions(nodes=nodes))
    assert not planned.refused
    return {outcome.name: outcome.tflops for outcome in planned.outcomes}


def order(found: dict[str, float]) -> list[str]:
    """Names, the fastest first."""
    return sorted(found, key=lambda name: -found[name])


def test_interleaving_is_faster_and_less_so_with_larger_batches() -> None:
    # Figure 12: 81 against 119 TFLOP/s with a batch of 12, 136 against 147 with one of 60.
    rate = tflops(shipped("narayanan-figure-12"))
    small = rate["batch 12, interleaved"] / rate["batch 12, 1F1B"]
    large = rate["batch 60, interleaved"] / rate["batch 60, 1F1B"]
    assert small > large > 1
    assert small == pytest.approx(119 / 81, rel=0.1)
    assert large == pytest.approx(147 / 136, rel=0.1)


@pytest.mark.parametrize(
    ("batch", "ends"), [(32, {}), (128, {"tp32-pp2": 108, "tp8-pp8": 166, "tp2-pp32": 147})]
)
def test_tensor_parallel_ranks_beyond_a_node_and_few_of_them_are_slower_than_eight(
    batch: int, ends: dict[str, float]
) -> None:
    # Figure 13: the peak is at 8 x 8 for both batches; of 128 sequences 2 stages are slower than 32.
    plan = shipped("narayanan-figure-13")
    rate = tflops(plan, global_batch=batch)
    # The paper's drawing does not tell how far 4 x 16 is below; here it is less than 1%.
    assert rate["tp8-pp8"] > 0.99 * max(rate.values())
    assert rate["tp8-pp8"] > rate["tp16-pp4"] > rate["tp32-pp2"]
    assert rate["tp4-pp16"] > rate["tp2-pp32"]
    for name, published in ends.items():
        assert rate[name] * 4 / 3 == pytest.approx(published, rel=0.12)
    if batch == 128:
        assert rate["tp2-pp32"] > rate["tp32-pp2"]


@pytest.mark.parametrize("batch", [32, 128, 512])
def test_more_pipeline_stages_instead_of_data_parallel_ranks_are_slower(batch: int) -> None:
    # Figure 14: throughput falls with the pipeline's length at each batch size.
    rate = tflops(shipped("narayanan-figure-14"), global_batch=batch)
    assert order(rate) == ["dp32-pp2", "dp16-pp4", "dp8-pp8", "dp4-pp16", "dp2-pp32"]


@pytest.mark.parametrize("batch", [128, 512])
def test_more_tensor_parallel_ranks_instead_of_data_parallel_ones_are_slower(
    batch: int,
) -> None:
    # Figure 15: from 2 to 32 tensor parallel ranks 103 to 22 TFLOP/s with a batch of 128, 127 to 21 with 512.
    rate = tflops(shipped("narayanan-figure-15"), global_batch=batch)
    assert order(rate) == ["tp2-dp32", "tp4-dp16", "tp8-dp8", "tp16-dp4", "tp32-dp2"]


def test_more_devices_for_the_same_batch_are_used_less_well() -> None:
    # Llama 3 405B: 430 TFLOP/s a device on 8,192 devices, 400 on 16,384.
    plan = shipped("llama-3-405b")
    assert tflops(plan, 1024)["8K tokens"] > tflops(plan, 2048)["8K tokens"]


def test_long_sequences_come_near_the_published_figure_without_what_is_masked() -> None:
    # Llama 3 405B on 16,384 devices, 128K tokens: 380 TFLOP/s a device, how counted is not said.
    outcome = plan_out(shipped("llama-3-405b"), PlanOptions()).outcomes[1]
    assert outcome.masked_tflops == pytest.approx(380, rel=0.1)
    assert outcome.tflops > 1.25 * 380


def test_fully_sharded_training_of_7_billion_parameters_reaches_its_published_share() -> None:
    # pytorch.org/blog/maximizing-training-throughput: 68% MFU compiled, Llama 2 7B on 128 A100.
    plan = read_plan(
        "model: llama-2-7b\nmachine: dgx-a100\nnodes: 16\nnetwork: roce-100x4\nlayout: {dp: 128}\nzero: 3\n"
        "global_batch: 256\nmicro_batch: 2\nsequence: 4096\n"
    )
    (outcome,) = plan_out(plan, PlanOptions()).outcomes
    assert outcome.utilization == pytest.approx(0.68, rel=0.05)


def test_tensor_and_pipeline_parallel_training_of_gpt_3_takes_its_published_time() -> None:
    # Table 2: 153, 149 and 141 TFLOP/s with what is computed again, on 384, 768 and 1,536 devices.
    for nodes, published in ((48, 153), (96, 149), (192, 141)):
        planned = plan_out(shipped("narayanan-table-2"), PlanOptions(nodes=nodes))
        assert planned.outcomes[0].hardware_tflops == pytest.approx(published, rel=0.15)
