"""The interface of machine-learning frameworks, which take the tensors of a file."""

from __future__ import annotations

from typing import Any


class Framework:
    """Makes a framework's tensors from those of a file, declared by a `FrameworkInfo`.

    The module of the class imports without the framework, so that its error can say what to install.

    Examples
    --------
    >>> from squish_core.api import Framework
    >>> class Lists(Framework):
    ...     def tensors(self, file, device="cpu", dtype=None):
    ...         return {name: tensor.numpy().tolist() for name, tensor in file.items()}
    >>> len(Lists().tensors(squish.open("model.gguf"))["blk.0.ffn_norm.weight"])
    32
    """

    id = ""

    def tensors(self, file: Any, device: Any = "cpu", dtype: Any = None) -> dict[str, Any]:
        """Every tensor of a file as a tensor of the framework.

        Parameters
        ----------
        file
            An open `File`, which stays open.
        device
            The framework's name or object of a device.
        dtype
            The framework's dtype for tensors that must be decoded; its f32 by default.

        Returns
        -------
        dict
            Name -> tensor, in file order. Writing to one never changes the file.

        Raises
        ------
        MissingPluginError
            The framework is not installed.

        Examples
        --------
        >>> Framework().tensors(squish.open("model.gguf"))
        Traceback (most recent call last):
            ...
        NotImplementedError
        """
        raise NotImplementedError
