"""Integer noise from a cryptographic stream.

Only integers leave a mechanism: noise is drawn on the same fixed-point grid as the value it hides,
so no float's low bits can betray the input. Every sampler returns *exactly* the rounded continuous
variable (to a total variation distance of 2^-140): a fast float64 evaluation decides nearly every
draw, and a draw that lies closer to a rounding boundary than the proved float64 error is settled
with 128 further random bits and 80 decimal digits. The proofs are in ``proofs/noise.md``.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from decimal import ROUND_FLOOR, Decimal, localcontext
from hashlib import sha512
from math import pi, prod
from typing import NoReturn

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes
from numpy.typing import NDArray

from tacit.errors import NoiseError

Words = NDArray[np.uint64]
Integers = NDArray[np.int64]
Floats = NDArray[np.float64]
Shape = int | Sequence[int]

MAX_BLOCKS = 2**44
"""AES blocks after which a source refuses: distinguishing advantage 2^-41 (proofs/noise.md)."""

MAX_SCALE = 2.0**40
"""Largest scale in grid steps; keeps every draw below 2^48, far from int64's end."""

_CHUNK = 16384  # words per block: all scratch of one block stays inside a core's L2 cache
_ZEROS = bytes(8 * _CHUNK)
_EASY = (2.0**-12, 8.3)  # -ln U for which one constant bounds the float64 error
_KNOWN = (2.0**-39, 40.8)  # -ln U for which any float64 error bound is claimed
_ABSOLUTE = 2.0**-50
_DIGITS = 80
_PI = Decimal(
    "3.14159265358979323846264338327950288419716939937510582097494459230781640628620899862803482534211706798"
)


def key_stream(key: bytes, counter: bytes, size: int) -> bytes:
    """The first ``size`` bytes of the AES-CTR key stream (NIST SP 800-38A, section 6.5)."""
    encryptor = Cipher(algorithms.AES(key), modes.CTR(counter)).encryptor()
    return encryptor.update(bytes(size))


class NoiseSource:
    """One cryptographic stream of integer noise. Make one with :meth:`fresh` or :meth:`seeded`.

    A source is used by one process only and cannot be copied: two equal streams would let whoever
    sees both outputs subtract the noise. Threads may share it; draws are serialised.

    Formal guarantees:
        For an integer-valued query ``q`` the release ``q + source.gaussian(s, q.shape)`` has every
        guarantee of the continuous Gaussian mechanism with standard deviation ``s``, because
        ``round(q + N) = q + round(N)`` is post-processing (proofs/noise.md). Likewise for
        :meth:`laplace` and :meth:`geometric`. Holds only if :attr:`private` is true.
    """

    def __init__(self, seed: int | None = None) -> None:
        self._private = seed is None
        if seed is None:
            keys = os.urandom(64)
            self._implementation = (
                "integers by exact rounding of continuous noise, AES-256-CTR keyed by os.urandom"
            )
        else:
            keys = sha512(f"tacit seeded noise {int(seed)}".encode()).digest()
            self._implementation = "integers from a seeded stream: research only, not private"
        self._stream: CipherContext = Cipher(
            algorithms.AES(keys[:32]), modes.CTR(bytes(16))
        ).encryptor()
        # Used as a permutation of word numbers, one block per word, never as a mode on data.
        self._extension: CipherContext = Cipher(
            algorithms.AES(keys[32:]),
            modes.ECB(),
        ).encryptor()
        self._drawn = 0
        self._process = os.getpid()
        self._lock = threading.Lock()

    @classmethod
    def fresh(cls) -> NoiseSource:
        """A new private source keyed by the operating system's generator."""
        return cls()

    @classmethod
    def seeded(cls, seed: int) -> NoiseSource:
        """A reproducible source for research; what it noises is stamped ``not private``."""
        return cls(seed)

    @property
    def private(self) -> bool:
        """Whether the key came from the operating system and is known to nobody."""
        return self._private

    @property
    def implementation(self) -> str:
        """What draws the noise, in words for the statement."""
        return self._implementation

    def gaussian(self, scale: float, shape: Shape) -> Integers:
        """Independent ``round(N(0, scale²))``, with ``scale`` in grid steps.

        Box and Muller (1958): ``scale sqrt(-2 ln U) cos(2πV)`` and the same with the sine.
        Calls of even sizes join up: drawing in two parts gives the same integers as drawing once.

        Raises:
            NoiseError: The scale is not in (0, 2^40], the shape is negative, the stream is spent
                or the source was carried into another process.
        """

        def block(words: Words, first: int, out: Integers) -> None:
            for j in _gaussian_block(words, scale, out):
                out[j] = self._exact_gaussian(words, first, int(j), scale)

        return self._fill(scale, shape, words_per_value=1, block=block)

    def laplace(self, scale: float, shape: Shape) -> Integers:
        """Independent rounded Laplace variables with density ``exp(-|x|/scale) / (2 scale)``.

        Inverse distribution function: a random sign times ``floor(-scale ln U + 1/2)``.

        Raises:
            NoiseError: As for :meth:`gaussian`.
        """

        def block(words: Words, first: int, out: Integers) -> None:
            undecided = _exponential_block(words | np.uint64(1), scale, 0.5, out)
            for j in undecided:
                # Without its sign bit the word has 63 bits, and the extension 128 more.
                uniform = self._uniform(int(words[j]) >> 1, 63, first + int(j))
                out[j] = _exact_exponential(uniform, scale, Decimal("0.5"))
            np.negative(out, out=out, where=(words & np.uint64(1)).astype(bool))

        return self._fill(scale, shape, words_per_value=1, block=block)

    def geometric(self, scale: float, shape: Shape) -> Integers:
        """Independent two-sided geometric variables: ``P(k)`` proportional to ``exp(-|k|/scale)``.

        The difference of two geometric variables, each the floor of an exponential one.

        Raises:
            NoiseError: As for :meth:`gaussian`.
        """

        def block(words: Words, first: int, out: Integers) -> None:
            sides = np.empty(len(words), np.int64)
            for j in _exponential_block(words, scale, 0.0, sides):
                uniform = self._uniform(int(words[j]), 64, first + int(j))
                sides[j] = _exact_exponential(uniform, scale, Decimal(0))
            np.subtract(sides[0::2], sides[1::2], out=out)

        return self._fill(scale, shape, words_per_value=2, block=block)

    def exponential(self, scale: float, shape: Shape) -> Integers:
        """Independent ``floor(scale E)``, E exponential with mean 1: ``P(K >= k) = exp(-k/scale)``.

        The number of failures before a success of probability ``1 - exp(-1/scale)``.

        Raises:
            NoiseError: As for :meth:`gaussian`.
        """

        def block(words: Words, first: int, out: Integers) -> None:
            for j in _exponential_block(words, scale, 0.0, out):
                uniform = self._uniform(int(words[j]), 64, first + int(j))
                out[j] = _exact_exponential(uniform, scale, Decimal(0))

        return self._fill(scale, shape, words_per_value=1, block=block)

    def bernoulli(self, rate: float, size: int) -> NDArray[np.bool_]:
        """Independent coins that show True with probability ``rate``: a Poisson-sampled batch.

        Exact for rates of at least 2^-11, rounded down by less than 2^-64 below.

        Raises:
            NoiseError: The rate is not in [0, 1], or as for :meth:`gaussian`.
        """
        if not 0.0 <= rate <= 1.0:
            raise NoiseError(f"a sampling rate of {rate} is not a probability")
        count, _ = _shape(size)
        threshold = int(rate * 2.0**64)
        with self._lock:
            drawn = np.empty(count, bool)
            for start in range(0, count, _CHUNK):
                part = drawn[start : start + _CHUNK]
                words, _ = self._words(len(part))
                part[:] = True if threshold >= 2**64 else words < np.uint64(threshold)
        return drawn

    def _fill(
        self,
        scale: float,
        shape: Shape,
        *,
        words_per_value: int,
        block: Callable[[Words, int, Integers], None],
    ) -> Integers:
        if not 0.0 < scale <= MAX_SCALE:  # also refuses NaN
            raise NoiseError(
                f"noise of scale {scale} cannot be drawn",
                why="the scale must be a number above 0 and at most 2^40 grid steps",
                remedy="for no noise draw none; for more noise use fewer fraction bits",
            )
        count, dims = _shape(shape)
        out = np.empty(count + count % 2, np.int64)
        step = _CHUNK // words_per_value
        with self._lock:
            for start in range(0, len(out), step):
                part = out[start : start + step]
                words, first = self._words(len(part) * words_per_value)
                block(words, first, part)
        return out[:count].reshape(dims)

    def _words(self, count: int) -> tuple[Words, int]:
        """The next words of the stream and the number of the first of them."""
        if os.getpid() != self._process:
            raise NoiseError(
                "this noise source belongs to another process",
                why="a forked copy repeats the noise of its parent, and the two can be subtracted",
                remedy="make a fresh source in each process",
            )
        first = self._drawn
        if first + count > 2 * MAX_BLOCKS:
            raise NoiseError(
                "this noise source is spent",
                why="past 2^44 blocks a counter-mode stream starts to differ from random bits",
                remedy="make a fresh source",
            )
        self._drawn = first + count
        words = np.empty(count, "<u8")
        self._stream.update_into(_ZEROS[: 8 * count], words.view(np.uint8).data)
        return words.astype(np.uint64, copy=False), first

    def _uniform(self, word: int, bits: int, number: int) -> Decimal:
        """The word as a number in (0, 1), continued by the 128 bits of its extension."""
        extension = int.from_bytes(self._extension.update(number.to_bytes(16, "big")), "big")
        numerator = 2 * ((word << 128) | extension) + 1
        with localcontext(prec=_DIGITS):
            return Decimal(numerator) / Decimal(2 ** (bits + 129))

    def _exact_gaussian(self, words: Words, first: int, j: int, scale: float) -> int:
        even = j - j % 2
        radial = self._uniform(int(words[even]), 64, first + even)
        turn = self._uniform(int(words[even + 1]), 64, first + even + 1)
        return exact_gaussian(radial, turn, scale, sine=bool(j % 2))

    def __reduce__(self) -> NoReturn:
        raise NoiseError(
            "a noise source cannot be copied, pickled or sent to another process",
            why="two equal streams give equal noise, and the two outputs can be subtracted",
            remedy="make a fresh source where the noise is drawn",
        )

    def __repr__(self) -> str:
        return f"NoiseSource({self.implementation})"


def exact_gaussian(radial: Decimal, turn: Decimal, scale: float, *, sine: bool) -> int:
    """``floor(scale sqrt(-2 ln radial) cos(2π turn) + 1/2)``, or with the sine, to 80 digits."""
    with localcontext(prec=_DIGITS):
        radius = (-2 * radial.ln()).sqrt()
        # A turn of 3/4 or more is the negative angle, so that the series below converges fast.
        angle = 2 * _PI * (turn if turn < Decimal("0.5") else turn - 1)
        value = Decimal(scale) * radius * _cosine(angle - _PI / 2 if sine else angle)
        return int((value + Decimal("0.5")).to_integral_value(rounding=ROUND_FLOOR))


def _exact_exponential(uniform: Decimal, scale: float, shift: Decimal) -> int:
    with localcontext(prec=_DIGITS):
        value = -Decimal(scale) * uniform.ln() + shift
        return int(value.to_integral_value(rounding=ROUND_FLOOR))


def _cosine(angle: Decimal) -> Decimal:
    """Taylor's series in the context's precision; good for angles within two turns."""
    term, total, k = Decimal(1), Decimal(1), 0
    square = angle * angle
    while abs(term) > Decimal(10) ** -(_DIGITS + 5):
        k += 2
        term *= -square / (k * (k - 1))
        total += term
    return total


def _gaussian_block(words: Words, scale: float, out: Integers) -> NDArray[np.intp]:
    """Fill ``out`` by float64 Box-Muller; return the positions that float64 cannot decide."""
    uniform = words[0::2] * 2.0**-64
    uniform += 2.0**-65
    log = np.log(uniform)
    np.negative(log, out=log)
    radius = np.sqrt(2.0 * log)
    # Two's complement: half angles in [-π/2, π/2), whose tangent numpy evaluates several times as
    # fast as cosine and sine.
    tangent = words[1::2].view(np.int64) * (pi * 2.0**-64)
    np.tan(tangent, out=tangent)
    double = tangent * tangent
    double += 1.0
    np.divide(2.0, double, out=double)
    tangent *= double
    double -= 1.0
    scaled = radius * scale
    hard = (log < _EASY[0]) | (log > _EASY[1])
    tolerance = scale * 2.0**-42 + _ABSOLUTE
    undecided = []
    near = np.empty_like(log)
    for half, value in enumerate((double, tangent)):  # cosine and sine of the whole angle
        value *= scaled
        value += 0.5
        np.floor(value, out=near)
        out[half::2] = near
        np.rint(value, out=near)
        near -= value
        np.abs(near, out=near)
        doubtful = np.flatnonzero((near < tolerance) | hard)
        if len(doubtful):
            u, x, r = uniform[doubtful], log[doubtful], radius[doubtful]
            known = (x > _KNOWN[0]) & (x < _KNOWN[1])
            r = np.where(known, r, 1.0)
            bound = scale * (2.0**-46 * r + (2.0**-50 + 2.0**-63 / u) / r) + _ABSOLUTE
            undecided.append(2 * doubtful[~known | (near[doubtful] < bound)] + half)
    return np.concatenate(undecided) if undecided else np.empty(0, np.intp)


def _exponential_block(words: Words, scale: float, shift: float, out: Integers) -> NDArray[np.intp]:
    """Fill ``out`` with ``floor(-scale ln U + shift)``; return the undecided positions."""
    uniform = words * 2.0**-64
    uniform += 2.0**-65
    log = np.log(uniform)
    np.negative(log, out=log)
    value = log * scale
    value += shift
    out[:] = np.floor(value)
    near = np.abs(np.rint(value) - value)
    tolerance = scale * 2.0**-42 + _ABSOLUTE
    doubtful = np.flatnonzero((near < tolerance) | (log > _EASY[1]))
    u, x = uniform[doubtful], log[doubtful]
    bound = scale * (2.0**-49 + 2.0**-47 * x + 2.0**-62 / u) + _ABSOLUTE
    return doubtful[(x > _KNOWN[1]) | (near[doubtful] < bound)]


def _shape(shape: Shape) -> tuple[int, tuple[int, ...]]:
    dims = (shape,) if isinstance(shape, int | np.integer) else tuple(shape)
    if any(length < 0 for length in dims):
        raise NoiseError(f"noise cannot have the shape {dims}", why="a length is negative")
    return prod(int(length) for length in dims), dims
