"""Tasks of lm-eval from local data, on a model of any format."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from squish_core.api import UsageError

from ..devices import CPU, device_named

OFFLINE = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE")
"""Environment variables that keep the libraries offline, which read them on import."""


def evaluate_tasks(
    model: str | Path,
    tasks: Sequence[str],
    *,
    limit: int | None = None,
    backend: str | None = None,
    device: Any = CPU,
) -> dict[str, Any]:
    """Run tasks of lm-eval on a model; nothing is downloaded.

    Parameters
    ----------
    model
        A file or folder of any format.
    tasks
        YAML files, or names of tasks whose data is on this machine.
    limit
        Examples of each task; all by default.
    backend
        Backend id for the model's weights; the best for each tensor by default.
    device
        Device that the model runs on.

    Returns
    -------
    dict
        lm-eval's results without samples; `["config"]["squish"]` has the digests of the files, the codecs and the
        chains.

    Raises
    ------
    UsageError
        A task does not exist, its data is not local, or the device is not available.
    """
    where = device_named(device)
    os.environ |= dict.fromkeys(OFFLINE, "1")
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    from .. import lm_eval as _registered  # noqa: F401 - registers the model

    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    files = [Path(task) for task in tasks if task.endswith((".yaml", ".yml"))]
    for path in files:
        if not path.is_file():
            raise UsageError("there is no such task", file=str(path), code="task", expected="a YAML file")
    folders = sorted({str(path.resolve().parent) for path in files})
    manager = TaskManager(include_path=folders or None, include_defaults=len(files) < len(tasks))
    index = {
        entry.yaml_path.resolve(): name
        for name, entry in manager.task_index.items()
        if entry.yaml_path and name not in manager.all_tags
    }
    names = []
    for task in tasks:
        name = index.get(Path(task).resolve()) if Path(task) in files else task
        if name not in manager.all_tasks:
            raise UsageError("there is no such task", found=repr(task), code="task", expected="a name, or a YAML file")
        names.append(name)
    options: dict[str, Any] = {"pretrained": model} if backend is None else {"pretrained": model, "backend": backend}
    if where.type != CPU:
        options["device"] = str(where)
    try:
        results = simple_evaluate("squish", options, tasks=names, limit=limit, task_manager=manager, log_samples=False)
    except (ConnectionError, FileNotFoundError) as error:
        raise UsageError(
            "the data of a task is not on this machine",
            found=str(error).partition("\n")[0],
            code="task",
            hint="Name local files in the task's YAML (dataset_path: json, dataset_kwargs: data_files).",
        ) from None
    results["config"]["model_args"] = {name: str(value) for name, value in options.items()}
    return results


def task_lines(results: dict[str, Any]) -> list[str]:
    """Format the metrics: `task: metric value +- standard error`."""
    rows = task_rows(results["results"])
    return [f"{task}: {metric} {value:.4f}{f' +- {error}' if error else ''}" for task, metric, value, error in rows]


def task_rows(results: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, str, float, str]]:
    """Return task, metric, value, and the standard error as text, if there is one."""
    rows = []
    for task, metrics in results.items():
        for key, value in metrics.items():
            metric, _, rest = key.partition(",")
            if metric.endswith("_stderr") or not isinstance(value, float):
                continue
            error = metrics.get(f"{metric}_stderr,{rest}")
            rows.append((task, metric, value, f"{error:.4f}" if isinstance(error, float) else ""))
    return rows
