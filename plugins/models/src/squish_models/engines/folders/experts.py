"""Expert settings as engines apply them: how many a token uses, and the groups that they are chosen from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from .effective import EXPERT_COUNTS

MIXTURES = ("mixtral", "qwen3_moe", "deepseek_v2", "deepseek_v3", "gpt_oss")
GROUPED = ("deepseek_v3",)
"""Model types that choose groups before experts, whatever `topk_method` says."""
GROUPING = "group_limited_greedy"
STRICT_COUNTS = ("qwen3_moe", "gpt_oss")
"""Model types in which mlx-lm counts experts from the end."""


def expert_problems(config: Mapping[str, Any], model_type: str, engine: str, title: str) -> Iterator[tuple[str, str]]:
    """Yield the expert settings that an engine refuses, and what is wrong with them."""
    if model_type not in MIXTURES:
        return
    used = config.get("num_experts_per_tok")
    if used is None:
        yield "num_experts_per_tok", f"is null, and {title} chooses as many experts"
    for name in EXPERT_COUNTS:
        count = config.get(name)
        if type(count) is int and type(used) is int and not least_used(model_type, engine, count) <= used <= count:
            yield "num_experts_per_tok", f"is {used}, and {title} has {count} experts to choose from"
    step = config.get("decoder_sparse_step")
    if type(step) is int and (step == 0 or abs(step) > 1):
        yield "decoder_sparse_step", f"is {step}, so that {title} expects layers without experts"
    yield from _group_problems(config, model_type, engine, title)


def least_used(model_type: str, engine: str, count: int) -> int:
    """Return the smallest number of experts that an engine can choose; below 1, mlx-lm counts from the other end."""
    if engine != "mlx":
        return 0
    return 1 - count if model_type not in STRICT_COUNTS else -count


def _group_problems(config: Mapping[str, Any], model_type: str, engine: str, title: str) -> Iterator[tuple[str, str]]:
    groups, used, count = (config.get(name) for name in ("n_group", "topk_group", "n_routed_experts"))
    if model_type not in GROUPED and config.get("topk_method") != GROUPING:
        return
    if groups is None and "n_group" in config:
        yield "n_group", f"is null, and {title} counts groups"
    if type(groups) is not int or type(count) is not int or (engine == "mlx" and model_type in GROUPED and groups <= 1):
        return
    if groups <= 0 or count % groups:
        yield "n_group", f"is {groups}, into which {title} cannot part {count} experts"
    elif type(used) is int and not 0 <= used <= (groups if engine != "mlx" else 2 * groups - 1):
        yield "topk_group", f"is {used}, and {title} has {groups} groups to choose from"
    elif model_type in GROUPED and count // groups < 2:
        yield "n_group", f"is {groups}, and {title} takes the best two experts of each group"
