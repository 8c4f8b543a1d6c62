"""How a file would run here: the chains of its tensors and of the whole model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from attrs import evolve, frozen

from squish_core.backends.base import chosen_backend
from squish_core.backends.chain import Chain, OfferOrder
from squish_core.backends.offers import Offer
from squish_core.backends.resolve import Lookup, Resolver, resolve
from squish_core.codecs.bound import BoundEncoding
from squish_core.codes import ErrorCode
from squish_core.display import fit_all
from squish_core.errors import CodecError, SquishError, TensorError
from squish_core.guard import boundary, computing
from squish_core.model import Encoding, Index, Refusal, TensorSpec
from squish_core.shown import Plotted
from squish_core.text import escape


@frozen(kw_only=True, repr=False)
class FilePlan(Plotted):
    """How the tensors of a file would run here, and why; `print(plan)` shows what `squish plan` prints.

    `whole` is the chain of a backend that runs the whole model, or the error if there is none; None for files without
    an encoding of the whole model. `tensors` holds each tensor's chain or error.
    """

    target: str
    container: str
    tensors: Mapping[str, Chain | SquishError]
    whole: Chain | SquishError | None = None

    @property
    def chains(self) -> dict[str, Chain]:
        """The chains of the tensors that can run here."""
        return {name: chain for name, chain in self.tensors.items() if isinstance(chain, Chain)}

    @property
    def errors(self) -> dict[str, SquishError]:
        """The errors of the tensors that cannot run here, by name."""
        return {name: error for name, error in self.tensors.items() if not isinstance(error, Chain)}

    @property
    def chain(self) -> Chain:
        """The chain of the whole model, else the most common one; refusals of the whole model come first.

        TensorError if the model cannot run here.
        """
        if isinstance(self.whole, Chain):
            return self.whole
        if not self.chains:
            raise TensorError("nothing here runs the model", file=self.target, code=ErrorCode.NO_CHAIN)
        by_backend = {chain.chosen.backend: chain for chain in reversed(self.chains.values())}
        chain = by_backend[next(iter(self.backends))]
        return evolve(chain, target=self.target, refused=(*self._whole_model_refusals(), *chain.refused))

    @property
    def chosen(self) -> Offer:
        """The offer of `chain`."""
        return self.chain.chosen

    @property
    def refused(self) -> tuple[Refusal, ...]:
        """The refusals of `chain`, those of the whole model first."""
        return self.chain.refused

    def _whole_model_refusals(self) -> tuple[Refusal, ...]:
        if not isinstance(self.whole, SquishError):
            return ()
        return (Refusal(why=self.whole.message, code=self.whole.code or ErrorCode.NO_CHAIN),)

    @property
    def mode(self) -> str:
        """The mode of the backend that runs the whole model ("delegate"), else the tensors' mode.

        "mixed" if the tensors' modes differ, "none" if nothing runs.
        """
        if isinstance(self.whole, Chain):
            return self.whole.chosen.mode
        modes = {chain.chosen.mode for chain in self.chains.values()}
        return modes.pop() if len(modes) == 1 else "mixed" if modes else "none"

    @property
    def backends(self) -> dict[str, int]:
        """Backend -> number of tensors that it would run, the most first."""
        return dict(Counter(chain.chosen.backend for chain in self.chains.values()).most_common())

    def explain(self) -> str:
        """Explain the plan, one statement per line; tensors that run alike share an explanation.

        Returns
        -------
        str
            The lines, not wrapped; `print(plan)` wraps them to the terminal.

        Examples
        --------
        >>> print(squish.open("model.gguf").plan("numpy").explain().splitlines()[0])
        token_embd.weight
        """
        return "\n".join(self._lines())

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON.

        Returns
        -------
        dict
            `file`, `mode`, and `tensors`: the chain of each, or its error.

        Examples
        --------
        >>> squish.open("model.gguf").plan("numpy").to_dict()["mode"]
        'fold'
        """
        return {
            "file": self.target,
            "mode": self.mode,
            "whole": None if self.whole is None else _result_dict(self.target, self.whole),
            "tensors": [_result_dict(name, chain) for name, chain in self.tensors.items()],
        }

    def _lines(self) -> Iterator[str]:
        groups: dict[str, list[str]] = {}
        absent: dict[str, str] = {}
        for name, chain in self.tensors.items():
            if not isinstance(chain, Chain):
                groups.setdefault(f"  none     {_reason(chain)}", []).append(name)
                continue
            # Backends that cannot run here are listed once, at the end.
            unusable = [refusal for refusal in chain.refused if refusal.encoding is None and refusal.backend]
            for refusal in unusable:
                install = refusal.install
                status = f"is not installed ({install})" if install else f"cannot run here: {refusal.why}"
                absent[str(refusal.backend)] = status
            other_refusals = tuple(refusal for refusal in chain.refused if refusal not in unusable)
            groups.setdefault(evolve(chain, refused=other_refusals).explain().partition("\n")[2], []).append(name)
        blocks = []
        if isinstance(self.whole, Chain):
            blocks.append(f"the whole model\n{self.whole.explain().partition(chr(10))[2]}")
        elif self.whole is not None:
            blocks.append(f"the whole model\n  none     {_reason(self.whole)}")
        for text, names in groups.items():
            more = f" and {len(names) - 1} more like it" if len(names) > 1 else ""
            blocks.append(f"{escape(names[0])}{more}\n{text}")
        if absent:
            blocks.append("\n".join(f"backend {name} {status}" for name, status in absent.items()))
        yield from "\n\n".join(blocks or ["no tensors"]).split("\n")

    def __len__(self) -> int:
        return len(self.tensors)

    def __repr__(self) -> str:
        run = " ".join(f"{name}={count}" for name, count in self.backends.items())
        return f"<FilePlan {self.target!r} mode={self.mode} {run} errors={len(self.errors)}>"

    def __str__(self) -> str:
        return "\n".join(fit_all(self._lines()))


def _reason(error: SquishError) -> str:
    """Return why nothing here can run it, and what to do."""
    return escape(f"{error.message}. {error.hint}" if error.hint else error.message)


def _result_dict(target: str, result: Chain | SquishError) -> dict[str, Any]:
    if isinstance(result, Chain):
        return result.to_dict()
    return {"name": target, "error": str(result), "code": result.code, "hint": result.hint}


Bind = Callable[[TensorSpec, Encoding], BoundEncoding]
"""`File.bind`, which makes an encoding of a tensor ready to read."""

WRONG_ARGUMENT = (ErrorCode.POLICY, ErrorCode.OP, ErrorCode.BACKEND, ErrorCode.NOT_INSTALLED)
"""Codes of errors in an argument rather than in a tensor."""


def plan_tensors(
    registry: Lookup,
    name: str,
    index: Index,
    specs: Iterable[TensorSpec],
    bind: Bind,
    *,
    backend: str | None = None,
    policy: str | OfferOrder = "spec",
    op: str | None = None,
) -> FilePlan:
    """Plan the given tensors of a file, and its encodings of the whole model.

    A tensor that nothing here runs has an error in the plan; a damaged one, if values are read, raises it.
    """
    whole: Chain | SquishError | None = None
    if index.whole:
        with boundary(SquishError, "resolving", file=name):
            try:
                whole = resolve(registry, name, index.format, index.whole, backend=backend, policy=policy)
            except SquishError as error:
                whole = _plan_error(error)
    tensors: dict[str, Chain | SquishError] = {}
    resolver = Resolver(registry, backend, policy)
    for spec in specs:
        try:
            with boundary(SquishError, "resolving", file=name, tensor=spec.name):
                chain = resolver.resolve(spec.name, index.format, spec.encodings, spec=spec, op=op)
        except SquishError as error:
            tensors[spec.name] = _plan_error(error)
        else:
            tensors[spec.name] = with_value_facts(chain, registry, name, bind)
    return FilePlan(target=name, container=index.format, tensors=tensors, whole=whole)


def with_value_facts(chain: Chain, registry: Lookup, file: str, bind: Bind) -> Chain:
    """Return the chain of a tensor, with facts from its values if options of the backend ask for them."""
    spec, offer = chain.spec, chain.chosen
    backend = chosen_backend(chain, registry) if chain.options else None
    if spec is None or backend is None or not backend.reads_values:
        return chain
    with computing(CodecError, "reading values for the plan", file=file, tensor=spec.name):
        return evolve(chain, chosen=backend.examine(offer, bind(spec, offer.encoding)))


def _plan_error(error: SquishError) -> SquishError:
    if error.code in WRONG_ARGUMENT:
        raise error
    return error
