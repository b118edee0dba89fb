"""Text as bytes: real language with a vocabulary of 256 and no tokenizer."""

from typing import Unpack

import numpy as np

from ampsweep.argument_checks import require_fraction
from ampsweep.data.fingerprint import digest
from ampsweep.data.tokens import Crops, TokenCrops, readable_file


class Text(TokenCrops):
    """The bytes of a text file, or of English text that ships with Python.

    Without a path the text is the module ``pydoc_data.topics``: the chapters of the Python language reference that
    ``help()`` prints, about 460,000 bytes. They, and the fingerprint, differ between Python versions. The text stays in
    the host's memory, one byte per token, and each batch is copied to the device.
    """

    vocab_size = 256

    def __init__(self, *, path: str | None = None, val_fraction: float, **crops: Unpack[Crops]) -> None:
        """Hold out the last ``val_fraction`` of the bytes; a ``ValueError`` names an unreadable or too short file."""
        require_fraction(val_fraction=val_fraction)
        content = _python_topics() if path is None else readable_file(path).read_bytes()
        tokens = np.frombuffer(content, dtype=np.uint8)
        num_train = round(len(tokens) * (1 - val_fraction))
        self.fingerprint = digest(content)
        source = "the text of pydoc_data.topics" if path is None else f"data file {path}"
        super().__init__(tokens[:num_train], tokens[num_train:], source=source, **crops)


def _python_topics() -> bytes:
    try:
        from pydoc_data.topics import topics
    except ModuleNotFoundError as error:
        raise ValueError("this Python comes without pydoc_data.topics, the default text: give a path") from error
    return "\n".join(topics.values()).encode()
