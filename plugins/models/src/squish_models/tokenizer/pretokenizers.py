"""How BPE splits text before merging, under llama.cpp's names and as steps of a tokenizer.json."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from attrs import evolve, frozen

from squish_core.api import ConflictError, ErrorCode, SquishError, registry

_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}{_REST}"
QWEN2 = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{_REST}"
QWEN35 = (
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_WORD = r"[^\r\n\p{L}\p{N}]?"
_PATHS = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
TEKKEN = rf"{_WORD}{_UPPER}*{_LOWER}+|{_WORD}{_UPPER}+{_LOWER}*|\p{{N}}{_PATHS}"
GPT4O = rf"{_WORD}{_UPPER}*{_LOWER}+{_CONTRACTIONS}?|{_WORD}{_UPPER}+{_LOWER}*{_CONTRACTIONS}?|\p{{N}}{{1,3}}{_PATHS}"
_CJK = "[一-龥぀-ゟ゠-ヿ]+"
DEEPSEEK3 = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_LETTERS = (
    "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ"
    "-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ"
    "-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"
)
"""The letters of scripts with two cases, in DeepSeek LLM's regex."""
_MARKS = "!-/:-~！-／：-～‘-‟　-。"
_HAN = "[一-龥ࠀ-一가-퟿]+"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_FALCON = r"[\p{P}\$\+<=>\^~\|`]+"
_DEFAULT = r"[\p{P}\$\+<=>\^~\|]+"
_SPACES = "|".join(rf"\s{{{count}}}(?!\S)" for count in (512, 256, 128, 64, 32, 16, 8, 4, "1,2"))
_BEFORE_SPACES = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
_JAIS2 = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}{_BEFORE_SPACES}{_SPACES}|\s{{1}}"
_SPARK = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+|[\r\n]|\s+(?!\S)|\s+"
)
_YOUTU_SCRIPTS = "[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥぀-ゟ゠-ヿ]+"
_YOUTU = rf"{_WORD}{_UPPER}*{_LOWER}+{_CONTRACTIONS}?|{_WORD}{_UPPER}+{_LOWER}*{_CONTRACTIONS}?|\p{{N}}{_PATHS}"
_BAILING = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
_SEED = (
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_UFAK = rf"[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{_REST}"
_EXAONE = (
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
)
_MINICPM = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}+{_REST}"
_DIGITS_FROM_RIGHT = r"\P{N}*\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))"
"""Groups of three digits; llama.cpp does not split the text before digits from the first group."""
_AFMOE_SCRIPTS = (
    "[\u4e00-\u9fff\u3400-\u4dbf\uf900-\ufaff\u3040-\u309f\u30a0-\u30ff\uff65-\uff9f\u2f00-\u2fdf"
    "\u0e40-\u0e7f\u0ec0-\u0eff\u1780-\u17ff\u1000-\u109f\uaa60-\uaa7f\ua9e0-\ua9ff\uac00-\ud7af\u1100-\u11ff]+"
)
_KIMI_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_KIMI_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_KIMI = (
    rf"[\p{{Han}}]+|{_WORD}{_KIMI_UPPER}*{_KIMI_LOWER}+{_CONTRACTIONS}?|{_WORD}{_KIMI_UPPER}+{_KIMI_LOWER}*{_CONTRACTIONS}?"
    rf"|\p{{N}}{{1,3}}{_REST}"
)
_CHAMELEON = (
    "<sentinel:[0-9]+>", "IMGIMG[A-I]{1,4}Z", "[\t\n]|    |  ", r"\p{N}", r"[\p{P}!-/:-@\[-`{-~]", _GPT2,
)  # fmt: skip
_K2_HORIZON = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}|\p{{M}}|\x{{200C}}|\x{{200D}})+|\p{{N}}{{1,3}}{_REST}"
_LINES = r"[^\n]+|\n+"
_SPACE = {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}
_LINE_PREFIX = {"type": "Replace", "pattern": {"Regex": r"(?<!.)(?=[^\n\x{2581}])"}, "content": "\u2581"}
"""Adds a space before each line that does not start with one."""
_BLOOM = r" ?[^(\s|.,!?…。，、।۔،)]+"


def _split(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def _byte_level(use_regex: bool) -> dict[str, Any]:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}


@frozen
class Pretokenizer:
    """A pre-tokenizer: the steps in tokenizer.json and llama.cpp's names, the usual one first."""

    names: tuple[str, ...]
    steps: tuple[Mapping[str, Any], ...]
    ignore_merges: bool = False
    """Whether a word that is a token is used without applying merges."""
    normalizer: str | None = None
    add_bos: bool = False
    """llama.cpp's default for `add_bos_token`."""
    add_sep: bool = False
    """llama.cpp's default for `add_sep_token`."""
    spelled: tuple[dict[str, Any], ...] = ()
    """Normalizers of vocabularies of texts, with U+2581 for a space and byte tokens for other letters."""


PRETOKENIZERS = (
    Pretokenizer(
        (
            "gpt-2", "phi-2", "olmo", "jais", "trillion", "granite-docling", "mpt", "a.x-4.0", "exaone4", "gigachat",
            "jina-de", "jina-es", "jina-v2-de", "jina-v2-es", "mellum", "modern-bert",
        ),
        (_byte_level(True),),
    ),
    Pretokenizer(("roberta-bpe", "jina-v1-en", "jina-v2-code"), (_byte_level(True),), add_sep=True),
    Pretokenizer(
        ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "mellum2"),
        ({"type": "Digits", "individual_digits": True}, _byte_level(True)),
    ),
    Pretokenizer(
        ("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "jina-v5-nano"),
        (_split(LLAMA3), _byte_level(False)), ignore_merges=True, add_bos=True,
    ),
    Pretokenizer(("glm4", "glm5"), (_split(LLAMA3), _byte_level(False)), ignore_merges=True),
    Pretokenizer(("dbrx", "smaug-bpe", "chatglm-bpe"), (_split(LLAMA3), _byte_level(False))),
    Pretokenizer(
        ("qwen2", "deepseek-r1-qwen", "stablelm2", "kormo", "megrez", "hunyuan", "f2llmv2"),
        (_split(QWEN2), _byte_level(False)), normalizer="NFC",
    ),
    Pretokenizer(("qwen35",), (_split(QWEN35), _byte_level(False)), normalizer="NFC"),
    Pretokenizer(("tekken",), (_split(TEKKEN), _byte_level(False)), ignore_merges=True, add_bos=True),
    Pretokenizer(("gpt-4o", "llama4", "kanana2", "minimax-m2", "talkie"), (_split(GPT4O), _byte_level(False))),
    Pretokenizer(
        ("deepseek-v3", "hunyuan-dense", "hy_v4", "joyai-llm"),
        (_split(r"\p{N}{1,3}"), _split(_CJK), _split(DEEPSEEK3), _byte_level(False)),
    ),
    Pretokenizer(
        ("deepseek-coder",),
        (
            _split("[\r\n]"), _split(r"\s?\p{L}+"), _split(r"\s?\p{P}+"), _split("[一-龥ࠀ-一가-퟿]+"),
            {"type": "Digits", "individual_digits": True}, _byte_level(False),
        ),
    ),
    Pretokenizer(
        ("deepseek-llm",),
        (
            _split("[\r\n]"), _split(rf"\s?[{_LETTERS}]+"), _split(rf"\s?[{_MARKS}]+"), _split(r"\s+$"), _split(_HAN),
            _split(r"\p{N}+"), _byte_level(False),
        ),
    ),
    Pretokenizer(("falcon",), (_split(_FALCON), _split(_GPT2), _split("[0-9][0-9][0-9]"), _byte_level(False))),
    Pretokenizer(
        ("default",),
        (_split(_DEFAULT), _split(_GPT2), _split(r"\p{N}+"), _split("[0-9][0-9][0-9]"), _byte_level(False)),
    ),
    Pretokenizer(("grok-2", "solar-open"), (_split(QWEN2), _byte_level(False))),
    Pretokenizer(("laguna",), (_split(r"[^\n]+|[\n]+"), _split(QWEN2), _byte_level(False))),
    Pretokenizer(("ufakzeka",), (_split(_UFAK), _byte_level(False))),
    Pretokenizer(("seed-coder",), (_split(_SEED), _byte_level(False))),
    Pretokenizer(("exaone-moe",), (_split(_EXAONE), _byte_level(False))),
    Pretokenizer(("minicpm5",), (_split(r"\p{N}{1,3}"), _split(_MINICPM), _byte_level(False)), ignore_merges=True),
    Pretokenizer(("bailingmoe", "bailingmoe2", "llada-moe"), (_split(_BAILING), _byte_level(False))),
    Pretokenizer(("jais-2",), (_split(_JAIS2), _byte_level(False))),
    Pretokenizer(("bloom", "gpt3-finnish", "poro-chat"), (_split(_BLOOM), _byte_level(False))),
    Pretokenizer(("viking",), (_split(_BLOOM), _split(r"\p{N}"), _byte_level(False))),
    Pretokenizer(("tiny_aya", "cohere2moe"), (_split(r"\d{1,3}(?=(?:\d{3})*\b)"), _split(GPT4O), _byte_level(False))),
    Pretokenizer(("granite-embed-multi-97m",), (_split(GPT4O), _byte_level(False)), ignore_merges=True),
    Pretokenizer(
        ("spark2_5",),
        (_split(r"\p{N}{1,3}"), _split(_CJK), _split(_SPARK), _split(r"\p{N}"), _byte_level(False)),
    ),
    Pretokenizer(
        ("afmoe",),
        (_split(_DIGITS_FROM_RIGHT), _split(_AFMOE_SCRIPTS), _split(DEEPSEEK3), _byte_level(False)),
    ),
    Pretokenizer(("kimi-k2",), (_split(_KIMI), _byte_level(False))),
    Pretokenizer(("superbpe",), (_split(r"\p{N}+"), _split("(?=([0-9]{3})+(?![0-9]))"), _byte_level(False))),
    Pretokenizer(("chameleon",), (*map(_split, _CHAMELEON), _byte_level(False)), add_bos=True),
    Pretokenizer(("k2-horizon",), (_split(_K2_HORIZON), _byte_level(False))),
    Pretokenizer(("gemma4", "granite-embed-multi-311m"), (_split(_LINES),), add_bos=True, spelled=(_SPACE,)),
    Pretokenizer(("sarvam-moe",), (_split(_LINES),), spelled=(_SPACE,)),
    Pretokenizer(("mmbert",), (_split(r"\n+|\x{2581}[^\n\x{2581}]*"),), spelled=(_SPACE, _LINE_PREFIX)),
    Pretokenizer(("youtu",), (_split(_YOUTU_SCRIPTS), _split(_YOUTU), _byte_level(False)), ignore_merges=True),
)  # fmt: skip
BY_NAME = {name: each for each in PRETOKENIZERS for name in each.names}
"""Those above, and those of families that are loaded."""


def add_pretokenizers(own: Iterable[Pretokenizer]) -> None:
    """Add pre-tokenizers to the table; ConflictError for a name that has other steps."""
    for each in own:
        for name in each.names:
            earlier = BY_NAME.setdefault(name, each)
            if evolve(earlier, names=each.names) != each:
                raise ConflictError(
                    f"the pre-tokenizer {name!r} has other steps in another family",
                    code=ErrorCode.CONFLICT,
                    hint="Use a name of your own, as tokenizer.ggml.pre states it.",
                )


def named_pretokenizer(name: str) -> Pretokenizer | None:
    """Return the pre-tokenizer that llama.cpp, or a family of another package, calls so."""
    if name not in BY_NAME:
        load_other_families()
    return BY_NAME.get(name)


def load_other_families() -> None:
    """Load the families of other packages and of files, whose classes add their pre-tokenizers to the table."""
    for entry in registry().families.values():
        if entry.dist != "squish-models":
            with suppress(SquishError):  # whoever uses it sees the error
                registry().implementation("family", entry.id)


def pretokenizer_of(name: str, steps: Sequence[str | Mapping[str, Any]], **rules: Any) -> Pretokenizer:
    """Return a pre-tokenizer with steps as in tokenizer.json.

    Parameters
    ----------
    name
        Its name in `tokenizer.ggml.pre`.
    steps
        Objects of `pre_tokenizer`; a text stands for a split at each match of a regex. ByteLevel follows if the last
        step is another one.
    **rules
        Other attributes of `Pretokenizer`.

    Returns
    -------
    Pretokenizer

    Examples
    --------
    >>> [step["type"] for step in pretokenizer_of("acme", [r"\\p{N}{1,3}"]).steps]
    ['Split', 'ByteLevel']
    """
    objects = [_split(step) if isinstance(step, str) else step for step in steps]
    if not objects or objects[-1].get("type") != "ByteLevel":
        objects.append(_byte_level(not objects))
    return Pretokenizer(names=(name,), steps=tuple(objects), **rules)


def structure(pre_tokenizer: Mapping[str, Any] | None) -> tuple[tuple[str, str], ...]:
    """Return the steps of a `pre_tokenizer` that determine how text is split, each as (type, setting)."""
    if not isinstance(pre_tokenizer, Mapping):
        return ()
    if pre_tokenizer.get("type") == "Sequence":
        inner = pre_tokenizer.get("pretokenizers")
        return tuple(step for each in inner for step in structure(each)) if isinstance(inner, list) else ()
    kind = str(pre_tokenizer.get("type"))
    if kind == "Split":
        pattern = pre_tokenizer.get("pattern")
        regex = pattern.get("Regex", pattern.get("String")) if isinstance(pattern, Mapping) else pattern
        return ((kind, f"{regex} {pre_tokenizer.get('behavior')} {bool(pre_tokenizer.get('invert'))}"),)
    if kind == "ByteLevel":
        regex, space = pre_tokenizer.get("use_regex", True), pre_tokenizer.get("add_prefix_space")
        return ((kind, f"{bool(regex)} {bool(space)}"),)
    if kind == "Digits":
        return ((kind, str(bool(pre_tokenizer.get("individual_digits")))),)
    return ((kind, str(sorted(pre_tokenizer.items()))),)


def find_pretokenizer(
    pre_tokenizer: Mapping[str, Any] | None, *, ignore_merges: bool, own: Sequence[Pretokenizer] = ()
) -> Pretokenizer | None:
    """Return the pre-tokenizer with the same steps, of the family's `own` first; None if llama.cpp has none."""
    steps = structure(pre_tokenizer)
    found = _with_steps(steps, own, ignore_merges) or _with_steps(steps, PRETOKENIZERS, ignore_merges)
    if found is None:
        load_other_families()
        found = _with_steps(steps, BY_NAME.values(), ignore_merges)
    return found


def _with_steps(
    steps: tuple[tuple[str, str], ...], among: Iterable[Pretokenizer], ignore_merges: bool
) -> Pretokenizer | None:
    same = [each for each in among if structure({"type": "Sequence", "pretokenizers": [*each.steps]}) == steps]
    return next((each for each in same if each.ignore_merges == ignore_merges), same[0] if same else None)
