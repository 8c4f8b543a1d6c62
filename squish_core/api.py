"""The one module of the core that a plugin imports; names are loaded on first use."""

from __future__ import annotations

from squish_core.plugins.lazy import lazy_exports

_NAMES = {
    "squish_core.plugins.hookspecs": (
        "SQUISH_API", "AllocatorInfo", "BackendInfo", "CodecInfo", "ContainerInfo", "EncoderInfo", "FamilyInfo",
        "SchedulerInfo", "Signature", "SourceInfo", "hookimpl",
    ),
    "squish_core.model": (
        "DENSE", "SAME_BYTES", "CodecSpec", "DenseFields", "DenseRecord", "Encoding", "Exactness", "FileRef", "Filter",
        "Index", "LazyTensors", "Part", "Refusal", "Section", "Segment", "TensorSpec", "Typed",
    ),
    "squish_core.errors": (
        "redact", "AmbiguousFormatError", "ClosedError", "CodecError", "ConflictError", "FormatError", "LimitError",
        "FileAccessError", "MissingFileError", "MissingPluginError", "Problem", "SquishError", "TensorError",
        "TruncatedError", "UnknownFormatError", "UnsupportedVersionError", "UsageError", "WriteError",
    ),
    "squish_core.formats.assets": ("MAX_INLINE", "LazyAssets", "check_assets", "parse_object", "parse_text"),
    "squish_core.formats.kinds": ("kind_of",),
    "squish_core.limits": ("Limits",),
    "squish_core.io.source": ("BytesSource", "Source", "check_file_name", "closed"),
    "squish_core.io.urls": ("RemoteTarget", "SourceOpener", "target_exists"),
    "squish_core.io.local": ("open_source",),
    "squish_core.io.system": ("machine_memory", "peak_memory", "sync_files"),
    "squish_core.io.pin": ("Pin", "Statement", "Traffic"),
    "squish_core.formats.base": ("Container", "Options", "WritableContainer"),
    "squish_core.formats.dropped": ("Dropped", "dropped_assets", "dropped_metadata"),
    "squish_core.formats.refinement": ("Refinement",),
    "squish_core.formats.composite": (
        "NO_COMPANIONS", "NO_OUTGOING_COMPANIONS", "Companions", "CompositeContainer", "OutgoingChild",
        "OutgoingCompanions", "OutgoingWhole",
    ),
    "squish_core.codecs.allocator": (
        "AliasResolver", "AllocationTarget", "Allocator", "EncodingOption", "ModelFacts", "PanelReader",
    ),
    "squish_core.codecs.base": (
        "Codec", "Decoder", "Encoder", "MeasuringEncoder", "Params", "PartArray", "Parts", "Region",
        "Wrapper",
    ),
    "squish_core.codecs.byte_codec": ("ByteCodec",),
    "squish_core.codecs.code_layout": ("STORED_TABLE", "CodeLayout", "Codes"),
    "squish_core.codecs.dense": ("Dense",),
    "squish_core.codecs.ggml_blocks": ("BLOCK_TYPES", "BlockType"),
    "squish_core.backends.base": ("Backend", "Counts"),
    "squish_core.schedulers.base": ("Scheduler", "lost_worker"),
    "squish_core.backends.offers": ("OPS", "Availability", "Cost", "Offer", "Request"),
    "squish_core.codes": ("BUGS", "CANNOT_RUN", "USAGE_CODES", "ErrorCode"),
    "squish_core.concurrency": ("EventLoop", "Pool", "map_in_order", "start_daemon", "start_finishing", "workers"),
    "squish_core.codecs.bound": ("BoundEncoding",),
    "squish_core.backends.checks": ("cast_output", "check_expert_args", "check_ids", "check_input", "require_rank"),
    "squish_core.codecs.regions": ("decode_all", "full", "panels"),
    "squish_core.plugins.registry": ("Registry", "registry"),
    "squish_core.plugins.schedulers": ("scheduler_named",),
    "squish_core.specs": ("parse_spec",),
    "squish_core.backends.chain": ("Chain",),
    "squish_core.text": ("counted", "format_bytes", "parse_bytes", "site_page"),
    "squish_core.formats.outgoing": ("OutgoingTensor", "Stream"),
    "squish_core.io.sink": ("Sink", "align_up"),
    "squish_core.backends.whole": ("WholeHandle",),
    "squish_core.io.cache": ("CacheEntry", "cached_folder", "surplus"),
    "squish_core.io.atomic": ("atomic_file", "atomic_folder"),
    "squish_core.checking.maps": ("Address", "address_of", "file_at"),
    "squish_core.display": ("table",),
    "squish_core.file": ("File",),
    "squish_core.opening": ("open",),
    "squish_core.tensor": ("Tensor",),
    "squish_core.backends.weight": ("Weight",),
    "squish_core.formats.json": (
        "JSON_PIECE", "JsonMembers", "duplicate_key_error", "load_json", "merge_members", "without_keys",
    ),
    "squish_core.formats.metadata": ("dump_meta", "load_meta"),
    "squish_core.io.digest": ("Digest", "check_digest"),
    "squish_core.formats.write_plan": ("WritePlan",),
    "squish_core.formats.validate": ("check_extents", "check_name", "check_shape", "single_value"),
    "squish_core.plugins.catalog": ("install_command", "lookalike"),
    "squish_core.plugins.lazy": ("lazy_exports",),
    "squish_core": ("dtypes",),
    "squish_core.formats": ("protobuf",),
}  # fmt: skip

__getattr__, __dir__, __all__ = lazy_exports(__name__, _NAMES)
