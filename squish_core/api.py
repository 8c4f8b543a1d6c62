"""The one module of the core that a plugin imports; names are loaded on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

_NAMES = {
    "squish_core.plugins.hookspecs": (
        "SQUISH_API", "AllocatorInfo", "BackendInfo", "CodecInfo", "ContainerInfo", "EncoderInfo", "FamilyInfo",
        "FrameworkInfo", "SchedulerInfo", "Signature", "SourceInfo", "hookimpl",
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
    "squish_core.families.base": (
        "ANY", "Add", "Carried", "Expression", "Family", "FamilyTensor", "Interleave", "Join", "Permute", "Rule",
        "Squeeze", "Stack", "Transpose", "source_names",
    ),
    "squish_core.families.model": ("Model",),
    "squish_core.mapping.inventory": ("Inventory", "take_inventory"),
    "squish_core.mapping.mapped": ("MappedFile", "Naming"),
    "squish_core.formats.assets": ("MAX_INLINE", "LazyAssets", "check_assets", "parse_object", "parse_text"),
    "squish_core.formats.kinds": ("kind_of",),
    "squish_core.limits": ("Limits",),
    "squish_core.io.source": ("BytesSource", "Source", "check_file_name", "closed"),
    "squish_core.io.source_opener": ("SourceOpener",),
    "squish_core.io.remote_target": ("RemoteTarget", "target_exists"),
    "squish_core.io.local": ("open_source",),
    "squish_core.io.system": ("peak_memory", "sync_files"),
    "squish_core.io.pin": ("Pin", "Statement", "Traffic"),
    "squish_core.formats.base": (
        "Container", "Options",
    ),
    "squish_core.formats.dropped": ("Dropped", "dropped_assets", "dropped_metadata"),
    "squish_core.formats.refinement": ("Refinement",),
    "squish_core.formats.composite": (
        "NO_COMPANIONS", "NO_OUTGOING_COMPANIONS", "Companions", "CompositeContainer", "OutgoingChild",
        "OutgoingCompanions", "OutgoingWhole",
    ),
    "squish_core.codecs.allocator": ("AliasResolver", "Allocator", "ModelFacts", "PanelReader"),
    "squish_core.codecs.base": (
        "Codec", "Decoder", "Encoder", "MeasuringEncoder", "Params", "PartArray", "Parts", "Region",
    ),
    "squish_core.codecs.byte_codec": ("ByteCodec",),
    "squish_core.codecs.code_layout": ("STORED_TABLE", "CodeLayout", "Codes"),
    "squish_core.codecs.dense": ("Dense",),
    "squish_core.codecs.ggml_blocks": ("BLOCK_TYPES", "BlockType"),
    "squish_core.backends.base": ("Backend",),
    "squish_core.backends.framework": ("Framework",),
    "squish_core.schedulers.base": ("Scheduler", "lost_worker"),
    "squish_core.backends.offers": ("OPS", "Availability", "Cost", "Offer", "Request", "Use"),
    "squish_core.codes": ("BUGS", "CANNOT_RUN", "USAGE_CODES", "ErrorCode"),
    "squish_core.concurrency": ("EventLoop", "Pool", "map_in_order", "start_daemon", "start_finishing", "workers"),
    "squish_core.codecs.bound": ("BoundEncoding",),
    "squish_core.backends.checks": (
        "cast_output", "check_expert_args", "check_ids", "check_input", "require_rank",
    ),
    "squish_core.conversion.image": ("OutputFile", "OutputImage", "output_image"),
    "squish_core.conversion.job": ("job_document", "job_id", "source_pins"),
    "squish_core.conversion.rules": ("check_patterns",),
    "squish_core.conversion.virtual": ("VirtualSource",),
    "squish_core.codecs.regions": ("decode_all", "full", "panels"),
    "squish_core.plugins.registry": ("Registry",),
    "squish_core.plugins.schedulers": ("scheduler_named",),
    "squish_core.specs": ("parse_spec",),
    "squish_core.backends.chain": ("Chain",),
    "squish_core.statistics": ("Statistics",),
    "squish_core.text": ("counted",),
    "squish_core.formats.outgoing": ("OutgoingTensor", "Stream"),
    "squish_core.io.sink": ("Sink", "align_up"),
    "squish_core.backends.whole": ("WholeHandle",),
    "squish_core.io.cache": ("cached_folder",),
    "squish_core.io.append": ("LockedFile", "appended_file", "locked_file"),
    "squish_core.io.atomic": ("atomic_file", "atomic_folder"),
    "squish_core.analysis.maps": ("Address", "address_of", "file_at"),
    "squish_core.analysis.metrics": ("Distance",),
    "squish_core.conversion.convert": ("Conversion", "convert", "outgoing"),
    "squish_core.conversion.execute": ("execute",),
    "squish_core.conversion.observer": ("ConversionObserver",),
    "squish_core.conversion.range_writer": ("worker_name",),
    "squish_core.conversion.plan": ("ConversionPlan", "plan_conversion"),
    "squish_core.cli": ("options",),
    "squish_core.cli.output": ("Answer",),
    "squish_core.cli.progress": ("Progress",),
    "squish_core.display.tables": ("table",),
    "squish_core.file": ("File",),
    "squish_core.opening": ("open", "tensor_from_parts"),
    "squish_core.codecs.description": ("describe", "read_description"),
    "squish_core.conversion.naming": ("with_names",),
    "squish_core.conversion.save": ("save",),
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
_RENAMED = {
    "Layout": "WritePlan", "NOTHING_BESIDE": "NO_OUTGOING_COMPANIONS", "Outgoing": "OutgoingTensor",
    "Policy": "Allocator", "Refused": "Refusal",
    "Short": "AliasResolver", "UNCOVERED": "ErrorCode.UNCOVERED", "Values": "PanelReader",
    "check_plain_name": "check_file_name", "delivered": "cast_output", "indices": "check_ids",
    "matrix_of": "require_rank", "only": "single_value", "operand": "check_input", "routed": "check_expert_args",
}  # fmt: skip
"""Old name -> new name; the old one works in this version, with a DeprecationWarning."""

if TYPE_CHECKING:
    from squish_core import dtypes as dtypes
    from squish_core.analysis.maps import Address as Address
    from squish_core.analysis.maps import address_of as address_of
    from squish_core.analysis.maps import file_at as file_at
    from squish_core.analysis.metrics import Distance as Distance
    from squish_core.backends.base import Backend as Backend
    from squish_core.backends.chain import Chain as Chain
    from squish_core.backends.checks import cast_output as cast_output
    from squish_core.backends.checks import check_expert_args as check_expert_args
    from squish_core.backends.checks import check_ids as check_ids
    from squish_core.backends.checks import check_input as check_input
    from squish_core.backends.checks import require_rank as require_rank
    from squish_core.backends.framework import Framework as Framework
    from squish_core.backends.offers import OPS as OPS
    from squish_core.backends.offers import Availability as Availability
    from squish_core.backends.offers import Cost as Cost
    from squish_core.backends.offers import Offer as Offer
    from squish_core.backends.offers import Request as Request
    from squish_core.backends.offers import Use as Use
    from squish_core.backends.weight import Weight as Weight
    from squish_core.backends.whole import WholeHandle as WholeHandle
    from squish_core.cli import options as options
    from squish_core.cli.output import Answer as Answer
    from squish_core.cli.progress import Progress as Progress
    from squish_core.codecs.allocator import AliasResolver as AliasResolver
    from squish_core.codecs.allocator import Allocator as Allocator
    from squish_core.codecs.allocator import ModelFacts as ModelFacts
    from squish_core.codecs.allocator import PanelReader as PanelReader
    from squish_core.codecs.base import Codec as Codec
    from squish_core.codecs.base import Decoder as Decoder
    from squish_core.codecs.base import Encoder as Encoder
    from squish_core.codecs.base import MeasuringEncoder as MeasuringEncoder
    from squish_core.codecs.base import Params as Params
    from squish_core.codecs.base import PartArray as PartArray
    from squish_core.codecs.base import Parts as Parts
    from squish_core.codecs.base import Region as Region
    from squish_core.codecs.bound import BoundEncoding as BoundEncoding
    from squish_core.codecs.byte_codec import ByteCodec as ByteCodec
    from squish_core.codecs.code_layout import STORED_TABLE as STORED_TABLE
    from squish_core.codecs.code_layout import CodeLayout as CodeLayout
    from squish_core.codecs.code_layout import Codes as Codes
    from squish_core.codecs.dense import Dense as Dense
    from squish_core.codecs.description import describe as describe
    from squish_core.codecs.description import read_description as read_description
    from squish_core.codecs.ggml_blocks import BLOCK_TYPES as BLOCK_TYPES
    from squish_core.codecs.ggml_blocks import BlockType as BlockType
    from squish_core.codecs.regions import decode_all as decode_all
    from squish_core.codecs.regions import full as full
    from squish_core.codecs.regions import panels as panels
    from squish_core.codes import BUGS as BUGS
    from squish_core.codes import CANNOT_RUN as CANNOT_RUN
    from squish_core.codes import USAGE_CODES as USAGE_CODES
    from squish_core.codes import ErrorCode as ErrorCode
    from squish_core.concurrency import EventLoop as EventLoop
    from squish_core.concurrency import Pool as Pool
    from squish_core.concurrency import map_in_order as map_in_order
    from squish_core.concurrency import start_daemon as start_daemon
    from squish_core.concurrency import start_finishing as start_finishing
    from squish_core.concurrency import workers as workers
    from squish_core.conversion.convert import Conversion as Conversion
    from squish_core.conversion.convert import convert as convert
    from squish_core.conversion.convert import outgoing as outgoing
    from squish_core.conversion.execute import execute as execute
    from squish_core.conversion.image import OutputFile as OutputFile
    from squish_core.conversion.image import OutputImage as OutputImage
    from squish_core.conversion.image import output_image as output_image
    from squish_core.conversion.job import job_document as job_document
    from squish_core.conversion.job import job_id as job_id
    from squish_core.conversion.job import source_pins as source_pins
    from squish_core.conversion.naming import with_names as with_names
    from squish_core.conversion.observer import ConversionObserver as ConversionObserver
    from squish_core.conversion.plan import ConversionPlan as ConversionPlan
    from squish_core.conversion.plan import plan_conversion as plan_conversion
    from squish_core.conversion.range_writer import worker_name as worker_name
    from squish_core.conversion.rules import check_patterns as check_patterns
    from squish_core.conversion.save import save as save
    from squish_core.conversion.virtual import VirtualSource as VirtualSource
    from squish_core.display.tables import table as table
    from squish_core.errors import AmbiguousFormatError as AmbiguousFormatError
    from squish_core.errors import ClosedError as ClosedError
    from squish_core.errors import CodecError as CodecError
    from squish_core.errors import ConflictError as ConflictError
    from squish_core.errors import FileAccessError as FileAccessError
    from squish_core.errors import FormatError as FormatError
    from squish_core.errors import LimitError as LimitError
    from squish_core.errors import MissingFileError as MissingFileError
    from squish_core.errors import MissingPluginError as MissingPluginError
    from squish_core.errors import Problem as Problem
    from squish_core.errors import SquishError as SquishError
    from squish_core.errors import TensorError as TensorError
    from squish_core.errors import TruncatedError as TruncatedError
    from squish_core.errors import UnknownFormatError as UnknownFormatError
    from squish_core.errors import UnsupportedVersionError as UnsupportedVersionError
    from squish_core.errors import UsageError as UsageError
    from squish_core.errors import WriteError as WriteError
    from squish_core.errors import redact as redact
    from squish_core.families.base import ANY as ANY
    from squish_core.families.base import Add as Add
    from squish_core.families.base import Carried as Carried
    from squish_core.families.base import Expression as Expression
    from squish_core.families.base import Family as Family
    from squish_core.families.base import FamilyTensor as FamilyTensor
    from squish_core.families.base import Interleave as Interleave
    from squish_core.families.base import Join as Join
    from squish_core.families.base import Permute as Permute
    from squish_core.families.base import Rule as Rule
    from squish_core.families.base import Squeeze as Squeeze
    from squish_core.families.base import Stack as Stack
    from squish_core.families.base import Transpose as Transpose
    from squish_core.families.base import source_names as source_names
    from squish_core.families.model import Model as Model
    from squish_core.file import File as File
    from squish_core.formats import protobuf as protobuf
    from squish_core.formats.assets import MAX_INLINE as MAX_INLINE
    from squish_core.formats.assets import LazyAssets as LazyAssets
    from squish_core.formats.assets import check_assets as check_assets
    from squish_core.formats.assets import parse_object as parse_object
    from squish_core.formats.assets import parse_text as parse_text
    from squish_core.formats.base import Container as Container
    from squish_core.formats.base import Options as Options
    from squish_core.formats.composite import NO_COMPANIONS as NO_COMPANIONS
    from squish_core.formats.composite import NO_OUTGOING_COMPANIONS as NO_OUTGOING_COMPANIONS
    from squish_core.formats.composite import Companions as Companions
    from squish_core.formats.composite import CompositeContainer as CompositeContainer
    from squish_core.formats.composite import OutgoingChild as OutgoingChild
    from squish_core.formats.composite import OutgoingCompanions as OutgoingCompanions
    from squish_core.formats.composite import OutgoingWhole as OutgoingWhole
    from squish_core.formats.dropped import Dropped as Dropped
    from squish_core.formats.dropped import dropped_assets as dropped_assets
    from squish_core.formats.dropped import dropped_metadata as dropped_metadata
    from squish_core.formats.json import JSON_PIECE as JSON_PIECE
    from squish_core.formats.json import JsonMembers as JsonMembers
    from squish_core.formats.json import duplicate_key_error as duplicate_key_error
    from squish_core.formats.json import load_json as load_json
    from squish_core.formats.json import merge_members as merge_members
    from squish_core.formats.json import without_keys as without_keys
    from squish_core.formats.kinds import kind_of as kind_of
    from squish_core.formats.metadata import dump_meta as dump_meta
    from squish_core.formats.metadata import load_meta as load_meta
    from squish_core.formats.outgoing import OutgoingTensor as OutgoingTensor
    from squish_core.formats.outgoing import Stream as Stream
    from squish_core.formats.refinement import Refinement as Refinement
    from squish_core.formats.validate import check_extents as check_extents
    from squish_core.formats.validate import check_name as check_name
    from squish_core.formats.validate import check_shape as check_shape
    from squish_core.formats.validate import single_value as single_value
    from squish_core.formats.write_plan import WritePlan as WritePlan
    from squish_core.io.append import LockedFile as LockedFile
    from squish_core.io.append import appended_file as appended_file
    from squish_core.io.append import locked_file as locked_file
    from squish_core.io.atomic import atomic_file as atomic_file
    from squish_core.io.atomic import atomic_folder as atomic_folder
    from squish_core.io.cache import cached_folder as cached_folder
    from squish_core.io.digest import Digest as Digest
    from squish_core.io.digest import check_digest as check_digest
    from squish_core.io.local import open_source as open_source
    from squish_core.io.pin import Pin as Pin
    from squish_core.io.pin import Statement as Statement
    from squish_core.io.pin import Traffic as Traffic
    from squish_core.io.remote_target import RemoteTarget as RemoteTarget
    from squish_core.io.remote_target import target_exists as target_exists
    from squish_core.io.sink import Sink as Sink
    from squish_core.io.sink import align_up as align_up
    from squish_core.io.source import BytesSource as BytesSource
    from squish_core.io.source import Source as Source
    from squish_core.io.source import check_file_name as check_file_name
    from squish_core.io.source import closed as closed
    from squish_core.io.source_opener import SourceOpener as SourceOpener
    from squish_core.io.system import peak_memory as peak_memory
    from squish_core.io.system import sync_files as sync_files
    from squish_core.limits import Limits as Limits
    from squish_core.mapping.inventory import Inventory as Inventory
    from squish_core.mapping.inventory import take_inventory as take_inventory
    from squish_core.mapping.mapped import MappedFile as MappedFile
    from squish_core.mapping.mapped import Naming as Naming
    from squish_core.model import DENSE as DENSE
    from squish_core.model import SAME_BYTES as SAME_BYTES
    from squish_core.model import CodecSpec as CodecSpec
    from squish_core.model import DenseFields as DenseFields
    from squish_core.model import DenseRecord as DenseRecord
    from squish_core.model import Encoding as Encoding
    from squish_core.model import Exactness as Exactness
    from squish_core.model import FileRef as FileRef
    from squish_core.model import Filter as Filter
    from squish_core.model import Index as Index
    from squish_core.model import LazyTensors as LazyTensors
    from squish_core.model import Part as Part
    from squish_core.model import Refusal as Refusal
    from squish_core.model import Section as Section
    from squish_core.model import Segment as Segment
    from squish_core.model import TensorSpec as TensorSpec
    from squish_core.model import Typed as Typed
    from squish_core.opening import open as open  # noqa: A004
    from squish_core.opening import tensor_from_parts as tensor_from_parts
    from squish_core.plugins.catalog import install_command as install_command
    from squish_core.plugins.catalog import lookalike as lookalike
    from squish_core.plugins.hookspecs import SQUISH_API as SQUISH_API
    from squish_core.plugins.hookspecs import AllocatorInfo as AllocatorInfo
    from squish_core.plugins.hookspecs import BackendInfo as BackendInfo
    from squish_core.plugins.hookspecs import CodecInfo as CodecInfo
    from squish_core.plugins.hookspecs import ContainerInfo as ContainerInfo
    from squish_core.plugins.hookspecs import EncoderInfo as EncoderInfo
    from squish_core.plugins.hookspecs import FamilyInfo as FamilyInfo
    from squish_core.plugins.hookspecs import FrameworkInfo as FrameworkInfo
    from squish_core.plugins.hookspecs import SchedulerInfo as SchedulerInfo
    from squish_core.plugins.hookspecs import Signature as Signature
    from squish_core.plugins.hookspecs import SourceInfo as SourceInfo
    from squish_core.plugins.hookspecs import hookimpl as hookimpl
    from squish_core.plugins.lazy import lazy_exports as lazy_exports
    from squish_core.plugins.registry import Registry as Registry
    from squish_core.plugins.schedulers import scheduler_named as scheduler_named
    from squish_core.schedulers.base import Scheduler as Scheduler
    from squish_core.schedulers.base import lost_worker as lost_worker
    from squish_core.specs import parse_spec as parse_spec
    from squish_core.statistics import Statistics as Statistics
    from squish_core.tensor import Tensor as Tensor
    from squish_core.text import counted as counted

else:
    from squish_core.plugins.lazy import lazy_exports

    __getattr__, __dir__, __all__ = lazy_exports(__name__, _NAMES, _RENAMED)
