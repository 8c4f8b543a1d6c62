"""What `--json` prints: a class for each command of this distribution, named like it, with the keys of its document.

The commands print plain data; these classes describe it, and `squish schema` derives JSON Schema from them. Nothing
else imports this package, because classes take time to build. The tests compare every document with its class. A change
of a class needs a new number of the schema (`docs/json.md`).
"""

from __future__ import annotations

from .checks import Bench, Convert, Cp, Diff, Merge, Verify
from .editing import Edit
from .events import Error, Progress, Task, Text
from .files import Browse, Card, Info, Ls, Needs, Plan, Report
from .identity import Hash, Prove
from .installed import (
    Backends,
    CacheClear,
    CacheList,
    Codecs,
    ConfigGet,
    ConfigList,
    ConfigSet,
    ConfigUnset,
    Doctor,
    Explain,
    Formats,
    Install,
    Matrix,
    NewPlugin,
    Plugins,
    Schema,
)

__all__ = [
    "Backends",
    "Bench",
    "Browse",
    "CacheClear",
    "CacheList",
    "Card",
    "Codecs",
    "ConfigGet",
    "ConfigList",
    "ConfigSet",
    "ConfigUnset",
    "Convert",
    "Cp",
    "Diff",
    "Doctor",
    "Edit",
    "Error",
    "Explain",
    "Formats",
    "Hash",
    "Info",
    "Install",
    "Ls",
    "Matrix",
    "Merge",
    "Needs",
    "NewPlugin",
    "Plan",
    "Plugins",
    "Progress",
    "Prove",
    "Report",
    "Schema",
    "Task",
    "Text",
    "Verify",
]
