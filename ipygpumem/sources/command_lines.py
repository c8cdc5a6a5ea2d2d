"""A process's command line as it may be shown: what may be a secret is blotted out, rather too much than too little.

What a word means depends on the program, which nobody here knows. So words are shown where they look like plain names,
numbers and paths, values of options by the option's name, and never code, structured text or what looks random.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import TYPE_CHECKING

from ipygpumem.core.from_dict import printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["command", "short_name"]

_NAME = 60
_LONGEST = 200
_BLOT = "***"
_CODE = {"-c", "-e", "--eval", "--command", "--exec"}
"""Options whose value is a program."""
_PARTS = re.compile(r"[A-Z]?[a-z0-9]+|[A-Z0-9]+")
_SECRETS = re.compile(
    r"auth|authentication|authorization|bearer|cookies?|creds?|credentials?|headers?|jwt|keys?|login|pass|passcode"
    r"|passphrase|passwd|password|private|pw|pwd|sas|secrets?|signature|token"
)
_WITHIN = re.compile(
    r"(api|access|account|encryption|hf|license|master|openai|rsa|service|ssh|wandb)_?key|passw|passphrase|secret"
    r"|credential|(token|pwd)$"
)
_COUNTS = frozenset({"count", "dim", "heads", "layers", "len", "length", "max", "min", "n", "num", "size"})
"""Parts of names whose value is a number: --num_key_value_heads 8."""
_NUMBER = re.compile(r"[-+]?\d{0,9}(\.\d{0,9})?([eE][-+]?\d{1,3})?%?")
_PLAIN = re.compile(r"[\w./\\:@,+~%*\[\]-]*")
_PATH = re.compile(r"[\w./\\~:+-]*([/\\]|\.\w{1,8}$)[\w./\\~:+-]*")
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_LOGIN = re.compile(r"(://)\S*@")
_PREFIXES = re.compile(
    r"(?<![A-Za-z0-9])(hf_|sk-|sk_|pk_|rk_|gh[a-z]_|github_pat_|glpat-|xox[a-z]-|AKIA|ASIA|AIza|ya29\.|eyJ|npm_|pypi-"
    r"|dop_v1_|wandb_v1_|nvapi-|r8_)[\w.=+/-]{6,}"
)
_UUID = re.compile(r"(?<![0-9A-Za-z])[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}(?![0-9A-Za-z])")
_LONG = re.compile(r"[A-Za-z0-9]{20,}")
_FLIPS = 4


def command(words: Sequence[str]) -> str:
    """One line; code is ``...``, what may be a secret ``***``."""
    title = len(words) == 1  # a program that writes its own title has it all in one word
    shown = list(_shown(" ".join(words).split() if title else words, title=title))
    text = printable(" ".join(" ".join(one.split()) for one in shown))
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def short_name(words: Sequence[str]) -> str:
    """Program and script: ``python train.py``, ``python -m ipykernel_launcher``."""
    if not words or not words[0]:
        return ""
    words = words if len(words) > 1 else words[0].split()
    program = _file(_word(words[0])) if words else ""
    if "python" not in program:
        return printable(program)[:_NAME]
    rest = iter(words[1:])
    for word in rest:
        if word in {"-m", "-c"}:
            return printable(f"{program} -m {_word(next(rest, ''))}" if word == "-m" else f"{program} -c")[:_NAME]
        if word in {"-X", "-W"}:
            next(rest, "")
        elif not word.startswith("-"):
            return printable(f"{program} {_file(_word(word))}")[:_NAME]
    return printable(program)[:_NAME]


def _shown(words: Sequence[str], *, title: bool) -> Iterator[str]:
    option, secret = "", False
    for at, word in enumerate(words):
        if at and option in _CODE:
            yield "..."
            if title:  # where the code ends nobody can tell
                return
            option, secret = "", False
        elif word.startswith("-") and len(word) > 1 and not _NUMBER.fullmatch(word):
            text, option = _option(word)
            # a title has lost its quotes: what follows may belong to the same value
            secret = _names_secret(option) if option else title and text.endswith(_BLOT)
            yield text
        elif at == 0:  # the program: a folder's name may have anything in it
            yield _word(word) if "=" in word or "://" in word else _random(word)
        elif secret:
            yield _assignment(word) if "=" in word and _names_secret(word.partition("=")[0]) else _hidden(option, word)
        elif option:
            yield _value(option, word)
            option = ""
        else:
            yield _word(word)
            secret = _names_secret(word) and word.isidentifier() and "." not in word


def _option(word: str) -> tuple[str, str]:
    """An option as it is shown, and its name where its value is still to come."""
    found = re.match(r"(--?[\w.-]+?)([=:])(.*)", word, re.DOTALL)
    if found is not None:
        name, sign, value = found.groups()
        return f"{name}{sign}{_hidden(name, value) if _names_secret(name) else _value(name, value)}", ""
    if word.startswith("--") or len(word) == 2:  # noqa: PLR2004 (a dash and a letter)
        plain = re.fullmatch(r"--?[\w.-]+", word) is not None
        return (_random(word), word) if plain else (_BLOT, word)
    rest = word[2:]  # one letter with its value, or a name after one dash
    if _NUMBER.fullmatch(rest) or (word[1] not in "pP" and re.fullmatch(r"[a-z_-]{1,8}", rest)):
        return word, word
    return f"{word[:2]}{_BLOT}", ""


def _value(option: str, value: str) -> str:
    if len(option) == 2 and option != "-m" and not _NUMBER.fullmatch(value) and not _PATH.fullmatch(value):  # noqa: PLR2004 (as above)
        return _BLOT if not _URL.match(value) else _word(value)
    return _word(value)


def _word(word: str) -> str:
    """A plain name, number or path as it is; what is inside another word, by its name."""
    if _URL.match(word) or "://" in word:
        word = _LOGIN.sub(rf"\1{_BLOT}@", word)
        place, mark, _ = word.partition("?")
        place, hashed, _ = place.partition("#")
        return _random(place) + (f"?{_BLOT}" if mark else f"#{_BLOT}" if hashed else "")
    if "=" in word:
        pieces = re.split(r"([,;&?])", word)
        return "".join(one if one in {",", ";", "&", "?"} else _assignment(one) for one in pieces)
    return _random(word) if _PLAIN.fullmatch(word) else _BLOT


def _assignment(piece: str) -> str:
    name, equals, value = piece.partition("=")
    if not equals:
        return _random(piece) if _PLAIN.fullmatch(piece) else _BLOT
    if not _PLAIN.fullmatch(name):
        return _BLOT
    if not value:
        return piece
    return f"{name}={_hidden(name, value) if _names_secret(name) else _word(value)}"


def _names_secret(name: str) -> bool:
    """Whether a name says that a secret stands behind it: ``--hf_token``, but not ``--max_tokens``."""
    parts = [one.lower() for one in _PARTS.findall(name)]
    return any(_SECRETS.fullmatch(one) for one in parts) or _WITHIN.search("_".join(parts)) is not None or name == "-H"


def _hidden(name: str, value: str) -> str:
    """The value of a name that speaks of secrets: a number where the name speaks of a count, too."""
    counts = _COUNTS.intersection(one.lower() for one in _PARTS.findall(name))
    return value if counts and _NUMBER.fullmatch(value) else _BLOT


def _random(text: str) -> str:
    """A text without what looks like a key: its beginning is known, or it is long and no word."""
    text = _UUID.sub(_BLOT, _PREFIXES.sub(_BLOT, text))
    return _LONG.sub(lambda found: _BLOT if _no_word(found.group()) else found.group(), text)


def _no_word(text: str) -> bool:
    digits = sum(one.isdigit() for one in text)
    flips = sum(one.islower() and other.isupper() for one, other in pairwise(text))
    return 0 < digits < len(text) or flips >= _FLIPS


def _file(path: str) -> str:
    return path.replace("\\", "/").rpartition("/")[2]
