"""Compressed weights in PyTorch and transformers; torch is imported on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from squish_core.api import hookimpl, lazy_exports

_NAMES = {
    "squish_torch.draft": ("load_draft",),
    "squish_torch.evaluation.activations": ("collect_activations",),
    "squish_torch.evaluation.lockstep": ("evaluate",),
    "squish_torch.evaluation.report": ("Evaluation",),
    "squish_torch.evaluation.tasks": ("evaluate_tasks",),
    "squish_torch.evaluation.tuning": ("Tuning", "tune"),
    "squish_torch.files": ("CompressedTensor", "load_file", "load_model", "safe_open", "save_file"),
    "squish_torch.experts": ("CompressedExperts",),
    "squish_torch.kv_cache": ("CompressedCache",),
    "squish_torch.modules": ("CompressedEmbedding", "CompressedLinear"),
    "squish_torch.pretrained": ("config_of", "from_pretrained", "tokenizer_of"),
    "squish_torch.quantizer": ("SquishConfig",),
    "squish_torch.speculation": ("Acceptance", "Drafter"),
}

if TYPE_CHECKING:
    from .draft import load_draft as load_draft
    from .evaluation.activations import collect_activations as collect_activations
    from .evaluation.lockstep import evaluate as evaluate
    from .evaluation.report import Evaluation as Evaluation
    from .evaluation.tasks import evaluate_tasks as evaluate_tasks
    from .evaluation.tuning import Tuning as Tuning
    from .evaluation.tuning import tune as tune
    from .experts import CompressedExperts as CompressedExperts
    from .files import CompressedTensor as CompressedTensor
    from .files import load_file as load_file
    from .files import load_model as load_model
    from .files import safe_open as safe_open
    from .files import save_file as save_file
    from .kv_cache import CompressedCache as CompressedCache
    from .modules import CompressedEmbedding as CompressedEmbedding
    from .modules import CompressedLinear as CompressedLinear
    from .pretrained import config_of as config_of
    from .pretrained import from_pretrained as from_pretrained
    from .pretrained import tokenizer_of as tokenizer_of
    from .quantizer import SquishConfig as SquishConfig
    from .speculation import Acceptance as Acceptance
    from .speculation import Drafter as Drafter
else:
    _load, _, __all__ = lazy_exports(__name__, _NAMES)  # no `__dir__`: pluggy reads every name in it

    def __getattr__(name: str) -> Any:
        from .libraries import required

        if name not in __all__:
            return _load(name)
        with required():
            return _load(name)


@hookimpl
def squish_commands(app: Any) -> None:
    """Add `squish run`, `squish eval`, `squish activations` and `squish tune`."""
    from .command import EXAMPLES, run
    from .evaluation.command import (
        ACTIVATIONS_EXAMPLES,
        EVAL_EXAMPLES,
        TUNE_EXAMPLES,
        activations,
        eval_model,
        tune_model,
    )

    commands = {
        "run": (run, EXAMPLES), "eval": (eval_model, EVAL_EXAMPLES), "activations": (activations, ACTIVATIONS_EXAMPLES),
        "tune": (tune_model, TUNE_EXAMPLES),
    }  # fmt: skip
    for name, (command, examples) in commands.items():
        document = f"squish_torch.documents:{name.title()}"
        app.command(name, examples=examples, document=document, progress=True)(command)
