"""The one module of squish-convert that a plugin imports: families, plans, jobs and images."""

from __future__ import annotations

from squish_core.plugins.lazy import lazy_exports

_NAMES = {
    "squish_convert.append": ("LockedFile", "appended_file", "locked_file"),
    "squish_convert.components": ("LeftOut", "components"),
    "squish_convert.content": ("Content", "GgufSum", "check_manifest", "gguf_sums", "hash_content", "save_manifest"),
    "squish_convert.editing.changes": ("Changes", "Resolved"),
    "squish_convert.editing.edit": ("Edited", "edit"),
    "squish_convert.expressions": (
        "Add", "Cut", "Expression", "Int32", "Interleave", "Join", "NegExp", "Pad", "Permute", "Reshape", "Scale",
        "Stack", "Tile", "Transpose", "source_names",
    ),
    "squish_convert.families": ("ANY", "TEXT", "Carried", "Family", "FamilyTensor", "Model", "Rule", "Whole"),
    "squish_convert.family_choice": ("family_conflicts",),
    "squish_convert.mapping.inventory": ("Inventory", "take_inventory"),
    "squish_convert.mapping.mapped": ("MappedFile", "Naming"),
    "squish_convert.mapping.pairing": ("compared_as",),
    "squish_convert.lineage": ("lineage",),
    "squish_convert.image": ("OpenExtent", "OutputFile", "OutputImage", "PartExtent", "lay_out"),
    "squish_convert.job.document": ("job_document", "job_id"),
    "squish_convert.lock": ("differences", "library_versions", "source_pins"),
    "squish_convert.prove": ("Proof", "ProvenTensor", "prove"),
    "squish_convert.rules": ("check_patterns",),
    "squish_convert.virtual": ("VirtualSource", "as_format"),
    "squish_convert.compare.metrics": ("Distance",),
    "squish_convert.convert": ("Conversion", "Job", "convert", "outgoing", "save"),
    "squish_convert.execute": ("execute",),
    "squish_convert.step": ("ConversionObserver",),
    "squish_convert.job.worker": ("worker_name",),
    "squish_convert.plan": ("ConversionPlan", "output_image", "plan_conversion"),
    "squish_convert.model_map": ("with_names",),
}  # fmt: skip

__getattr__, __dir__, __all__ = lazy_exports(__name__, _NAMES)
