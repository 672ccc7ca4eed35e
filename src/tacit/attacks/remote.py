"""A black box behind HTTP: one JSON object per question, one per answer.

The question is a POST with ``{"nodes": [3, 7], "features": {"7": [0.5, 0, ...]}}``: whose
posteriors are wanted, and the feature rows that are to be used instead of those the service holds.
The answer is ``{"posteriors": [[...], [...]]}`` with one row per node asked for, in that order
(docs/attacks.md).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import numpy as np
from numpy.typing import NDArray

from tacit.errors import AttackError

_MOST = 1 << 30  # bytes of an answer: a service that never stops must not fill the memory


@dataclass(frozen=True)
class RemoteBox:
    """A service that answers over HTTP.

    Attributes:
        url: Where to ask; ``http`` or ``https``.
        features: The rows that the service holds; rows that differ from them are sent along.
        headers: Such as an authorisation.
        timeout: Seconds until a question is given up.
    """

    url: str
    features: np.ndarray
    headers: Mapping[str, str] = field(default_factory=dict)
    timeout: float = 60.0

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise AttackError(
                f"{self.url!r} is not the address of a service", remedy="give http://HOST/PATH"
            )

    def __call__(self, nodes: NDArray[np.int64], features: np.ndarray) -> np.ndarray:
        """Posteriors of the nodes under these features."""
        if features.shape != self.features.shape:
            raise AttackError(
                f"{features.shape} features for a service that holds {self.features.shape}"
            )
        changed = np.flatnonzero((features != self.features).any(axis=1))
        question = {
            "nodes": [int(node) for node in nodes],
            "features": {str(node): features[node].tolist() for node in changed},
        }
        answer = self._post(question)
        try:
            found = np.asarray(answer["posteriors"], float)
        except (KeyError, TypeError, ValueError) as error:
            raise AttackError(
                f"{self.url} does not answer as this protocol says",
                why="its answer holds no array of numbers called posteriors",
                remedy="see docs/attacks.md",
            ) from error
        return found

    def _post(self, question: Mapping[str, Any]) -> Any:
        body = json.dumps(question, allow_nan=False).encode()
        headers = {"Content-Type": "application/json", **self.headers}
        try:
            with urlopen(Request(self.url, body, headers), timeout=self.timeout) as reply:
                text = reply.read(_MOST)
        except HTTPError as error:
            detail = error.read(500).decode(errors="replace").strip()
            raise AttackError(
                f"{self.url} refused the question with status {error.code}", why=detail
            ) from error
        except (URLError, OSError) as error:
            raise AttackError(
                f"{self.url} does not answer",
                why=str(getattr(error, "reason", error)),
                remedy="check that the service runs",
            ) from error
        try:
            return json.loads(text)
        except ValueError as error:
            raise AttackError(f"{self.url} does not answer with JSON") from error
